"""What `config.augment` asks for, and what its keys name."""

from collections.abc import Mapping
from typing import Any

import ml_collections

from vit_jax import config as config_lib

_POLICIES = 'vit_jax.data.device.policies'
CHOICES: Mapping[str, Mapping[str, str]] = {
  'augment.policy': {
    'randaugment': f'{_POLICIES}:randaugment',
    'rand': f'{_POLICIES}:rand',
    'trivialaugment': f'{_POLICIES}:trivialaugment',
    'autoaugment': f'{_POLICIES}:autoaugment',
    '3augment': f'{_POLICIES}:three_augment',
  },
  'augment.jitter': {'jitter': 'vit_jax.data.device.recolor:Jitter'},
  'augment.erase': {'erase': 'vit_jax.data.device.erasing:Erase'},
}
# Keys that change grey levels.
RECOLORING = ('policy', 'jitter', 'gray', 'blur', 'solarize')


def make(text: str, key: str) -> Any:
  """Returns a change of a batch, (images, keys [B]) -> images, or None for ''.

  `text` is the value of a key of `CHOICES`, as 'erase(0.25)'.
  """
  if not text:
    return None
  return config_lib.build(text, key, CHOICES[key])


def recolors(augment: ml_collections.ConfigDict) -> bool:
  """Whether `config.augment` says to change grey levels."""
  return any(augment[key] for key in RECOLORING)


def mixes(augment: ml_collections.ConfigDict) -> bool:
  """Whether `config.augment` says to mix images."""
  return bool(augment.mixup or augment.cutmix) and augment.mix_probability > 0
