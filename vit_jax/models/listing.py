"""The parts that have a name, and their options, as their classes are."""

from collections.abc import Mapping
import dataclasses
import inspect
import re

from vit_jax.config import parts
from vit_jax.config import registry as config_registry
from vit_jax.config.errors import UserError
from vit_jax.models import registry

_PAPER = re.compile(r'arXiv:(\d{4}\.\d{4,5})')


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
  """
  if kind is not None and kind not in registry.PARTS:
    hint = parts.nearest(kind, registry.PARTS)
    raise UserError(f'there is no kind of part {kind!r}: {hint}')
  return [
    _entry(of_kind, name, path)
    for of_kind, names in registry.PARTS.items()
    for name, path in names.items()
    if kind in (None, of_kind)
  ]


def _entry(kind: str, name: str, path: str) -> Entry:
  module = config_registry.wing(path)
  text = inspect.getdoc(module) or ''
  summary, *_ = re.split(r'(?<=[.])\s', text, maxsplit=1)
  # What follows is on single options.
  text = text.partition('\nAttributes')[0]
  of_module = inspect.getdoc(inspect.getmodule(module)) or ''
  papers = _PAPER.findall(text) or _PAPER.findall(of_module)
  return Entry(
    kind,
    name,
    path,
    {
      option.name: _without_text(option, kind)
      for option in registry.declared_options(module).values()
    },
    ' '.join(summary.split()),
    tuple(dict.fromkeys(papers)),
  )


def _without_text(option: registry.Option, kind: str) -> str:
  """Returns what an option of a part is that a text does not set."""
  if option.kind is None and option.key in (*registry.KEYS, 'dtype'):
    return f'config.{option.config_key}'
  if option.kind and option.kind != kind:
    return f'config.model.{option.kind}'
  is_required = option.default is dataclasses.MISSING
  default = 'required' if is_required else repr(option.default)
  return option.field.part or default


def all_options() -> dict[str, tuple[str, str]]:
  """Returns kind and name of the first part that has each option."""
  homes: dict[str, tuple[str, str]] = {}
  for kind, names in registry.PARTS.items():
    for name, path in names.items():
      for option in registry.declared_options(config_registry.wing(path)):
        homes.setdefault(option, (kind, name))
  return homes
