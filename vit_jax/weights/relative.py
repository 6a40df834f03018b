"""Adapts a checkpoint's relative positions to another grid.

A table is [R, H]: a row for each distance between two patches of a grid, and
three for the class token, by head (`models.parts.relative.index`). An MLP that
computes them suits any grid.
"""

from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.models import vit
from vit_jax.models.parts import relative
from vit_jax.weights import edit as edit_lib
from vit_jax.weights import fit
from vit_jax.weights import resize as resize_lib

Grid = tuple[int, int]

_NAME = 'relative_position_bias'


def adapt(
  edit: edit_lib.Edit,
  source: vit.ViT,
  target: vit.ViT,
  grids: tuple[Grid, Grid],
  method: str,
) -> None:
  """Makes the tables that a model needs.

  A table that all layers share is copied to each layer where the model has one
  in each, as in BEiT's fine-tuning. New tables are zeros.
  """
  biases = _bias(source), _bias(target)
  if any(isinstance(x, relative.RelativeMlpBias) for x in biases):
    if biases[0] != biases[1]:
      raise UserError(
        "the checkpoint's relative positions and the model's differ, and those"
        ' of an MLP are not adapted: set config.model.positions to the'
        " checkpoint's"
      )
    return
  kinds = _kind(biases[0]), _kind(biases[1])
  if kinds == ('layers', 'shared'):
    raise UserError(
      "the checkpoint has relative positions in each layer, and the model's are"
      ' shared by all layers: set config.model.positions to'
      " 'relative_bias(shared=False)', beside what else it has"
    )
  shared = edit.host(_NAME) if kinds[0] == 'shared' else None
  paths = _paths(edit, target)
  for path in [x for x in edit.params if x.split('/')[-1] == _NAME]:
    if path not in paths:
      edit.drop(path, f'{kinds[0]} -> {kinds[1]}')
  for path, layers in paths.items():
    if kinds[0] == 'none':
      shape = (*layers, relative.rows(grids[1]), biases[1].num_heads)
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


def _bias(model: vit.ViT) -> Any:
  """Returns the relative positions of a model; None: it has none."""
  kinds = relative.RelativeBias | relative.RelativeMlpBias
  return next((x for x in model.positions if isinstance(x, kinds)), None)


def _kind(bias: Any) -> str:
  """Returns whether layers share a table: 'shared', 'layers' or 'none'."""
  if bias is None:
    return 'none'
  return 'shared' if bias.shared else 'layers'


def _paths(edit: edit_lib.Edit, target: vit.ViT) -> dict[str, tuple[int, ...]]:
  """Returns the paths of a model's tables, each with the axis of its layers.

  The layers are stacked or not as those of the checkpoint.
  """
  kind = _kind(_bias(target))
  if kind == 'none':
    return {}
  if kind == 'shared':
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
