"""A table of fields: what a format's arrays and its config say of a model.

From it follow the model that a file holds, the config that is written, the keys
that are known in it, and what the format cannot store. `table` reads it, an
entry a line: a value of a model (`models.values`), where it is in the arrays,
its key in the config, and more.

    hidden_size   patch_embed.proj.weight[0]    .embed_dim   axes=4
    patch_size    patch_embed.proj.weight[2,3]  .patch_size  square
    depth         blocks.#.[#]                  .depth
    class_token   cls_token?                    .class_token!
    mlp           blocks.#.mlp.fc1_g.?swiglu:mlp
    norm          norm()           .norm_layer  NORMS default=layer_norm
    mlp.gelu      -                act_layer    gelu:exact,gelu_tanh:tanh
    num_heads     -                .num_heads!  COUNT default=heads()
    patches.bias  =True
    mlp_dim       blocks.#.mlp.fc2.weight[1]  .mlp_ratio>  write=mlp_ratio()
    >             .img_size        image_size
    !             block=parallel   mlp=mlp&mlp.bias
    -             pre_norm .fix_init

Entries are evaluated in their order. An indented line continues the one before.
The second column is one of

    name[0]    a side of an array, `#` for a number; 0 if there is none, or what
               `else=` says; name[0,1] are several
    name[#]    how many there are with a number at the `#` of the name
    name?      whether an array's name begins so; name?yes:no gives other values
               than True and False, and a?x:b?y:z asks for a, then for b;
               ~expression? asks for timm's name of the architecture
    f()        what a function of `FileFacts` returns; None: the config tells
    @value     that of an earlier entry
    =value     all models of the format have it, unless the caller says
               otherwise; =f() returns it
    -          the arrays do not show it

A name may be several, `a|b` or `x.{a,b}`: the first that there is. A key that
begins with a dot is below the table's own, as `model_args`. With `!` behind it,
it is also written with the default; with `>`, it is written and not read; with
`?`, it is read alone. After the key come, in any order,

    word:value,...   words of the config and our values; or the name of both
    COUNT            the kind of the key's value, one of `typed`
    square           sides that agree are written as one number
    side             so they are, and no others have a place
    noted            `Entry.is_noted`; so are read_only, given and named
    default= write= check= axes= else=    fields of `Entry`, and as above; axes:
                     how many the array must have, which must be there then

A line of `>` is a key that is written, not read, and what: a value's name, and
words; or a function of the model's values; or a condition (`tables.holds`), as
`a=b` or `a&!b`; or a 'text'. So is `write=`. A line of `!` says that a model of
a condition has a place only with others: their code has no argument for it
else. A line of `-` leaves out entries of the table that is changed, by their
values or keys.

Two entries may have one key: a model for which they say different words has no
place (`format.Format.lack`).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from vit_jax.config import parts
from vit_jax.weights.files import typed
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts

Read = Callable[[FileFacts], Any]
Write = Callable[[Mapping[str, Any]], Any]
_ANY = typed.Kind('anything', lambda x: True)
# What `Entry.write` returns for null, and for a value that no word says.
NULL, NO_WORD = object(), object()


@dataclasses.dataclass(frozen=True)
class Entry:
  """How a format has a value of a model."""

  # Its name; '': the format's config says something that is no value.
  value_name: str
  # What is seen of it in the arrays, which then decide; None where they do not
  # show it. They may return None in one file.
  read: Read | None = None
  key: str = ''  # key of the format's config; '': it has none
  # Words of the config -> our values; {}: they are equal.
  words: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
  # Our value where nothing says it; or what returns it, or None.
  default: Any = None
  kind: typed.Kind | None = None  # type of the key's value
  # Returns the key's value, of a model's values, where null is `NULL`, and None
  # leaves the key out; None: ours by `words`.
  write: Write | None = None
  # Raises a UserError for what the config says beside other values.
  check: Callable[[FileFacts], None] | None = None
  is_stated: bool = False  # whether the key is written if it has the default
  # Whether a model with another value is written, with a note that the format's
  # own code computes the default.
  is_noted: bool = False
  # Whether the format's own code has no place for it: files have it of other
  # programs, and no model with it is written.
  is_read_only: bool = False
  # Whether who loads a file in that program gives the value, as the number of
  # heads where no config has it.
  is_given: bool = False
  # Whether only the name of a published model says it (`Format.names`).
  is_named: bool = False
  is_written_only: bool = False  # whether the key is not read
  is_square: bool = False  # whether the sides that it has must agree
  # The value that a key without one says, as `image_size`.
  source: str = ''
  # A condition by which the entry is for a model, and one that then must hold.
  condition: str = ''
  needs: str = ''

  @property
  def name(self) -> str:
    """The name by which a table that changes others knows it."""
    return self.value_name or self.key or self.source or f'!{self.condition}'

  @property
  def is_fixed(self) -> bool:
    """Whether all models of the format have its value."""
    is_said = self.read is not None or self.key or callable(self.default)
    return bool(self.value_name) and not (is_said or self.is_given)

  def value(self, file: FileFacts) -> Any:
    """Returns our value for a file; None: nothing says it.

    The arrays decide, then the caller, then the config.
    """
    if self.check:
      self.check(file)
    value = self.read(file) if self.read else None
    # Read in any case, since it may be of another type.
    config_value = self.config_value(file.config)
    if value is None:
      value = file.caller_values.get(self.value_name)
    if value is None:
      value = config_value
    if value is None:
      value = self.default
      return value(file) if callable(value) else value
    return value

  def config_value(self, config: typed.Json) -> Any:
    """Returns our value for a config's word; None: it says nothing."""
    if not self.key or not self.value_name or self.is_written_only:
      return None
    kind = typed.choice(*self.words) if self.words else self.kind or _ANY
    if {*self.words} == {True, False}:
      kind = typed.TRUTH
    word = config.get(self.key, kind)
    return self.words[word] if self.words and word is not None else word

  def word(self, values: Mapping[str, Any]) -> Any:
    """Returns the key's value for a model; None: the config has no word."""
    if self.write:
      return self.write(values)
    value = values.get(self.value_name)
    if self.words:
      return first_word(self.words, value)
    return list(value) if isinstance(value, tuple) else value


