"""Makes models from names such as `ViT-B/16`: family, size and patch size.

Of vit_jax it imports the language of parts alone (`vit_jax/config/parts.py`).
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

from vit_jax.models import embedding
from vit_jax.models import encoder
from vit_jax.models import fields as fields_lib
from vit_jax.models import igpt
from vit_jax.models import initializers
from vit_jax.models import keys as keys_lib
from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import registry
from vit_jax.models import remat
from vit_jax.models import resnet
from vit_jax.models import stack
from vit_jax.models import vit
from vit_jax.models import zoo
from vit_jax.models.keys import KEYS as KEYS
from vit_jax.models.parts import kernels

Model = vit.ViT | mixer.Mixer | resnet.BiT | igpt.IGPT
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
    **overrides: Values of `KEYS`, instead of those of the named model; of
      another family than ViT, any field of the module.

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
    raise zoo.unknown(name)
  module, values = named
  if options:
    registry.check_name_options(name, options, family_options(module))
  return module, {**values, **options}


def create(
  module: type[Any],
  values: Mapping[str, Any],
  overrides: Mapping[str, Any] | None = None,
) -> Any:
  """Returns the model of a class.

  Args:
    module: The class.
    values: Of a ViT, those of `KEYS`; of others, those of the class's fields.
    overrides: Values in the place of these; None keeps them. Of other classes,
      'head' may be there as well.

  Raises:
    ValueError: As `create_model`.
  """
  changes = {k: x for k, x in (overrides or {}).items() if x is not None}
  if module is vit.ViT:
    return keys_lib.build({**values, **changes})
  names = (*KEYS, 'dtype', *family_options(module))
  keys_lib.check_names(module, changes, names)
  if head := changes.pop('head', None):
    changes['head_bias'] = _head_bias(module, head)
  values = {**values, **changes}
  if issubclass(module, encoder.Encoder):
    model: Any = registry.build_model(module, **values)
  else:
    model = module(**fields_lib.checked(module, values))
    fields_lib.check_values(model)
  has_attention = issubclass(module, igpt.IGPT)
  if model.initializers == initializers.MIMETIC and not has_attention:
    raise ValueError(
      "initializers='mimetic' does not go with layers without attention"
    )
  keys_lib.check(model)
  return model


def _head_bias(module: type[Any], text: str) -> float:
  """Returns the bias of a head, which is all that other families choose.

  Raises:
    ValueError: The text has other options.
  """
  head = registry.build('head', text, {'num_classes': 0}, 'model.head')
  bias: float = getattr(head, 'bias', 0.0)
  if head != vit.Linear(0, bias=bias, parent=None):
    raise ValueError(
      f'head is {text!r}: the head of a {module.__name__} has the option bias'
      " alone, as 'linear(bias=-6.9)'"
    )
  return bias


def renamed(name: str, **options: Any) -> str:
  """Returns a model's name with other options; those that are None go."""
  name, named = registry.split_name(name)
  options = {k: x for k, x in (named | options).items() if x is not None}
  return registry.join_name(name, options)


def key_values(model: Model) -> dict[str, Any]:
  """Returns the keys of `config.model` that a model has, but its name.

  Raises:
    UserError: As `keys.read`.
  """
  if isinstance(model, vit.ViT):
    return keys_lib.read(model)
  if isinstance(model, resnet.BiT):
    values = {k: getattr(model, k) for k in KEYS if hasattr(model, k)}
  else:
    values = keys_lib.read(model)
  if isinstance(model, mixer.Mixer):
    values['block'] = None  # there is one kind
  if model.head_bias:
    values['head'] = f'linear(bias={model.head_bias})'
  return values


def family_options(module: type[Any]) -> list[str]:
  """Returns the fields of a class that `config.model` has no key for."""
  if issubclass(module, vit.ViT):
    return []
  names = [*fields_lib.of(module)]
  if issubclass(module, mixer.Mixer):
    names += fields_lib.of(mixer.MixerBlock)
  return [x for x in names if x not in (*KEYS, 'dtype')]


