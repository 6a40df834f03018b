"""A table of fields: what a format's arrays and its config say of a model.

An entry names a value of a model (`models.values`) and how it is seen: in the
arrays (`shape`, `count`, `has`, `seen`), or in a key of the format's config
alone (`said`). From a table follow the model that a file holds, the config that
is written, the keys that are known in it, and what the format cannot store.

    shape('registers', 'reg_token', 1, 'model_args.reg_tokens'),
    count('depth', 'blocks.#.', 'model_args.depth'),
    has('mlp', 'blocks.#.mlp.fc1_g.', yes='swiglu', no='mlp'),
    said('mlp.gelu', 'model_args.act_layer', 'exact', {'gelu': 'exact'}),
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from vit_jax.weights.files import typed
from vit_jax.weights.formats import base


@dataclasses.dataclass
class Seen:
  """What is known of a file while its model is described.

  Attributes:
    shapes: Its arrays' shapes.
    hints: What else is known.
    values: The model's values so far, by name.
  """

  shapes: base.Shapes
  hints: base.Hints
  values: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def config(self) -> typed.Json:
    """The format's config; empty if there is none."""
    return self.hints.config

  def has(self, pattern: str) -> bool:
    """Whether an array's name begins with a pattern, `#` for a number."""
    expression = _expression(pattern)
    return any(expression.match(name) for name in self.shapes.names)

  def size(self, pattern: str, axis: int) -> int:
    """Returns a side of the first array of a name; 0: there is none."""
    shape = self.shape(pattern)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0

  def shape(self, pattern: str) -> base.Shape:
    """Returns the shape of the first array of a name; (): there is none."""
    expression = _expression(pattern)
    names = (x for x in self.shapes.names if expression.fullmatch(x))
    name = next(names, None)
    return () if name is None else self.shapes.all[name]

  def count(self, pattern: str) -> int:
    """Returns one more than the largest number at the `#` of a pattern."""
    return self.shapes.count(pattern.replace('#', '{}'))


def _expression(pattern: str) -> re.Pattern[str]:
  return re.compile(re.escape(pattern).replace(r'\#', r'\d+'))


Read = Callable[[Seen], Any]


@dataclasses.dataclass(frozen=True)
class Entry:
  """How a format has a value of a model.

  Attributes:
    ours: Its name; '': the format's config says something that is no value.
    read: What is seen of it in the arrays, which then decide; None where they
      do not show it. They may return None in one file.
    key: Key of the format's config; '': it has none.
    words: Words of the config -> our values; {}: they are equal.
    default: Our value where nothing says it; or what returns it, or None.
    kind: Type of the key's value.
    write: Returns the key's value, of a model's values, where null is `NULL`,
      and None leaves the key out; None: ours by `words`.
    check: Raises a UserError for what the config says beside other values.
    is_stated: Whether the key is written if it has the default.
    is_noted: Whether a model with another value is written, with a note that
      the format's own code computes the default.
    is_read_only: Whether the format's own code has no place for it: files have
      it of other programs, and no model with it is written.
    is_given: Whether who loads a file in that program gives the value, as the
      number of heads where no config has it.
  """

  ours: str
  read: Read | None = None
  key: str = ''
  words: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
  default: Any = None
  kind: typed.Kind | None = None
  write: Callable[[Mapping[str, Any]], Any] | None = None
  check: Callable[[Seen], None] | None = None
  is_stated: bool = False
  is_noted: bool = False
  is_read_only: bool = False
  is_given: bool = False

  @property
  def is_fixed(self) -> bool:
    """Whether all models of the format have its value."""
    is_said = self.read is not None or self.key or callable(self.default)
    return bool(self.ours) and not is_said

  def value(self, seen: Seen) -> Any:
    """Returns our value for a file; None: nothing says it.

    The arrays decide, then the caller, then the config.

    Raises:
      UserError: The config says something that is not computed here.
    """
    if self.check:
      self.check(seen)
    value = self.read(seen) if self.read else None
    said = self._said(seen.config)
    if value is None:
      value = seen.hints.values.get(self.ours)
    if value is None:
      value = said
    if value is None:
      value = self.default
      return value(seen) if callable(value) else value
    return value

  def _said(self, config: typed.Json) -> Any:
    """Returns our value for what a config says; None: it does not."""
    if not self.key or not self.ours:
      return None
    kind = self.kind or _ANY
    if self.words:
      kind = typed.one_of(*self.words)
    word = config.get(self.key, kind)
    return self.words[word] if self.words and word is not None else word

  def word(self, values: Mapping[str, Any]) -> Any:
    """Returns the key's value for a model; None: the config has no word."""
    if self.write:
      return self.write(values)
    value = values.get(self.ours)
    if self.words:
      words = {ours: word for word, ours in reversed([*self.words.items()])}
      return words.get(value)
    return list(value) if isinstance(value, tuple) else value


