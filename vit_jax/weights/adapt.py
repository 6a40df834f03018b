"""Adapts a checkpoint's parameters to another image size, patch or task.

- Learned positions of patches are resized to the new grid. Positions of other
  tokens are kept. If the model has no position for a token, the position is
  added to the token, which gives the same function.
- Tokens that the model lacks are dropped with their positions. A new class
  token is zeros. Other new tokens are normal(0.02) from fixed seeds, since
  equal tokens would stay equal in training. Positions of new tokens are zeros.
- Relative positions are resized, too. A shared table is copied to each layer
  where the model has one in each, as BEiT's fine-tuning does; new ones are 0.
- The patch embedding is resized to the new patch (`resize.patch_kernel`), and
  the first kernel to the new number of channels (`resize.channels`).
- Adapters that the model lacks are merged into the layers, and new ones are
  initialised from a fixed seed, so that they change nothing yet.
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
import dataclasses
import re
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
from vit_jax.models import registry
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.models.parts import adapters
from vit_jax.models.parts import pooling
from vit_jax.models.parts import positions
from vit_jax.models.parts import relative
from vit_jax.weights import fit
from vit_jax.weights import resize as resize_lib

Grid = tuple[int, int]
Shapes = Mapping[str, tuple[int, ...]]

# The last one has no position.
_TOKENS = (
  *('class_token', 'distillation_token', 'register_tokens'),
  'mask_token',
)
_POSITIONS, _RELATIVE = 'position_embedding', 'relative_position_bias'
_BIASES = relative.RelativeBias | relative.RelativeMlpBias


@dataclasses.dataclass(frozen=True)
class Change:
  """A change to one array."""

  path: str  # path of the parameter, as 'head/kernel'
  # Its shape in the checkpoint; None if it was not there.
  old: tuple[int, ...] | None
  new: tuple[int, ...] | None  # its shape now; None if it was dropped
  action: str  # description of the change, in a few words
  is_fresh: bool = False  # whether its values are new, not the checkpoint's


class _Edit:
  """Parameters by path, NumPy or JAX arrays, that are adapted one by one."""

  def __init__(self, params: Mapping[str, Any]):
    self.params = dict(params)
    self.changes: list[Change] = []
    self._is_jax = any(isinstance(x, jax.Array) for x in params.values())

  def host(self, path: str) -> np.ndarray:
    return np.asarray(self.params[path])

  def put(
    self, path: str, value: np.ndarray, action: str, is_fresh: bool = False
  ) -> None:
    old = self.params.get(path)
    value = np.asarray(value, np.float32)
    self.params[path] = jnp.asarray(value) if self._is_jax else value
    shape = None if old is None else old.shape
    self.changes.append(Change(path, shape, value.shape, action, is_fresh))

  def drop(self, path: str, action: str) -> None:
    old = self.params.pop(path)
    self.changes.append(Change(path, old.shape, None, action))

  def prune(self, name: str, expected: Shapes, action: str) -> list[str]:
    """Drops what the model lacks of a module; returns what it has."""
    for path in [x for x in self.params if x.startswith(f'{name}/')]:
      if path not in expected:
        self.drop(path, action)
    return [path for path in expected if path.startswith(f'{name}/')]


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
) -> tuple[dict[str, Any], list[Change]]:
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
  old, new = map(adapters.block, (source, target))
  if type(old) is not type(new):
    params = layouts.unstack_layers(params)
  edit = _Edit(traverse_util.flatten_dict(dict(params), sep='/'))
  if type(old) is not type(new):
    shape = (*fit.image_size(target, target_grid), channels)
    source = _adapt_layers(edit, source, target, shape)
  _check_source(edit.params, source)
  expected = fit.expected_shapes(target, target_grid, channels)
  _adapt_embedding(edit, target, channels)
  if isinstance(source, vit.ViT) and isinstance(target, vit.ViT):
    rows = _adapt_tokens(edit, source, target, source_grid)
    grids = source_grid, target_grid
    _adapt_positions(edit, source, target, grids, rows, resize)
    _adapt_relative(edit, source, target, grids, resize)
  _adapt_heads(edit, source, target, expected, classes)
  fit.check(edit.params, expected, source, target)
  adapted = traverse_util.unflatten_dict(edit.params, sep='/')
  if not getattr(target, 'scan', False):
    adapted = layouts.unstack_layers(adapted)
  elif 'blocks' not in adapted:
    adapted = layouts.stack_layers(adapted)
  return adapted, edit.changes


def changes_table(changes: Sequence[Change]) -> str:
  """Returns the changes as a table to print, a line each below their names."""
  names = 'parameter', 'checkpoint', 'model', 'what was done'
  cells = (
    (x.path, (fit.show(x.old), fit.show(x.new), x.action)) for x in changes
  )
  rows = [(path, *row) for path, row, _ in tables.by_layers(cells)]
  return tables.Table(names, rows).text(tables.room(sys.stderr))


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


def _check_source(params: Mapping[str, Any], model: models.Model) -> None:
  """Checks that no array is missing: it would be taken for a new one."""
  names = ['head/kernel', 'head/bias'] if model.num_classes else []
  if isinstance(model, vit.ViT):
    names += [name for name in _TOKENS if _count(model, name)]
    if position_kind(model)[0] == 'learned':
      names.append(_POSITIONS)
  if missing := [name for name in names if name not in params]:
    raise UserError(
      f'the checkpoint lacks {", ".join(missing)}, which its model has: it is'
      ' damaged, or described wrongly'
    )


def _adapt_layers(
  edit: _Edit, source: Any, target: Any, image_shape: tuple[int, ...]
) -> Any:
  """Merges the adapters of layers, adds others, and returns the model.

  Layers are unrolled, and of different classes. `image_shape` is (height,
  width, C).
  """
  old, new = map(adapters.block, (source, target))
  if old is not None:
    if not old.can_merge:
      name = registry.class_name('block', type(old))
      raise UserError(
        f'block={name!r} is no sum with the layers that it adapts, which cannot'
        ' do without it: leave it as it is'
      )
    factors = [path for path in edit.params if re.search(old.added, path)]
    for path, kernel in old.merged(edit.params).items():
      edit.put(path, kernel, 'its adapters added')
    for path in factors:
      edit.drop(path, 'added to its kernel')
    source = source.clone(block=old.bare())
  if new is not None:

    @jax.jit
    def init(key: jax.Array) -> dict[str, jax.Array]:
      params = models.init_params(target, key, image_shape)
      unrolled = layouts.unstack_layers(params)
      flat = traverse_util.flatten_dict(unrolled, sep='/')
      return {path: x for path, x in flat.items() if re.search(new.added, path)}

    for path, value in init(jax.random.key(0)).items():
      edit.put(path, np.asarray(value), 'new', is_fresh=True)
    source = source.clone(block=new)
  return source


def _adapt_embedding(edit: _Edit, target: Any, channels: int) -> None:
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
    home = target.patches if isinstance(target, vit.ViT) else target
    kernel, size = edit.host(patch), home.patch_size
    if kernel.shape[:-2] != size:
      method = 'pseudo-inverse' if len(size) == 2 else 'in its middle frame'
      sizes = f'patch {fit.show(kernel.shape[:-2])} -> {fit.show(size)}'
      resized = fit.patch_kernel(target, kernel, size)
      edit.put(patch, resized, f'{sizes}, {method}')


def _adapt_tokens(
  edit: _Edit, source: vit.ViT, target: vit.ViT, grid: Grid
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
    new = np.zeros((1, count, source.hidden_size), np.float32)
    if name != 'class_token':
      rng = np.random.default_rng(_TOKENS.index(name))
      new = rng.normal(0, 0.02, new.shape).astype(np.float32)
    new = new[:, old:]
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


def _split_positions(
  edit: _Edit, source: vit.ViT, grid: Grid
) -> dict[str, np.ndarray]:
  """Returns the checkpoint's learned positions by token, [1, n, D] each."""
  if position_kind(source)[0] != 'learned':
    return {}
  table, rows, start = edit.host(_POSITIONS), {}, 0
  for name, count in _positioned(source).items():
    rows[name] = table[:, start : start + count]
    start += count
  rows['patches'] = table[:, start:]
  if rows['patches'].shape[1] != grid[0] * grid[1]:
    raise UserError(
      f'{_POSITIONS} has {table.shape[1]} rows, {start} of them before the'
      f' patches: that is no grid of {fit.show(grid)}; pass the grid that it'
      ' was trained with'
    )
  return rows