def config_values(model: Model) -> dict[str, Any]:
  """Returns the values of `config.model` that give a model.

  Raises:
    UserError: As `key_values`.
  """
  name, values = name_of(model), key_values(model)
  fields, named = map(full_values, (model, create_model(name, 0)))
  options = {
    key: fields[key]
    for key in family_options(type(model))
    if key != 'head_bias' and fields[key] != named[key]
  }
  return {'name': registry.join_name(name, options)} | values


def from_config(
  config: Mapping[str, Any], num_classes: int, dtype: str = 'float32'
) -> Model:
  """Returns the model of `config.model`.

  Args:
    config: `config.model`; keys that are None keep the named model's value.
    num_classes: Used if `config.num_classes` is None.
    dtype: Name of the type in which the model computes.

  Raises:
    ValueError: As `create_model`.
  """
  fields = {k: v for k, v in config.items() if v is not None}
  fields.setdefault('num_classes', num_classes)
  module, _ = _named(fields['name'])
  for key, unset in (('scan', (False,)), ('remat', ('auto', 'none'))):
    if fields.get(key) in unset and key not in fields_lib.of(module):
      del fields[key]
  return create_model(**fields, dtype=jnp.dtype(dtype))


def on_platform(config: Any, platform: str) -> Any:
  """Returns a full config with the layers that suit a platform.

  A model that is compiled for the platform of this process chooses what 'auto'
  stands for by itself.

  Args:
    config: The full config, which is not changed.
    platform: 'cpu', 'tpu' or 'gpu'.
  """
  model = from_config(config.model, 0)
  if platform == jax.default_backend() or isinstance(model, resnet.BiT):
    return config
  result = without_kernel(config)
  result.model.remat = remat.on_platform(platform, model.scan, model.remat)
  implementation = key_values(model).get('attention_implementation')
  if implementation is not None:
    implementation = kernels.on_platform(platform, implementation)
    result.model.attention_implementation = implementation
  return result


def without_kernel(config: Any) -> Any:
  """Returns a full config that leaves the choice of a kernel to the platform.

  The text of `config.model.attention` may name one, too.
  """
  result = config.copy_and_resolve_references()
  with result.ignore_type():
    result.model.attention_implementation = None
  if text := result.model.attention:
    result.model.attention = registry.without_option(
      text, 'implementation', 'model.attention'
    )
  return result


def with_keys(model: Model, **changes: Any) -> Model:
  """Returns a model with other values of `KEYS`, or of 'dtype'.

  Raises:
    ValueError: As `create_model`.
    UserError: As `key_values`.
  """
  return create(type(model), full_values(model), changes)


def full_values(model: Model) -> dict[str, Any]:
  """Returns all values that a model was made of, by key, option and 'dtype'."""
  if isinstance(model, resnet.BiT):
    return {name: getattr(model, name) for name in fields_lib.of(type(model))}
  fields = registry.values_of(model)
  options = {name: fields[name] for name in family_options(type(model))}
  return {**key_values(model), **options, 'dtype': model.dtype}


def without_head(model: Model) -> Model:
  """Returns a model without its head, and without the layer before that."""
  if isinstance(model, vit.ViT) and hasattr(model.head, 'pre_logits'):
    model = model.clone(head=model.head.clone(pre_logits=0))
  return model.clone(num_classes=0)


def with_kernel(model: _Module, implementation: str) -> _Module:
  """Returns a model whose attention is computed in another way.

  Args:
    model: The model, or another stack of layers; one of own attention, or
      without any, is not changed.
    implementation: One of `kernels.IMPLEMENTATIONS`.
  """
  block: Any = getattr(model, 'block', None)
  attention = getattr(block, 'attention', None)
  if attention is None or not hasattr(attention, 'implementation'):
    return model
  attention = attention.clone(implementation=implementation)
  changes: Any = {'block': block.clone(attention=attention)}
  return model.clone(**changes)


