"""All parameters as tables for people: where they are, and how they train."""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import re

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding


def shardings_table(
  shardings: Mapping[str, sharding.ParamSharding],
) -> tables.Table:
  """Returns the shardings of parameters.

  Layers with the same shardings share a row, `blocks_0..11`, which shows their
  total bytes.
  """

  def in_order(path: str) -> tuple[str, int]:
    top, _ = _split_layer(path)
    stem, _, number = top.rpartition('_')
    return (stem, int(number)) if number.isdecimal() else (top, -1)

  cells = []
  for path in sorted(shardings, key=in_order):
    p = shardings[path]
    axes = ['+'.join(sharding.entry_axes(x)) or '.' for x in p.spec]
    spec = ' '.join(axes) or 'on every device'
    cells.append((path, (str(list(p.shape)), spec, p.bytes_per_device)))
  rows = [
    (path, shape, spec, count, count * size)
    for path, (shape, spec, size), count in tables.by_layers(cells)
  ]
  names = 'parameter', 'shape', 'sharding', 'arrays', 'bytes a device'
  return tables.Table(names, rows)


def unsplit(
  shardings: Mapping[str, sharding.ParamSharding], sizes: Mapping[str, int]
) -> str:
  """Returns a line on the parameters that an axis does not split; '': none.

  `sizes` has the size of each axis of the mesh.
  """
  lines = []
  for axis in mesh_lib.AXES:
    names = [name for name, x in shardings.items() if axis in x.unsplit]
    if names:
      size = sum(shardings[name].bytes_per_device for name in names)
      dimension = 'dimension' if axis == 'fsdp' else 'heads or hidden units'
      lines.append(
        f'config.mesh.{axis}={sizes[axis]} divides no {dimension} of'
        f' {config_lib.counted(len(names), "array")}, which take {size:,} bytes'
        f' on each device: {config_lib.join_first(names)}'
      )
  return '; '.join(lines)


def rules_table(rules: rules_lib.Rules) -> tables.Table:
  """Returns the rules as a table for people.

  Parameters and layers with the same treatment share a line.
  """
  groups: dict[str, dict[str, rules_lib.Parameter]] = {}
  for name, parameter in rules.parameters.items():
    top, path = _split_layer(name)
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


def _split_layer(name: str) -> tuple[str, str]:
  """Splits a path into its layer (or topmost module) and the rest."""
  match = re.match(r'(?:.*?/)?blocks_\d+(?=/)', name)
  top = match[0] if match else name.partition('/')[0]
  return top, name[len(top) + 1 :]