def evaluate(entries: Iterable[Entry], seen: Seen) -> None:
  """Sets `seen.values` to what a table of fields says of a file.

  Raises:
    UserError: As `Entry.value`.
  """
  for entry in entries:
    if entry.ours:
      seen.values[entry.ours] = entry.value(seen)


_ANY = typed.Kind('anything', lambda x: True)
# What `Entry.write` returns for null.
NULL = object()


def shape(
  ours: str,
  name: str,
  axis: int | Sequence[int],
  key: str = '',
  *,
  axes: int = 0,
  **more: Any,
) -> Entry:
  """Returns the entry of a side of an array, or of several.

  Args:
    ours: The value's name.
    name: Pattern of the array's name.
    axis: Number of the side, or numbers of several.
    key: Key of the config.
    axes: Number of axes that the array, which must be there, has; 0: it may be
      absent, and its sides are then 0.
    **more: Further fields of the entry.
  """

  def read(seen: Seen) -> Any:
    if axes:
      seen.shapes.get(name.replace('#', '{}'), axes)
    if isinstance(axis, int):
      return seen.size(name, axis)
    return tuple(seen.size(name, i) for i in axis)

  return Entry(ours, read, key, **more)


def count(ours: str, pattern: str, key: str = '', **more: Any) -> Entry:
  """Returns the entry of the number of layers with a name."""
  return Entry(ours, lambda seen: seen.count(pattern), key, **more)


def has(
  ours: str,
  pattern: str,
  key: str = '',
  yes: Any = True,
  no: Any = False,
  **more: Any,
) -> Entry:
  """Returns the entry of whether there is an array of a name."""
  if {yes, no} == {True, False}:
    more.setdefault('kind', typed.TRUTH)
  return Entry(ours, lambda seen: yes if seen.has(pattern) else no, key, **more)


def seen(ours: str, read: Read, key: str = '', **more: Any) -> Entry:
  """Returns the entry of what a function sees in the arrays."""
  return Entry(ours, read, key, **more)


def said(
  ours: str,
  key: str,
  default: Any,
  words: Mapping[Any, Any] | None = None,
  **more: Any,
) -> Entry:
  """Returns the entry of what the config alone says."""
  return Entry(ours, None, key, words or {}, default, **more)


def check_gate(key: str, is_read: bool = True) -> Callable[[Seen], None]:
  """Returns the check that a SiLU is the activation of gated MLPs alone.

  Args:
    key: Key of the config that says the activation; nothing need be there.
    is_read: Whether the format's code reads the key where the MLP is gated.
  """

  def check(seen: Seen) -> None:
    word = seen.config.get(key, typed.TEXT)
    is_gated = seen.values.get('mlp') == 'swiglu'
    if word is None or (is_gated and not is_read):
      return
    if (word == 'silu') != is_gated:
      advice = "it must be 'silu' in a gated MLP, and only there"
      raise seen.config.error(key, word, advice)

  return check


def always(ours: str, value: Any, **more: Any) -> Entry:
  """Returns the entry of what neither arrays nor config say.

  Args:
    ours: The value's name.
    value: What all models of the format have unless the caller says otherwise;
      or what returns it.
    **more: Further fields of the entry.
  """
  return Entry(ours, default=value, **more)


def told(key: str, write: Callable[[Mapping[str, Any]], Any]) -> Entry:
  """Returns the entry of a key that is written of several values, not read."""
  return Entry('', key=key, write=write, is_stated=True)


def changed(
  table: Sequence[Entry], *entries: Entry, without: str = ''
) -> tuple[Entry, ...]:
  """Returns a table with other entries in the places of some.

  Args:
    table: The table.
    *entries: Each takes the place of that of the same value, or of the same key
      if it is of no value. The others come last.
    without: Names of values and keys whose entries are left out, with spaces.
  """
  others = {entry.ours or entry.key: entry for entry in entries}
  dropped = without.split()
  kept = []
  for entry in table:
    name = entry.ours or entry.key
    if name not in dropped:
      kept.append(others.pop(name, entry))
  return (*kept, *others.values())
