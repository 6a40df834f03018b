"""Several crops of each image, of two sizes, through one trunk.

In comments: B images, n crops of one size, [h, w] patches, D hidden size.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data.host import geometry
from vit_jax.models import inputs
from vit_jax.models import vit
from vit_jax.objectives import flexible

GLOBAL = 2  # number of global crops

Views = dict[str, geometry.View]


def views(config: ml_collections.ConfigDict) -> Views:
  """Returns two 'global' crops, as `config.data` says, and 'local' ones.

  Local crops are those of multi-crop training (SwAV, arXiv:2006.09882, section
  3.2): small, of a small part of the image.

  Args:
    config: The full config; its `objective.options` have `local_crops`, their
      `local_size` in pixels, and `local_scale`, the range of their share of the
      image's area.
  """
  options, crop = config.objective.options, geometry.train_crop(config)
  crop_views = {'global': geometry.View(crop, GLOBAL)}
  if options.local_crops:
    local = dataclasses.replace(
      crop,
      kind='random_resized',
      size=(options.local_size, options.local_size),
      scale=tuple(options.local_scale),
      pad=0,
    )
    crop_views['local'] = geometry.View(local, options.local_crops)
  return crop_views


@dataclasses.dataclass(frozen=True)
class CropTrunk:
  """A trunk that sees crops of other sizes than its own.

  Attributes:
    model: The trunk.
    size: (height, width) of global crops; the trunk's own.
    local_crops: Number of local crops of an image.
    resize: How learned positions are resized, one of `resize.METHODS`.
  """

  model: models.Model
  size: geometry.Size
  local_crops: int
  resize: str

  def check(self, config: ml_collections.ConfigDict) -> None:
    """Checks that the trunk can see all crops."""
    if not isinstance(self.model, vit.ViT) or self.model.has_two_heads:
      raise config_lib.UserError(
        f'config.model.name is {config.model.name!r}, but'
        f' config.objective.name={config.objective.name} needs a ViT without a'
        ' distillation token'
      )
    for name, view in views(config).items():
      size, patch = view.crop.size, self._patch
      if any(x % p for x, p in zip(size, patch, strict=True)):
        size_key = 'data.image_size'
        if name == 'local':
          size_key = 'objective.options.local_size'
        raise config_lib.UserError(
          f'config.{size_key} gives crops of {inputs.times(size)} pixels, which'
          f' patches of {inputs.times(patch)} do not fill: choose a multiple'
          ' of these'
        )

  def apply(
    self,
    params: Any,
    images: jax.Array,
    rows: jax.Array | None = None,
    *,
    is_local: bool = False,
    **kwargs: Any,
  ) -> dict[str, jax.Array]:
    """Applies the trunk.

    Args:
      params: Parameters of the trunk.
      images: float32 [B, n, H, W, C].
      rows: int32 [B], positions of the images in the global batch, for dropout;
        None: there is none.
      is_local: Whether the crops are local ones.
      **kwargs: Further arguments of the trunk; arrays are [B, n, ...].

    Returns:
      The outputs of the trunk, [B, n, ...].
    """
    b, n, *shape = images.shape
    # The crops of an image stay together: no device needs those of another.
    flat: dict[str, Any] = {
      k: x.reshape(b * n, *x.shape[2:]) if isinstance(x, jax.Array) else x
      for k, x in kwargs.items()
    }
    if rows is not None:
      flat['rows'] = self._rows(rows, n, is_local=is_local)
    outputs: Any = self.model.apply(
      {'params': self._resized(params, (shape[0], shape[1]))},
      images.reshape(b * n, *shape),
      method='trunk',
      **flat,
    )
    return {k: x.reshape(b, n, *x.shape[1:]) for k, x in outputs.items()}

  def _rows(
    self, images: jax.Array, count: int, *, is_local: bool
  ) -> jax.Array:
    """Returns a number for each crop of the global batch, int32 [B n]."""
    first = GLOBAL if is_local else 0
    crops = first + jnp.arange(count, dtype=jnp.int32)
    rows = images[:, None] * (GLOBAL + self.local_crops) + crops
    return rows.reshape(-1)

  @property
  def _patch(self) -> tuple[int, int]:
    return models.patch_of_images(self.model)

  def _resized(self, params: Any, size: geometry.Size) -> Any:
    """Returns parameters with learned positions for crops of a size."""
    table = params.get('position_embedding')
    if table is None or size == self.size:
      return params
    p, q = self._patch
    old, new = ((h // p, w // q) for h, w in (self.size, size))
    resized = flexible.positions(table, old, new, self.resize)
    return params | {'position_embedding': resized}
