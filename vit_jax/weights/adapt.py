"""Adapts a checkpoint's parameters to another image size, patch or task.

- Learned positions of patches are resized to the new grid; those of other
  tokens are kept. If the model has no position for a token, the position is
  added to the token, which gives the same function.
- Tokens that the model lacks are dropped with their positions. A new class
  token is zeros. Other new tokens are normal(0.02) from fixed seeds, since
  equal tokens would stay equal in training. Positions of new tokens are zeros.
- Relative positions are resized, too. A shared table is copied to each layer
  where the model has one in each, as BEiT's fine-tuning does; new ones are 0.
- The patch embedding is resized to the new patch (`resize.patch_kernel`), and
  the first kernel to the new number of channels (`resize.channels`).
- The head is kept if the classes are the same. Otherwise it becomes zeros, and
  `pre_logits` is dropped if the model has none, as in the ViT paper's
  fine-tuning.
- If another pooling or `pre_logits` changes the input of the head, it becomes
  zeros, too, and new layers before it are initialised from fixed seeds.
- Layers are stacked or unrolled as the model's `scan` says.
- Everything else must agree.

In comments: [h, w] grid of patches, N = h * w, D hidden size, C channels.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import sys
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax import tables
from vit_jax.config import UserError
from vit_jax.models import context as context_lib
from vit_jax.models import embedding
from vit_jax.models import igpt
from vit_jax.models import initializers
from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import patches as patches_lib
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.models.parts import pooling
from vit_jax.models.parts import positions
from vit_jax.weights import edit as edit_lib
from vit_jax.weights import fit
from vit_jax.weights import relative
from vit_jax.weights import resize as resize_lib

Grid = tuple[int, int]

# The last one has no position.
_TOKENS = (
  *('class_token', 'distillation_token', 'register_tokens'),
  'mask_token',
)


def adapt(
  params: Mapping[str, Any],
  source: models.Model,
  target: models.Model,
  source_grid: Grid,
  target_grid: Grid,
  *,
  channels: int,
  resize: str = 'corner',
  classes: tuple[Sequence[str], Sequence[str]] | None = None,
) -> tuple[dict[str, Any], list[edit_lib.Change]]:
  """Returns parameters as a model needs them, and the changes, in order.

  Args:
    params: float32 NumPy or JAX arrays, the kind that is returned; layers
      unrolled or stacked. Unchanged arrays are not copied.
    source: The model that the checkpoint comes from.
    target: The model that takes them.
    source_grid: (h, w) of the checkpoint's patches, after the embedding.
    target_grid: (h, w) of the model's patches.
    channels: Channels of the model's images.
    resize: How positions are resized, one of `resize.METHODS`.
    classes: Names of the checkpoint's classes and of the model's, in order. The
      head is kept only if they are equal; an empty list means unknown names.
  """
  resize_lib.check_method(resize)
  _check_family(source, target, source_grid, target_grid)
  edit = edit_lib.Edit(traverse_util.flatten_dict(dict(params), sep='/'))
  _check_source(edit.params, source)
  expected = fit.expected_shapes(target, target_grid, channels)
  _adapt_embedding(edit, target, channels)
  if isinstance(source, vit.ViT) and isinstance(target, vit.ViT):
    rows = _adapt_tokens(edit, source, target, source_grid)
    grids = source_grid, target_grid
    _adapt_positions(edit, source, target, grids, rows, resize)
    relative.adapt(edit, source, target, grids, resize)
  _adapt_heads(edit, source, target, expected, classes)
  fit.check(edit.params, expected, source, target)
  adapted = traverse_util.unflatten_dict(edit.params, sep='/')
  return _as_scanned(adapted, target), edit.changes


def _check_family(
  source: models.Model,
  target: models.Model,
  source_grid: Grid,
  target_grid: Grid,
) -> None:
  """Raises a UserError where two models have nothing in common."""
  if type(source) is not type(target):
    raise UserError(
      f'the checkpoint is of a {type(source).__name__}, the model is a'
      f' {type(target).__name__}: choose a model of its family'
    )
  if source_grid == target_grid:
    return
  if isinstance(target, mixer.Mixer | igpt.IGPT):
    size = fit.image_size(target, source_grid)
    raise UserError(
      f"the checkpoint's {type(target).__name__} takes {fit.show(source_grid)}"
      f' patches, and no others, but the model has {fit.show(target_grid)}:'
      f' make its image size {fit.show(size)}'
    )


def changes_table(changes: Sequence[edit_lib.Change]) -> str:
  """Returns the changes as a table to print, a line each below their names."""
  names = 'parameter', 'checkpoint', 'model', 'what was done'
  rows = [(x.path, fit.show(x.old), fit.show(x.new), x.action) for x in changes]
  return tables.Table(names, rows).text(tables.room(sys.stderr))


def _check_source(params: Mapping[str, Any], model: models.Model) -> None:
  """Checks that no array is missing: it would be taken for a new one."""
  names = ['head/kernel', 'head/bias'] if model.num_classes else []
  if isinstance(model, vit.ViT):
    names += [name for name in _TOKENS if _count(model, name)]
    if position_kind(model)[0] == 'learned':
      names.append('position_embedding')
  missing = [name for name in names if name not in params]
  if missing:
    raise UserError(
      f'the checkpoint lacks {", ".join(missing)}, which its model has: it is'
      ' damaged, or described wrongly'
    )


def _adapt_embedding(edit: edit_lib.Edit, target: Any, channels: int) -> None:
  """Resizes the first kernel's channels and the patch embedding's patch."""
  stem, patch = 'stem/conv/kernel', 'patch_embedding/kernel'
  first = stem if stem in edit.params else patch
  if first in edit.params:
    kernel = edit.host(first)
    if kernel.shape[-2] != channels:
      changed = resize_lib.channels(
        kernel, channels, is_standardized=first == stem
      )
      edit.put(first, changed, f'{kernel.shape[-2]} -> {channels} channels')
  if patch in edit.params:
    kernel, size = edit.host(patch), _patch_size(target)
    if kernel.shape[:-2] != size:
      method = 'pseudo-inverse' if len(size) == 2 else 'in its middle frame'
      method = (
        f'patch {fit.show(kernel.shape[:-2])} -> {fit.show(size)}, {method}'
      )
      edit.put(patch, fit.patch_kernel(target, kernel, size), method)


def _patch_size(model: models.Model) -> tuple[int, ...]:
  """Returns the sides of the patch embedding's kernel."""
  home: Any = model.patches if isinstance(model, vit.ViT) else model
  size: tuple[int, ...] = home.patch_size
  return size


