"""The parts of a model by name, and what a text of `config.model` builds.

Such a text is 'attention', 'experts(8, per_token=1, mlp=swiglu)' or
'my_parts:WindowAttention(window=7)'; `vit_jax/config/parts.py` has the
language. A field that the text does not set takes the model's value of the key
that has its name, or the name in `Field.key`; else its default. Values without
a name go to the fields that the class declares itself, then to those that it
inherits.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
from typing import Any
from typing import TypeVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.config import parts
from vit_jax.config import registry
from vit_jax.config.errors import counted
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError
from vit_jax.config.parts import Part
from vit_jax.models import fields
from vit_jax.models.fields import Field

# By kind, which is the key of `config.model` that names such a part.
PARTS: Mapping[str, Mapping[str, str]] = {
  'block': {
    'block': 'vit_jax.models.block:Block',
    'parallel': 'vit_jax.models.parts.blocks:Parallel',
    'branches': 'vit_jax.models.parts.blocks:Branches',
    'post_norm': 'vit_jax.models.parts.blocks:PostNorm',
    'merging': 'vit_jax.models.parts.merging:Merging',
    'lora': 'vit_jax.models.parts.adapters:LoRA',
    'adaptformer': 'vit_jax.models.parts.adapters:AdaptFormer',
    'houlsby': 'vit_jax.models.parts.adapters:Houlsby',
  },
  'attention': {
    'attention': 'vit_jax.models.attention:Attention',
    'grouped': 'vit_jax.models.parts.grouped:Grouped',
    'differential': 'vit_jax.models.parts.differential:Differential',
  },
  'mlp': {
    'mlp': 'vit_jax.models.block:Mlp',
    'swiglu': 'vit_jax.models.parts.mlp:SwiGLU',
    'glu': 'vit_jax.models.parts.mlp:GLU',
    'geglu': 'vit_jax.models.parts.mlp:GEGLU',
    'experts': 'vit_jax.models.parts.experts:Experts',
  },
  'norm': {
    'layer_norm': 'vit_jax.models.block:LayerNorm',
    'rms_norm': 'vit_jax.models.parts.norms:RMSNorm',
  },
  'positions': {
    'learned': 'vit_jax.models.patches:Learned',
    'factorized': 'vit_jax.models.parts.positions:Factorized',
    'sincos2d': 'vit_jax.models.parts.positions:SinCos',
    'rope': 'vit_jax.models.parts.rotary:Rope',
    'relative_bias': 'vit_jax.models.parts.relative:RelativeBias',
    'relative_mlp_bias': 'vit_jax.models.parts.relative:RelativeMlpBias',
  },
  'pool': {
    'token': 'vit_jax.models.vit:Token',
    'mean': 'vit_jax.models.vit:Mean',
    'map': 'vit_jax.models.parts.pooling:Map',
    'token_and_mean': 'vit_jax.models.parts.pooling:TokenAndMean',
  },
  'head': {'linear': 'vit_jax.models.vit:Linear'},
  'patches': {
    'patches': 'vit_jax.models.patches:Patches',
    'normed': 'vit_jax.models.parts.stems:NormedPatches',
    'hybrid': 'vit_jax.models.parts.stems:HybridPatches',
  },
}
# The parts that nothing names: the first of each kind.
DEFAULTS = {kind: next(iter(names)) for kind, names in PARTS.items()}
# The keys of `config.model`, but the name. What is not among them is an option
# of a part. Those that are no kind of part fill the fields of their names.
KEYS = (
  *('num_classes', 'hidden_size', 'mlp_dim', 'num_heads', 'depth'),
  *('patch_size', *PARTS, 'last_norm', 'pre_norm', 'class_token'),
  *('distillation_token', 'registers', 'mask_token', 'dropout_rate'),
  *('attention_dropout_rate', 'stochastic_depth', 'patch_dropout'),
  *('layer_norm_epsilon', 'initializers', 'scan', 'remat'),
  'attention_implementation',
)
_DTYPES = ('float32', 'bfloat16', 'float16')
# Modules whose classes are not the user's.
LIBRARIES = {'vit_jax', 'flax', 'jax', *sys.stdlib_module_names}
_NOTHING = dataclasses.MISSING
PLAIN = Field(fields.Kind.FUNCTION)  # of an annotation that is a type alone
_Model = TypeVar('_Model', bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class Option:
  """A field of a part.

  Attributes:
    name: Its name.
    field: Its kind and bounds; `PLAIN` has no bounds.
    hint: Its type.
    default: The class's default; `dataclasses.MISSING`: there is none.
    kind: Kind of the part that it holds; '': any kind; None: it holds no part.
  """

  name: str
  field: Field
  hint: Any
  default: Any
  kind: str | None

  @property
  def key(self) -> str:
    """Key of the model's values that fills it."""
    return self.field.key or self.name

  @property
  def config_key(self) -> str:
    """Key of the config that fills it."""
    return 'train.dtype' if self.key == 'dtype' else f'model.{self.key}'

  @property
  def is_dtype(self) -> bool:
    """Whether it is a type of numbers, which a text names."""
    return self.name == 'dtype' or self.hint == jax.typing.DTypeLike

  @property
  def has_choice(self) -> bool:
    """Whether it holds any part of a kind, or several."""
    return self.hint is nn.Module or self.is_sum

  @property
  def is_sum(self) -> bool:
    """Whether it holds several parts."""
    return typing.get_origin(self.hint) is tuple

  @property
  def may_be_part(self) -> bool:
    """Whether a text may give a part for it."""
    if self.kind is not None:
      return True
    with contextlib.suppress(ValueError):
      fields.converted(self.name, object(), self.hint)
      return True
    return False

  def converted(self, value: Any) -> Any:
    """Returns a value of its type, or raises a ValueError."""
    if self.is_dtype and isinstance(value, str):
      if value not in _DTYPES:
        names = ', '.join(_DTYPES)
        raise ValueError(f'{self.name} is {value!r}: choose one of {names}')
      return getattr(jnp, value)
    value = fields.converted(self.name, value, self.hint)
    modules = tuple(
      x
      for x in (self.hint, *typing.get_args(self.hint))
      if isinstance(x, type) and issubclass(x, nn.Module | types.NoneType)
    )
    holds_part = any(issubclass(x, nn.Module) for x in modules)
    if holds_part and not isinstance(value, modules):
      is_module = isinstance(value, nn.Module)
      name = class_name('', type(value)) if is_module else value
      raise ValueError(
        f'{self.name} is {name!r}: it must be a {fields.type_name(self.hint)}'
      )
    if self.field is not PLAIN:
      fields.check_value(self.name, self.field, value)
    return value


