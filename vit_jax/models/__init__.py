"""Makes models from names such as `ViT-B/16`: family, size and patch size.

Of vit_jax it imports the language of parts alone (`vit_jax/config/parts.py`),
and what finds a part by a text (`vit_jax/config/registry.py`).
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import fnmatch
import functools
from typing import Any
from typing import TypeVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.config import registry as config_registry
from vit_jax.models import fields as fields_lib
from vit_jax.models import initializers
from vit_jax.models import registry
from vit_jax.models import zoo
from vit_jax.models.registry import KEYS as KEYS

# A model of images: `vit.ViT`, or a class of another family, as `zoo` names
# them. It has `num_classes`, `dtype`, `initializers`, and a method `trunk`; a
# stack of layers has `block`. Its class may say by `class_defaults` which
# values differ from a ViT's, by `pixels` what a token stands for, and by
# `blank_images` what it is initialised with.
Model = nn.Module
_Module = TypeVar('_Module', bound=nn.Module)

# How a model is computed, which does not change its function.
EXECUTION = ('scan', 'remat', 'attention_implementation', 'dtype')


def list_models(pattern: str = '*') -> list[str]:
  """Returns the published models' names that match a shell-style pattern.

  Any other patch size of ViT and Mixer works too: `ViT-Ti/4`.
  """
  return [name for name in zoo.names() if fnmatch.fnmatchcase(name, pattern)]


def create_model(name: str, num_classes: int = 1000, **overrides: Any) -> Model:
  """Returns the Linen module of a name.

  Args:
    name: Family, size and patch, as `ViT-S/16`, `R50+ViT-B/16`, `Mixer-B/16`;
      or `BiT-R50x1`, `iGPT-S`, which may have options of the family, as
      `iGPT-S(colours=256)`. Or a name of timm or Hugging Face, as
      `vit_base_patch16_224` or `facebook/dinov2-small`: the model then computes
      the same function as theirs.
    num_classes: Size of the head's output; 0: no head, the model returns
      features.
    **overrides: Values of `KEYS`, in place of the named model's; of another
      family than ViT, any field of the module.

  Raises:
    ValueError: The name or a field is unknown, or the fields do not fit.
  """
  module, values = _named(name)
  return create(module, {**values, 'num_classes': num_classes}, overrides)


def _named(name: str) -> tuple[type[Any], dict[str, Any]]:
  """Returns the class and the keys that a name stands for."""
  name, options = registry.split_name(name)
  named = zoo.find(name)
  if named is None:
    raise config_registry.wing('vit_jax.models.mistakes:unknown_name')(name)
  module, values = named
  if options:
    check = config_registry.wing('vit_jax.models.mistakes:check_options')
    check(name, options, family_options(module))
  return module, {**values, **options}


def create(
  module: type[_Module],
  values: Mapping[str, Any],
  overrides: Mapping[str, Any] | None = None,
) -> _Module:
  """Returns the model of a class.

  `values` are by names in `KEYS`, 'dtype', the class's own fields, and options
  of its parts; `overrides` replace them, but no options of parts; None keeps a
  value. Raises the errors of `create_model`.
  """
  changes = {k: x for k, x in (overrides or {}).items() if x is not None}
  values = {**values, **changes}
  names = (*KEYS, 'dtype', *family_options(module))
  for key in changes:
    if key not in names:
      unknown = config_registry.wing('vit_jax.models.mistakes:unknown_field')
      raise unknown(module, key, names)
  family: Any = module
  if 'head' not in registry.declared_options(module):  # but a linear one
    head = values.pop('head', None)
    if head and ('head' in changes or 'head_bias' not in values):
      values['head_bias'] = family.read_head(head)
  model = registry.build_model(module, **values)
  check_parts(model)
  return model


def check_parts(model: nn.Module) -> None:
  """Raises a ValueError if the parts of a model do not fit together.

  A part whose class has a method `check_model(model)` checks what it needs of
  the others; what any layer needs is checked here.
  """
  block: Any = getattr(model, 'block', None)
  attention = attention_part(model)
  heads = getattr(attention, 'num_heads', 1)
  if block is not None and model.hidden_size % heads:
    raise ValueError(
      f'num_heads={heads} does not divide hidden_size={model.hidden_size}:'
      ' change one of them'
    )
  kernel = getattr(attention, 'implementation', '')
  rate: float = getattr(attention, 'dropout_rate', 0.0)
  if kernel in ('xla', 'cudnn') and rate:
    raise ValueError(
      f'attention_implementation={kernel!r} has no attention_dropout_rate: set'
      " it to 0, or take 'plain'"
    )
  has_scale = getattr(block, 'layer_scale', None) is not None
  if not (has_scale or getattr(block, 'layer_scale_mlp', True)):
    raise ValueError(
      'block: layer_scale_mlp=False has no effect without layer_scale: leave it'
      ' out'
    )
  if hasattr(model, 'prefix'):
    _check_pool(model)
  for part in fields_lib.inner_parts(model):
    if hasattr(part, 'check_model'):
      part.check_model(model)


def _check_pool(model: Any) -> None:
  name = registry.class_name('pool', type(model.pool))
  reads_class_token = getattr(model.pool, 'reads_class_token', False)
  if reads_class_token and 'class_token' not in model.prefix:
    raise ValueError(
      f'pool={name!r} reads the class token, but class_token is False'
    )
  has_token = 'distillation_token' in model.prefix
  if has_token and getattr(model.pool, 'num_read', 0) != 1:
    raise ValueError(
      f"a distillation_token needs pool='token', as DeiT has it, not {name!r}"
    )


def values_in_force(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values of `config.model`, by key.

  Keys that are unset have the named model's values; keys that no part has are
  left out.
  """
  module, named = _named(config['name'])
  texts = registry.DEFAULTS | getattr(module, 'class_defaults', {}) | named
  texts |= {key: x for key, x in config.items() if x is not None}
  values: dict[str, Any] = {}
  for option, value in registry.shared_first(from_config(config, 0)):
    if option.kind and option.has_choice:
      values.setdefault(option.kind, texts[option.kind])
    elif option.kind is None and option.key in KEYS:
      values.setdefault(option.key, value)
  return values


