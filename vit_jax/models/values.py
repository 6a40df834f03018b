"""A model as values by dotted names, which weights of other programs describe.

    hidden_size, depth, num_heads, mlp_dim, ...    keys of `config.model`
    attention                                      the name of a part
    attention.qk_norm                              an option of it
    positions.rope, positions.rope.base            a part of a sum, an option

They are a model's sizes and what changes its function. How it is trained and
computed (`fields.Kind.TRAINING`, `EXECUTION`) is not among them. An option that
has the value of the key that fills it is not, either.
"""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from vit_jax.config import parts
from vit_jax.config.parts import Part
from vit_jax.models import describing
from vit_jax.models import fields
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.fields import Kind
from vit_jax.models.patches import Learned

# The kinds of parts that a model has one of.
SINGLE = ('norm', 'patches', 'block', 'attention', 'mlp', 'pool', 'head')
SUM = 'positions'
# Options of parts that a checkpoint's user may choose anew for each size of
# images: they are not compared.
OF_SIZE = (
  'patches.crop',
  'positions.learned.grid',
  'positions.factorized.grid',
)
COMPARED = (Kind.SIZE, Kind.FUNCTION, Kind.FITTED)
# Parts that a checkpoint's user may exchange: parameters are adapted.
_FITTED = (
  'pool',
  'head',
  *(f'{SUM}.{name}' for name in registry.PARTS[SUM] if name != 'rope'),
)
# Keys that fill options, and the option that has each.
_FILLING = {
  'num_heads': ('attention', 'num_heads'),
  'mlp_dim': ('mlp', 'hidden_dim'),
  'patch_size': ('patches', 'patch_size'),
  'layer_norm_epsilon': ('norm', 'epsilon'),
}


def model_values(model: Any) -> dict[str, Any]:
  """Returns the values of a model; of a family without layers, its fields."""
  values = {
    name: getattr(model, name)
    for name, option in registry.declared_options(type(model)).items()
    if option.field.kind in COMPARED and option.field is not fields.PART
  }
  if hasattr(model, 'scaled_values'):
    values = model.scaled_values(values)
  if not hasattr(model, 'block'):
    return values
  single = {kind: getattr(model, kind, None) for kind in SINGLE}
  single |= {x: getattr(model.block, x, None) for x in ('attention', 'mlp')}
  single['head'] = getattr(model, 'sized_head', None)
  for key, (kind, option) in _FILLING.items():
    values.setdefault(key, getattr(single[kind], option, None))
  for kind, part in single.items():
    if isinstance(part, nn.Module):
      values |= _part_values(kind, kind, part, values, single)
  if not hasattr(model, 'positions'):
    return values
  values['class_token'] = 'class_token' in model.prefix
  irrelevant = {
    'head.distillation': (True, not model.distillation_token),
    'pool.prefix': (False, not model.prefix),
    'attention.key_bias': (True, values.get('attention.qkv_bias') is False),
    'block.layer_scale_mlp': (True, values.get('block.layer_scale') is None),
    'pool.gelu': ('exact', values.get('pool.mlp_dim') == 0),
  }
  for path, (default, has_no_effect) in irrelevant.items():
    if has_no_effect and path in values:
      values[path] = default
  values |= {f'{SUM}.{name}': False for name in registry.PARTS[SUM]}
  for part in model.positions:
    path = f'{SUM}.{registry.class_name(SUM, type(part))}'
    values |= {**_part_values(SUM, path, part, values, single), path: True}
  tokens = f'{SUM}.learned.tokens'
  if tokens in values and positioned_prefix(model) == model.prefix_length:
    values[tokens] = 'all'
  return values


def positioned_prefix(model: vit.ViT) -> int:
  """Returns the number of tokens before the patches with learned positions."""
  tokens = [x.tokens for x in model.positions if isinstance(x, Learned)]
  has_class = 'class_token' in model.prefix
  counts = {'all': model.prefix_length, 'class': int(has_class), 'patches': 0}
  return counts[tokens[0]] if tokens else 0


def _part_values(
  kind: str,
  path: str,
  part: nn.Module,
  keys: Mapping[str, Any],
  single: Mapping[str, nn.Module | None],
) -> dict[str, Any]:
  """Returns a part's name and options, but for parts that the model has."""
  module = _computed(type(part))
  values: dict[str, Any] = {path: registry.class_name(kind, module)}
  for option in registry.declared_options(module).values():
    if option.field.kind not in COMPARED:
      continue
    value = getattr(part, option.name)
    if option.kind and value == single.get(option.kind):
      continue
    if option.key in keys and value == keys[option.key]:
      continue
    if option.kind is not None:
      value = describing.describe(option.kind, value, keys)
    values[f'{path}.{option.name}'] = value
  return values


