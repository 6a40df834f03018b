"""Reads an image tower and a text tower from a file of another program."""

from collections.abc import Iterable
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.config import UserError
from vit_jax.models import two_towers
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import google_towers
from vit_jax.weights.formats import huggingface_clip
from vit_jax.weights.formats import tables

_CHANNELS = 3


@dataclasses.dataclass(frozen=True)
class Towers:
  """Two towers of a file.

  Attributes:
    model: The Linen module.
    params: Float32 arrays, layers unrolled.
    image_size: (height, width) that the image tower's positions are for.
  """

  model: two_towers.TwoTowers
  params: Any
  image_size: tuple[int, int]


def holds(path: pathlib.Path) -> bool:
  """Whether a file has both towers in a format that is known."""
  with foreign.opened(path) as opened:
    return _tower_format(opened.shapes) is not None


def _tower_format(names: Iterable[str]) -> Any:
  forms = (google_towers, huggingface_clip)
  return next((x for x in forms if x.recognises(names)), None)


def load(path: str | pathlib.Path, text_heads: int | None = None) -> Towers:
  """Reads two towers; their architecture is read off the file.

  Args:
    path: A directory of transformers (CLIP, SigLIP), or an npz file of LiT or
      big_vision.
    text_heads: Attention heads of the text tower, for a BERT of another width
      than the published ones; files do not show them.
  """
  path = pathlib.Path(path)
  config = foreign.config_beside(path)
  with foreign.opened(path) as opened:
    form = _tower_format(opened.shapes)
    if form is None:
      raise UserError(
        f'{path} holds no two towers of a format that is known: those of'
        ' transformers (CLIP, SigLIP), LiT and big_vision are'
      )
    arrays = form.prepare(opened)
    model, size = form.describe(arrays, config, text_heads)
    params = tables.read(
      arrays,
      form.rules(model),
      abstract_params(model, size),
      form.IGNORED,
      arrays.stored,
    )
  return Towers(model, params, size)


def abstract_params(
  model: two_towers.TwoTowers, image_size: tuple[int, int]
) -> Any:
  """Returns the shapes of the parameters for images of a size."""
  images = jnp.zeros((1, *image_size, _CHANNELS))
  tokens = jnp.zeros((1, model.text.length), jnp.int32)
  return jax.eval_shape(model.init, jax.random.key(0), images, tokens)['params']
