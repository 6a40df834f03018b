"""One model whose patches have several sizes (FlexiViT, arXiv:2212.08013).

Each step of training draws the size of its patches, as a function of the seed
and the step. The parameters are those of `config.model.patch_size`. A step with
other patches resizes two of them, and its gradient goes back through that:

- the kernel of the patch embedding, by the pseudo-inverse of resizing a patch
  bilinearly (section 3.4);
- learned positions, linearly with antialiasing, as the paper's code.

Both are linear, so that at any size the model is an ordinary one, and a run is
loaded as one: `vit_jax.load(run, patch_size=8)` resizes in the same way.
"""

import copy
import math
from typing import Any
from typing import cast

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import inputs
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.parts import positions as positions_lib
from vit_jax.models.parts import relative
from vit_jax.models.parts import rotary
from vit_jax.models.parts import stems
from vit_jax.objectives import base
from vit_jax.weights import resize

Patch = tuple[int, int]

# Use of the host's random numbers; it follows the seed in their key. The uses
# of `data.host.batches` are lower.
_PATCH = 16

_POSITIONS = 'position_embedding'


def sizes(config: ml_collections.ConfigDict) -> tuple[Patch, ...]:
  """Returns `config.train.patch_sizes` as (height, width); () for none."""
  patch_sizes = config.train.patch_sizes
  return tuple(config_lib.pair(x, 'train.patch_sizes') for x in patch_sizes)


def draw(config: ml_collections.ConfigDict, step: int) -> Patch | None:
  """Returns the size of the patches of a step; None: that of the model.

  Args:
    config: The full config.
    step: Number of completed updates.
  """
  patch_sizes = sizes(config)
  if not patch_sizes:
    return None
  rng = np.random.default_rng((config.seed, _PATCH, step))
  return patch_sizes[rng.integers(len(patch_sizes))]