def _adapt_tokens(
  edit: edit_lib.Edit, source: vit.ViT, target: vit.ViT, grid: Grid
) -> dict[str, np.ndarray]:
  """Keeps, drops or adds the tokens beside the patches, [1, n, D] each.

  Returns positions that the model needs, [1, n, D] by token name, and the
  checkpoint's positions of `patches` if it has any.
  """
  old_rows = _split_positions(edit, source, grid)
  rows = {k: x for k, x in old_rows.items() if k == 'patches'}
  for name in _TOKENS:
    old, count = _count(source, name), _count(target, name)
    row, done = old_rows.get(name), []
    if not count:
      if old:
        edit.drop(name, 'dropped' + ', and its position' * (row is not None))
      continue
    new = _fresh_tokens(name, count, source.hidden_size)[:, old:]
    token = edit.host(name) if old else new[:, :0]
    if name in _positioned(target):
      rows[name] = np.zeros((1, count, source.hidden_size), np.float32)
      if row is not None:
        rows[name][:, : row.shape[1]] = row[:, :count]
    elif row is not None:
      token = token + row
      done.append('its position added to it: the same function')
    if old > count:
      done.append(f'the first {count} kept')
    elif old < count:
      values = 'normal(0.02)' if new.any() else 'zeros'
      done.append(f'{count - old} added: {values}')
    if done:
      token = np.concatenate([token, new], axis=1)[:, :count]
      is_fresh = name == 'mask_token' and not old
      edit.put(name, token, '; '.join(done), is_fresh=is_fresh)
  return rows


