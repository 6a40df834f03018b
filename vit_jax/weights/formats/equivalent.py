"""Rewrites a model as an equivalent one that a format can store.

A model that the format can store is not changed.
"""

from collections.abc import Iterator
import dataclasses
from typing import Any

from flax import traverse_util
import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.models import embedding
from vit_jax.models import patches
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.models.parts import adapters
from vit_jax.models.parts import blocks
from vit_jax.models.parts import positions
from vit_jax.weights import adapt

# Parameters with a factor for each channel -> layer whose output they multiply,
# by whether the norms of a layer follow attention and MLP.
_SCALED = {
  False: {'layer_scale1': 'attention/out', 'layer_scale2': 'mlp/down'},
  True: {'layer_scale1': 'norm1', 'layer_scale2': 'norm2'},
}


def forms(model: models.Model) -> Iterator[models.Model]:
  """Yields the model and others of the same function, the most similar first.

  Low-rank factors can be added to the kernels that they are factors for.
  A mask token, which no prediction needs, can be left out. Fixed positions can
  become learned ones with the same values, with zeros for tokens without a
  position; a position can be added to its token. LayerScale can be multiplied
  into the layer that it scales.
  """
  yield model
  if not isinstance(model, vit.ViT):
    return
  if (adapted := adapters.block(model)) is not None and adapted.can_merge:
    model = model.clone(block=adapted.bare())
    yield model
  if model.mask_token:
    model = model.clone(mask_token=False)
    yield model
  scales = [model]
  if getattr(model.block, 'layer_scale', None) is not None:
    scales.append(_without_scale(model))
  added = patches.Learned | positions.Factorized | positions.SinCos
  other_parts = [x for x in model.positions if not isinstance(x, added)]
  for scaled in scales:
    if scaled is not model:
      yield scaled
    for tokens in patches.TOKENS:
      learned = patches.Learned(
        tokens, initializers=model.initializers, parent=None
      )
      yield scaled.clone(positions=(learned, *other_parts))


def _without_scale(model: vit.ViT) -> vit.ViT:
  scale: Any = {'layer_scale': None, 'layer_scale_mlp': True}
  return model.clone(block=model.block.clone(**scale))


def rewrite(
  loaded: weights.Loaded, target: models.Model
) -> tuple[weights.Loaded, list[str]]:
  """Returns a model in one of its `forms`, and notes on what differs.

  Its layers are unrolled, and its arrays are of NumPy.
  """
  source, params = loaded.model, loaded.params
  if target == source:
    return loaded, []
  assert isinstance(source, vit.ViT) and isinstance(target, vit.ViT)
  notes = []
  adapted = adapters.block(source)
  if adapted is not None and adapters.block(target) is None:
    bare = source.clone(block=adapted.bare())
    params, source = _refitted(loaded, params, source, bare), bare
    notes.append(
      'low-rank factors are added to their kernels: the same function but for'
      ' rounding'
    )
  if source.mask_token and not target.mask_token:
    notes.append('the token of masked patches is left out')
  if source.block.layer_scale is not None and target.block.layer_scale is None:
    layers = _SCALED[isinstance(source.block, blocks.PostNorm)]
    flat = traverse_util.flatten_dict(params, sep='/')
    for path in [x for x in flat if x.rpartition('/')[2] in layers]:
      block, _, name = path.rpartition('/')
      factor = np.asarray(flat.pop(path))
      for leaf in ('kernel', 'scale', 'bias'):  # [..., D] and [D]
        layer = f'{block}/{layers[name]}/{leaf}'
        if layer in flat:
          flat[layer] = np.asarray(flat[layer]) * factor
    params = traverse_util.unflatten_dict(flat, sep='/')
    source = _without_scale(source)
    notes.append(
      'LayerScale is multiplied into the layers before it: the same function'
      ' but for rounding'
    )
  notes += _position_notes(source, target)
  params = _refitted(loaded, params, source, target)
  return dataclasses.replace(loaded, model=target, params=params), notes


def _refitted(
  loaded: weights.Loaded, params: Any, source: vit.ViT, target: vit.ViT
) -> Any:
  """Returns parameters as one of a model's forms has them, for another."""
  grid = weights.grid(loaded.model, loaded.position_size)
  channels, resize = loaded.preprocess.channels, loaded.resize
  return adapt.adapt(
    params, source, target, grid, grid, channels=channels, resize=resize
  )[0]


def _position_notes(source: vit.ViT, target: vit.ViT) -> list[str]:
  kinds = [adapt.position_kind(model)[0] for model in (source, target)]
  if kinds[0] != kinds[1]:
    is_fixed = kinds[0] in embedding.SINCOS
    stored = 'the fixed positions' if is_fixed else 'no positions'
    values = 'of the same values' if is_fixed else 'of zeros'
    return [
      f'{stored} are stored as learned ones {values}: training would change'
      ' them, and another image size interpolates them'
    ]
  counts = [values_lib.positioned_prefix(model) for model in (source, target)]
  if counts[0] > counts[1]:
    return ['positions of tokens before the patches are part of the tokens']
  if counts[0] < counts[1]:
    return ['tokens without a position are given one of zeros']
  return []
