"""A kind of model in files of another program: two tables, and what follows.

`Format.arrays` (`tables.arrays`) and `Format.fields` say all that is known of
it. From them follow the model that a file holds, the arrays and the config that
are written, the keys that are known in a config, and the refusals: a model that
is read back otherwise than it was written cannot be stored.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.models import listing
from vit_jax.models import registry
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.models.fields import UnknownFieldError
from vit_jax.weights import fit
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import FileFacts

Size = tuple[int, int]
Values = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Format:
  """A kind of model in files of another program.

  Attributes:
    title: The class that computes it there, as "timm's VisionTransformer".
    family: The class that computes it here.
    arrays: The rules of its arrays.
    fields: The entries of its values, in the order in which they are read.
    matches: Whether a file holds such a model.
    image_size: Returns (height, width) that a file's positions are for.
    channels: Returns the number of channels of its images.
    preprocess: Returns fields of `data.Preprocess` for a size and channels, and
      `Description.silent`.
    resize: Returns how the format's code resizes positions, one of
      `resize.METHODS`.
    scope: Key of the config's object in which no other key may be set than
      those of `fields` and `unread_keys`; '': the whole config; None: nothing
      of it is checked.
    unread_keys: Further keys there, with their types; None: any.
    header: Returns further keys of the config for a model's values.
    stored: Returns the name of an array in the file, for a model's values and
      the name in `arrays`.
    finish: Returns the arrays of a file, by name, for those of `arrays`: some
      are joined, or are there though nothing reads them.
    lacks: Returns what of a model the class has no place for, though `arrays`
      have; None: nothing. The values have the `image_size`, too.
    obstacle: Returns what the format's own code cannot build of a model whose
      arrays it can store; None: it builds all.
  """

  title: str
  family: type[Any]
  arrays: Sequence[tables.Rule]
  fields: Sequence[fields.Entry]
  matches: Callable[[FileFacts], bool]
  image_size: Callable[[FileFacts], Size]
  channels: Callable[[FileFacts], int]
  preprocess: Callable[[FileFacts, Size, int], tuple[dict[str, Any], str]]
  resize: Callable[[FileFacts], str]
  scope: str | None = ''
  unread_keys: Mapping[str, typed.Kind | None] = dataclasses.field(
    default_factory=dict
  )
  header: Callable[[Values], dict[str, Any]] = lambda values: {}
  stored: Callable[[Values, str], str] = lambda values, name: name
  finish: Callable[[Values, Arrays], Arrays] = lambda values, arrays: arrays
  lacks: Callable[[Values], str | None] = lambda values: None
  obstacle: Callable[[Values], str | None] = lambda values: None

  def describe(
    self, arrays: base.Renamed, hints: base.Hints
  ) -> base.Description:
    """Returns the model that a file holds."""
    file = FileFacts(arrays, hints)
    self._check(file.config)
    if self.family is vit.ViT:
      _check_names(hints.values)
    fields.evaluate(self.fields, file)
    try:
      model = self.build(file.values | self._unseen(hints.values))
    except UnknownFieldError as e:
      raise UserError(
        f'it is a {self.family.__name__}, which has no field {e.name!r}: leave'
        ' it out'
      ) from None
    size = self.image_size(file)
    preprocess, silent = self.preprocess(file, size, self.channels(file))
    return base.Description(
      model,
      size,
      preprocess,
      self.resize(file),
      self.rules(values_lib.model_values(model)),
      silent,
    )

  def build(self, values: Values) -> models.Model:
    """Returns the model of values, or raises a ValueError."""
    if self.family is vit.ViT:
      model: models.Model = models.create(
        vit.ViT, values_lib.config_keys(values)
      )
    else:
      # Options of parts of other families are called by their names alone.
      options = {path.rpartition('.')[2]: x for path, x in values.items()}
      model = models.create(self.family, options)
    return model

  def rules(self, values: Values) -> list[tables.Rule]:
    """Returns the rules of the arrays of a model with these values."""
    return [rule for rule in self.arrays if rule.holds(values)]

  def config(self, values: Values) -> dict[str, Any]:
    """Returns the config that says a model's values.

    These have the `image_size` and the `image_channels`, too.
    """
    config = self.header(values)
    for entry in self.fields:
      word = entry.word(values) if entry.key else None
      is_usual = (
        entry.value_name and values.get(entry.value_name) == entry.default
      )
      if word is not None and (entry.is_stated or not is_usual):
        word = None if word is fields.NULL else word
        _put(config, entry.key.split('.'), word)
    return config

  def refusals(self, model: models.Model, image_size: Size) -> dict[str, float]:
    """Returns what of an unrolled model has no place, and how much it is."""
    if type(model) is not self.family:
      return {_with_article(type(model).__name__): 1.0}
    values = values_lib.model_values(model)
    try:
      if changed := self.unnamed(values):
        return changed
      restored, homeless = self._restored(model, image_size)
      lost, _ = self._changes(values, restored)
    except ValueError as e:  # includes UserError; nothing is kept
      reason = _other_part(values, self.family) or one_line(e)
      return {reason: 1.0, **_weighed(values, values)}
    changed = _weighed(lost, values)
    if lacks := self.lacks({**values, 'image_size': image_size}):
      changed[lacks] = 0.5
    return changed or {f'the array {path}': 1.0 for path in homeless}

  def unnamed(self, values: Values) -> dict[str, float]:
    """Returns the values of a model that no entry has, or has otherwise, as
    `refusals` has them.

    Raises a ValueError if the others do not fit.
    """
    names = {
      entry.value_name for entry in self.fields if not entry.is_read_only
    }
    named = {path: x for path, x in values.items() if path in names}
    words = {x.value_name: x.words.values() for x in self.fields if x.words}
    wordless = {
      path: x
      for path, x in named.items()
      if path in words and x not in words[path]
    }
    fixed = {
      entry.value_name: entry.default
      for entry in self.fields
      if entry.is_fixed and not entry.is_noted
    }
    restored_values = values_lib.model_values(self.build({**named, **fixed}))
    lost, _ = self._changes(values, restored_values)
    return _weighed({**wordless, **lost}, values)

  def notes(self, model: models.Model, image_size: Size) -> list[str]:
    """Returns notes on where the format's own code computes something else."""
    values = values_lib.model_values(model)
    restored_values, _ = self._restored(model, image_size)
    return [
      f'this model has {show(path, value, values)}; {self.title} has'
      f' {show(path, restored_values.get(path), restored_values)}'
      for path, value in self._changes(values, restored_values)[1].items()
    ]

  def _changes(
    self, values: Values, restored_values: Values
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values that are lost, and those that are noted."""
    noted = {entry.value_name for entry in self.fields if entry.is_noted}
    changes = values_lib.differences(values, restored_values)
    changed = {path: value for path, (value, _) in changes.items()}
    lost = {path: x for path, x in changed.items() if path not in noted}
    return lost, {path: x for path, x in changed.items() if path in noted}

  def _restored(
    self, model: models.Model, image_size: Size
  ) -> tuple[Values, list[str]]:
    """Returns the values that are read of what is written, and what is not.

    The second are paths of parameters that have no array.
    """
    channels = 3
    values = values_lib.model_values(model)
    values |= {'image_size': image_size, 'image_channels': channels}
    rules = self.rules(values)
    shapes: dict[str, tuple[int, ...]] = {}
    homeless = []
    grid = fit.grid(model, image_size)
    for path, shape in fit.expected_shapes(model, grid, channels).items():
      try:
        entry = tables.entry(rules, path, shape)
      except KeyError:
        homeless.append(path)
      else:
        shapes |= dict(zip(entry.names, entry.shapes, strict=True))
    arrays = base.Renamed(containers.Arrays(shapes, _no_values))
    config = typed.Json('config.json', self.config(values))
    loader_values = {
      x.value_name: values.get(x.value_name) for x in self.fields if x.is_given
    }
    hints = base.Hints(
      loader_values, config, typed.Json('', {}), None, image_size
    )
    restored = self.describe(arrays, hints).model
    return values_lib.model_values(restored), homeless

  def _check(self, config: typed.Json) -> None:
    """Checks that a config sets nothing that would be ignored."""
    if self.scope is None:
      return
    start = f'{self.scope}.' if self.scope else ''
    keys = {
      entry.key.removeprefix(start).partition('.')[0]: None
      for entry in self.fields
      if entry.key.startswith(start) and entry.key
    }
    config.check_known({**keys, **self.unread_keys}, self.scope)

  def _unseen(self, values: Values) -> dict[str, Any]:
    """Returns the caller's values that no entry has and no array shows."""
    names = {entry.value_name for entry in self.fields}
    return {
      path: x
      for path, x in values.items()
      if path not in names and values_lib.is_unseen(path, values)
    }


def _check_names(values: Values) -> None:
  """Checks that a caller's values are of a ViT or of its parts."""
  options = listing.all_options()
  for name in values:
    if '.' not in name and name not in (*models.KEYS, 'dtype'):
      kind, part = options.get(name, ('', ''))
      hint = f"give {kind}='{part}({name}=...)'" if kind else ''
      raise UnknownFieldError(vit.ViT, name, models.KEYS, hint)


def describe(
  kinds: Sequence[Format], arrays: base.Renamed, hints: base.Hints
) -> base.Description:
  """Returns the model that a file holds, of the first kind that matches."""
  file = FileFacts(arrays, hints)
  kind = next(x for x in kinds if x.matches(file))
  return kind.describe(arrays, hints)


def storing(
  kinds: Sequence[Format], model: models.Model, image_size: Size
) -> Format | None:
  """Returns the first kind that can store a model; None: none can."""
  able = (x for x in kinds if not x.refusals(model, image_size))
  return next(able, None)


def refusal(
  kinds: Sequence[Format], model: models.Model, image_size: Size
) -> str | None:
  """Returns what of a model no kind has a place for; None: one can store it.

  It is what the kind lacks that lacks the least; of several, the last one.
  """
  able = [x for x in kinds if x.family is type(model)] or kinds[:1]
  reasons = [x.refusals(model, image_size) for x in reversed(able)]
  least: dict[str, float] = min(reasons, key=lambda x: sum(x.values()))
  return next(iter(least), None)


def _weighed(changed: Values, values: Values) -> dict[str, float]:
  """Returns the words for values that change; a part weighs three options."""
  weights = {}
  for path, value in changed.items():
    is_part = path in registry.PARTS or (
      path.startswith(f'{values_lib.SUM}.') and path.count('.') == 1
    )
    weights[show(path, value, values)] = 3.0 if is_part else 1.0
  return weights


def _with_article(noun: str) -> str:
  return f'{"an" if noun[0] in "AEIOU" else "a"} {noun}'


def show(path: str, value: Any, values: Values | None = None) -> str:
  """Returns a value as a config has it, as 'mean(norm_after=True)'."""
  if value is None:
    value = False
  *parents, name = path.split('.')
  if parents == [values_lib.SUM]:
    return f'{values_lib.SUM}={name!r}' if value else f'no {name} positions'
  if not parents:
    return f'{name}={value!r}'
  part = (values or {}).get(parents[-1], parents[-1])
  return f'{part}({name}={value!r})'


def _other_part(values: Values, family: type[Any]) -> str | None:
  """Returns a part of a model that is not the usual one of its kind."""
  default_parts = getattr(family, 'class_defaults', {})
  for kind in values_lib.SINGLE:
    default_part = default_parts.get(kind, next(iter(registry.PARTS[kind])))
    if values.get(kind, default_part) != default_part:
      return show(kind, values[kind])
  return None


def _put(config: dict[str, Any], keys: Sequence[str], value: Any) -> None:
  """Sets a key of a nested config."""
  for key in keys[:-1]:
    config = config.setdefault(key, {})
  config[keys[-1]] = value


def _no_values(name: str) -> Any:
  raise AssertionError(f'{name} was read of a file that is not written yet')
