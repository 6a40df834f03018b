"""Makes models from names such as `ViT-B/16`: family, size and patch size.

This package imports nothing else of vit_jax.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import difflib
import fnmatch
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.models import checks
from vit_jax.models import embedding
from vit_jax.models import fields as fields_lib
from vit_jax.models import flat
from vit_jax.models import igpt
from vit_jax.models import initializers
from vit_jax.models import kernels
from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import names
from vit_jax.models import registry
from vit_jax.models import remat
from vit_jax.models import resnet
from vit_jax.models import stack
from vit_jax.models import vit

Model = vit.ViT | mixer.Mixer | resnet.BiT | igpt.IGPT
# A model's fields as formats of checkpoints describe them.
Flat = flat.ViT | mixer.Mixer | resnet.BiT | igpt.IGPT

# The published sizes and patch sizes.
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
  *(f'iGPT-{size}' for size in igpt.SIZES),
)

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

# How a stack of layers is initialised: as a scan, which compiles one layer and
# not all of them; and without kernels, which not every device and type has.
FOR_INIT: dict[str, Any] = {
  'scan': True,
  'remat': 'none',
  'attention_implementation': 'plain',
}

# A hybrid's ResNet, by its name and the patch size after the slash: the units
# in each stage, and the patch size in the ResNet's output grid. R+ViT-Ti/16 has
# patches of 32 pixels; it is named after the ViT of the same cost.
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
  module, fields = _parse(name)
  fields |= {'num_classes': num_classes}
  return model_of(module, overridden(module, fields, overrides))


def overridden(
  module: type[Flat], fields: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns flat fields with values of `KEYS` in the place of some.

  Raises:
    UnknownFieldError: A ViT has no such key.
    ValueError: The head of another family has other options than its bias.
  """
  overrides = dict(overrides)
  if issubclass(module, flat.ViT):
    for key in overrides:
      if key not in (*KEYS, 'dtype'):
        raise fields_lib.UnknownFieldError(vit.ViT, key, KEYS, _hint(key))
  elif head := overrides.pop('head', None):
    overrides['head_bias'] = _head_bias(module, head)
  return flat.without_named(fields, overrides) | overrides


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


def _head_bias(module: type[Flat], text: str) -> float:
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


def _parse(name: str) -> tuple[type[Flat], dict[str, Any]]:
  """Returns the class and the fields that a name stands for."""
  name, options = registry.split_name(name)
  if options:
    module, fields = _parse(name)
    registry.check_name_options(name, options, family_options(module))
    return module, fields | options
  if named := names.find(name):
    module, fields = _parse(named[0])
    return module, fields | named[1]
  match = re.fullmatch(r'(?:(R\d*)\+)?(ViT|Mixer)-([A-Za-z]+)/(\d+)', name)
  if match is None and name.removeprefix('BiT-') in resnet.BIT_SIZES:
    return resnet.BiT, dict(resnet.BIT_SIZES[name.removeprefix('BiT-')])
  if match is None and name.removeprefix('iGPT-') in igpt.SIZES:
    return igpt.IGPT, dict(igpt.SIZES[name.removeprefix('iGPT-')])
  if match is None or int(match[4]) < 1:
    raise _unknown_name(name)
  stem, family, size, patch = match[1], match[2], match[3], int(match[4])
  sizes: Mapping[str, Any] = flat.SIZES if family == 'ViT' else mixer.SIZES
  if size not in sizes or (
    stem and (family, (stem, patch) in _STEMS) != ('ViT', True)
  ):
    raise _unknown_name(name)
  if family == 'Mixer':
    return mixer.Mixer, {'patch_size': patch, **sizes[size]}
  if not stem:
    return flat.ViT, {'patch_size': patch, **sizes[size]}
  stages, patch = _STEMS[stem, patch]
  fields = {'patch_size': patch, 'resnet_stages': stages, **sizes[size]}
  return flat.ViT, fields


def renamed(name: str, **options: Any) -> str:
  """Returns a model's name with other options; those that are None go."""
  name, named = registry.split_name(name)
  options = {k: x for k, x in (named | options).items() if x is not None}
  return registry.join_name(name, options)


def _unknown_name(name: str) -> ValueError:
  if names.is_timms(name) or re.fullmatch(r'[a-z][\w.-]+/[\w.-]+', name):
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
  near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.7)
  hint = f'did you mean {near[0]!r}? ' if near else ''
  return ValueError(
    f'no model is named {name!r}: {hint}Sizes of ViT are'
    f' {", ".join(flat.SIZES)}, of Mixer {", ".join(mixer.SIZES)}, with any'
    ' patch size after the slash'
  )


def model_of(module: type[Flat], fields: Mapping[str, Any]) -> Model:
  """Returns a Linen module with the given fields, after checking them.

  Raises:
    ValueError: A field is unknown, or they do not fit.
  """
  return from_flat(flat_model(module, fields))


def flat_model(module: type[Flat], fields: Mapping[str, Any]) -> Flat:
  """Returns flat fields, after checking them; see `model_of`.

  Texts remain only of parts that no flat field describes.
  """
  model = module(**fields_lib.checked(module, fields))
  fields_lib.check_values(model)
  if isinstance(model, flat.ViT):
    checks.check_vit(model)
    if any(getattr(model, kind) for kind in flat.TEXTS):
      model = flat.flatten(model.parts())
      checks.check_vit(model)
  if isinstance(model, igpt.IGPT):
    checks.check_igpt(model)
  checks.check_initializers(model)
  return model


