"""Similarity of position embeddings, and filters of the first layer."""

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.evaluation import embedded
from vit_jax.explore.components import principal_components
from vit_jax.models import embedding
from vit_jax.models import patches as patches_lib
from vit_jax.models import vit as vit_lib
from vit_jax.models.parts import positions as positions_lib

_EPSILON = 1e-5  # as in resnet.ResNetStem
# Parts whose positions are added to tokens. A part of a user's own computes its
# positions, and they are not shown.
_TABLES = patches_lib.Learned | positions_lib.Factorized | positions_lib.SinCos


def position_similarity(
  vit: weights.Loaded, image_size: int | tuple[int, int] | None = None
) -> np.ndarray:
  """Returns the similarity of the position embeddings of any two patches.

  See the ViT paper (arXiv:2010.11929, figure 7, centre).

  Args:
    vit: A ViT or hybrid with position embeddings.
    image_size: Image size in pixels, one number or (height, width). The
      embeddings are resized for it, as `load` does. None: they are not resized.

  Returns:
    Cosine similarity, float32 [h, w, h, w]; [i, j] is the map for the patch in
    row i and column j.
  """
  model = vit.model
  parts = model.positions if isinstance(model, vit_lib.ViT) else ()
  part = next((x for x in parts if isinstance(x, _TABLES)), None)
  if part is None:
    raise UserError(
      f'this {type(model).__name__} has no position embeddings to compare:'
      ' choose a ViT or a hybrid that has'
    )
  if image_size is not None:
    vit = vit.adapted(image_size=image_size)
  h, w = weights.grid(model, vit.position_size)
  if isinstance(part, positions_lib.SinCos):
    table = embedding.sincos2d((h, w), model.hidden_size, part.kind)[0]
  elif isinstance(part, positions_lib.Factorized):
    rows, columns = (
      jnp.asarray(vit.params[name])[0]
      for name in (positions_lib.ROWS, positions_lib.COLUMNS)
    )
    grids = jnp.array([[h, w]])
    factorized = embedding.factorized_positions(
      rows, columns, grids, h * w, part.keep_aspect
    )
    table = _finite(np.asarray(factorized[0]), 'positions')
  else:
    vectors = np.asarray(vit.params['position_embedding'], np.float32)
    table = _finite(vectors[0, -h * w :], 'positions')  # patches come last
  table = embedded.normalised(table)
  return (table @ table.T).reshape(h, w, h, w)


def embedding_filters(vit: weights.Loaded, count: int = 28) -> np.ndarray:
  """Returns the principal components of the patch embedding's filters.

  See the ViT paper (arXiv:2010.11929, figure 7, left). The filters, one for
  each of the D channels, are centred. The largest value of each component is
  positive.

  Args:
    vit: A ViT or Mixer; not a hybrid, which embeds features.
    count: Largest number of components. There are fewer if filters have fewer
      weights, or there are fewer filters.

  Returns:
    Components of p x q pixels and C channels, float32 [count, p, q, C], each of
    norm 1, by descending variance.
  """
  return filter_components(vit, count)[0]


def filter_components(
  vit: weights.Loaded, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `embedding_filters`, and the part of the variance of each.

  The parts are float64 [count]. The parts of all components add up to 1.
  """
  if 'patch_embedding' not in vit.params or 'stem' in vit.params:
    raise UserError(
      'the model embeds no patches of pixels but what a ResNet makes of them:'
      ' see the filters of its stem'
    )
  kernel = np.asarray(vit.params['patch_embedding']['kernel'], np.float64)
  kernel = _finite(kernel, 'filters')
  filters = kernel.reshape(-1, kernel.shape[-1]).T
  directions, _, shares = principal_components(filters, count)
  components = directions.reshape(-1, *kernel.shape[:3])
  return components.astype(np.float32), shares


def stem_filters(vit: weights.Loaded) -> np.ndarray:
  """Returns the filters of the first convolution, standardised as it uses them.

  The F filters are float32 [F, 7, 7, C], each with mean 0 and variance 1. `vit`
  is a hybrid or BiT (arXiv:1912.11370).
  """
  if 'stem' not in vit.params:
    raise UserError(
      f'this {type(vit.model).__name__} has no stem of convolutions: see the'
      ' filters of its patch embedding'
    )
  kernel = np.asarray(vit.params['stem']['conv']['kernel'], np.float64)
  filters = np.moveaxis(_finite(kernel, 'filters'), -1, 0)
  filters = filters - filters.mean(axis=(1, 2, 3), keepdims=True)
  std = filters.std(axis=(1, 2, 3), keepdims=True)
  return (filters / (std + _EPSILON)).astype(np.float32)


def _finite(x: np.ndarray, name: str) -> np.ndarray:
  """Returns the parameters x, which must be finite; `name` is their name."""
  if not np.isfinite(x).all():
    raise UserError(f'the {name} of the model are not finite: it has diverged')
  return x
