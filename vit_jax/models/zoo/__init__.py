"""Models by their published names: one family a file, imported on use.

A family's module has

  NAMES     names here, as `list_models` lists them, if it has any
  PATTERNS  regular expressions of names here, of timm or of Hugging Face, and
            functions from a match to the keys of `config.model` that differ
            from `registry.DEFAULTS`; None: the match is no model
  MODULE    its class, if it is no ViT; its keys are that class's fields

A name of another library gives a model with the same function as there. The
image size at its end is ignored. As of timm 1.0.31 and transformers 5.24.
"""

import re
from typing import Any

import ml_collections

from vit_jax.config import registry
from vit_jax.models.vit import ViT

Keys = dict[str, Any]

# In the order in which they are asked.
FAMILIES = (
  *('vit', 'hybrid', 'mixer', 'bit', 'igpt'),
  *('deit', 'siglip', 'dinov2', 'dinov3', 'eva', 'rope_vit'),
  *('clip', 'beit', 'aimv2', 'naflex'),
)


def family(name: str) -> Any:
  """Returns the module of a family."""
  return registry.wing(f'{__name__}.{name}')


def names(module: type[Any] | None = None) -> list[str]:
  """Returns the published names here, or the names of one class."""
  return [
    name
    for home in map(family, FAMILIES)
    if module in (None, getattr(home, 'MODULE', ViT))
    for name in getattr(home, 'NAMES', ())
  ]


def find(name: str) -> tuple[type[Any], Keys] | None:
  """Returns the class and the keys of a name without options; None: it is none.

  It is as `ViT-B/16`; as `vit_base_patch16_224`, with or without timm's tag
  after a dot; or as `google/vit-base-patch16-224`. The last two may start with
  `hf:`.
  """
  name = name.removeprefix('hf:').removeprefix('timm/')
  if '/' not in name and name.islower():
    name = name.partition('.')[0]
  for home in map(family, FAMILIES):
    for pattern, read in home.PATTERNS.items():
      match = re.fullmatch(pattern, name, re.ASCII)
      keys = match and read(match)
      if keys is not None:
        return getattr(home, 'MODULE', ViT), keys
  return None


def sized_name(config: ml_collections.ConfigDict) -> str:
  """Returns the name of a model, with the sizes that are not the name's."""
  named = find(config.name)
  keys = named[1] if named else {}
  changed = [
    f'{key}={config[key]}'
    for key in ('patch_size', 'hidden_size', 'depth')
    if key in keys and config[key] not in (None, keys[key], (keys[key],) * 2)
  ]
  return f'{config.name} with {", ".join(changed)}' if changed else config.name