def build(
  kind: str, text: str, values: Mapping[str, Any], key: str
) -> nn.Module:
  """Builds a part, outside of any module.

  Args:
    kind: A key of `PARTS`.
    text: A name in `PARTS[kind]`, or 'my_module:Class', with options.
    values: The model's values by name, as `num_heads` and `dtype`, and the
      texts of its parts, as `attention`; None stands for a value that is not
      set.
    key: Key of the config that holds the text, as 'model.mlp', for errors.
  """
  builder = Builder(values, key, frozenset([kind]))
  return builder.part(kind, parts.parse(text, key))


def build_sum(
  kind: str, text: str, values: Mapping[str, Any], key: str
) -> tuple[nn.Module, ...]:
  """Builds the parts of a sum, as 'learned + rope'; 'none' is no part."""
  builder = Builder(values, key, frozenset([kind]))
  return tuple(builder.part(kind, part) for part in parts.parse_sum(text, key))


def build_model(module: type[_Model], **values: Any) -> _Model:
  """Builds a stack of layers with what is around them.

  Args:
    module: Its class, as `vit.ViT` and those that inherit from
      `encoder.Encoder`.
    **values: By name, fields of the class, options of its parts, as `gelu`, and
      texts that name parts, as `mlp`. An option that no text sets has the value
      of its name. None stands for a value that is not set: it is that of the
      class's `class_defaults`, if it has one, or of `DEFAULTS`. Neither the
      class nor a part has another name: an UnknownFieldError.
  """
  chosen = {name: x for name, x in values.items() if x is not None}
  filling: dict[str, Any] = {**getattr(module, 'class_defaults', {}), **chosen}
  declared = declared_options(module)
  options = {
    name: option.converted(filling[name])
    for name, option in declared.items()
    if option.kind is None and name in filling
  }
  builder = Builder(DEFAULTS | filling | options, 'model', frozenset())
  for name, option in declared.items():
    if option.kind is not None and builder.is_filled(option):
      options[name] = builder.filled(option, module.__name__)
  model = module(**options, parent=None)
  inner = [*fields.inner_parts(model)]
  names = {
    name
    for part in inner
    for option in declared_options(type(part)).values()
    for name in (option.key, option.name)
  }
  # A user's part need not have the options that fill an option of ours.
  is_free = any(is_own(type(part)) for part in inner)
  for name in chosen:
    if name not in names and not (is_free and name in {*KEYS} - {*PARTS}):
      unknown = registry.wing('vit_jax.models.refusals:UnknownFieldError')
      raise unknown(module, name, sorted(names))
  return model


