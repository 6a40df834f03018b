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
from vit_jax.models.refusals import UnknownFieldError
from vit_jax.weights import fit
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Size
from vit_jax.weights.formats.base import Values

_BIAS = 'relative_position_bias'
_RELATIVE = (_BIAS, f'blocks_0/attention/{_BIAS}')


@dataclasses.dataclass(frozen=True)
class Format:
  """A kind of model in files of another program."""

  title: str  # the class that computes it there, as "timm's VisionTransformer"
  family: type[Any]  # the class that computes it here
  arrays: Sequence[tables.Rule]  # the rules of its arrays
  # The entries of its values, in the order in which they are read.
  fields: Sequence[fields.Entry]
  matches: Callable[[FileFacts], bool]  # whether a file holds such a model
  # Returns fields of `data.Preprocess` for a size and channels, and
  # `Description.silent`.
  preprocess: Callable[[FileFacts, Size, int], tuple[dict[str, Any], str]]
  # Returns how the format's code resizes positions, one of `resize.METHODS`.
  resize: Callable[[FileFacts], str]
  # Returns (height, width) of images in the format's own files.
  stated_size: Callable[[FileFacts], Size | None] = lambda file: None
  # Returns (height, width) that a file's positions are for; None: the arrays of
  # positions say it.
  image_size: Callable[[FileFacts], Size] | None = None
  # Returns the number of channels of the images; None: the first kernel says
  # it.
  channels: Callable[[FileFacts], int] | None = None
  # Key of the config's object in which only keys of `fields` and `unread_keys`
  # may be set; '': the whole config; None: nothing of it is checked.
  scope: str | None = ''
  # Further keys there, with their types; None: any.
  unread_keys: Mapping[str, typed.Kind | None] = dataclasses.field(
    default_factory=dict
  )
  # Returns further keys of the config for a model's values.
  header: Callable[[Values], dict[str, Any]] = lambda values: {}
  # Returns the name of an array in the file, for a model's values and the name
  # in `arrays`; '': another file has it.
  stored: Callable[[Values, str], str] = lambda values, name: name
  # Returns the names of published models, of which a config has one as its
  # `architecture`, each after a condition (`tables.holds`): the first that
  # holds counts. If a name comes twice, its first condition is what it says; a
  # model for which only the other holds is most similar to it.
  names: Callable[[], Sequence[tuple[str, str]]] = lambda: ()

  def describe(self, file: FileFacts) -> base.Description:
    """Returns the model that a file holds.

    Its shapes must show one, its config must say nothing that is not computed
    here, and its family must have the values that the caller gives.
    """
    if self.scope is not None:  # nothing that is set may be ignored
      start = f'{self.scope}.' if self.scope else ''
      keys = {
        entry.key.removeprefix(start).partition('.')[0]: None
        for entry in self.fields
        if entry.key.startswith(start) and entry.key
      }
      file.config.check_known({**keys, **self.unread_keys}, self.scope)
    if self.family is vit.ViT:
      _check_names(file.caller_values)
    fields.evaluate(self.fields, file)
    names = {entry.value_name for entry in self.fields}
    unseen = {  # that no entry has and no array shows
      path: x
      for path, x in file.caller_values.items()
      if path not in names and values_lib.is_unseen(path, file.caller_values)
    }
    try:
      model = self.build(file.values | unseen)
    except UnknownFieldError as e:
      raise UserError(
        f'it is a {self.family.__name__}, which has no field {e.name!r}: leave'
        ' it out'
      ) from None
    if self.image_size:
      size = self.image_size(file)
    else:
      size = self._image_size(file, model)
    if self.channels:
      channels = self.channels(file)
    else:
      kernels = 'stem/conv/kernel', 'patch_embedding/kernel'
      channels = (self._shape(file, *kernels) or (0, 0))[-2]
    preprocess, silent = self.preprocess(file, size, channels)
    rules = self.rules(values_lib.model_values(model))
    return base.Description(
      model, size, preprocess, self.resize(file), rules, silent
    )

  def _image_size(self, file: FileFacts, model: models.Model) -> Size:
    """Returns (height, width) that the positions of patches are for."""
    patch, default = models.pixels_per_token(model), self.stated_size(file)
    patch = patch or (32, 32)  # of a ResNet
    tokens = None
    if positions := self._shape(file, 'position_embedding'):
      assert isinstance(model, vit.ViT)
      if sum(n != 1 for n in positions) <= 2:  # or they do not fit
        tokens = positions[-2] - values_lib.positioned_prefix(model)
    elif table := self._shape(file, *_RELATIVE):
      return base.image_size(table[0], patch, file, default, is_relative=True)
    return base.image_size(tokens, patch, file, default)

  def _shape(self, file: FileFacts, *paths: str) -> tuple[int, ...]:
    """Returns the shape here of the first of some parameters; (): none.

    A vector is none: it does not fit.
    """
    for path in paths:
      for rule in self.arrays:
        for name in rule.names(path) or ():
          if len(shape := file.shape(name)) > 1:
            probe = np.broadcast_to(np.uint8(0), shape)
            return rule.layout.to_ours([probe], shape).shape
    return ()

  def build(self, values: Values) -> models.Model:
    """Returns the model of values, or raises a ValueError."""
    if self.family is vit.ViT:
      return models.create(vit.ViT, values_lib.config_keys(values))
    # Options of parts of other families are called by their names alone.
    options = {path.rpartition('.')[2]: x for path, x in values.items()}
    return models.create(self.family, options)

  def rules(self, values: Values) -> list[tables.Rule]:
    """Returns the rules of the arrays of a model with these values."""
    return [x for x in self.arrays if tables.holds(x.condition, values)]

  def config(self, values: Values) -> dict[str, Any]:
    """Returns the config that says a model's values.

    These have the `image_size` and the `image_channels`, too.
    """
    config = self.header(values)
    if row := self._named(values):
      config['architecture'] = row[1]
    for entry in self.fields:
      word = entry.word(values) if entry.key else None
      is_usual = (
        entry.value_name and values.get(entry.value_name) == entry.default
      )
      is_word = word is not None and word is not fields.NO_WORD
      if is_word and (entry.is_stated or not is_usual):
        *parents, key = entry.key.split('.')
        home = config
        for parent in parents:
          home = home.setdefault(parent, {})
        home[key] = None if word is fields.NULL else word
    return config

  def _named(self, values: Values) -> tuple[str, str] | None:
    return next((x for x in self.names() if tables.holds(x[0], values)), None)

  def unsaid(self, values: Values) -> str | None:
    """Returns what of a model neither the config nor its name says, or None.

    Their class computes it, but is not made from the config alone.
    """
    if (row := self._named(values)) is None:
      return None
    condition = next(x for x, name in self.names() if name == row[1])
    paths = {x.lstrip('!').partition('=')[0] for x in condition.split('&')}
    for entry in self.fields:
      path = entry.value_name
      default = registry.DEFAULTS.get(path, 'none')
      value = values.get(path) or default
      if entry.is_named and path not in paths and value != default:
        names = (x.value_name for x in self.fields if x.is_named)
        rival = next((x for x in names if x in paths), '')
        return _pair(show(path, value, values), rival, values)
    unmet = tables.unmet(condition, values)
    return show(unmet, values.get(unmet), values) if unmet else None

  def lack(self, values: Values) -> str | None:
    """Returns what of a model the class has no place for, or None.

    Its arrays have. The values may have the `image_size`, too.
    """
    values = {**_image((1, 1)), **values}
    config = typed.Json('config.json', self.config(values))
    for entry in self.fields:
      path = entry.value_name or entry.source
      if tables.holds(entry.condition, values):
        if unmet := tables.unmet(entry.needs, values):
          text = show(unmet, values.get(unmet), values)
          return _pair(text, entry.condition, values)
      if path not in values:
        continue
      value = values[path]
      text = show(path, value, values)
      is_oblong = entry.is_square and len({*value}) > 1
      if is_oblong or entry.word(values) is fields.NO_WORD:
        return text
      is_said = entry.value_name and not (entry.is_noted or entry.is_read_only)
      config_value = (
        entry.config_value(config) if is_said and not entry.write else None
      )
      if isinstance(config_value, list):
        config_value = tuple(config_value)
      if config_value is not None and config_value != (value or False):
        sharing = (x.value_name for x in self.fields if x.key == entry.key)
        rival = next((x for x in sharing if x not in ('', path)), '')
        return _pair(text, rival, values)
    return None

  def refusals(self, model: models.Model, image_size: Size) -> dict[str, float]:
    """Returns what of a model has no place, and how much of it each is.

    Its layers are unrolled.
    """
    if type(model) is not self.family:
      name = type(model).__name__
      return {f'{"an" if name[0] in "AEIOU" else "a"} {name}': 1.0}
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
    if lack := self.lack({**values, 'image_size': image_size}):
      changed[lack] = 0.5
    return changed or {f'the array {path}': 1.0 for path in homeless}

  def unnamed(self, values: Values) -> dict[str, float]:
    """Returns the values that no entry has, or has otherwise, as `refusals`.

    Raises a ValueError if the others do not fit.
    """
    entries = {x.value_name: x for x in self.fields if not x.is_read_only}
    named = {path: x for path, x in values.items() if path in entries}
    wordless = {
      path: x
      for path, x in named.items()
      if entries[path].words and x not in entries[path].words.values()
    }
    fixed = {
      path: entry.default
      for path, entry in entries.items()
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
    noted = {entry.value_name for entry in self.fields if entry.is_noted}
    changes = values_lib.differences(values, restored_values)
    lost = {path: x for path, (x, _) in changes.items() if path not in noted}
    return lost, {path: x for path, (x, _) in changes.items() if path in noted}

  def _restored(
    self, model: models.Model, image_size: Size
  ) -> tuple[Values, list[str]]:
    """Returns the values that are read of what is written, and what is not.

    The second are paths of parameters that have no array. A UserError says that
    what is written cannot be read.
    """
    values = values_lib.model_values(model)
    values |= _image(image_size)
    channels = values['image_channels']
    rules = self.rules(values)
    parameters: list[tables.Entry] = []
    homeless = []
    grid = fit.grid(model, image_size)
    for path, shape in fit.expected_shapes(model, grid, channels).items():
      try:
        parameters.append(tables.entry(rules, path, shape))
      except KeyError:
        homeless.append(path)
    shapes = tables.stored_shapes(parameters)
    arrays = base.Renamed(containers.Arrays(shapes, _no_values))
    config = typed.Json('config.json', self.config(values))
    loader_values = {
      x.value_name: values.get(x.value_name) for x in self.fields if x.is_given
    }
    file = FileFacts(
      arrays, config, caller_values=loader_values, stored_size=image_size
    )
    restored = self.describe(file).model
    return values_lib.model_values(restored), homeless


def _image(size: Size) -> dict[str, Any]:
  """Returns what values of images must be there to write a config."""
  return {'image_size': size, 'image_channels': 3}


def _pair(text: str, condition: str, values: Values) -> str:
  """Returns words for a value that a model cannot have beside another one."""
  name = condition.partition('&')[0].lstrip('!').partition('=')[0]
  if not name:
    return text
  return f'{text} beside {show(name, values.get(name), values)}'


def _no_values(name: str) -> Any:
  raise AssertionError(f'{name} was read of a file that is not written yet')


def _check_names(values: Values) -> None:
  """Raises an UnknownFieldError for a caller's value that no ViT has."""
  options = listing.all_options()
  for name in values:
    if '.' not in name and name not in (*models.KEYS, 'dtype'):
      kind, part = options.get(name, ('', ''))
      hint = f"give {kind}='{part}({name}=...)'" if kind else ''
      raise UnknownFieldError(vit.ViT, name, models.KEYS, hint)


def describe(kinds: Sequence[Format], file: FileFacts) -> base.Description:
  """Returns the model that a file holds, of the first kind that matches."""
  kind = next(x for x in kinds if x.matches(file))
  return kind.describe(file)


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


def show(path: str, value: Any, values: Values | None = None) -> str:
  """Returns a value as a config has it, as 'mean(norm_after=True)'.

  `values` are the model's, which name its parts.
  """
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
