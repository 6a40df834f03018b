"""Muon for the kernels of the blocks, Adam for all other parameters.

Adam trains embeddings, heads and vectors, and the convolutions of hybrids and
of BiT. (Keller Jordan, https://kellerjordan.github.io/posts/muon)
"""

import dataclasses
import math
import re
from typing import Any

import jax
import ml_collections
import optax
from optax import contrib

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.models import layouts
from vit_jax.optim import arrays
from vit_jax.optim import optimizers
from vit_jax.optim.optimizers import Transformation
from vit_jax.parallel import sharding

# Root mean square of Muon's updates. It is about that of Adam's updates, so
# that both can share a learning rate (Moonlight, arXiv:2502.16982, section
# 2.2).
_MUON_RMS = 0.2


@dataclasses.dataclass(frozen=True)
class Muon(optimizers.AdamW):
  """Muon, with the options of the Adam beside it.

  Attributes:
    momentum: Decay of Muon's momentum.
  """

  momentum: options.Decay = 0.95

  def transformations(
    self, config: ml_collections.ConfigDict
  ) -> list[Transformation]:
    """Returns both optimizers, each for its parameters, and the decay."""

    def dimensions(updates: Any) -> Any:
      return jax.tree_util.tree_map_with_path(
        lambda path, _: contrib.MuonDimensionNumbers(
          *arrays.matrix_axes(sharding.path_name(path))
        ),
        updates,
      )

    muon = contrib.scale_by_muon(
      beta=self.momentum,
      mu_dtype=self.momentum_dtype,
      weight_dimension_numbers=dimensions,
    )
    return [
      optax.partition(
        {
          'muon': optax.chain(muon, optax.stateless(_consistent_rms)),
          'adam': self.adam(),
        },
        _muon_or_adam,
      ),
      optimizers.decayed(config),
    ]


def _muon_or_adam(params: Any) -> Any:
  """Labels each parameter 'muon' or 'adam'."""

  def choose(path: tuple[Any, ...], x: Any) -> str:
    name = layouts.layer_names(path, x)[0][0]
    is_hidden = re.search(r'\bblocks_\d+/.*kernel$', name)
    return 'muon' if is_hidden else 'adam'

  chosen = jax.tree_util.tree_map_with_path(choose, params)
  if 'muon' not in jax.tree.leaves(chosen):
    raise config_lib.UserError(
      "config.optim.name is 'muon', but no kernel of a block trains, and"
      " Muon is for these alone: choose 'adamw'"
    )
  return chosen


def _consistent_rms(updates: Any, params: Any) -> Any:
  del params

  def scaled(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    sizes = [
      math.prod(x.shape[axis] for axis in axes)
      for axes in arrays.matrix_axes(sharding.path_name(path))
    ]
    return x * (_MUON_RMS * math.sqrt(max(sizes)))

  return jax.tree_util.tree_map_with_path(scaled, updates)
