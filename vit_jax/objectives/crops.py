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
from vit_jax.objectives import trunk_checks

GLOBAL = 2  # number of global crops


def views(config: ml_collections.ConfigDict) -> dict[str, geometry.View]:
  """Returns two 'global' crops, as `config.data` says, and 'local' ones.

  Local crops are those of multi-crop training (SwAV, arXiv:2006.09882, section
  3.2): small, of a small part of the image. `config.objective.options` have the
  number of `local_crops`, their `local_size` in pixels, and `local_scale`, the
  range of their share of the image's area.
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
    model: models.Model | None = self.model
    if isinstance(model, vit.ViT) and model.has_two_heads:
      model = None
    reason = 'needs a ViT without a distillation token'
    patch = models.patch_of_images(
      trunk_checks.checked_vit(model, config, reason)
    )
    keys = {
      'global': 'data.image_size',
      'local': 'objective.options.local_size',
    }
    for name, view in views(config).items():
      size = view.crop.size
      if any(x % p for x, p in zip(size, patch, strict=True)):
        raise config_lib.UserError(
          f'config.{keys[name]} gives crops of {inputs.times(size)} pixels,'
          f' which patches of {inputs.times(patch)} do not fill: choose a'
          ' multiple of these'
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
    """Applies the trunk to crops [B, n, H, W, C]; its outputs are [B, n, ...].

    Args:
      params: Parameters of the trunk.
      images: float32 [B, n, H, W, C].
      rows: int32 [B], positions of the images in the global batch, for dropout;
        None: there is none.
      is_local: Whether the crops are local ones.
      **kwargs: Further arguments of the trunk; arrays are [B, n, ...].
    """
    b, n, *shape = images.shape
    # The crops of an image stay together: no device needs those of another.
    flat: dict[str, Any] = {
      k: x.reshape(b * n, *x.shape[2:]) if isinstance(x, jax.Array) else x
      for k, x in kwargs.items()
    }
    if rows is not None:  # then each crop of the global batch has a number
      crops = (GLOBAL if is_local else 0) + jnp.arange(n, dtype=jnp.int32)
      numbers = rows[:, None] * (GLOBAL + self.local_crops) + crops
      flat['rows'] = numbers.reshape(-1)
    table, size = params.get('position_embedding'), (shape[0], shape[1])
    if table is not None and size != self.size:
      p, q = models.patch_of_images(self.model)
      old, new = ((h // p, w // q) for h, w in (self.size, size))
      resized = flexible.positions(table, old, new, self.resize)
      params = params | {'position_embedding': resized}
    outputs: Any = self.model.apply(
      {'params': params},
      images.reshape(b * n, *shape),
      method='trunk',
      **flat,
    )
    return {k: x.reshape(b, n, *x.shape[1:]) for k, x in outputs.items()}