def first_word(words: Mapping[Any, Any], value: Any) -> Any:
  """Returns the first word for our value; None: there is none."""
  return next((word for word, x in words.items() if x == value), None)


def evaluate(entries: Iterable[Entry], file: FileFacts) -> None:
  """Sets `file.values` to what a table of fields says of a file."""
  for entry in entries:
    if entry.value_name:
      file.values[entry.value_name] = entry.value(file)


def check_gate(key: str, is_read: bool = True) -> Callable[[FileFacts], None]:
  """Returns the check that a SiLU is the activation of gated MLPs alone.

  Nothing need say the activation. Where the MLP is gated, the format's code may
  not read the key (`is_read`).
  """

  def check(file: FileFacts) -> None:
    word = file.config.get(key, typed.TEXT)
    is_gated = file.values.get('mlp') == 'swiglu'
    if word is None or (is_gated and not is_read):
      return
    if (word == 'silu') != is_gated:
      advice = "it must be 'silu' in a gated MLP, and only there"
      raise file.config.error(key, word, advice)

  return check


def unread_keys(text: str) -> dict[str, typed.Kind | None]:
  """Returns keys of a config that need not be read (`Format.unread_keys`).

  The text is as `drop_rate act_layer=gelu|relu`: the second may have only these
  words. One that may only be off need not be named.
  """
  kinds: dict[str, typed.Kind | None] = {}
  for key, is_limited, words in (x.partition('=') for x in text.split()):
    values = map(parts.literal, words.split('|'))
    kinds[key] = typed.choice(*values) if is_limited else None
  return kinds


def table(
  text: str,
  *functions: Callable[..., Any],
  changes: Sequence[Entry] = (),
  below: str = '',
  **names: Any,
) -> tuple[Entry, ...]:
  """Returns the entries of a text; the module says how it is written.

  Args:
    text: The text.
    *functions: The functions that it names.
    changes: A table that it changes. An entry takes the place of the one with
      the same value, or key; others come last.
    below: Key that comes before those that begin with a dot.
    **names: Words of a config and our values, by name, and functions under
      other names than theirs.
  """
  reader = _Reader(below, {x.__name__: x for x in functions} | names)
  entries = {entry.name: entry for entry in changes}
  for line in tables.joined_lines(text):
    first, *columns = line.split()
    if first == '-':
      for name in columns:
        del entries[reader.key(name)]
    elif first == '>':
      key, words, *options = columns
      entry = Entry(
        '',
        key=reader.key(key),
        write=reader.writer(words, options),
        is_stated=True,
        source=words,
        is_square='side' in options,
      )
      entries[entry.name] = entry
    elif first == '!':
      condition, *needs = columns
      condition = condition.strip('-')
      entry = Entry('', condition=condition, needs=''.join(needs))
      entries[entry.name] = entry
    else:
      entries[first] = reader.entry(first, *columns)
  return tuple(entries.values())


