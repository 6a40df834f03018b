r"""Any checkpoint, fine-tuned on any dataset by LoRA (arXiv:2106.09685).

  vit-jax train --config=lora:MODEL,DATASET

MODEL and DATASET are those of configs/finetune.py. Only low-rank factors and
the head train. The factors are of queries and values; more layers have some by

  --config.model.block="lora(rank=8, alpha=16, layers=('query', 'key', 'value',
      'out', 'up', 'down'))"

The run's factors and head go to a file of their own, and merged into a plain
model, by

  vit-jax convert runs/mine mine.safetensors --to=adapters
  vit-jax convert runs/mine mine --to=timm

docs/fine_tuning.md has results.
"""

import ml_collections

from vit_jax import data
from vit_jax.config import recipes


def get_config(arg: str = 'ViT-B/16,cifar10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Checkpoint and dataset, with a comma between.
  """
  model, dataset = recipes.model_and_dataset(arg, 'configs/lora.py')
  config = recipes.low_rank(model, dataset)
  if dataset.startswith('folder:'):
    data.hold_out(config)
  return config
