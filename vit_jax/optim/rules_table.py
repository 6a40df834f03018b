"""The rules of all parameters as a table for people."""

from collections.abc import Sequence
import itertools

from vit_jax import tables
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import sharding_table


def table(rules: rules_lib.Rules) -> tables.Table:
  """Returns the rules as a table for people.

  Parameters and layers with the same treatment share a line.
  """
  groups: dict[str, dict[str, rules_lib.Parameter]] = {}
  for name, parameter in rules.parameters.items():
    top, path = sharding_table.split_layer(name)
    groups.setdefault(top, {})[path] = parameter
  names = (
    *('part', 'arrays', 'parameters', 'trains'),
    *('learning rate', 'weight decay'),
  )
  rows: list[Sequence[str | int]] = []
  for alike, run in itertools.groupby(groups.items(), key=lambda g: g[1]):
    tops = [top for top, _ in run]
    label = tops[0] if len(tops) == 1 else f'{tops[0]} to {tops[-1]}'
    rows += _rows(label, alike, len(tops))
  return tables.Table(names, rows)


def _rows(
  label: str, group: dict[str, rules_lib.Parameter], count: int
) -> list[tuple[str | int, ...]]:
  """Returns a row for each treatment within `count` identical groups."""
  kinds: dict[tuple[bool, float, float], list[str]] = {}
  for name, p in group.items():
    kind = (True, p.factor, p.decay) if p.trains else (False, 0.0, 0.0)
    kinds.setdefault(kind, []).append(name)
  return [
    (
      label + _shared_name(names, group),
      count * len(names),
      count * sum(group[name].size for name in names),
      'yes' if trains else 'no',
      f'x {factor:.4g}' if trains else '-',
      f'{decay:g}' if trains else '-',
    )
    for (trains, factor, decay), names in kinds.items()
  ]


def _shared_name(
  names: Sequence[str], group: dict[str, rules_lib.Parameter]
) -> str:
  """Returns a short description of some of a group's parameters."""
  other_names = group.keys() - set(names)
  if not other_names:
    return ''
  for part in (-1, 0):  # `kernel`, or else `norm1`
    short = dict.fromkeys(name.split('/')[part] for name in names)
    if not short.keys() & {name.split('/')[part] for name in other_names}:
      return f': {", ".join(short)}'
  return f': {", ".join(names[:4])}{", ..." if names[4:] else ""}'