@dataclasses.dataclass(frozen=True)
class Builder:
  """Builds the parts that one text names.

  Attributes:
    values: As of `build`.
    key: As of `build`.
    kinds: Kinds that are being built, whose texts in `values` fill no field.
  """

  values: Mapping[str, Any]
  key: str
  kinds: frozenset[str]

  def part(self, kind: str, part: Part) -> nn.Module:
    """Builds a part of a kind; '' is any."""
    module = part_class(kind, part.name, self.key)
    values = self._named_options(module, part)
    options = {}
    for option in declared_options(module).values():
      if option.name in values:
        value = self._value(option, values[option.name], part.name)
      elif self.is_filled(option):
        value = self.filled(option, part.name)
      elif option.default is not _NOTHING:
        continue
      else:
        is_key = option.key in KEYS and option.key not in self.kinds
        hint = f', or config.{option.config_key}' if is_key else ''
        raise UserError(
          f'config.{self.key}: {part.name} needs the option'
          f' {option.name!r}{hint}'
        )
      options[option.name] = value
    try:
      return module(**options, parent=None)
    except UserError:
      raise
    except Exception as e:  # a class of the user's may raise any
      explain = registry.wing('vit_jax.models.mistakes:raised')
      raise UserError(f'config.{self.key}: {explain(module, e)}') from e

  def _named_options(
    self, module: type[nn.Module], part: Part
  ) -> dict[str, Any]:
    declared = declared_options(module)
    parts.check_options(part, self.key, declared)
    if len(part.args) > len(declared):
      raise UserError(
        f'config.{self.key}: {part.name} has'
        f' {counted(len(part.args), "value")} without a name, and'
        f' {counted(len(declared), "option")}'
      )
    values = dict(zip(declared, part.args, strict=False))
    for name in values:
      if name in part.options:
        raise UserError(
          f'config.{self.key}: {part.name} is given {name} twice, once without'
          ' its name'
        )
    return values | part.options

  def _value(self, option: Option, value: Any, owner: str) -> Any:
    if option.is_dtype:
      value = str(value)
    elif isinstance(value, Part):
      if not option.may_be_part:
        raise UserError(
          f'config.{self.key}: {owner}.{option.name} is {value}: it must be of'
          f' the type {fields.type_name(option.hint)}; write texts in quotes'
        )
      kind = option.kind or ''
      inner = dataclasses.replace(self, kinds=self.kinds | {kind})
      value = inner.part(kind, value)
    elif option.kind is not None and isinstance(value, str):
      raise UserError(
        f'config.{self.key}: {owner}.{option.name} is {value!r}: it must be a'
        ' part: write it without quotes'
      )
    return self._checked(option, value, owner)

  def is_filled(self, option: Option) -> bool:
    """Whether an option that a text does not set takes a value all the same."""
    if option.kind is None:
      is_text_of_part = option.key in PARTS
      return self.values.get(option.key) is not None and not is_text_of_part
    return self._text(option) is not None or bool(option.field.part)

  def _text(self, option: Option) -> str | None:
    """The model's value that says which part an option holds."""
    kind = option.kind
    return self.values.get(kind) if kind and kind not in self.kinds else None

  def filled(self, option: Option, owner: str) -> Any:
    """Returns the value of an option that a text does not set."""
    if option.kind is None:
      origin = f', of config.{option.config_key}'
      return self._checked(option, self.values[option.key], owner, origin)
    kind, text, key = option.kind, self._text(option), f'model.{option.kind}'
    if text is None:
      text, key = option.field.part, self.key
    elif option.is_sum:
      return build_sum(kind, text, self.values, key)
    builder = Builder(self.values, key, self.kinds | {kind})
    part = builder.part(kind, parts.parse(text, key))
    return self._checked(option, part, owner)

  def _checked(
    self, option: Option, value: Any, owner: str, origin: str = ''
  ) -> Any:
    try:
      return option.converted(value)
    except ValueError as e:
      raise UserError(
        f'config.{self.key}: {owner}.{one_line(e)}{origin}'
      ) from None


