"""Adapts a checkpoint's relative positions to another grid.

A table is [R, H]: a row for each distance between two patches of a grid, and
three for the class token, by head (`models.relative.index`). An MLP that
computes them suits any grid.
"""

import numpy as np

from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models import relative
from vit_jax.weights import edit as edit_lib
from vit_jax.weights import fit
from vit_jax.weights import resize as resize_lib

Grid = tuple[int, int]

_NAME = 'relative_position_bias'


def adapt(
  edit: edit_lib.Edit,
  source: flat.ViT,
  target: flat.ViT,
  grids: tuple[Grid, Grid],
  method: str,
) -> None:
  """Makes the tables that a model needs.

  A table that all layers share is copied to each layer where the model has one
  in each, as in BEiT's fine-tuning. New tables are zeros.

  Raises:
    UserError: The checkpoint has a table in each layer, and the model one; or
      only one of them has an MLP.
  """
  kinds = source.relative_positions, target.relative_positions
  if {*kinds} & {*relative.MLPS}:
    if kinds[0] != kinds[1]:
      raise UserError(
        f'the checkpoint has relative_positions={kinds[0]!r}, and the model'
        f' {kinds[1]!r}: MLPs of relative positions are not adapted, so set'
        f' relative_positions={kinds[0]!r}'
      )
    return
  if kinds == ('layers', 'shared'):
    raise UserError(
      "the checkpoint has relative positions in each layer, and the model's are"
      " shared by all layers: set relative_positions='layers'"
    )
  shared = edit.host(_NAME) if kinds[0] == 'shared' else None
  wanted = _paths(edit, target)
  for path in [x for x in edit.params if x.split('/')[-1] == _NAME]:
    if path not in wanted:
      edit.drop(path, f'{kinds[0]} -> {kinds[1]}')
  for path, layers in wanted.items():
    if kinds[0] == 'none':
      shape = (*layers, relative.rows(grids[1]), target.num_heads)
      edit.put(path, np.zeros(shape, np.float32), 'new: zeros', is_fresh=True)
      continue
    table = edit.host(path) if shared is None else shared
    if kinds[0] != kinds[1]:
      table = np.broadcast_to(table, (*layers, *table.shape))
    done = [f'{kinds[0]} -> {kinds[1]}'] * (kinds[0] != kinds[1])
    if grids[0] != grids[1]:
      old, new = map(fit.show, grids)
      done.append(f'grid {old} -> {new}, {method}')
      table = _resized(table, grids, method)
    if done:
      edit.put(path, table, '; '.join(done))


def _paths(edit: edit_lib.Edit, target: flat.ViT) -> dict[str, tuple[int, ...]]:
  """Returns the paths of a model's tables, each with the axis of its layers.

  The layers are stacked or not as those of the checkpoint.
  """
  if target.relative_positions == 'none':
    return {}
  if target.relative_positions == 'shared':
    return {_NAME: ()}
  if edit.below('blocks'):
    return {f'blocks/attention/{_NAME}': (target.depth,)}
  return {f'blocks_{i}/attention/{_NAME}': () for i in range(target.depth)}


def _resized(
  table: np.ndarray, grids: tuple[Grid, Grid], method: str
) -> np.ndarray:
  """Resizes one table [R, H], or those of stacked layers [L, R, H]."""
  if table.ndim == 2:
    return resize_lib.relative_positions(table, *grids, method)
  return np.stack([_resized(x, grids, method) for x in table])