def _adapt_positions(
  edit: edit_lib.Edit,
  source: vit.ViT,
  target: vit.ViT,
  grids: tuple[Grid, Grid],
  rows: dict[str, np.ndarray],
  method: str,
) -> None:
  """Makes the positions that the model needs from those in `rows`."""
  path, kind = 'position_embedding', position_kind(target)[0]
  old_kind, _ = position_kind(source)
  done = []
  if kind != old_kind:
    done.append(f'{old_kind} -> {kind}')
  if kind != 'learned':
    if path in edit.params:
      edit.drop(path, f'{done[0]}: dropped')
    elif done:
      edit.note(path, None, None, done[0])
    return
  patches, action = _patch_positions(source, grids, rows.get('patches'), method)
  if action:
    done.append(action)
  counts = [_positioned(model) for model in (source, target)]
  if counts[0] != counts[1] and path in edit.params:
    texts = (', '.join(f'{n} {name}' for name, n in x.items()) for x in counts)
    done.append('other tokens: ' + ' -> '.join(x or 'none' for x in texts))
  if done:
    table = [*(rows[name] for name in counts[1]), patches]
    edit.put(path, np.concatenate(table, axis=1), '; '.join(done))


def _patch_positions(
  source: vit.ViT,
  grids: tuple[Grid, Grid],
  stored: np.ndarray | None,
  method: str,
) -> tuple[np.ndarray, str]:
  """Returns positions of the new grid's patches [1, N, D], and what was done.

  `stored` are the checkpoint's positions of patches, if it has any.
  """
  old, new = grids
  if stored is not None:
    if old == new:
      return stored, ''
    change = f'grid {fit.show(old)} -> {fit.show(new)}, {method}'
    return resize_lib.positions(stored, old, new, method), change
  kind, _ = position_kind(source)
  if kind in embedding.SINCOS:
    table = embedding.sincos2d(new, source.hidden_size, kind)
    return table, 'the same values'
  shape = (1, int(np.prod(new)), source.hidden_size)
  return np.zeros(shape, np.float32), 'zeros'


def _split_positions(
  edit: edit_lib.Edit, source: vit.ViT, grid: Grid
) -> dict[str, np.ndarray]:
  """Returns the checkpoint's learned positions by token, [1, n, D] each."""
  path = 'position_embedding'
  if position_kind(source)[0] != 'learned':
    return {}
  table, rows, start = edit.host(path), {}, 0
  for name, count in _positioned(source).items():
    rows[name] = table[:, start : start + count]
    start += count
  rows['patches'] = table[:, start:]
  if rows['patches'].shape[1] != grid[0] * grid[1]:
    raise UserError(
      f'{path} has {table.shape[1]} rows, {start} of them before the patches:'
      f' that is no grid of {fit.show(grid)}; pass the grid that it was trained'
      ' with'
    )
  return rows


def _fresh_tokens(name: str, count: int, d: int) -> np.ndarray:
  """Returns new tokens [1, count, D]: zeros for class tokens, else random."""
  if name == 'class_token':
    return np.zeros((1, count, d), np.float32)
  rng = np.random.default_rng(_TOKENS.index(name))
  return rng.normal(0, 0.02, (1, count, d)).astype(np.float32)


def _positioned(model: vit.ViT) -> dict[str, int]:
  """Returns how many of which tokens before the patches have positions."""
  kind, tokens = position_kind(model)
  names = {'all': _TOKENS, 'class': _TOKENS[:1]}.get(tokens, ())
  names = names if kind == 'learned' else ()
  return {name: _count(model, name) for name in model.prefix if name in names}


def position_kind(model: vit.ViT) -> tuple[str, str]:
  """Returns which positions are added to tokens, and to which tokens."""
  for part in model.positions:
    match part:
      case patches_lib.Learned():
        return 'learned', part.tokens
      case positions.Factorized():
        return 'factorized', 'patches'
      case positions.SinCos():
        return part.kind, 'patches'
  return 'none', 'all'


def _count(model: vit.ViT, name: str) -> int:
  """Returns how many tokens of a kind a model has."""
  if name == 'mask_token':
    return int(model.mask_token)
  number = model.registers if name == 'register_tokens' else 1
  return number if name in model.prefix else 0