def part_class(kind: str, name: str, key: str = '') -> type[nn.Module]:
  """Returns the class of a part of a kind, by its name in a text.

  `kind` is a key of `PARTS`, or '' for any. Errors name `key`, the key of the
  config, which is by default the kind's.
  """
  key = key or f'model.{kind}'
  if ':' in name:
    own_class: type[nn.Module] = registry.load_own(name, key, nn.Module)
    return own_class
  homes = {x: of_kind for of_kind, names in PARTS.items() for x in names}
  paths = PARTS.get(kind, homes)
  if name in paths:
    return registry.wing(PARTS[kind or homes[name]][name])
  if name in homes:
    raise UserError(
      f'config.{key}: {name!r} is a part of config.model.{homes[name]}, not of'
      f' config.model.{kind}. There are {", ".join(paths)}'
    )
  raise UserError(
    f'config.{key}: there is no {kind or "part"} {name!r}:'
    f' {parts.nearest(name, paths)}; or a class of your own, as'
    " 'my_module:MyClass'"
  )


def class_name(kind: str, module: type[nn.Module]) -> str:
  """Returns the name in a text of a class of a kind of `PARTS`; '' is any."""
  target = f'{module.__module__}:{module.__qualname__}'
  tables = [PARTS[kind]] if kind else PARTS.values()
  names = {path: name for table in tables for name, path in table.items()}
  return names.get(target, target)


def split_name(name: str) -> tuple[str, dict[str, Any]]:
  """Splits options off a model's name: 'iGPT-S(colours=64)'."""
  name, bracket, text = name.partition('(')
  if not bracket:
    return name, {}
  part = parts.parse(f'options({text}', 'model.name')
  if part.args:
    raise UserError(
      f'config.model.name: write options of {name} with their names, as'
      " 'iGPT-S(colours=64)'"
    )
  return name, part.options


def declared_options(module: type[Any]) -> Mapping[str, Option]:
  """Returns the fields of a part by name, the class's own first."""
  key: Any = module
  return _declared_options(key)


@functools.cache
def _declared_options(module: type[Any]) -> Mapping[str, Option]:
  try:
    hints = typing.get_type_hints(module, include_extras=True)
    plain = typing.get_type_hints(module)
  except Exception as e:  # texts of types, which run
    raise UserError(
      f'{class_name("", module)}: the types of its fields cannot be read:'
      f' {one_line(e)}'
    ) from e
  declared = {
    x.name: x
    for x in dataclasses.fields(module)
    if x.init and x.name not in ('parent', 'name')
  }
  names = [
    name
    for home in module.__mro__
    for name in inspect.get_annotations(home)
    if name in declared
  ]
  options = {}
  for name in dict.fromkeys([*names, *declared]):
    field, hint = fields.annotated(hints[name]) or PLAIN, plain[name]
    default, factory = declared[name].default, declared[name].default_factory
    if factory is not _NOTHING:
      default = factory()
    classes = [x for x in (hint, *typing.get_args(hint)) if isinstance(x, type)]
    holds = any(issubclass(x, nn.Module) for x in classes)
    kinds = [x for x in (field.key, name, field.part) if x in PARTS]
    is_part = holds or field is fields.PART or field.part
    kind = None
    if is_part or (hint is Any and kinds):
      kind = kinds[0] if kinds else ''
    options[name] = Option(name, field, hint, default, kind)
  return types.MappingProxyType(options)


def shared_first(model: nn.Module) -> Iterator[tuple[Option, Any]]:
  """Yields the options of a model and of its parts, and their values.

  The model's come first, then its norm's and its layers'.
  """
  shared = getattr(model, 'norm', None), getattr(model, 'block', None)
  for part in (model, *fields.inner_parts((*shared, model))):
    for option in declared_options(type(part)).values():
      yield option, getattr(part, option.name)


def is_own(module: type[Any]) -> bool:
  """Whether a class, or one that it inherits from, is the user's."""
  homes = {home.__module__.split('.')[0] for home in module.__mro__}
  return not homes <= LIBRARIES
