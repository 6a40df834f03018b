"""The shardings of all parameters as a table for people."""

from collections.abc import Mapping
import itertools

from vit_jax import tables
from vit_jax.parallel import sharding


def table(
  shardings: Mapping[str, sharding.ParamSharding],
) -> tables.Table:
  """Returns the shardings of parameters.

  Layers with the same shardings share a row, `blocks_0..11`, which shows their
  total bytes.
  """
  groups: dict[str, dict[str, sharding.ParamSharding]] = {}
  for name, x in shardings.items():
    top, rest = sharding.split_layer(name)
    groups.setdefault(top, {})[rest] = x
  rows: list[tuple[str | int, ...]] = []
  tops = sorted(groups, key=_by_layer)
  for group, run in itertools.groupby(tops, key=lambda top: groups[top]):
    layers = list(run)
    label = layers[0]
    if len(layers) > 1:
      label += f'..{layers[-1].rpartition("_")[2]}'
    rows += [
      (
        f'{label}/{rest}'.rstrip('/'),
        str(list(p.shape)),
        ' '.join('+'.join(sharding.entry_axes(x)) or '.' for x in p.spec)
        or 'on every device',
        len(layers),
        len(layers) * p.bytes_per_device,
      )
      for rest, p in group.items()
    ]
  names = 'parameter', 'shape', 'sharding', 'arrays', 'bytes a device'
  return tables.Table(names, rows)


def _by_layer(top: str) -> tuple[str, int]:
  stem, _, number = top.rpartition('_')
  return (stem, int(number)) if number.isdecimal() else (top, -1)