def _adapt_positions(
  edit: _Edit,
  source: vit.ViT,
  target: vit.ViT,
  grids: tuple[Grid, Grid],
  rows: dict[str, np.ndarray],
  method: str,
) -> None:
  """Makes the positions that the model needs from those in `rows`."""
  (old_kind, _), (kind, _) = map(position_kind, (source, target))
  done = [f'{old_kind} -> {kind}'] * (kind != old_kind)
  if kind != 'learned':
    if _POSITIONS in edit.params:
      edit.drop(_POSITIONS, f'{done[0]}: dropped')
    elif done:
      edit.changes.append(Change(_POSITIONS, None, None, done[0]))
    return
  old, new = grids
  patches = rows.get('patches')
  if patches is None:
    if old_kind in embedding.SINCOS:
      patches = embedding.sincos2d(new, source.hidden_size, old_kind)
      done.append('the same values')
    else:
      shape = (1, int(np.prod(new)), source.hidden_size)
      patches = np.zeros(shape, np.float32)
      done.append('zeros')
  elif old != new:
    patches = resize_lib.positions(patches, old, new, method)
    done.append(f'grid {fit.show(old)} -> {fit.show(new)}, {method}')
  counts = [_positioned(model) for model in (source, target)]
  if counts[0] != counts[1] and _POSITIONS in edit.params:
    texts = (', '.join(f'{n} {name}' for name, n in x.items()) for x in counts)
    done.append('other tokens: ' + ' -> '.join(x or 'none' for x in texts))
  if done:
    table = [*(rows[name] for name in counts[1]), patches]
    edit.put(_POSITIONS, np.concatenate(table, axis=1), '; '.join(done))


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
  if name == 'mask_token':
    return int(model.mask_token)
  number = model.registers if name == 'register_tokens' else 1
  return number if name in model.prefix else 0


