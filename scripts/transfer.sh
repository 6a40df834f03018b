#!/usr/bin/env bash
# Demonstrates transfer: pre-trains a small ViT on CIFAR-10 (32 px, 8 x 8
# patches, RGB, 10 classes), then trains on 359 digits (24 px, 6 x 6 patches,
# grey, 10 other classes), from that checkpoint and from scratch, for the same
# number of steps. At the end it prints the accuracies on 359 held-out digits.
#
#   bash scripts/transfer.sh /path/to/cifar10 runs/transfer
#
# The folder has train/<class>/ and test/<class>/. Finished runs are not
# repeated.
set -euo pipefail
cifar=$1
runs=$2

model=(
  --config.model.hidden_size=96 --config.model.mlp_dim=192
  --config.model.num_heads=3 --config.model.depth=4
  --config.model.dropout_rate=0.0 --config.model.scan
)
python -m vit_jax.main --config=configs/cifar10_tutorial.py \
  --workdir="$runs/pretrained" --config.data.name="folder:$cifar" \
  "${model[@]}" --config.train.duration='4 epochs' \
  --config.optim.learning_rate=1e-3 --config.optim.schedule=cosine \
  --config.optim.warmup='200 steps' --config.evals.val.every='1 epochs' \
  --config.checkpoint.every='1 epochs'

# Trains on a fifth of the digits for $1 steps at the learning rate $2, in the
# directory $3; the rest are flags of main.
tune() {
  local steps=$1 rate=$2 workdir=$3
  shift 3
  python -m vit_jax.main --workdir="$runs/$workdir-$steps-$rate" \
    --config="configs/finetune.py:$runs/pretrained,digits" \
    --config.data.split='train[:20%]' \
    --config.data.image_size=24 --config.data.channels=1 \
    --config.train.duration="$steps steps" --config.train.batch_size=64 \
    --config.optim.name=adamw --config.optim.learning_rate="$rate" \
    --config.optim.warmup='10 steps' --config.evals.test.every='' \
    --config.model.scan "$@"
}

for steps in 50 150; do
  for rate in 1e-3 3e-3; do
    # The new head gets a higher learning rate than the pre-trained layers.
    tune $steps $rate tuned --config.optim.rules="(('^head/', 10.0, None),)"
    tune $steps $rate scratch --config.init_from.path='' \
      --config.model.name=ViT-Ti/4 "${model[@]}" \
      --config.model.initializers=lecun
  done
done
grep -H accuracy "$runs"/*-*/DONE