def _adapt_heads(
  edit: edit_lib.Edit,
  source: Any,
  target: Any,
  expected: Mapping[str, tuple[int, ...]],
  classes: tuple[Sequence[str], Sequence[str]] | None,
) -> None:
  """Keeps the heads and the layers before them, or replaces them.

  A change between the class token and the mean over patches keeps the head: the
  two are similar enough.
  """
  (old_pool, old_size), (pool, size) = map(_pool, (source, target))
  reads = reason = ''
  if old_pool != pool and not {old_pool, pool} <= {'token', 'mean'}:
    reads = f'it reads {pool!r}, not {old_pool!r}'
  elif old_size != size:
    reads = f'pre_logits {old_size} -> {size}'
  if source.num_classes != target.num_classes:
    reason = f'{source.num_classes} -> {target.num_classes} classes'
  elif classes and all(classes) and list(classes[0]) != list(classes[1]):
    reason = 'other classes'
  reason = reason or reads
  if old_pool != pool:
    _replace(edit, 'map_head', target, expected, reads)
  if reads or (reason and not size):
    _replace(edit, 'pre_logits', target, expected, reason)
  _adapt_head_norm(edit, expected)
  for name in ('head', 'head_distillation'):
    for path in _prune_module(edit, name, expected, 'dropped'):
      if reason or path not in edit.params:
        action = f'zeros: {reason or "the checkpoint has none"}'
        edit.put(path, np.zeros(expected[path]), action, is_fresh=True)
      elif old_pool != pool:
        shape = edit.params[path].shape
        action = f'kept, but it reads {pool!r}, not {old_pool!r}'
        edit.note(path, shape, shape, action)


def _adapt_head_norm(
  edit: edit_lib.Edit, expected: Mapping[str, tuple[int, ...]]
) -> None:
  """Drops running statistics, or starts them as before the first batch."""
  for path in _prune_module(edit, 'head_norm', expected, 'dropped'):
    if path not in edit.params:
      start = np.ones if path.endswith('var') else np.zeros
      edit.put(path, start(expected[path], np.float32), 'a new BatchNorm')


def _prune_module(
  edit: edit_lib.Edit,
  name: str,
  expected: Mapping[str, tuple[int, ...]],
  action: str,
) -> list[str]:
  """Drops what the model lacks of a module; returns the paths that it has."""
  for path in edit.below(name):
    if path not in expected:
      edit.drop(path, action)
  return [path for path in expected if path.startswith(name + '/')]


def _pool(model: models.Model) -> tuple[str, int]:
  """Returns a ViT's pool, and the size of the layer before its head, or 0."""
  values = values_lib.model_values(model) if isinstance(model, vit.ViT) else {}
  return values.get('pool', ''), values.get('head.pre_logits', 0)


def _replace(
  edit: edit_lib.Edit,
  name: str,
  target: Any,
  expected: Mapping[str, tuple[int, ...]],
  reason: str,
) -> None:
  """Initialises `map_head` or `pre_logits`, or drops it if the model has none.

  New parameters are initialised as in a new model, from fixed seeds.
  """
  if not _prune_module(edit, name, expected, 'dropped with the head'):
    return
  module: nn.Module
  context: tuple[context_lib.Context, ...] = ()
  if name == 'map_head':
    module, context = target.pool, (context_lib.Context(),)
  else:
    starts = initializers.INITIALIZERS[target.initializers]
    module = nn.Dense(_pool(target)[1], kernel_init=starts.kernel)
  is_double = isinstance(target.pool, pooling.TokenAndMean)
  width = target.hidden_size * (1 + is_double)
  key = jax.random.key(('map_head', 'pre_logits').index(name))
  new = jax.jit(module.init)(key, jnp.zeros((1, 1, width)), *context)['params']
  for path, value in traverse_util.flatten_dict(new, sep='/').items():
    action = f'new: {reason}'
    edit.put(f'{name}/{path}', np.asarray(value), action, is_fresh=True)


def _as_scanned(params: dict[str, Any], target: Any) -> dict[str, Any]:
  """Stacks or unrolls the layers as the model's `scan` says."""
  if not getattr(target, 'scan', False):
    return layouts.unstack_layers(params)
  return params if 'blocks' in params else layouts.stack_layers(params)
