"""Models by name: `ViT-B/16` is family, size and patch size.

This package imports nothing else of vit_jax.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import difflib
import fnmatch
import math
import re
import reprlib
import types
import typing
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models import layers
from vit_jax.models import mixer
from vit_jax.models import names
from vit_jax.models import resnet
from vit_jax.models import vit

Model = vit.ViT | mixer.Mixer | resnet.BiT

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
  'R+ViT-Ti/16',
  'R26+ViT-S/32',
  'R26+ViT-B/32',
  'R50+ViT-B/16',
  'R50+ViT-L/32',
  'Mixer-S/16',
  'Mixer-S/32',
  'Mixer-B/16',
  'Mixer-B/32',
  'Mixer-L/16',
  *(f'BiT-{size}' for size in resnet.BIT_SIZES),
)

# A hybrid's ResNet by its name and the patch after the slash: units in each
# stage, and the patch in the grid that it makes. R+ViT-Ti/16 is named after
# the model whose cost it has: its patches are of 32 pixels.
_STEMS: Mapping[tuple[str, int], tuple[tuple[int, ...], int]] = {
  ('R', 16): ((), 8),
  ('R26', 32): ((2, 2, 2, 2), 1),
  ('R50', 16): ((3, 4, 9), 1),
  ('R50', 32): ((3, 4, 6, 3), 1),
}


def list_models(pattern: str = '*') -> list[str]:
  """Returns the published models' names that match a shell-style pattern.

  Any other patch size of ViT and Mixer works too: `ViT-Ti/4`.
  """
  return [name for name in NAMES if fnmatch.fnmatchcase(name, pattern)]


def create_model(name: str, num_classes: int = 1000, **overrides: Any) -> Model:
  """Returns the Linen module of a name.

  Args:
    name: Family, size and patch, as `ViT-S/16`, `R50+ViT-B/16`, `Mixer-B/16`;
      or `BiT-R50x1`. Or what timm or Hugging Face call one of these, as
      `vit_base_patch16_224` or `facebook/dinov2-small`: as they compute it.
    num_classes: Size of the head's output; 0: features come out.
    **overrides: Any other field of the module, in place of what the name means.

  Raises:
    ValueError: The name or a field is unknown, or the fields do not fit.
  """
  module, fields = _parse(name)
  return model_of(module, fields | {'num_classes': num_classes} | overrides)


def _parse(name: str) -> tuple[type[Model], dict[str, Any]]:
  """Returns the class and the fields that a name stands for."""
  if named := names.find(name):
    module, fields = _parse(named[0])
    return module, fields | named[1]
  match = re.fullmatch(r'(?:(R\d*)\+)?(ViT|Mixer)-([A-Za-z]+)/(\d+)', name)
  if match is None and name.removeprefix('BiT-') in resnet.BIT_SIZES:
    return resnet.BiT, dict(resnet.BIT_SIZES[name.removeprefix('BiT-')])
  if match is None or int(match[4]) < 1:
    raise _unknown_name(name)
  stem, family, size, patch = match[1], match[2], match[3], int(match[4])
  sizes: Mapping[str, Any] = vit.SIZES if family == 'ViT' else mixer.SIZES
  if size not in sizes or (
    stem and (family, (stem, patch) in _STEMS) != ('ViT', True)
  ):
    raise _unknown_name(name)
  if family == 'Mixer':
    return mixer.Mixer, {'patch_size': patch, **sizes[size]}
  if not stem:
    return vit.ViT, {'patch_size': patch, **sizes[size]}
  stages, patch = _STEMS[stem, patch]
  fields = {'patch_size': patch, 'resnet_stages': stages, **sizes[size]}
  return vit.ViT, fields


def _unknown_name(name: str) -> ValueError:
  if names.is_timms(name) or re.fullmatch(r'[a-z][\w.-]+/[\w.-]+', name):
    stem = name if '/' in name else f'timm/{name.split(".")[0]}.TAG'
    return ValueError(
      f'{name!r} is no model that is known here by that name: where its'
      f" layers can be computed, vit_jax.load('hf:{stem}') reads its"
      ' architecture off its checkpoint; or give the fields of one of ours, as'
      " create_model('ViT-B/16', pool='gap', registers=4)"
    )
  near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.7)
  hint = f'did you mean {near[0]!r}? ' if near else ''
  return ValueError(
    f'no model is named {name!r}: {hint}Sizes of ViT are'
    f' {", ".join(vit.SIZES)}, of Mixer {", ".join(mixer.SIZES)}, with any'
    ' patch size after the slash'
  )


def model_of(module: type[Model], fields: Mapping[str, Any]) -> Model:
  """Returns a Linen module of some fields, which are checked.

  Raises:
    ValueError: A field is unknown, or they do not fit.
  """
  known = _fields(module)
  for key in fields:
    if key not in known:
      near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
      hint = (
        f'did you mean {near[0]!r}?' if near else f'it has {", ".join(known)}'
      )
      raise ValueError(f'a {module.__name__} has no field {key!r}: {hint}')
  fields = {  # JSON has lists
    key: tuple(value) if isinstance(value, list) else value
    for key, value in fields.items()
  }
  if 'patch_size' in fields:
    fields['patch_size'] = _pair(fields['patch_size'])
  hints = typing.get_type_hints(module)
  for key, value in fields.items():
    if not _is_of_type(value, hints[key]):
      raise ValueError(
        f'{key} is {value!r}: it must be of the type {_show(hints[key])}'
      )
  model = module(**fields)
  _check_fields(model)
  return model


def _is_of_type(value: Any, hint: Any) -> bool:
  """Whether a value is of a field's type; those of libraries are not looked at.

  A whole number is a float as well; a truth value is not a number.
  """
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin is types.UnionType:
    return any(_is_of_type(value, each) for each in arguments)
  if origin is tuple:
    return isinstance(value, tuple) and all(
      _is_of_type(x, arguments[0]) for x in value
    )
  if hint in (int, float):
    allowed = (int, float) if hint is float else int
    return isinstance(value, allowed) and not isinstance(value, bool)
  if hint in (bool, str, types.NoneType):
    return isinstance(value, hint)
  return True


def _show(hint: Any) -> str:
  return hint.__name__ if isinstance(hint, type) else str(hint)


def fields_of(model: Model) -> dict[str, Any]:
  """Returns all fields of a model that decide what it computes, but dtype."""
  return {
    name: getattr(model, name)
    for name in _fields(type(model))
    if name != 'dtype'
  }


def _fields(module: type[Model]) -> list[str]:
  return [
    field.name
    for field in dataclasses.fields(module)
    if field.name not in ('parent', 'name')
  ]


def from_config(
  config: Mapping[str, Any], num_classes: int, dtype: str = 'float32'
) -> Model:
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
  module, _ = _parse(fields['name'])
  for key, unset in (('scan', False), ('remat', 'none')):
    if fields.get(key) == unset and key not in _fields(module):
      del fields[key]
  return create_model(**fields, dtype=jnp.dtype(dtype))


def name_of(model: Model) -> str:
  """Returns the name of a family, size and patch that comes closest."""
  fields = fields_of(model)

  def alike(name: str) -> int:
    module, named = _parse(name)
    if module is not type(model):
      return -1
    model_fields = fields_of(model_of(module, {'num_classes': 0, **named}))
    return sum(fields[key] == value for key, value in model_fields.items())

  return max(NAMES, key=alike)


def check(
  config: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> None:
  """Checks that the model of `config.model` exists and takes such images.

  Raises:
    ValueError: With one line that says what to change.
  """
  model = from_config(config, num_classes=1)
  patch = pixels_per_token(model)
  if patch and any(n % p for n, p in zip(image_size, patch, strict=True)):
    raise ValueError(
      f'the patch, {patch[0]} x {patch[1]}, does not divide'
      f' config.data.image_size, {image_size[0]} x {image_size[1]}: change one'
      ' of them'
    )
  # Shapes alone are computed: this finds what no single field shows. As a scan,
  # which has the shapes of one layer to find.
  if not isinstance(model, resnet.BiT):
    model = model.clone(scan=True)
  abstract_params(model, (*image_size, channels))


def pixels_per_token(model: Model) -> tuple[int, int] | None:
  """Returns what part of the image a token stands for; None without tokens."""
  if isinstance(model, resnet.BiT):
    return None
  stages = getattr(model, 'resnet_stages', None)
  stride = 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)
  return stride * model.patch_size[0], stride * model.patch_size[1]


def abstract_params(
  model: Model, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
  """Returns the shapes of the parameters for images (height, width, C)."""
  return jax.eval_shape(
    lambda key: init_params(model, key, image_shape), jax.random.key(0)
  )


def init_params(
  model: Model, key: jax.Array, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
  """Returns fresh parameters, the same whether the layers are scanned or not.

  Args:
    model: From `create_model`.
    key: Random key.
    image_shape: (height, width, C).
  """
  images = jnp.zeros((1, *image_shape), jnp.float32)
  if isinstance(model, resnet.BiT):
    return model.init(key, images)['params']
  # As a scan, whatever the model: it compiles one layer, not all of them.
  params = model.clone(scan=True).init(key, images)['params']
  return params if model.scan else vit.unstack_layers(params)


def _pair(patch_size: Any) -> tuple[int, int]:
  is_one = type(patch_size) is int
  pair = (patch_size, patch_size) if is_one else patch_size
  good = isinstance(pair, tuple | list) and len(pair) == 2
  if not good or not all(type(x) is int and x > 0 for x in pair):
    raise ValueError(
      f'patch_size is {patch_size!r}: write one positive number, or'
      ' (height, width)'
    )
  return pair[0], pair[1]


_POSITIVE = (
  'hidden_size',
  'mlp_dim',
  'tokens_mlp_dim',
  'num_heads',
  'depth',
  'resnet_width',
  'width_factor',
  'stem_width',
  'num_groups',
)


# Bounds that no model comes near (ViT-22B has 48 layers 6,144 wide), so that
# what is meant as another number is refused before shapes are made of it.
_AT_MOST = {'depth': 1_000, 'registers': 2**16, 'num_classes': 2**28}
_MOST_SIZE = 2**20
_MOST_UNITS = 1_000  # in a stage of a ResNet
_MOST_STAGES = 16
_MOST_FLOAT = 1e30


def _check_sizes(model: Model) -> None:
  """Raises a ValueError where a size is out of all bounds."""
  for field in _fields(type(model)):
    value = getattr(model, field)
    most = _AT_MOST.get(field, _MOST_SIZE)
    if field in ('stages', 'resnet_stages'):
      most = _MOST_UNITS
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) > _MOST_STAGES:
      raise ValueError(
        f'{field} has {len(numbers)} numbers: at most {_MOST_STAGES}'
      )
    least = 1 if isinstance(value, tuple) else -math.inf
    for x in numbers:
      if type(x) is int and not least <= x <= most:
        raise ValueError(
          f'{field} is {reprlib.repr(value)}: it must be from 1 to {most:,}'
        )


def _check_fields(model: Model) -> None:
  choices: dict[str, Sequence[str]] = {
    'pool': vit.POOLS,
    'position_embedding': vit.POSITION_EMBEDDINGS,
    'position_tokens': vit.POSITION_TOKENS,
    'gelu': tuple(layers.GELUS),
    'initializers': tuple(layers.INITIALIZERS),
    'remat': vit.REMAT_POLICIES,
    'attention_implementation': vit.ATTENTION_IMPLEMENTATIONS,
  }
  at_least = dict.fromkeys(_POSITIVE, 1) | dict.fromkeys(
    ('num_classes', 'registers', 'pre_logits'), 0
  )
  _check_sizes(model)
  rates = ('dropout_rate', 'attention_dropout_rate', 'stochastic_depth')
  for field in _fields(type(model)):
    value = getattr(model, field)
    if field in choices and value not in choices[field]:
      raise ValueError(
        f'{field} is {value!r}: choose one of {", ".join(choices[field])}'
      )
    if field in at_least and value < at_least[field]:
      raise ValueError(
        f'{field} is {value}: it must be at least {at_least[field]}'
      )
    if field in rates and not 0 <= value < 1:
      raise ValueError(f'{field} is {value}: it must be in [0, 1)')
    if field == 'layer_norm_epsilon' and not 0 < value < 1:
      raise ValueError(f'{field} is {value}: it must be in (0, 1)')
    if type(value) is float and not abs(value) < _MOST_FLOAT:
      raise ValueError(f'{field} is {value}: it must be a finite number')
  if isinstance(model, vit.ViT):
    _check_vit(model)


def _check_vit(model: vit.ViT) -> None:
  d = model.hidden_size
  if d % model.num_heads:
    raise ValueError(
      f'num_heads={model.num_heads} does not divide'
      f' hidden_size={d}: change one of them'
    )
  if model.attention_implementation != 'plain' and model.attention_dropout_rate:
    raise ValueError(
      f'attention_implementation={model.attention_implementation!r} has no'
      " attention_dropout_rate: set it to 0, or take 'plain'"
    )
  if model.position_embedding == 'sincos2d' and d % 4:
    raise ValueError(
      f"position_embedding='sincos2d' needs a hidden_size that is"
      f' a multiple of 4, not {d}'
    )
  if 'token' in model.pool and 'class_token' not in model.prefix:
    raise ValueError(
      f'pool={model.pool!r} reads the class token, but class_token is False'
    )
  if model.distillation_token and model.pool != 'token':
    raise ValueError(
      "a distillation_token needs pool='token', as DeiT has it, not"
      f' {model.pool!r}'
    )
