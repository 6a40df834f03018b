"""The parts of a model by name, and what a text of `config.model` builds.

Such a text is 'attention', 'experts(8, per_token=1, mlp=swiglu)' or
'my_parts:WindowAttention(window=7)'; `vit_jax/config/parts.py` has the
language. A field that the text does not set takes the model's value of the key
that has its name, or the name in `Field.key`; else its default. Values without
a name go to the fields that the class declares itself, then to those that it
inherits.
"""

import ast
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import inspect
import re
import reprlib
import sys
import traceback
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
from vit_jax.models import stack
from vit_jax.models.fields import Field

# By kind, which is the key of `config.model` that names such a part.
PARTS: Mapping[str, Mapping[str, str]] = {
  'block': {
    'block': 'vit_jax.models.block:Block',
    'parallel': 'vit_jax.models.parts.blocks:Parallel',
    'branches': 'vit_jax.models.parts.blocks:Branches',
    'post_norm': 'vit_jax.models.parts.blocks:PostNorm',
    'merging': 'vit_jax.models.parts.merging:Merging',
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
  'head': {
    'linear': 'vit_jax.models.vit:Linear',
  },
  'patches': {
    'patches': 'vit_jax.models.patches:Patches',
    'normed': 'vit_jax.models.parts.stems:NormedPatches',
    'hybrid': 'vit_jax.models.parts.stems:HybridPatches',
  },
}
# The parts that nothing names: the first of each kind.
DEFAULTS = {kind: next(iter(names)) for kind, names in PARTS.items()}
# Keys of `config.model` beside the kinds that fill the fields of their names.
# `dtype` is `config.train.dtype`.
KEYS = (
  'num_classes',
  'hidden_size',
  'num_heads',
  'mlp_dim',
  'patch_size',
  'dropout_rate',
  'attention_dropout_rate',
  'stochastic_depth',
  'layer_norm_epsilon',
  'initializers',
  'attention_implementation',
  'dtype',
)
_DTYPES = ('float32', 'bfloat16', 'float16')
# Modules whose classes are not the user's.
_LIBRARIES = {'vit_jax', 'flax', 'jax', *sys.stdlib_module_names}
_NOTHING = dataclasses.MISSING
_PLAIN = Field(fields.Kind.FUNCTION)  # of an annotation that is a type alone
_Model = TypeVar('_Model', bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class _Option:
  """A field of a part.

  Attributes:
    name: Its name.
    field: Its kind and bounds; `_PLAIN` has no bounds.
    hint: Its type.
    default: The class's default; `_NOTHING`: there is none.
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


def build(
  kind: str, text: str, values: Mapping[str, Any], key: str
) -> nn.Module:
  """Builds a part.

  Args:
    kind: A key of `PARTS`.
    text: A name in `PARTS[kind]`, or 'my_module:Class', with options.
    values: The model's values by name, as `num_heads` and `dtype`, and the
      texts of its parts, as `attention`; None stands for a value that is not
      set.
    key: Key of the config that holds the text, as 'model.mlp', for errors.

  Returns:
    The part, outside of any module.

  Raises:
    UserError: There is no such part or option, an option has a wrong value, one
      is missing, or the part's class raises an exception.
  """
  return _Builder(values, key, frozenset([kind])).part(
    kind, parts.parse(text, key)
  )


def build_sum(
  kind: str, text: str, values: Mapping[str, Any], key: str
) -> tuple[nn.Module, ...]:
  """Builds the parts of a sum, as 'learned + rope'; 'none' is no part.

  Arguments and errors are those of `build`.
  """
  builder = _Builder(values, key, frozenset([kind]))
  return tuple(builder.part(kind, part) for part in parts.parse_sum(text, key))


def build_model(module: type[_Model], **values: Any) -> _Model:
  """Builds a stack of layers with what is around them.

  Args:
    module: Its class, as `vit.ViT` and those that inherit from
      `encoder.Encoder`.
    **values: By name, fields of the class, options of its parts, as `gelu`, and
      texts that name parts, as `mlp`. An option that no text sets has the value
      of its name. None stands for a value that is not set: it is that of the
      class's `class_defaults`, if it has one, or of `DEFAULTS`.

  Raises:
    UnknownFieldError: Neither the class nor a part has an option of a name.
    ValueError: A field of the class does not allow its value.
    UserError: As `build`.
  """
  chosen = {name: x for name, x in values.items() if x is not None}
  filling: dict[str, Any] = {**getattr(module, 'class_defaults', {}), **chosen}
  declared = options_of(module)
  options = {
    name: _converted(option, filling[name])
    for name, option in declared.items()
    if option.kind is None and name in filling
  }
  builder = _Builder(DEFAULTS | filling | options, 'model', frozenset())
  for name, option in declared.items():
    if option.kind is not None and builder._is_filled(option):
      options[name] = builder._filled(option, module.__name__)
  model = module(**options, parent=None)
  inner = [*stack.inner_parts(model)]
  names = {
    name
    for part in inner
    for option in options_of(type(part)).values()
    for name in (option.key, option.name)
  }
  # A part of the user's need not have the options that fill those of ours.
  is_free = any(_files(type(part)) for part in inner)
  for name in chosen:
    if name not in names and not (is_free and name in KEYS):
      raise fields.UnknownFieldError(module, name, sorted(names))
  return model


def values_of(
  model: nn.Module, kinds: Collection[fields.Kind] = tuple(fields.Kind)
) -> dict[str, Any]:
  """Returns the options of a model and of its parts by key, as `build_model`.

  Of options with the same key, the first in a model's fields is returned; of a
  part that an option holds, its name.

  Args:
    model: The model.
    kinds: Kinds of the options.
  """
  values: dict[str, Any] = {}
  for part in stack.inner_parts(model):
    for option in options_of(type(part)).values():
      value = getattr(part, option.name)
      if option.kind and isinstance(value, nn.Module):
        value = name_of(option.kind, type(value))
      if option.kind != '' and option.field.kind in kinds:
        values.setdefault(option.kind or option.key, value)
  return values


def describe(kind: str, module: nn.Module, values: Mapping[str, Any]) -> str:
  """Returns the text from which `build` builds a part.

  Options are left out whose values are those that `build` would fill in.

  Args:
    kind: A key of `PARTS`.
    module: The part.
    values: As of `build`.

  Raises:
    UserError: A text cannot say the value of an option, as a function.
  """
  builder = _Builder(values, f'model.{kind}', frozenset([kind]))
  return str(builder.described(kind, module))


def describe_sum(
  kind: str, modules: Sequence[nn.Module], values: Mapping[str, Any]
) -> str:
  """Returns the text from which `build_sum` builds parts; see `describe`."""
  texts = [describe(kind, module, values) for module in modules]
  return ' + '.join(texts) or 'none'


@dataclasses.dataclass(frozen=True)
class _Builder:
  """Builds and describes parts that one text names.

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
    module = self._class(kind, part.name)
    given = self._given(module, part)
    options = {}
    for option in options_of(module).values():
      if option.name in given:
        value = self._value(option, given[option.name], part.name)
      elif self._is_filled(option):
        value = self._filled(option, part.name)
      elif option.default is not _NOTHING:
        continue
      else:
        raise UserError(self._missing(option, part.name))
      options[option.name] = value
    try:
      return module(**options, parent=None)
    except UserError:
      raise
    except Exception as e:  # a class of the user's may raise any
      raise UserError(
        f'config.{self.key}: {_raised(module, e, _frames(e, [module]))}'
      ) from e

  def described(self, kind: str, module: nn.Module) -> Part:
    """Returns the part that a module is."""
    name = name_of(kind, type(module))
    given = {}
    for option in options_of(type(module)).values():
      value, default = getattr(module, option.name), option.default
      if self._is_filled(option):
        default = _NOTHING
        with contextlib.suppress(UserError):  # of another type than the option
          default = self._filled(option, name)
      if default is not _NOTHING and _is_same(value, default):
        continue
      if isinstance(value, nn.Module):
        inside = self._inside(option)
        given[option.name] = inside.described(option.kind or '', value)
      else:
        given[option.name] = self._literal(option, value, name)
    return Part(name, (), given)

  def _class(self, kind: str, name: str) -> type[nn.Module]:
    """Returns the class of a part of a kind; '' is any."""
    if ':' in name:
      found: type[nn.Module] = registry.load_own(name, self.key, nn.Module)
      return found
    homes = {x: of_kind for of_kind, names in PARTS.items() for x in names}
    known = PARTS.get(kind, homes)
    if name in known:
      return registry.wing(PARTS[kind or homes[name]][name])
    if name in homes:
      raise UserError(
        f'config.{self.key}: {name!r} is a part of config.model.{homes[name]},'
        f' not of config.model.{kind}. There are {", ".join(known)}'
      )
    raise UserError(
      f'config.{self.key}: there is no {kind or "part"} {name!r}:'
      f' {parts.nearest(name, known)}; or a class of your own, as'
      " 'my_module:MyClass'"
    )

  def _given(self, module: type[nn.Module], part: Part) -> dict[str, Any]:
    """Returns the options that a text gives, by name."""
    known = options_of(module)
    parts.check_options(part, self.key, known)
    if len(part.args) > len(known):
      raise UserError(
        f'config.{self.key}: {part.name} has'
        f' {counted(len(part.args), "value")} without a name, and'
        f' {counted(len(known), "option")}'
      )
    given = dict(zip(known, part.args, strict=False))
    for name in given:
      if name in part.options:
        raise UserError(
          f'config.{self.key}: {part.name} is given {name} twice, once without'
          ' its name'
        )
    return given | part.options

  def _value(self, option: _Option, value: Any, owner: str) -> Any:
    """Returns the value of an option that a text gives."""
    if _is_dtype(option):
      value = str(value)
    elif isinstance(value, Part):
      if not _may_be_part(option):
        raise UserError(
          f'config.{self.key}: {owner}.{option.name} is {value}: it must be of'
          f' the type {_type_name(option.hint)}; write texts in quotes'
        )
      value = self._inside(option).part(option.kind or '', value)
    elif option.kind is not None and isinstance(value, str):
      raise UserError(
        f'config.{self.key}: {owner}.{option.name} is {value!r}: it must be a'
        ' part: write it without quotes'
      )
    return self._checked(option, value, owner)

  def _is_filled(self, option: _Option) -> bool:
    """Whether an option that a text does not set takes a value all the same."""
    if option.kind is None:
      is_text_of_part = option.key in PARTS
      return self.values.get(option.key) is not None and not is_text_of_part
    return self._has_text(option) or bool(option.field.part)

  def _has_text(self, option: _Option) -> bool:
    """Whether the model's values say which part an option holds."""
    kind = option.kind
    is_free = bool(kind) and kind not in self.kinds
    return is_free and self.values.get(kind or '') is not None

  def _filled(self, option: _Option, owner: str) -> Any:
    """Returns the value of an option that a text does not set."""
    if option.kind is None:
      key = _config_key(option.key)
      return self._checked(
        option, self.values[option.key], owner, f', of config.{key}'
      )
    kind, inside = option.kind, self._inside(option)
    if self._has_text(option) and typing.get_origin(option.hint) is tuple:
      return build_sum(kind, self.values[kind], self.values, f'model.{kind}')
    if self._has_text(option):
      inside = dataclasses.replace(inside, key=f'model.{kind}')
      part = parts.parse(self.values[kind], inside.key)
    else:
      part = parts.parse(option.field.part, self.key)
    return self._checked(option, inside.part(kind, part), owner)

  def _inside(self, option: _Option) -> '_Builder':
    """Returns what builds the part that an option holds."""
    return dataclasses.replace(self, kinds=self.kinds | {option.kind or ''})

  def _checked(
    self, option: _Option, value: Any, owner: str, origin: str = ''
  ) -> Any:
    """Returns a value of an option, converted and checked."""
    try:
      return _converted(option, value)
    except ValueError as e:
      raise UserError(
        f'config.{self.key}: {owner}.{one_line(e)}{origin}'
      ) from None

  def _missing(self, option: _Option, owner: str) -> str:
    """Returns the error about an option that nothing fills."""
    key = _config_key(option.key)
    is_key = option.key in (*KEYS, *PARTS) and option.key not in self.kinds
    hint = f', or config.{key}' if is_key else ''
    return f'config.{self.key}: {owner} needs the option {option.name!r}{hint}'

  def _literal(self, option: _Option, value: Any, owner: str) -> Any:
    """Returns the literal of a value."""
    if _is_dtype(option):
      value = jnp.dtype(value).name
    try:
      is_literal = ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
      is_literal = False
    if not is_literal:
      raise UserError(
        f'{owner}.{option.name} is {reprlib.repr(value)}: a text of the config'
        ' cannot say that'
      )
    return value


def part_class(kind: str, name: str) -> type[nn.Module]:
  """Returns the class of a part; the arguments and errors are `build`'s."""
  return _Builder({}, f'model.{kind}', frozenset())._class(kind, name)


def name_of(kind: str, module: type[nn.Module]) -> str:
  """Returns the name of a class in a text.

  Args:
    kind: A key of `PARTS`, or '' for any.
    module: The class.
  """
  target = f'{module.__module__}:{module.__qualname__}'
  tables = [PARTS[kind]] if kind else PARTS.values()
  names = {path: name for table in tables for name, path in table.items()}
  return names.get(target, target)


def split_name(name: str) -> tuple[str, dict[str, Any]]:
  """Returns a model's name without options, and these: 'iGPT-S(colours=64)'.

  Raises:
    UserError: The options cannot be read.
  """
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


def check_name_options(
  name: str, options: Mapping[str, Any], known: Sequence[str]
) -> None:
  """Raises a UserError if a model's name has an option that is not known."""
  if not known:
    raise UserError(
      f'config.model.name: {name} has no options in brackets: those of a ViT'
      ' are those of its parts, as config.model.attention'
    )
  parts.check_options(Part(name, (), dict(options)), 'model.name', known)


def join_name(name: str, options: Mapping[str, Any]) -> str:
  """Returns a model's name with options; see `split_name`."""
  return str(Part(name, (), dict(options)))


def without_option(text: str, option: str, key: str) -> str:
  """Returns the text of a part without an option; errors are `parse`'s."""
  part = parts.parse(text, key)
  options = {name: x for name, x in part.options.items() if name != option}
  return str(dataclasses.replace(part, options=options))


def all_options() -> dict[str, tuple[str, str]]:
  """Returns kind and name of the first part that has each option."""
  found: dict[str, tuple[str, str]] = {}
  for kind, names in PARTS.items():
    for name, path in names.items():
      for option in options_of(registry.wing(path)):
        found.setdefault(option, (kind, name))
  return found


def options_of(module: type[Any]) -> Mapping[str, _Option]:
  """Returns the fields of a part by name, those of the class itself first.

  Raises:
    UserError: The types of a class's fields cannot be read.
  """
  key: Any = module
  return _options_of(key)


@functools.cache
def _options_of(module: type[Any]) -> Mapping[str, _Option]:
  try:
    hints = typing.get_type_hints(module, include_extras=True)
    plain = typing.get_type_hints(module)
  except Exception as e:  # texts of types, which run
    raise UserError(
      f'{_title(module)}: the types of its fields cannot be read: {one_line(e)}'
    ) from e
  there = {
    x.name: x
    for x in dataclasses.fields(module)
    if x.init and x.name not in ('parent', 'name')
  }
  names = [
    name
    for home in module.__mro__
    for name in inspect.get_annotations(home)
    if name in there
  ]
  return types.MappingProxyType(
    {
      name: _option(there[name], hints[name], plain[name])
      for name in dict.fromkeys([*names, *there])
    }
  )


def _option(
  declared: 'dataclasses.Field[Any]', hint: Any, plain: Any
) -> _Option:
  """Returns a field of a part."""
  field = fields.annotated(hint) or _PLAIN
  default = declared.default
  if declared.default_factory is not _NOTHING:
    default = declared.default_factory()
  kind = None
  options = [plain, *typing.get_args(plain)]
  holds = any(isinstance(x, type) and issubclass(x, nn.Module) for x in options)
  named = [x for x in (field.key, declared.name, field.part) if x in PARTS]
  if holds or field is fields.PART or field.part or (plain is Any and named):
    kind = named[0] if named else ''
  return _Option(declared.name, field, plain, default, kind)


def _may_be_part(option: _Option) -> bool:
  """Whether a text may give a part for an option."""
  if option.kind is not None:
    return True
  try:
    fields.converted(option.name, object(), option.hint)
  except ValueError:
    return False
  return True


def _converted(option: _Option, value: Any) -> Any:
  """Returns a value of an option's type, or raises a ValueError."""
  if _is_dtype(option) and isinstance(value, str):
    return _dtype(option.name, value)
  value = fields.converted(option.name, value, option.hint)
  _check_module(option, value)
  if option.field is not _PLAIN:
    fields.check_value(option.name, option.field, value)
  return value


def _check_module(option: _Option, value: Any) -> None:
  """Raises a ValueError if an option that holds a part gets something else."""
  allowed = tuple(
    x
    for x in (option.hint, *typing.get_args(option.hint))
    if isinstance(x, type) and issubclass(x, nn.Module | types.NoneType)
  )
  is_part = any(issubclass(x, nn.Module) for x in allowed)
  if is_part and not isinstance(value, allowed):
    shown = name_of('', type(value)) if isinstance(value, nn.Module) else value
    raise ValueError(
      f'{option.name} is {shown!r}: it must be a {_type_name(option.hint)}'
    )


def _type_name(hint: Any) -> str:
  return hint.__name__ if isinstance(hint, type) else str(hint)


def _is_same(value: Any, other: Any) -> bool:
  """Whether two values are equal, and no bool is a number."""
  return bool(value == other) and isinstance(value, bool) == isinstance(
    other, bool
  )


def _is_dtype(option: _Option) -> bool:
  return option.name == 'dtype' or option.hint == jax.typing.DTypeLike


def _dtype(name: str, text: str) -> Any:
  """Returns a type of numbers by its name."""
  if text not in _DTYPES:
    raise ValueError(f'{name} is {text!r}: choose one of {", ".join(_DTYPES)}')
  return getattr(jnp, text)


def _config_key(key: str) -> str:
  """Returns the key of the config of a key of the model's values."""
  return 'train.dtype' if key == 'dtype' else f'model.{key}'


@dataclasses.dataclass(frozen=True)
class Entry:
  """A part that has a name.

  Attributes:
    kind: Key of `config.model` that names such a part, as 'mlp'.
    name: Its name there.
    class_name: As 'vit_jax.models.block:Mlp'.
    options: By name, what an option is that a text does not set: its default,
      as Python, a key of the config, or 'required'.
    summary: The first sentence of the class's docstring.
    sources: arXiv numbers of its papers.
  """

  kind: str
  name: str
  class_name: str
  options: Mapping[str, str]
  summary: str
  sources: tuple[str, ...]


def list_parts(kind: str | None = None) -> list[Entry]:
  """Returns the parts that have a name, as their classes are.

  Args:
    kind: 'block', 'attention', 'mlp', 'norm', 'positions', 'pool', 'head' or
      'patches'; None: all.

  Raises:
    UserError: There is no such kind.
  """
  if kind is not None and kind not in PARTS:
    raise UserError(
      f'there is no kind of part {kind!r}: {parts.nearest(kind, PARTS)}'
    )
  return [
    _entry(of_kind, name, path)
    for of_kind, names in PARTS.items()
    for name, path in names.items()
    if kind in (None, of_kind)
  ]


def _entry(kind: str, name: str, path: str) -> Entry:
  module = registry.wing(path)
  text = inspect.getdoc(module) or ''
  summary, *_ = re.split(r'(?<=[.])\s', text, maxsplit=1)
  # What follows is on single options.
  papers = _papers(text.partition('\nAttributes')[0])
  papers = papers or _papers(inspect.getdoc(inspect.getmodule(module)) or '')
  options = {
    option.name: _without_text(option, kind)
    for option in options_of(module).values()
  }
  return Entry(kind, name, path, options, ' '.join(summary.split()), papers)


def _papers(text: str) -> tuple[str, ...]:
  return tuple(dict.fromkeys(re.findall(r'arXiv:(\d{4}\.\d{4,5})', text)))


def _without_text(option: _Option, kind: str) -> str:
  """Returns what an option of a part is that a text does not set."""
  if option.kind is None and option.key in KEYS:
    return f'config.{_config_key(option.key)}'
  if option.kind and option.kind != kind:
    return f'config.model.{option.kind}'
  if option.field.part:
    return option.field.part
  return 'required' if option.default is _NOTHING else repr(option.default)


def user_error(error: BaseException, model: nn.Module) -> UserError | None:
  """Returns what a user reads of an exception that their part has raised.

  Args:
    error: Raised while the model was built, initialised or applied.
    model: The model, or one of its parts.

  Returns:
    The error that names the part's class and its line, or where other parts
    could not take what it returns; None: no class of the user's is in the
    model, or it is an error of another kind.
  """
  if isinstance(error, UserError):
    return None
  found = [type(x) for x in stack.inner_parts(model) if _files(type(x))]
  frames = _frames(error, found)
  if not frames:
    is_about_values = isinstance(error, AttributeError | TypeError | ValueError)
    return _around(found, error) if found and is_about_values else None
  owners = [type(frame.f_locals.get('self')) for frame, _ in frames]
  classes = [x for x in owners if x in found]
  if not classes:
    file = frames[-1][0].f_code.co_filename
    classes = [x for x in found if file in _files(x)]
  return UserError(_raised(classes[-1], error, frames))


def _files(module: type[nn.Module]) -> set[str]:
  """Returns the files of a user's class, and of those that it inherits from."""
  files = set()
  for home in module.__mro__:
    if home.__module__.split('.')[0] not in _LIBRARIES:
      source = inspect.getmodule(home)
      files.add(str(getattr(source, '__file__', None)))
  return files


def _frames(
  error: BaseException, classes: Sequence[type[nn.Module]]
) -> list[tuple[types.FrameType, int]]:
  """Returns the frames of a traceback in the users' files, and their lines."""
  files = {file for module in classes for file in _files(module)}
  return [
    (frame, line)
    for frame, line in traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename in files
  ]


def _raised(
  module: type[nn.Module],
  error: BaseException,
  frames: Sequence[tuple[types.FrameType, int]],
) -> str:
  """Returns what a class has raised, and where."""
  what = f'{_title(module)} raises {type(error).__name__}: {one_line(error)}'
  if not frames:
    return what
  frame, line = frames[-1]
  return f'{what} ({frame.f_code.co_filename}, line {line})'


def _around(
  classes: Sequence[type[nn.Module]], error: BaseException
) -> UserError:
  """Returns the error of a model that a user's part does not fit into."""
  titles = ', '.join(dict.fromkeys(map(_title, classes)))
  lines = [
    f' ({frame.f_code.co_filename}, line {line})'
    for frame, line in traceback.walk_tb(error.__traceback__)
    if frame.f_globals.get('__name__', '').startswith('vit_jax.')
  ]
  return UserError(
    f'a model with {titles} raises {type(error).__name__}:'
    f' {one_line(error)}{"".join(lines[-1:])}: docs/own_parts.md has what such'
    ' a part takes and returns'
  )


def _title(module: type[nn.Module]) -> str:
  return f'{module.__module__}:{module.__qualname__}'