def for_init(model: _Module, can_scan: bool = True) -> _Module:
  """Returns a stack of layers as it is initialised.

  It is a scan, which compiles one layer and not all of them; and without
  kernels, which not every device and type has.

  Args:
    model: A model, a tower or a decoder.
    can_scan: Whether its layers are equal.
  """
  changes: Any = {'scan': can_scan, 'remat': 'none'}
  return with_kernel(model, 'plain').clone(**changes)


def name_of(model: Model) -> str:
  """Returns the published name of the most similar model."""
  values = full_values(model)

  def likeness(name: str) -> int:
    named = full_values(create_model(name, 0))
    return sum(values[key] == x for key, x in named.items())

  return max(zoo.names(type(model)), key=likeness)


def check(
  config: Mapping[str, Any], image_size: tuple[int, ...], channels: int
) -> None:
  """Checks that the model of `config.model` exists and accepts the image size.

  Raises:
    ValueError: It does not; one line says what to change.
  """
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
    raise ValueError(
      f'the patch, {embedding.times(patch)}, does not divide'
      f' config.data.image_size, {embedding.times(image_size)}: change one of'
      ' them'
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
  crops = isinstance(model, vit.ViT) and getattr(model.patches, 'crop', False)
  return side < patch or (side % patch > 0 and not crops)


def has_equal_layers(model: Model) -> bool:
  """Whether a model has layers, and they differ in parameters' values only."""
  if isinstance(model, vit.ViT):
    return stack.has_equal_layers(model.block)
  return not isinstance(model, resnet.BiT)


def pixels_per_token(model: Model) -> tuple[int, ...] | None:
  """Returns the pixels of a token, (height, width); None without patches.

  Those of volumes are (depth, height, width).
  """
  if isinstance(model, resnet.BiT):
    return None
  if isinstance(model, igpt.IGPT):
    return 1, 1
  if isinstance(model, vit.ViT):
    pixels: tuple[int, ...] = model.patches.pixels
    return pixels
  return model.patch_size


def patch_of_images(model: Model) -> tuple[int, int]:
  """Returns the pixels of a token, (height, width).

  Raises:
    ValueError: The model has no patches, or those of volumes.
  """
  match pixels_per_token(model):
    case (height, width):
      return height, width
  raise ValueError('the model has no patches of images')


def abstract_params(
  model: Model, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  """Returns the shapes of the parameters for images (height, width, C)."""
  return jax.eval_shape(
    lambda key: init_params(model, key, image_shape), jax.random.key(0)
  )


def init_params(
  model: Model, key: jax.Array, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  """Returns fresh parameters, the same whether the layers are scanned or not.

  Args:
    model: From `create_model`.
    key: Random key.
    image_shape: (height, width, C); of volumes (depth, height, width, C).

  Raises:
    UserError: As `explained_parts`.
  """
  with explained_parts(model):
    return _init(model, key, tuple(image_shape))


@contextlib.contextmanager
def explained_parts(model: Model) -> Iterator[None]:
  """Names the user's part that raises an exception while a model is traced.

  Raises:
    UserError: A part of the user's has raised one, or does not fit the others.
  """
  try:
    yield
  except Exception as e:  # a class of the user's may raise any
    if error := registry.user_error(e, model):
      raise error from e
    raise


@functools.partial(jax.jit, static_argnums=(0, 2))
def _init(
  model: Model, key: jax.Array, image_shape: tuple[int, ...]
) -> dict[str, Any]:
  images = jnp.zeros((1, *image_shape), jnp.float32)
  if isinstance(model, igpt.IGPT) and not model.has_clusters:
    images = jnp.zeros((1, *image_shape[:2]), jnp.int32)  # of colours
  if isinstance(model, resnet.BiT):
    return model.init(key, images)['params']
  plain = for_init(model, has_equal_layers(model))
  params = plain.init(key, images)['params']
  if model.initializers == initializers.MIMETIC:
    params = initializers.mimetic(params, jax.random.fold_in(key, 1))
  # Parameters of layers that are not equal are unrolled already.
  return params if model.scan else layouts.unstack_layers(params)