def family_options(module: type[Any]) -> list[str]:
  """Returns the fields of a class that `config.model` has no key for."""
  options = registry.declared_options(module)
  names = [*options]
  for option in options.values():  # of parts without a choice, as MixerBlock
    if isinstance(option.hint, type) and nn.Module in option.hint.__bases__:
      names += registry.declared_options(option.hint)
  return [x for x in names if x not in (*KEYS, 'dtype')]


def from_config(
  config: Mapping[str, Any], num_classes: int, dtype: str = 'float32'
) -> Model:
  """Returns the model of `config.model`, in which None keeps a model's value.

  `num_classes` is used if the config's is None; `dtype` names the type in which
  the model computes. Raises the errors of `create_model`.
  """
  fields = {k: v for k, v in config.items() if v is not None}
  fields.setdefault('num_classes', num_classes)
  module, _ = _named(fields['name'])
  declared = registry.declared_options(module)
  for key, unset in (('scan', (False,)), ('remat', ('auto', 'none'))):
    if fields.get(key) in unset and key not in declared:
      del fields[key]
  return create_model(**fields, dtype=jnp.dtype(dtype))


def on_platform(config: Any, platform: str) -> Any:
  """Returns a copy of a full config with layers for 'cpu', 'tpu' or 'gpu'.

  A model that is compiled for the platform of this process chooses what 'auto'
  stands for by itself.
  """
  if platform == jax.default_backend():
    return config
  choose = config_registry.wing('vit_jax.models.platforms:choose')
  return choose(config, platform)


def without_head(model: Model) -> Model:
  """Returns a model without its head, and without the layer before that."""
  changes: Any = {'num_classes': 0}
  head: Any = getattr(model, 'head', None)
  if hasattr(head, 'pre_logits'):
    changes['head'] = head.clone(pre_logits=0)
  return model.clone(**changes)


def with_kernel(model: _Module, implementation: str) -> _Module:
  """Returns a model with another implementation of its `Attention`."""
  attention = attention_part(model)
  if not hasattr(attention, 'implementation'):
    return model
  attention = attention.clone(implementation=implementation)
  changes: Any = {'block': model.block.clone(attention=attention)}
  return model.clone(**changes)


def attention_part(model: nn.Module) -> Any:
  """Returns the attention of a model's layers; None: they have none."""
  return getattr(getattr(model, 'block', None), 'attention', None)