def from_flat(model: Flat | Model) -> Model:
  """Returns the Linen module of flat fields; see `flattened`."""
  return model.parts() if isinstance(model, flat.ViT) else model


def flattened(model: Model | Flat) -> Flat:
  """Returns the flat fields of a model."""
  return flat.flatten(model) if isinstance(model, vit.ViT) else model


def fields_of(model: Model | Flat) -> dict[str, Any]:
  """Returns all flat fields of a model but `dtype`, by name."""
  described = flattened(model)
  return {
    name: getattr(described, name)
    for name in fields_lib.of(type(described))
    if name != 'dtype'
  }


def key_values(model: vit.ViT) -> dict[str, Any]:
  """Returns the keys of `config.model` that give a model, but its name.

  Raises:
    UserError: A text cannot say an option of a part, as a function.
  """
  spec = flat.flatten(model)
  values = {key: getattr(spec, key) for key in registry.KEYS}
  parts = {
    'norm': model.norm,
    # A block of the user's may have neither.
    'attention': getattr(model.block, 'attention', None),
    'mlp': getattr(model.block, 'mlp', None),
    'block': model.block,
    'patches': model.patches,
    'pool': model.pool,
    'head': model.sized_head,
  }
  for kind, part in parts.items():
    values[kind] = part and registry.describe(kind, part, values)
  values['positions'] = registry.describe_sum(
    'positions', model.positions, values
  )
  return {
    key: values[key] if key in values else getattr(model, key) for key in KEYS
  }


def family_options(module: type[Flat]) -> list[str]:
  """Returns the fields of a class that `config.model` has no key for."""
  if issubclass(module, flat.ViT):
    return []
  return [x for x in fields_lib.of(module) if x not in (*KEYS, 'dtype')]


def config_values(model: Model) -> dict[str, Any]:
  """Returns the values of `config.model` that give a model.

  Raises:
    UserError: As `key_values`.
  """
  name = name_of(model)
  if isinstance(model, vit.ViT):
    return {'name': name} | key_values(model)
  module, named = _parse(name)
  named_fields = fields_of(flat_model(module, {'num_classes': 0} | named))
  fields = fields_of(model)
  options = {
    key: fields[key]
    for key in family_options(module)
    if fields[key] != named_fields[key]
  }
  keys = {key: value for key, value in fields.items() if key in KEYS}
  if bias := options.pop('head_bias', 0.0):
    keys['head'] = f'linear(bias={bias})'
  return {'name': registry.join_name(name, options)} | keys


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
  module, _ = _parse(fields['name'])
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
  model = config.model
  described = flattened(from_config(model, 0))
  if platform == jax.default_backend() or not hasattr(described, 'remat'):
    return config
  result = without_kernel(config)
  result.model.remat = remat.on_platform(platform, model.scan, model.remat)
  implementation = getattr(described, 'attention_implementation', None)
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


def with_fields(model: Model, **changes: Any) -> Model:
  """Returns a model with other values of flat fields, without checks."""
  described = flattened(model)
  if isinstance(described, flat.ViT):
    values = flat.without_named(fields_of(described), changes)
    values['dtype'] = described.dtype
    return flat.ViT(**(values | changes)).parts()
  return described.clone(**changes)


def with_kernel(model: Model, implementation: str) -> Model:
  """Returns a model whose attention is computed in another way.

  Args:
    model: The model; one of own attention, or without any, is not changed.
    implementation: One of `kernels.IMPLEMENTATIONS`.
  """
  if isinstance(model, igpt.IGPT):
    return model.clone(attention_implementation=implementation)
  attention = getattr(getattr(model, 'block', None), 'attention', None)
  if attention is None or not hasattr(attention, 'implementation'):
    return model
  assert isinstance(model, vit.ViT)
  attention = attention.clone(implementation=implementation)
  return model.clone(block=model.block.clone(attention=attention))


def name_of(model: Model | Flat) -> str:
  """Returns the published name of the most similar model."""
  described = flattened(model)
  fields = fields_of(described)

  def alike(name: str) -> int:
    module, named = _parse(name)
    if module is not type(described):
      return -1
    model_fields = fields_of(flat_model(module, {'num_classes': 0, **named}))
    return sum(fields[key] == value for key, value in model_fields.items())

  return max(NAMES, key=alike)


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


def pixels_per_token(model: Model | Flat) -> tuple[int, ...] | None:
  """Returns the pixels of a token, (height, width); None without patches.

  Those of volumes are (depth, height, width).
  """
  if isinstance(model, resnet.BiT):
    return None
  if isinstance(model, igpt.IGPT):
    return 1, 1
  if isinstance(model, flat.ViT):
    model = model.parts()
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
  can_scan = has_equal_layers(model)
  plain = with_kernel(model, 'plain').clone(scan=can_scan, remat='none')
  params = plain.init(key, images)['params']
  if model.initializers == initializers.MIMETIC:
    params = initializers.mimetic(params, jax.random.fold_in(key, 1))
  # Parameters of layers that are not equal are unrolled already.
  return params if model.scan else layouts.unstack_layers(params)
