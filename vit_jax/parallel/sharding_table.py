"""Tells people where parameters are: a table, and what is not split."""

from collections.abc import Mapping
import itertools
import re

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding


def table(shardings: Mapping[str, sharding.ParamSharding]) -> tables.Table:
  """Returns the shardings of parameters.

  Layers with the same shardings share a row, `blocks_0..11`, which shows their
  total bytes.
  """
  groups: dict[str, dict[str, sharding.ParamSharding]] = {}
  for name, x in shardings.items():
    top, suffix = split_layer(name)
    groups.setdefault(top, {})[suffix] = x
  rows: list[tuple[str | int, ...]] = []

  def by_layer(top: str) -> tuple[str, int]:
    stem, _, number = top.rpartition('_')
    return (stem, int(number)) if number.isdecimal() else (top, -1)

  tops = sorted(groups, key=by_layer)
  for group, run in itertools.groupby(tops, key=lambda top: groups[top]):
    layers = list(run)
    label = layers[0]
    if len(layers) > 1:
      label += f'..{layers[-1].rpartition("_")[2]}'
    rows += [
      (
        f'{label}/{suffix}'.rstrip('/'),
        str(list(p.shape)),
        ' '.join('+'.join(sharding.entry_axes(x)) or '.' for x in p.spec)
        or 'on every device',
        len(layers),
        len(layers) * p.bytes_per_device,
      )
      for suffix, p in group.items()
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


def split_layer(name: str) -> tuple[str, str]:
  """Splits a path into its layer (or topmost module) and the rest."""
  match = re.match(r'(?:.*?/)?blocks_\d+(?=/)', name)
  top = match[0] if match else name.partition('/')[0]
  return top, name[len(top) + 1 :]
