"""One model whose patches have several sizes (FlexiViT, arXiv:2212.08013).

Each step of training draws the size of its patches, as a function of the seed
and the step. The parameters are for `config.model.patch_size`. A step with
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

import jax
import jax.numpy as jnp
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

_POSITIONS = 'position_embedding'


def check(config: base.Config, patch: Patch, key: str) -> None:
  """Raises a UserError if a patch size, of a key, does not divide the image."""
  image = config_lib.sides(config.data.image_size)
  if len(image) != 2 or image[0] % patch[0] or image[1] % patch[1]:
    raise config_lib.UserError(
      f'config.{key}: a patch of {inputs.times(patch)} does not divide'
      f' config.data.image_size, {inputs.times(image)}: leave it out'
    )


def at_patch(objective: base.Objective, patch: Patch) -> base.Objective:
  """Returns an objective whose model has patches of another size.

  It has the parameters of `objective`, which must be of its model alone.
  `patch` is (height, width), which divide the image.
  """
  model = objective.model
  if patch == models.pixels_per_token(model):
    return objective
  if not isinstance(model, vit.ViT) or objective.trunk_path:
    raise config_lib.UserError(
      'patches of several sizes are for a ViT that is trained by itself, not'
      f' for config.objective.name={objective.config.objective.name} with a'
      f' {type(model).__name__}: leave train.variant out'
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
  return resizing


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
    image: Any = self.image_shape[:2]
    old: Any = models.pixels_per_token(self.stored.model)
    new: Any = models.pixels_per_token(self.model)
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

  This is linear in the parameters, and can be differentiated. `old` is the size
  of their patches, and `image` that of the images.
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

  Those of the P tokens before the patches stay. `method` is one of
  `resize.METHODS`.
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
