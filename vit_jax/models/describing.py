"""The texts and keys of models that are built: what `models.create` reads."""

import ast
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import reprlib
from typing import Any

from flax import linen as nn
import jax.numpy as jnp

from vit_jax import models
from vit_jax.config import parts
from vit_jax.config.errors import UserError
from vit_jax.models import fields
from vit_jax.models import registry
from vit_jax.models import zoo


def describe(kind: str, module: nn.Module, values: Mapping[str, Any]) -> str:
  """Returns the text from which `registry.build` builds a part.

  Options are left out whose values are those that it would fill in.

  Args:
    kind: A key of `registry.PARTS`.
    module: The part.
    values: As of `registry.build`.

  Raises:
    UserError: A text cannot say the value of an option, as a function.
  """
  builder = _Describer(values, f'model.{kind}', frozenset([kind]))
  return str(builder.described(kind, module))


def describe_sum(
  kind: str, modules: Sequence[nn.Module], values: Mapping[str, Any]
) -> str:
  """Returns the text of a sum of parts; see `describe`."""
  texts = [describe(kind, module, values) for module in modules]
  return ' + '.join(texts) or 'none'


class _Describer(registry.Builder):
  """Describes the parts that one text names."""

  def described(self, kind: str, module: nn.Module) -> parts.Part:
    """Returns the part that a module is."""
    name = registry.class_name(kind, type(module))
    options = {}
    for option in registry.declared_options(type(module)).values():
      value, default = getattr(module, option.name), option.default
      if self.is_filled(option):
        default = dataclasses.MISSING
        with contextlib.suppress(UserError):  # of another type than the option
          default = self.filled(option, name)
      is_bool = isinstance(value, bool), isinstance(default, bool)
      if value == default and is_bool[0] == is_bool[1]:  # no bool is a number
        continue
      if isinstance(value, nn.Module):
        builder = self.inner_builder(option)
        options[option.name] = builder.described(option.kind or '', value)
      else:
        options[option.name] = self._literal(option, value, name)
    return parts.Part(name, (), options)

  def _literal(self, option: registry.Option, value: Any, owner: str) -> Any:
    """Returns the literal of a value."""
    if option.is_dtype:
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


def option_values(
  model: nn.Module, kinds: Collection[fields.Kind] = tuple(fields.Kind)
) -> dict[str, Any]:
  """Returns the options of a model and of its parts by key.

  They are those of `registry.build_model`.
  Of options with the same key, the first in a model's fields is returned; of a
  part that an option holds, its name.

  Args:
    model: The model.
    kinds: Kinds of the options.
  """
  values: dict[str, Any] = {}
  for part in fields.inner_parts(model):
    for option in registry.declared_options(type(part)).values():
      value = getattr(part, option.name)
      if option.kind and isinstance(value, nn.Module):
        value = registry.class_name(option.kind, type(value))
      if option.kind != '' and option.field.kind in kinds:
        values.setdefault(option.kind or option.key, value)
  return values


def key_values(model: nn.Module) -> dict[str, Any]:
  """Returns the keys of `config.model` that a model has, but its name.

  One that no part of the model has is None.

  Raises:
    UserError: A text cannot say an option of a part, as a function.
  """
  block, values = getattr(model, 'block', None), dict[str, Any]()
  inner = fields.inner_parts((getattr(model, 'norm', None), block, model))
  for part in (model, *inner):
    for option in registry.declared_options(type(part)).values():
      if option.key in {*registry.KEYS, 'dtype'} - {*registry.PARTS}:
        values.setdefault(option.key, getattr(part, option.name))
  declared = registry.declared_options(type(model))
  # Those that fill options of others come first.
  for kind in ('norm', 'attention', 'mlp', 'block', 'patches', 'pool', 'head'):
    home = block if kind in ('attention', 'mlp') else model
    field = 'sized_head' if kind == 'head' else kind
    chosen: Any = getattr(home, field, None)
    has_choice = kind not in declared or declared[kind].has_choice
    if chosen is not None and has_choice:
      values[kind] = describe(kind, chosen, values)
  if hasattr(model, 'positions'):
    positions = model.positions
    values['positions'] = describe_sum('positions', positions, values)
  if bias := getattr(model, 'head_bias', 0.0):
    values['head'] = f'linear(bias={bias})'
  return {key: values.get(key) for key in registry.KEYS}


def with_keys(model: Any, **changes: Any) -> Any:
  """Returns a model with other values of `registry.KEYS`, or of 'dtype'.

  Raises:
    ValueError: As `models.create_model`.
    UserError: As `key_values`.
  """
  return models.create(type(model), full_values(model), changes)


def full_values(model: Any) -> dict[str, Any]:
  """Returns all values that a model was made of, by key, option and 'dtype'."""
  values = option_values(model)
  options = {name: values[name] for name in models.family_options(type(model))}
  return {**key_values(model), **options, 'dtype': model.dtype}


def renamed(name: str, **options: Any) -> str:
  """Returns a model's name with other options; those that are None go."""
  name, named = registry.split_name(name)
  options = {k: x for k, x in (named | options).items() if x is not None}
  return join_name(name, options)


def join_name(name: str, options: Mapping[str, Any]) -> str:
  """Returns a model's name with options; see `registry.split_name`."""
  return str(parts.Part(name, (), dict(options)))


def config_values(model: nn.Module) -> dict[str, Any]:
  """Returns the values of `config.model` that give a model.

  Raises:
    UserError: As `key_values`.
  """
  name = published_name(model)
  values, named = map(full_values, (model, models.create_model(name, 0)))
  options = {
    key: values[key]
    for key in models.family_options(type(model))
    if key != 'head_bias' and values[key] != named[key]
  }
  return {'name': join_name(name, options)} | key_values(model)


def published_name(model: nn.Module) -> str:
  """Returns the published name of the most similar model."""
  values = full_values(model)

  def likeness(name: str) -> int:
    named = full_values(models.create_model(name, 0))
    return sum(values[key] == x for key, x in named.items())

  return max(zoo.names(type(model)), key=likeness)