def for_init(model: _Module, can_scan: bool = True) -> _Module:
  """Returns a stack of layers as it is initialised.

  It is a scan, which compiles one layer and not all of them, if its layers are
  equal; and without kernels, which not every device and type has.
  """
  changes: Any = {'scan': can_scan, 'remat': 'none'}
  return with_kernel(model, 'plain').clone(**changes)


def check(
  config: Mapping[str, Any], image_size: tuple[int, ...], channels: int
) -> None:
  """Raises a ValueError if `config.model` is wrong, or images do not fit it."""
  model = from_config(config, num_classes=1)
  patch = pixels_per_token(model)
  if patch and len(patch) != len(image_size):
    raise ValueError(
      f'patch_size has {len(patch)} sides, but config.data.image_size'
      f' {len(image_size)}: both need two for images, and three for volumes and'
      ' videos'
    )
  if patch and any(
    is_not_filled(model, n, p) for n, p in zip(image_size, patch, strict=True)
  ):
    times = config_registry.wing('vit_jax.models.inputs:times')
    raise ValueError(
      f'the patch, {times(patch)}, does not divide config.data.image_size,'
      f' {times(image_size)}: change one of them'
    )
  if getattr(model, 'scan', False) and not has_equal_layers(model):
    raise ValueError(
      'scan=True compiles one layer for all, but the layers of a part differ'
      ' (its class has at_layer): set config.model.scan=False'
    )
  # This evaluates shapes only, and finds problems that no single field shows.
  # It uses a scan, so that only one layer is traced.
  if has_equal_layers(model):
    model = model.clone(scan=True)
  abstract_params(model, (*image_size, channels))


def is_not_filled(model: Model, side: int, patch: int) -> bool:
  """Whether a model refuses images with a side that is no whole patches."""
  crops = getattr(getattr(model, 'patches', None), 'crop', False)
  return side < patch or (side % patch > 0 and not crops)


def has_equal_layers(model: Model) -> bool:
  """Whether a model has layers, and they differ in parameters' values only."""
  block = getattr(model, 'block', None)
  differs = any(hasattr(x, 'at_layer') for x in fields_lib.inner_parts(block))
  return block is not None and not differs


def pixels_per_token(model: Model) -> tuple[int, ...] | None:
  """Returns the sides of a token in pixels, (height, width), or None."""
  pixels: tuple[int, ...] | None
  pixels = getattr(getattr(model, 'patches', model), 'pixels', None)
  return pixels


def patch_of_images(model: Model) -> tuple[int, int]:
  """Returns the pixels of a token of images, (height, width)."""
  match pixels_per_token(model):
    case (height, width):
      return height, width
  raise ValueError('the model has no patches of images')


def abstract_params(
  model: Model, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  """Returns the shapes of the parameters for images (height, width, C)."""
  return jax.eval_shape(
    lambda: init_params(model, jax.random.key(0), image_shape)
  )


def init_params(
  model: Model, key: jax.Array, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  """Returns fresh parameters, the same whether the layers are scanned or not.

  `image_shape` is (height, width, C), of volumes (depth, height, width, C).
  Raises the errors of `explained_parts`.
  """
  with explained_parts(model):
    return _init(model, key, tuple(image_shape))


@contextlib.contextmanager
def explained_parts(model: Model) -> Iterator[None]:
  """Raises a UserError of a user's part that fails while a model is traced.

  It names the part that has raised an exception, or does not fit the others.
  """
  try:
    yield
  except Exception as e:  # a class of the user's may raise any
    user_error = config_registry.wing('vit_jax.models.mistakes:user_error')
    if error := user_error(e, model):
      raise error from e
    raise


@functools.partial(jax.jit, static_argnums=(0, 2))
def _init(
  model: Model, key: jax.Array, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  images = jnp.zeros((1, *image_shape), jnp.float32)
  if hasattr(model, 'blank_images'):
    images = model.blank_images(image_shape)
  if not hasattr(model, 'block'):
    return model.init(key, images)['params']
  plain = for_init(model, has_equal_layers(model))
  params = plain.init(key, images)['params']
  if model.initializers == initializers.MIMETIC:
    mimetic = config_registry.wing('vit_jax.models.mimetic:mimetic')
    params = mimetic(params, jax.random.fold_in(key, 1))
  if model.scan or 'blocks' not in params:  # of layers that are not equal
    return params
  unstack = config_registry.wing('vit_jax.models.layouts:unstack_layers')
  return dict(unstack(params))
