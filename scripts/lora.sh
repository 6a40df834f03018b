#!/usr/bin/env bash
# Compares LoRA with full fine-tuning: pre-trains a small ViT on five classes of
# CIFAR-10 (8 x 8 patches, 5 epochs), then trains on the other five for as many
# steps each way. At the end it prints the accuracies on 5,000 held-out images.
#
#   bash scripts/lora.sh /path/to/cifar10 runs/lora
#
# The folder has train/<class>/ and test/<class>/. Finished runs are not
# repeated.
set -euo pipefail
cifar=$(realpath "$1")
runs=$2

# Links to the classes of two tasks.
for split in train test; do
  mkdir -p "$runs/first/$split" "$runs/second/$split"
  for name in airplane bird cat horse ship; do
    ln -sfn "$cifar/$split/$name" "$runs/first/$split/$name"
  done
  for name in automobile deer dog frog truck; do
    ln -sfn "$cifar/$split/$name" "$runs/second/$split/$name"
  done
done

python -m vit_jax.main --config=configs/cifar10.py:5 \
  --workdir="$runs/pretrained" --config.data.name="folder:$runs/first" \
  --config.data.split=train --config.evals.val.split=test \
  --config.evals.test.split='' --config.evals.val.every='5 epochs' \
  --config.checkpoint.every='1 epochs' --config.model.patch_size=8 \
  --config.model.hidden_size=192 --config.model.mlp_dim=384 \
  --config.model.num_heads=6 --config.model.depth=4

# Trains for 240 steps by the config $1 at the learning rate $2, in the directory
# $3; the rest are flags of main.
tune() {
  local config=$1 rate=$2 workdir=$3
  shift 3
  python -m vit_jax.main --workdir="$runs/$workdir-$rate" \
    --config="configs/$config.py:$runs/pretrained,folder:$runs/second" \
    --config.data.image_size=32 --config.data.crop='pad(2)' \
    --config.data.resize=1.0 --config.train.batch_size=128 \
    --config.train.duration='240 steps' --config.optim.warmup='40 steps' \
    --config.optim.name=adamw --config.optim.learning_rate="$rate" \
    --config.checkpoint.every='240 steps' "$@"
}

layers="layers=('query', 'key', 'value', 'out', 'up', 'down')"
for rate in 3e-4 1e-3 2e-3; do
  tune finetune $rate full
done
for rate in 3e-3 1e-2; do
  tune lora $rate queries_and_values
done
for rate in 2e-3 3e-3 1e-2; do
  tune lora $rate all_layers --config.model.block="lora(rank=4, $layers)"
done
tune lora 3e-3 more_rank --config.model.block="lora(rank=5, $layers)"
tune lora 3e-3 adaptformer --config.model.block='adaptformer(width=24)' \
  --config.optim.trainable='/adapter/|^head/'
tune finetune 3e-3 head --config.optim.trainable='^head/'
grep -H accuracy "$runs"/*-*/DONE
