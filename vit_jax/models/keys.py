"""A ViT of the keys of `config.model`, and the keys of a ViT."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
from typing import Any

from vit_jax.models import encoder
from vit_jax.models import fields
from vit_jax.models import registry
from vit_jax.models import stack
from vit_jax.models import vit

# The keys of `config.model`, but the name. What is not among them is an option
# of a part.
KEYS = (
  'num_classes',
  'hidden_size',
  'mlp_dim',
  'num_heads',
  'depth',
  'patch_size',
  'patches',
  'positions',
  'block',
  'attention',
  'mlp',
  'norm',
  'pool',
  'head',
  'last_norm',
  'pre_norm',
  'class_token',
  'distillation_token',
  'registers',
  'mask_token',
  'dropout_rate',
  'attention_dropout_rate',
  'stochastic_depth',
  'patch_dropout',
  'layer_norm_epsilon',
  'initializers',
  'scan',
  'remat',
  'attention_implementation',
)


def build(values: Mapping[str, Any]) -> vit.ViT:
  """Returns the ViT of values of `KEYS`, and of 'dtype'.

  Those that are None or missing are the defaults.

  Raises:
    UnknownFieldError: There is no such key.
    ValueError: A value is wrong, or the parts do not fit together.
  """
  check_names(vit.ViT, values, (*KEYS, 'dtype'))
  model = registry.build_model(vit.ViT, **values)
  check(model)
  return model


def check_names(
  module: type[Any], values: Mapping[str, Any], names: Sequence[str]
) -> None:
  """Raises an UnknownFieldError if values of a model have other names."""
  for key in values:
    if key not in names:
      raise fields.UnknownFieldError(module, key, names, _hint(key))


def _hint(key: str) -> str:
  """Returns which part has an option of about a name; '' if none has."""
  options = registry.all_options()
  if key not in options:
    similar = difflib.get_close_matches(key, [*KEYS, *options], 1, 0.7)
    if not similar or similar[0] in KEYS:
      return ''
    (key,) = similar
  kind, name = options[key]
  return f"{key!r} is an option of a part: {kind}='{name}({key}=...)'"


def read(model: vit.ViT | encoder.Encoder) -> dict[str, Any]:
  """Returns the values of `KEYS` from which a model is made.

  One that no part of the model has is None.

  Raises:
    UserError: A text cannot say an option of a part, as a function.
  """
  values: dict[str, Any] = {}
  for part in (model, *stack.inner_parts((model.norm, model.block, model))):
    for option in registry.options_of(type(part)).values():
      if option.key in (*KEYS, 'dtype') and option.key not in registry.PARTS:
        values.setdefault(option.key, getattr(part, option.name))
  parts: dict[str, Any] = {
    'norm': model.norm,
    # A block of the user's may have neither.
    'attention': getattr(model.block, 'attention', None),
    'mlp': getattr(model.block, 'mlp', None),
    'block': model.block,
  }
  if isinstance(model, vit.ViT):
    parts |= {
      'patches': model.patches,
      'pool': model.pool,
      'head': model.sized_head,
    }
  for kind, part in parts.items():
    values[kind] = part and registry.describe(kind, part, values)
  if isinstance(model, vit.ViT):
    values['positions'] = registry.describe_sum(
      'positions', model.positions, values
    )
  return {key: values.get(key) for key in KEYS}


def check(model: Any) -> None:
  """Checks that the parts of a model fit together.

  A part whose class has a method `check_model(model)` checks what it needs of
  the others; what any part of a kind needs is checked here.

  Raises:
    ValueError: They do not.
  """
  if isinstance(model, vit.ViT | encoder.Encoder):
    _check_layers(model)
  if isinstance(model, vit.ViT):
    _check_pool(model)
  for part in stack.inner_parts(model):
    if hasattr(part, 'check_model'):
      part.check_model(model)


def _check_layers(model: vit.ViT | encoder.Encoder) -> None:
  attention: Any = getattr(model.block, 'attention', None)
  heads = getattr(attention, 'num_heads', 1)
  if model.hidden_size % heads:
    raise ValueError(
      f'num_heads={heads} does not divide hidden_size={model.hidden_size}:'
      ' change one of them'
    )
  kernel = getattr(attention, 'implementation', '')
  rate = getattr(attention, 'dropout_rate', 0.0)
  if kernel in ('xla', 'cudnn') and rate:
    raise ValueError(
      f'attention_implementation={kernel!r} has no attention_dropout_rate: set'
      " it to 0, or take 'plain'"
    )
  has_scale = getattr(model.block, 'layer_scale', None) is not None
  if not (has_scale or getattr(model.block, 'layer_scale_mlp', True)):
    raise ValueError(
      'block: layer_scale_mlp=False has no effect without layer_scale: leave it'
      ' out'
    )


def _check_pool(model: vit.ViT) -> None:
  name = registry.name_of('pool', type(model.pool))
  reads_class_token = getattr(model.pool, 'reads_class_token', False)
  if reads_class_token and 'class_token' not in model.prefix:
    raise ValueError(
      f'pool={name!r} reads the class token, but class_token is False'
    )
  if getattr(model.pool, 'norm_after', False) and not model.last_norm:
    raise ValueError(
      f'pool={name!r} with norm_after=True has no norm with last_norm=False:'
      ' leave it out'
    )
  if model.distillation_token and not isinstance(model.pool, vit.Token):
    raise ValueError(
      f"a distillation_token needs pool='token', as DeiT has it, not {name!r}"
    )