def evaluation_patch_size(spec: ml_collections.ConfigDict) -> Patch | None:
  """Returns the size of the patches of an evaluation; None: the model's.

  Args:
    spec: An entry of `config.evals`.
  """
  if spec.patch_size is None:
    return None
  return config_lib.pair(spec.patch_size, 'evals.NAME.patch_size')


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `train.patch_sizes` and `patch_size` of the evaluations.

  Raises:
    UserError: A value cannot work.
  """
  keyed_sizes = [('train.patch_sizes', x) for x in config.train.patch_sizes]
  keyed_sizes += [
    (f'evals.{name}.patch_size', spec.patch_size)
    for name, spec in config.evals.items()
    if spec.split and spec.patch_size is not None
  ]
  image = config_lib.sides(config.data.image_size)
  for key, size in keyed_sizes:
    patch = config_lib.pair(size, key)
    if len(image) != 2 or any(
      n % p for n, p in zip(image, patch, strict=False)
    ):
      raise config_lib.UserError(
        f'config.{key}: a patch of {inputs.times(patch)} does not divide'
        f' config.data.image_size, {inputs.times(image)}: leave it out'
      )
  patch_sizes = sizes(config)
  if len(set(patch_sizes)) < len(patch_sizes):
    raise config_lib.UserError(
      f'config.train.patch_sizes is {config.train.patch_sizes}: write each size'
      ' once'
    )
  if patch_sizes and config.train.steps_per_call > 1:
    raise config_lib.UserError(
      'config.train.patch_sizes has a program for each size, so that a call'
      f' has one step, and config.train.steps_per_call is'
      f' {config.train.steps_per_call}: set it to 1'
    )


def at_patch(objective: base.Objective, patch: Patch) -> base.Objective:
  """Returns an objective whose model has patches of another size.

  Its parameters are those of `objective`.

  Args:
    objective: An objective whose only parameters are those of its model.
    patch: (height, width), which divide the image.

  Raises:
    UserError: Its model has no patches that can be resized.
  """
  model = objective.model
  if not isinstance(model, vit.ViT) or objective.trunk_path:
    raise config_lib.UserError(
      'patches of several sizes are for a ViT that is trained by itself, not'
      f' for config.objective.name={objective.config.objective.name} with a'
      f' {type(model).__name__}: leave train.patch_sizes out'
    )
  if isinstance(model.patches, stems.HybridPatches):
    raise config_lib.UserError(
      'patches of several sizes do not go with a hybrid, whose ResNet has the'
      ' patches: choose a ViT, as --config.model.name=ViT-B/16'
    )
  for part in model.positions:
    is_of_one_grid = isinstance(
      part,
      positions_lib.Factorized
      | relative.RelativeBias
      | relative.RelativeMlpBias,
    ) or (isinstance(part, rotary.Rope) and part.grid is not None)
    if is_of_one_grid:
      raise config_lib.UserError(
        'patches of several sizes do not go with config.model.positions='
        f'{registry.class_name("positions", type(part))!r} of one grid: leave'
        ' one out'
      )
  resizing: Any = copy.copy(objective)
  config_lib.extend(resizing, _AtPatch)
  resizing.stored = objective
  resizing.model = model.clone(patches=model.patches.clone(patch_size=patch))
  return cast(_AtPatch, resizing)


class _AtPatch(base.Objective):
  """Extends an objective to a model with patches of another size.

  Attributes:
    stored: The objective whose parameters it has.
  """

  stored: base.Objective

  def init(self, key: jax.Array) -> base.Params:
    """Returns the parameters of the objective that is extended."""
    return self.stored.init(key)

  def _resized(self, params: base.Params) -> base.Params:
    old, new = (
      cast(Patch, models.pixels_per_token(x.model)) for x in (self.stored, self)
    )
    image = cast(Patch, self.image_shape[:2])
    return resized(params, image, old, new)

  def apply(self, params: base.Params, images: jax.Array, **kwargs: Any) -> Any:
    """Applies the model with resized parameters."""
    return super().apply(self._resized(params), images, **kwargs)

  def trunk(self, params: base.Params) -> tuple[models.Model, base.Params]:
    """Returns the model and resized parameters."""
    model, params = super().trunk(params)
    return model, self._resized(params)


def resized(
  params: base.Params, image: Patch, old: Patch, new: Patch
) -> base.Params:
  """Returns the parameters of a ViT for patches of another size.

  This is linear in the parameters, and can be differentiated.

  Args:
    params: Those of the ViT with patches of the size `old`.
    image: Size of the images.
    old: Size of its patches.
    new: New size.
  """
  params = dict(params)
  projection = params['patch_embedding']
  rows, columns = resize.patch_matrices(old, new)
  kernel = _resize_both(projection['kernel'], rows, columns)
  params['patch_embedding'] = projection | {'kernel': kernel}
  if _POSITIONS in params:
    before, after = ((image[0] // p, image[1] // q) for p, q in (old, new))
    params[_POSITIONS] = positions(
      params[_POSITIONS], before, after, 'linear_antialias'
    )
  return params


def positions(
  table: jax.Array, old: Patch, new: Patch, method: str
) -> jax.Array:
  """Resizes learned positions [1, P + h w, D] from one grid (h, w) to another.

  Args:
    table: Those of P tokens before the patches, which stay, and of patches.
    old: Their grid.
    new: New grid.
    method: One of `resize.METHODS`.
  """
  first, patch_table = jnp.split(
    table, [table.shape[1] - math.prod(old)], axis=1
  )
  rows, columns = (
    resize.resize_matrix(*x, method) for x in zip(old, new, strict=True)
  )
  patch_table = _resize_both(patch_table.reshape(*old, 1, -1), rows, columns)
  patch_table = patch_table.reshape(1, math.prod(new), -1)
  return jnp.concatenate([first, patch_table], axis=1)


def _resize_both(
  x: jax.Array, rows: np.ndarray, columns: np.ndarray
) -> jax.Array:
  """Applies a matrix to each of the first two axes of x [h, w, C, D]."""
  return jnp.einsum(
    'ij,kl,jlcd->ikcd',
    rows.astype(np.float32),
    columns.astype(np.float32),
    x,
    precision=jax.lax.Precision.HIGHEST,
  )
