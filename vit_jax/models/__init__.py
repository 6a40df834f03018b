"""Models by name: `ViT-B/16` is family, size and patch size.

This package imports nothing else of vit_jax.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import fnmatch
import re
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models import layers
from vit_jax.models import vit

# The sizes and patches that were published.
NAMES = (
  'ViT-Ti/16',
  'ViT-S/16',
  'ViT-S/32',
  'ViT-B/8',
  'ViT-B/16',
  'ViT-B/32',
  'ViT-L/16',
  'ViT-L/32',
  'ViT-H/14',
  'ViT-g/14',
)


def list_models(pattern: str = '*') -> list[str]:
  """Returns the published models' names that match a shell-style pattern.

  Any other patch size works too: `ViT-Ti/4`.
  """
  return [name for name in NAMES if fnmatch.fnmatchcase(name, pattern)]


def create_model(
  name: str, num_classes: int = 1000, **overrides: Any
) -> vit.ViT:
  """Returns the Linen module of a name.

  Args:
    name: Family, size and patch, as `ViT-S/16`.
    num_classes: Size of the head's output.
    **overrides: Any other field of `vit.ViT`, in place of what the name means.

  Raises:
    ValueError: The name or a field is unknown, or the fields do not fit.
  """
  match = re.fullmatch(r'ViT-([A-Za-z]+)/(\d+)', name)
  if match is None or match[1] not in vit.SIZES or int(match[2]) < 1:
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
    raise ValueError(
      f'no model is named {name!r}: did you mean {near!r}? Sizes are'
      f' {", ".join(vit.SIZES)}, with any patch size after the slash'
    )
  overrides.setdefault('patch_size', int(match[2]))
  known = {field.name for field in dataclasses.fields(vit.ViT)}
  for key in overrides:
    if key not in known:
      near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
      raise ValueError(f'a ViT has no field {key!r}: did you mean {near!r}?')
  overrides['patch_size'] = _pair(overrides['patch_size'])
  model = vit.ViT(num_classes, **(vit.SIZES[match[1]] | overrides))
  _check_fields(model)
  return model


def from_config(
  config: Mapping[str, Any], num_classes: int, dtype: str = 'float32'
) -> vit.ViT:
  """Returns the model of `config.model`.

  Args:
    config: `config.model`; keys that are None keep what the name means.
    num_classes: Used where `config.num_classes` is None.
    dtype: Of the computation, a name.

  Raises:
    ValueError: As `create_model`.
  """
  fields = {k: v for k, v in config.items() if v is not None}
  fields.setdefault('num_classes', num_classes)
  return create_model(**fields, dtype=jnp.dtype(dtype))


def check(
  config: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> None:
  """Checks that the model of `config.model` exists and takes such images.

  Raises:
    ValueError: With one line that says what to change.
  """
  model = from_config(config, num_classes=1)
  for side, patch in zip(image_size, model.patch_size, strict=True):
    if side % patch:
      p, q = model.patch_size
      raise ValueError(
        f'the patch, {p} x {q}, does not divide config.data.image_size,'
        f' {image_size[0]} x {image_size[1]}: change one of them'
      )
  # Shapes alone are computed: this finds what no single field shows.
  jax.eval_shape(
    lambda key: init_params(model, key, (*image_size, channels)),
    jax.random.key(0),
  )


def init_params(
  model: vit.ViT, key: jax.Array, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
  """Returns fresh parameters, the same whether the layers are scanned or not.

  Args:
    model: From `create_model`.
    key: Random key.
    image_shape: (height, width, C).
  """
  # As a scan, whatever the model: it compiles one layer, not all of them.
  images = jnp.zeros((1, *image_shape), jnp.float32)
  params = model.clone(scan=True).init(key, images)['params']
  return params if model.scan else vit.unstack_layers(params)


def _pair(patch_size: Any) -> tuple[int, int]:
  is_one = isinstance(patch_size, int)
  pair = (patch_size, patch_size) if is_one else patch_size
  good = isinstance(pair, tuple | list) and len(pair) == 2
  if not good or not all(isinstance(x, int) and x > 0 for x in pair):
    raise ValueError(
      f'patch_size is {patch_size!r}: write one positive number, or'
      ' (height, width)'
    )
  return pair[0], pair[1]


def _check_fields(model: vit.ViT) -> None:
  choices = {
    'pool': vit.POOLS,
    'position_embedding': vit.POSITION_EMBEDDINGS,
    'gelu': tuple(layers.GELUS),
    'initializers': tuple(layers.INITIALIZERS),
    'remat': vit.REMAT_POLICIES,
  }
  for field, allowed in choices.items():
    if getattr(model, field) not in allowed:
      raise ValueError(
        f'{field} is {getattr(model, field)!r}: choose one of'
        f' {", ".join(allowed)}'
      )
  for field in ('hidden_size', 'mlp_dim', 'num_heads', 'depth', 'num_classes'):
    if getattr(model, field) < 1:
      raise ValueError(
        f'{field} is {getattr(model, field)}: it must be at least 1'
      )
  for field in ('dropout_rate', 'attention_dropout_rate', 'stochastic_depth'):
    if not 0 <= getattr(model, field) < 1:
      raise ValueError(
        f'{field} is {getattr(model, field)}: it must be in [0, 1)'
      )
  d = model.hidden_size
  if d % model.num_heads:
    raise ValueError(
      f'num_heads={model.num_heads} does not divide'
      f' hidden_size={d}: change one of them'
    )
  if model.position_embedding == 'sincos2d' and d % 4:
    raise ValueError(
      f"position_embedding='sincos2d' needs a hidden_size that is"
      f' a multiple of 4, not {d}'
    )
