"""Image towers of CLIP, SigLIP and SigLIP 2 in the format of transformers.

A trunk is read from a file of the tower alone or of both towers, whose other
arrays are ignored; it is written as a file of the tower alone. The layer that
projects CLIP's features to an embedding is not part of the trunk.
"""

from collections.abc import Iterable
import dataclasses
import math
import re
from typing import Any

import numpy as np

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_clip as clip
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats import whole

FORMAT = 'huggingface'
_TOWER, _RGB = 'vision_model.', 3
_PATCH = f'{_TOWER}embeddings.patch_embedding.weight'
# model_type of a file with both towers or with the image tower -> its kind.
KINDS = {
  name: kind
  for kind in (clip.CLIP, clip.SIGLIP, clip.SIGLIP2)
  for name in (kind, f'{kind}_vision_model')
}
ARCHITECTURES = {clip.CLIP: 'CLIPVisionModel', clip.SIGLIP: 'SiglipVisionModel'}
# Arrays outside the trunk.
IGNORED = (
  r'text_model\..*|(text|visual)_projection\..*|logit_(scale|bias)'
  r'|.*\.position_ids'
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has such a tower."""
  sign = r'(.*\.)?embeddings\.patch_embedding\.weight'
  return any(re.fullmatch(sign, name) for name in names)


def _convolved(arrays: containers.Arrays) -> containers.Arrays:
  """Returns SigLIP 2's projection of cut patches as a convolution's kernel.

  Patches of RGB images are assumed, of which its array is [D, p * p * 3].
  """
  d, *rest = arrays.shapes.get(_PATCH, (0,))
  side = math.isqrt(rest[0] // _RGB) if len(rest) == 1 else 0
  if not side or [_RGB * side**2] != rest:
    return arrays

  def convolve(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(d, side, side, _RGB).transpose(0, 3, 1, 2)

  return base.derived(arrays, {_PATCH: ([_PATCH], convolve)})


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if not any(name.startswith(_TOWER) for name in arrays.shapes):
    arrays = base.Renamed(arrays, lambda name: _TOWER + name)
  return base.Renamed(_convolved(clip.unpacked(arrays)))


def kind_of(model: flat.ViT) -> str | None:
  """Returns which tower a model is; None: neither."""
  if model.pre_norm:
    return clip.CLIP
  return clip.SIGLIP if model.pool == 'map' else None


def rules(model: flat.ViT) -> list[tables.Rule]:
  """Returns the table for a model."""
  return clip.image_rules(kind_of(model) or clip.SIGLIP)


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json.

  Raises:
    UserError: config.json says what cannot be computed.
  """
  shapes, config = base.Shapes(arrays), hints.config
  name = config.get('model_type', typed.TEXT)
  if name not in KINDS:
    raise UserError(
      f'its config.json says model_type {name!r}: image towers of'
      f' {", ".join(map(repr, KINDS))} can be read'
    )
  kind = KINDS[name]
  if name != kind:  # as in a file of both towers
    content = {'vision_config': config.content}
    config = dataclasses.replace(config, content=content)
  hints = dataclasses.replace(hints, config=config)
  _, channels, *patch = shapes.get(_PATCH, 4)
  fields, size = clip.image_fields(shapes, hints, kind, (patch[0], patch[1]))
  if 'classifier.weight' in shapes:
    raise UserError(
      'it has a classifier of the mean over its tokens, which is not computed'
      ' here: towers alone, or beside one of texts, can be read'
    )
  model = base.build(flat.ViT, fields, hints)
  preprocess, silent = preprocessing.of_transformers(
    _preprocessor(hints.preprocessor, kind, size), kind, size, channels
  )
  return base.Description(
    model,
    size,
    {'classes': (), **preprocess},
    'linear_antialias' if kind == clip.SIGLIP2 else 'bicubic',
    silent,
  )


def _preprocessor(
  given: typed.Json, kind: str, size: tuple[int, int]
) -> typed.Json:
  """Returns what preprocessor_config.json says, of images of one size.

  SigLIP 2's resizes each image to a number of patches.
  """
  if kind != clip.SIGLIP2 or not given.content:
    return given
  fields = {k: x for k, x in given.content.items() if k not in _OF_PATCHES}
  fields |= {
    'image_processor_type': 'SiglipImageProcessor',
    'size': {'height': size[0], 'width': size[1]},
    'resample': given.content.get('resample', 2),
  }
  return dataclasses.replace(given, content=fields)


_OF_PATCHES = ('max_num_patches', 'patch_size')


def unsupported(model: flat.ViT, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  is_clip = kind_of(model) == clip.CLIP
  kind = 'CLIP' if is_clip else 'SigLIP'
  rare = uncommon.parts(model)
  for part in uncommon.CLIPS:
    del rare[part]
  wrong: dict[str, Any] = {
    f'a classifier after the tower of {kind}': model.num_classes,
    f'the pool {model.pool!r} after {uncommon.PRE_NORM}': is_clip
    and model.pool != 'token',
    f'the tokens {", ".join(model.prefix)} in the tower of {kind}': (
      model.prefix != ('class_token',) * is_clip
    ),
    f'a patch embedding {"with" if is_clip else "without"} a bias': (
      model.patch_bias == is_clip
    ),
    'positions of patches alone, or none': (
      model.position_embedding != 'learned'
      or model.positioned_prefix != model.prefix_length
    ),
    'layers without biases of queries, keys and values': not model.qkv_bias,
    'normalised queries and keys': model.qk_norm,
    'a gated MLP': model.gated_mlp,
    'LayerScale': model.layer_scale is not None,
    'a layer before the head': model.pre_logits,
    'a ResNet stem': model.resnet_stages is not None,
    'patches or images that are not square': (
      model.patch_size[0] != model.patch_size[1]
      or image_size[0] != image_size[1]
    ),
    **rare,
  }
  return base.first_of(wrong)


def config(
  model: flat.ViT, preprocess: data.Preprocess, image_size: tuple[int, int]
) -> dict[str, Any]:
  """Returns the content of config.json."""
  kind = kind_of(model)
  assert kind is not None
  return {
    **_image_config(model, (*image_size, preprocess.channels)),
    'architectures': [ARCHITECTURES[kind]],
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }


def _image_config(model: flat.ViT, shape: tuple[int, ...]) -> dict[str, Any]:
  """Returns what config.json says of an image tower; `shape` is (H, W, C)."""
  return {
    'model_type': f'{kind_of(model)}_vision_model',
    **_layers(model.parts()),
    'image_size': shape[0],
    'patch_size': model.patch_size[0],
    'num_channels': shape[2],
  }


def _layers(model: vit.ViT | text.TextTower) -> dict[str, Any]:
  """Returns what config.json says of the layers of a tower."""
  attention, mlp = model.block.attention, model.block.mlp
  return {
    'hidden_size': model.hidden_size,
    'intermediate_size': mlp.hidden_dim,
    'num_hidden_layers': model.depth,
    'num_attention_heads': attention.num_heads,
    'hidden_act': clip.ACTIVATIONS[mlp.gelu],
    'layer_norm_eps': model.norm.epsilon,
    'attention_dropout': attention.dropout_rate,
  }


def beside(
  model: two_towers.TwoTowers, shape: tuple[int, ...]
) -> whole.Whole | None:
  """Returns how a file of both towers stores what is beside the image tower.

  Args:
    model: Both towers.
    shape: (height, width, channels) of an image.

  Returns:
    None: transformers has no class for these towers.
  """
  image = flat.flatten(model.image)
  tower, kind = model.text, kind_of(image)
  if not isinstance(tower, text.TextTower) or kind is None:
    return None
  is_clip = kind == clip.CLIP
  pools = ('largest', 'end') if is_clip else ('last',)
  fits = (
    tower.block.attention.causal == is_clip
    and not image.gated_mlp
    and tower.block.mlp.gelu in clip.ACTIVATIONS
    and tower.pool in pools
    and tower.has_head_bias != is_clip
    and bool(model.projection) == is_clip
    and model.has_bias != is_clip
  )
  if not fits:
    return None
  words = {
    'model_type': f'{kind}_text_model',
    **_layers(tower),
    'vocab_size': tower.vocabulary,
    'max_position_embeddings': tower.length,
  }
  if is_clip:
    # By this number transformers reads the largest token.
    words['eos_token_id'] = 2 if tower.pool == 'largest' else tower.end_token
    words['projection_dim'] = model.projection
  else:
    words['projection_size'] = tower.out_dim
  pixels = _image_config(image, shape)
  content = {
    'model_type': kind,
    'architectures': ['CLIPModel' if is_clip else 'SiglipModel'],
    'text_config': words,
    'vision_config': pixels,
    **({'projection_dim': model.projection} if is_clip else {}),
  }
  rules = [x for x in clip.rules(model) if not x.ours.startswith('image/')]
  return whole.Whole(rules, config=content)