@dataclasses.dataclass(frozen=True)
class _Reader:
  """What the words of a table mean."""

  below: str
  names: Mapping[str, Any]

  def key(self, text: str) -> str:
    text = text.strip('-')
    return self.below + text if text.startswith('.') else text

  def literal(self, text: str) -> Any:
    """Returns a function, what is a value of Python, or the text itself."""
    if text.endswith('()'):
      return self.names[text[:-2]]
    return self.choice(text) if '?' in text else parts.literal(text)

  def writer(self, text: str, options: Sequence[str] = ()) -> Write:
    if text.endswith('()'):
      function: Write = self.names[text[:-2]]
      return function
    if text.startswith("'"):
      return lambda values: text.strip("'")
    if re.search('[=!&|]', text):
      return lambda values: tables.holds(text, values)
    return self.entry(text, '-', '-', *options).word

  def entry(
    self, value_name: str, place: str, key: str = '-', *options: str
  ) -> Entry:
    more = self.options(value_name, options)
    plain_key = key.rstrip('!>?')
    more['key'], mark = self.key(plain_key), key.removeprefix(plain_key)
    more['is_stated'] = mark in ('!', '>')
    more['is_written_only'] = mark == '>'
    if mark == '?':
      more['write'] = lambda values: None
    read = self.read(place, more.pop('axes', 0), more.pop('else', 0))
    if place.startswith('='):
      more['default'] = self.literal(place[1:])
    if place.endswith('?'):
      more.setdefault('kind', typed.TRUTH)
    return Entry(value_name, read, **more)

  def options(self, value_name: str, options: Sequence[str]) -> dict[str, Any]:
    """Returns fields of an entry for the words behind a key."""
    more: dict[str, Any] = {}
    for option in options:
      name, is_field, value = option.partition('=')
      if name == 'write':
        more[name] = self.writer(value)
      elif is_field:
        more[name] = self.literal(value)
      elif option in ('square', 'side'):
        more['write'] = _one_side(value_name)
        more['is_square'] = option == 'side'
      elif option in ('noted', 'read_only', 'given', 'named'):
        more[f'is_{option}'] = True
      elif ':' in option:
        pairs = [pair.split(':') for pair in option.split(',')]
        more['words'] = {self.literal(x): self.literal(y) for x, y in pairs}
      elif option in self.names:
        more['words'] = self.names[option]
      else:
        more['kind'] = getattr(typed, option)
    return more

  def read(self, place: str, axes: int, absent: Any) -> Read | None:
    """Returns what reads the arrays; None: they do not show the value.

    `absent` is the value without an array of a number of `axes`.
    """
    if place == '-' or place.startswith('='):
      return None
    if place.startswith('@'):
      return lambda file: file.values[place[1:]]
    if place.endswith('()') or '?' in place:
      function: Read = self.literal(place)
      return function
    name, _, sides = place.removesuffix(']').partition('[')
    if sides == '#':
      return lambda file: file.count(name) or absent
    axis = self.literal(sides)

    def read(file: FileFacts) -> Any:
      file.shape(name, axes)
      if isinstance(axis, tuple):
        return tuple(file.size(name, i) for i in axis)
      return file.size(name, axis) or absent

    return read

  def choice(self, place: str) -> Read:
    """Returns what reads `a?x:b?y:z`."""
    pattern, _, choices = place.partition('?')
    yes, _, no = (choices or 'True:False').partition(':')
    then = self.literal(yes)
    otherwise = self.choice(no) if '?' in no else lambda file: self.literal(no)

    def read(file: FileFacts) -> Any:
      if pattern.startswith('~'):
        name = file.config.get('architecture', typed.TEXT, '')
        return then if re.match(pattern[1:], name) else otherwise(file)
      return then if file.has(pattern) else otherwise(file)

    return read


def _one_side(name: str) -> Write:
  """Returns what writes sides that agree as one number."""

  def write(values: Mapping[str, Any]) -> int | list[int]:
    sides = values[name]
    return sides[0] if len({*sides}) == 1 else [*sides]

  return write
