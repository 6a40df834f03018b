"""The texts and keys of models that are built: what `models.create` reads."""

import ast
from collections.abc import Mapping
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

  Options are left out whose values are those that it would fill in of `values`.
  A value that a text cannot say, as a function, is a UserError.
  """
  builder = _Describer(values, f'model.{kind}', frozenset([kind]))
  return str(builder.described(kind, module))


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
        inner = option.kind or ''
        builder = dataclasses.replace(self, kinds=self.kinds | {inner})
        options[option.name] = builder.described(inner, value)
        continue
      if option.is_dtype:
        value = jnp.dtype(value).name
      try:
        is_literal = ast.literal_eval(repr(value)) == value
      except (ValueError, SyntaxError):
        is_literal = False
      if not is_literal:
        raise UserError(
          f'{name}.{option.name} is {reprlib.repr(value)}: a text of the config'
          ' cannot say that'
        )
      options[option.name] = value
    return parts.Part(name, (), options)


def option_values(model: nn.Module) -> dict[str, Any]:
  """Returns the options of a model and of its parts by key.

  `registry.build_model` takes them. Of options with the same key, the
  first in a model's fields is returned; of a part that an option holds, its
  name.
  """
  values: dict[str, Any] = {}
  for part in fields.inner_parts(model):
    for option in registry.declared_options(type(part)).values():
      value = getattr(part, option.name)
      if option.kind and isinstance(value, nn.Module):
        value = registry.class_name(option.kind, type(value))
      if option.kind != '':
        values.setdefault(option.kind or option.key, value)
  return values


def key_values(model: nn.Module) -> dict[str, Any]:
  """Returns the keys of `config.model` that a model has, but its name.

  One that no part of the model has is None. An option of a part that a text
  cannot say, as a function, is a UserError.
  """
  block, values = getattr(model, 'block', None), dict[str, Any]()
  for option, value in registry.shared_first(model):
    if option.key in {*registry.KEYS, 'dtype'} - {*registry.PARTS}:
      values.setdefault(option.key, value)
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
    texts = [describe('positions', x, values) for x in model.positions]
    values['positions'] = ' + '.join(texts) or 'none'
  if bias := getattr(model, 'head_bias', 0.0):
    values['head'] = f'linear(bias={bias})'
  return {key: values.get(key) for key in registry.KEYS}


def with_keys(model: Any, **changes: Any) -> Any:
  """Returns a model with other values of `registry.KEYS`, or of 'dtype'."""
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
  return str(parts.Part(name, (), options))


def config_values(model: nn.Module) -> dict[str, Any]:
  """Returns the `config.model` that gives a model; see `key_values`."""
  values = full_values(model)
  name, named = _most_similar(type(model), values)
  options = {
    key: values[key]
    for key in models.family_options(type(model))
    if key != 'head_bias' and values[key] != named[key]
  }
  name = str(parts.Part(name, (), options))
  return {'name': name} | {key: values[key] for key in registry.KEYS}


def published_name(model: nn.Module) -> str:
  """Returns the published name of the most similar model."""
  return _most_similar(type(model), full_values(model))[0]


def _most_similar(
  module: type[nn.Module], values: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
  """Returns the published model of a class with the most equal values."""
  published = {
    name: full_values(models.create_model(name, 0))
    for name in zoo.names(module)
  }

  def likeness(name: str) -> int:
    return sum(values[key] == x for key, x in published[name].items())

  name = max(published, key=likeness)
  return name, published[name]
