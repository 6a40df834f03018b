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

from collections.abc import Iterator
import difflib
import importlib
import re
from typing import Any

from vit_jax.models.vit import ViT

Keys = dict[str, Any]

# In the order in which they are asked.
FAMILIES = (
  *('vit', 'hybrid', 'mixer', 'bit', 'igpt'),
  *('deit', 'siglip', 'dinov2', 'dinov3', 'eva', 'rope_vit'),
  *('clip', 'beit', 'aimv2', 'naflex'),
)
# timm's architectures of such families, whether they are known here or not.
_TIMM = r'[a-z]+\w*_(patch\d+_\w+|\w+_\d{3}|dinov\d)(\.\w+)?'


def families() -> Iterator[Any]:
  """Yields the modules of the families."""
  yield from map(_family, FAMILIES)


def _family(name: str) -> Any:
  return importlib.import_module(f'{__name__}.{name}')


def names(module: type[Any] | None = None) -> list[str]:
  """Returns the published names here, or those of one class."""
  return [
    name
    for family in families()
    if module in (None, getattr(family, 'MODULE', ViT))
    for name in getattr(family, 'NAMES', ())
  ]


def find(name: str) -> tuple[type[Any], Keys] | None:
  """Returns the class and the keys of a name without options.

  Args:
    name: As `ViT-B/16`; as `vit_base_patch16_224`, with or without timm's tag
      after a dot; or as `google/vit-base-patch16-224`. The last two may start
      with `hf:`.

  Returns:
    Class and keys; None if no family has the name.
  """
  name = name.removeprefix('hf:').removeprefix('timm/')
  if '/' not in name and name.islower():
    name = name.partition('.')[0]
  for family in families():
    for pattern, read in family.PATTERNS.items():
      match = re.fullmatch(pattern, name, re.ASCII)
      keys = match and read(match)
      if keys is not None:
        return getattr(family, 'MODULE', ViT), keys
  return None


def is_timms(name: str) -> bool:
  """Whether a name has the form of timm's names of vision transformers."""
  return bool(re.fullmatch(_TIMM, name, re.ASCII)) or find(name) is not None


def unknown(name: str) -> ValueError:
  """Returns the error about a name that no family has."""
  if is_timms(name) or re.fullmatch(r'[a-z][\w.-]+/[\w.-]+', name):
    stem = name if '/' in name else f'timm/{name.split(".")[0]}.TAG'
    return ValueError(
      f'{name!r} is no model that is known here by that name: where its'
      f" layers can be computed, vit_jax.load('hf:{stem}') reads its"
      ' architecture off its checkpoint; or give the fields of one of ours, as'
      " create_model('ViT-B/16', pool='mean', registers=4)"
    )
  if re.fullmatch(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*', name):
    return ValueError(
      f'{name!r} is a class of your own: name a model of ours, as'
      " 'ViT-Ti/4', and a part of your own by config.model.block, attention,"
      ' mlp, positions, pool or head (docs/own_parts.md)'
    )
  near = difflib.get_close_matches(name, names(), n=1, cutoff=0.7)
  hint = f'did you mean {near[0]!r}? ' if near else ''
  sizes, mixers = (', '.join(_family(x).SIZES) for x in ('vit', 'mixer'))
  return ValueError(
    f'no model is named {name!r}: {hint}Sizes of ViT are {sizes}, of Mixer'
    f' {mixers}, with any patch size after the slash'
  )