def _computed(module: type[nn.Module]) -> type[nn.Module]:
  """Returns the class whose function a class of ours has after training.

  Merging tokens is such a class of a block: all its options are of training.
  """
  base: Any = module.__bases__[0]
  is_ours = module.__module__.startswith('vit_jax.')
  if not is_ours or base is nn.Module or not issubclass(base, nn.Module):
    return module
  inherited = registry.declared_options(base)
  added = [
    option.field.kind
    for name, option in registry.declared_options(module).items()
    if name not in inherited
  ]
  is_training = added and not any(kind in COMPARED for kind in added)
  return base if is_training else module


def config_keys(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the keys of `config.model` that values stand for.

  An option that the part does not have is left out, and one that is None. A
  part has the default of its kind if no value names it.
  """
  values = {path: x for path, x in values.items() if x is not None}
  keys = {
    path: x
    for path, x in values.items()
    if '.' not in path and path not in SINGLE
  }

  def text(kind: str, name: str, path: str) -> str:
    options = registry.declared_options(registry.part_class(kind, name))
    paths = {option: f'{path}.{option}' for option in options}
    chosen = {x: values[y] for x, y in paths.items() if y in values}
    return str(Part(name, (), chosen))

  for kind in SINGLE:
    keys[kind] = text(kind, values.get(kind, registry.DEFAULTS[kind]), kind)
  names = [x for x in registry.PARTS[SUM] if values.get(f'{SUM}.{x}', False)]
  texts = [text(SUM, name, f'{SUM}.{name}') for name in names]
  keys[SUM] = ' + '.join(texts) or 'none'
  return keys


def explicit_values(keys: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values that keys of `config.model` say themselves.

  Options that a text does not have are not among them. Positions without `rope`
  say that, too.
  """
  values: dict[str, Any] = {}
  for key, text in keys.items():
    if text is None:
      continue
    if key == 'name':  # options of families without parts
      values |= registry.split_name(text)[1]
    elif key not in registry.PARTS:
      values[key] = text
    elif key == SUM:
      values[f'{SUM}.rope'] = False  # which no array shows
      for part in parts.parse_sum(text, f'model.{key}'):
        path = f'{SUM}.{part.name}'
        values |= {path: True, **_options(SUM, path, part)}
    else:
      part = parts.parse(text, f'model.{key}')
      values |= {key: part.name, **_options(key, key, part)}
  return values


def _options(kind: str, path: str, part: Part) -> dict[str, Any]:
  names = registry.declared_options(registry.part_class(kind, part.name))
  options = dict(zip(names, part.args, strict=False)) | part.options
  return {f'{path}.{name}': value for name, value in options.items()}


def differences(
  values: Mapping[str, Any], other_values: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
  """Returns what differs between the values of two models, by name.

  Initial values of the factors of LayerScale are not compared, but whether
  there are any; options of parts that differ are not compared, either.
  """
  changed: dict[str, tuple[Any, Any]] = {}
  for path in sorted({*values, *other_values}, key=lambda x: (x.count('.'), x)):
    pair = values.get(path), other_values.get(path)
    parent = path.rpartition('.')[0]
    is_named = parent in changed and parent not in (SUM, '')
    if is_named or path in OF_SIZE:
      continue
    if path == 'block.layer_scale':
      pair = pair[0] is not None, pair[1] is not None
    are_off = all(x is None or x is False for x in pair)
    if pair[0] != pair[1] and not are_off:
      changed[path] = pair
  return changed


def is_unseen(path: str, values: Mapping[str, Any]) -> bool:
  """Whether no checkpoint's arrays show a value; `values` name the parts."""
  declared = option(path, values)
  has_no_parameters = path == f'{SUM}.rope'
  is_shown = declared is None or declared.field.is_visible
  return has_no_parameters or not is_shown


def is_fitted(
  path: str, values: Mapping[str, Any], module: type[nn.Module]
) -> bool:
  """Whether `weights.adapt` changes parameters that differ in a value."""
  if path in _FITTED or path.startswith('pool.'):
    return path in _FITTED  # options of one pool change its function
  declared = option(path, values, module)
  return declared is not None and declared.field.kind is Kind.FITTED


def option(
  path: str, values: Mapping[str, Any], module: type[nn.Module] = vit.ViT
) -> registry.Option | None:
  """Returns the option that holds a value; None: it is the name of a part."""
  parent, _, name = path.rpartition('.')
  if not parent:
    declared = registry.declared_options(module).get(path)
    if path not in _FILLING or declared:
      return declared if path not in SINGLE else None
    parent, name = _FILLING[path]
  kind, _, part = parent.partition('.')
  part = part or values.get(kind, registry.DEFAULTS[kind])
  options = registry.declared_options(registry.part_class(kind, part))
  return options.get(name)