def _adapt_relative(
  edit: _Edit,
  source: vit.ViT,
  target: vit.ViT,
  grids: tuple[Grid, Grid],
  method: str,
) -> None:
  """Makes the tables of relative positions that a model needs.

  A table is [R, H]: a row for each distance between two patches of a grid, and
  three for the class token, by head (`models.parts.relative.index`). An MLP
  that computes them suits any grid.
  """
  biases: list[Any] = [
    next((x for x in model.positions if isinstance(x, _BIASES)), None)
    for model in (source, target)
  ]
  if any(isinstance(x, relative.RelativeMlpBias) for x in biases):
    if biases[0] != biases[1]:
      raise UserError(
        "the checkpoint's relative positions and the model's differ, and those"
        ' of an MLP are not adapted: set config.model.positions to the'
        " checkpoint's"
      )
    return
  # Whether layers share a table.
  old_kind, kind = (
    'none' if x is None else 'shared' if x.shared else 'layers' for x in biases
  )
  if (old_kind, kind) == ('layers', 'shared'):
    raise UserError(
      "the checkpoint has relative positions in each layer, and the model's are"
      ' shared by all layers: set config.model.positions to'
      " 'relative_bias(shared=False)', beside what else it has"
    )
  shared = edit.host(_RELATIVE) if old_kind == 'shared' else None
  # Tables by path, with the axis of layers, if the checkpoint has them stacked.
  layers: dict[str, tuple[int, ...]] = {}
  if kind == 'shared':
    layers = {_RELATIVE: ()}
  elif kind == 'layers' and any(x.startswith('blocks/') for x in edit.params):
    layers = {f'blocks/attention/{_RELATIVE}': (target.depth,)}
  elif kind == 'layers':
    for i in range(target.depth):
      layers[f'blocks_{i}/attention/{_RELATIVE}'] = ()
  changed = [f'{old_kind} -> {kind}'] * (old_kind != kind)
  for path in [x for x in edit.params if x.split('/')[-1] == _RELATIVE]:
    if path not in layers:
      edit.drop(path, f'{old_kind} -> {kind}')
  if grids[0] != grids[1]:
    old, new = map(fit.show, grids)
    changed.append(f'grid {old} -> {new}, {method}')
  for path, axes in layers.items():
    if old_kind == 'none':
      shape = (*axes, relative.rows(grids[1]), biases[1].num_heads)
      edit.put(path, np.zeros(shape, np.float32), 'new: zeros', is_fresh=True)
    elif changed:
      table = edit.host(path) if shared is None else shared
      if old_kind != kind:
        table = np.broadcast_to(table, (*axes, *table.shape))
      if grids[0] != grids[1]:
        flat = table.reshape(-1, *table.shape[-2:])
        resized = [
          resize_lib.relative_positions(x, *grids, method) for x in flat
        ]
        table = np.stack(resized).reshape(*table.shape[:-2], *resized[0].shape)
      edit.put(path, table, '; '.join(changed))


def _adapt_heads(
  edit: _Edit,
  source: Any,
  target: Any,
  expected: Shapes,
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
  # Running statistics are those before the first batch.
  for path in edit.prune('head_norm', expected, 'dropped'):
    if path not in edit.params:
      start = np.ones if path.endswith('var') else np.zeros
      edit.put(path, start(expected[path], np.float32), 'a new BatchNorm')
  for name in ('head', 'head_distillation'):
    for path in edit.prune(name, expected, 'dropped'):
      if reason or path not in edit.params:
        action = f'zeros: {reason or "the checkpoint has none"}'
        edit.put(path, np.zeros(expected[path]), action, is_fresh=True)
      elif old_pool != pool:
        shape = edit.params[path].shape
        action = f'kept, but it reads {pool!r}, not {old_pool!r}'
        edit.changes.append(Change(path, shape, shape, action))


def _pool(model: models.Model) -> tuple[str, int]:
  """Returns a ViT's pool, and the size of the layer before its head, or 0."""
  values = values_lib.model_values(model) if isinstance(model, vit.ViT) else {}
  return values.get('pool', ''), values.get('head.pre_logits', 0)


def _replace(
  edit: _Edit, name: str, target: Any, expected: Shapes, reason: str
) -> None:
  """Initialises `map_head` or `pre_logits`, or drops it if the model has none.

  New parameters are initialised as in a new model, from fixed seeds.
  """
  if not edit.prune(name, expected, 'dropped with the head'):
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
