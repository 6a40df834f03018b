"""CLIP and SigLIP in the format of Hugging Face transformers.

Both have a `vision_model`, a `text_model` and a `logit_scale`; config.json has
what arrays do not show of either tower.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import operator
from typing import Any

import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

CLIP, SIGLIP, SIGLIP2 = 'clip', 'siglip', 'siglip2'
IGNORED = r'.*\.position_ids'
GELUS = {
  'quick_gelu': 'sigmoid',
  'gelu': 'exact',
  'gelu_new': 'tanh',
  'gelu_pytorch_tanh': 'tanh',
}
ACTIVATIONS = {
  'sigmoid': 'quick_gelu',
  'exact': 'gelu',
  'tanh': 'gelu_pytorch_tanh',
}
# What the published configs of CLIP say of the end of a text, before they were
# corrected; transformers then reads the largest token.
_LEGACY_END = 2
_EPSILON = {CLIP: 1e-5, SIGLIP: 1e-6, SIGLIP2: 1e-6}
_HEAD, _VISION, _WORDS = 'vision_model.head', 'vision_model', 'text_model'
_PARTS = ('query', 'key', 'value')
_PACKED = f'{_HEAD}.attention.in_proj_'


def _tower(ours: str, theirs: str) -> list[tables.Rule]:
  """Returns the rules of the layers of a tower."""
  block, layer = f'{ours}/blocks_{{}}', f'{theirs}.encoder.layers.{{}}'
  names = [f'{layer}.self_attn.{x}_proj' for x in 'qkv']
  return [
    *_norm(f'{block}/norm1', f'{layer}.layer_norm1'),
    *_norm(f'{block}/norm2', f'{layer}.layer_norm2'),
    *tables.torch_parts(f'{block}/attention/qkv', names),
    *_dense(f'{block}/attention/out', f'{layer}.self_attn.out_proj', 2),
    *_dense(f'{block}/mlp/up', f'{layer}.mlp.fc1'),
    *_dense(f'{block}/mlp/down', f'{layer}.mlp.fc2'),
    rule(
      f'{ours}/position_embedding',
      f'{theirs}.embeddings.position_embedding.weight',
      tables.squeezed(0),
    ),
  ]


_MAP = 'image/map_head'
RULES = [
  *_tower('image', _VISION),
  rule(
    'image/class_token', f'{_VISION}.embeddings.class_embedding', tables.FLAT
  ),
  rule(
    'image/patch_embedding/bias', f'{_VISION}.embeddings.patch_embedding.bias'
  ),
  *_norm('image/norm_before', f'{_VISION}.pre_layrnorm'),  # as they spell it
  *_norm('image/norm', f'{_VISION}.post_layernorm'),
  rule(f'{_MAP}/probe', f'{_HEAD}.probe'),
  *_dense(f'{_MAP}/query', f'{_HEAD}.query'),
  *tables.torch_parts(f'{_MAP}/key_value', [f'{_HEAD}.key', f'{_HEAD}.value']),
  *_dense(f'{_MAP}/out', f'{_HEAD}.attention.out_proj', 2),
  *_norm(f'{_MAP}/norm', f'{_HEAD}.layernorm'),
  *_dense(f'{_MAP}/mlp/up', f'{_HEAD}.mlp.fc1'),
  *_dense(f'{_MAP}/mlp/down', f'{_HEAD}.mlp.fc2'),
  *_tower('text', _WORDS),
  rule(
    'text/token_embedding/embedding',
    f'{_WORDS}.embeddings.token_embedding.weight',
  ),
  *_norm('text/norm', f'{_WORDS}.final_layer_norm'),
]
_PATCH = f'{_VISION}.embeddings.patch_embedding.weight'
_CONVOLVED = rule('image/patch_embedding/kernel', _PATCH, tables.CONV)
_OF_KIND = {
  CLIP: [
    _CONVOLVED,
    rule(
      'image_projection/kernel', 'visual_projection.weight', tables.linear()
    ),
    rule('text/head/kernel', 'text_projection.weight', tables.linear()),
    rule('log_scale', 'logit_scale'),
  ],
  SIGLIP: [
    _CONVOLVED,
    *_dense('text/head', f'{_WORDS}.head'),
    rule('log_scale', 'logit_scale', tables.padded(0)),
    rule('logit_bias', 'logit_bias', tables.padded(0)),
  ],
}

_OF_KIND[SIGLIP2] = [
  rule('image/patch_embedding/kernel', _PATCH, tables.linear(3)),
  *_OF_KIND[SIGLIP][1:],
]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  known = set(names)
  return {'logit_scale', f'{_WORDS}.final_layer_norm.weight'} <= known


def unpacked(arrays: containers.Arrays) -> containers.Arrays:
  """Returns arrays with the joint projection of SigLIP's head as three.

  PyTorch's attention has queries, keys and values in one array, [3 D, D].
  """
  made = {}
  for name, shape in arrays.shapes.items():
    if name.startswith(_PACKED):
      d, kind = shape[0] // 3, name.removeprefix(_PACKED)
      for i, part in enumerate(_PARTS):
        # Rows that are too many do not fit then.
        end = (i + 1) * d if part != _PARTS[-1] else None
        rows = operator.itemgetter(slice(i * d, end))
        made[f'{_HEAD}.{part}.{kind}'] = ([name], rows)
  return base.derived(arrays, made)


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  return base.Renamed(unpacked(arrays))


def describe(
  arrays: base.Renamed, config: typed.Json, text_heads: int | None = None
) -> tuple[two_towers.TwoTowers, tuple[int, int]]:
  """Infers both towers, as `google_towers.describe`.

  config.json has the numbers of heads: `text_heads` is not used.

  Raises:
    UserError: There is no config.json, or it says what cannot be computed.
  """
  del text_heads
  kind = config.get('model_type', typed.TEXT)
  if kind not in _OF_KIND:
    raise UserError(
      f'its config.json says model_type {kind!r}: two towers of'
      f' {", ".join(map(repr, _OF_KIND))} can be read'
    )
  shapes = base.Shapes(arrays)
  patch: tuple[int, ...]
  if kind == SIGLIP2:
    # Left out where it is the default of transformers' class.
    patch = (config.get('vision_config.patch_size', typed.COUNT, 16),) * 2
  else:
    patch = shapes.get(_PATCH, 4)[2:]
  hints = base.Hints({}, config, config, None)
  fields, size = image_fields(shapes, hints, kind, (patch[0], patch[1]))
  tower = _text(shapes, config, kind)
  projection = shapes.size('visual_projection.weight', 0)
  return two_towers.TwoTowers(
    flat.ViT(**fields).parts(), tower, projection, kind != CLIP, kind == SIGLIP2
  ), size


def image_fields(
  shapes: base.Shapes, hints: base.Hints, kind: str, patch: tuple[int, int]
) -> tuple[dict[str, Any], tuple[int, int]]:
  """Returns the fields of the image tower, and the size of its images.

  The config.json of `hints`, and `kind`, are those of both towers.
  """
  is_clip = kind == CLIP
  fields = _layers(shapes, hints.config, 'vision', kind) | {
    'num_classes': 0,
    'patch_size': patch,
    'pool': 'token' if is_clip else 'map',
    'patch_bias': f'{_VISION}.embeddings.patch_embedding.bias' in shapes,
    'pre_norm': is_clip,
  }
  rows = shapes.get(f'{_VISION}.embeddings.position_embedding.weight', 2)[0]
  given = hints.config.get('vision_config.image_size', typed.COUNT)
  default = (given, given) if given else None
  return fields, base.image_size(rows - is_clip, patch, hints, default)


def image_rules(kind: str) -> list[tables.Rule]:
  """Returns the table of the image tower alone, with the paths of a ViT."""
  return [
    dataclasses.replace(line, ours=line.ours.removeprefix('image/'))
    for line in (*_OF_KIND[kind], *RULES)
    if line.ours.startswith('image/')
  ]


def _text(shapes: base.Shapes, config: typed.Json, kind: str) -> text.TextTower:
  table = f'{_WORDS}.embeddings.token_embedding.weight'
  fields = _layers(shapes, config, 'text', kind)
  fields['vocabulary'] = shapes.get(table, 2)[0]
  fields['length'] = shapes.get(
    f'{_WORDS}.embeddings.position_embedding.weight', 2
  )[0]
  if kind != CLIP:
    fields['out_dim'] = shapes.get(f'{_WORDS}.head.weight', 2)[0]
    return registry.build_model(text.TextTower, **fields)
  end = config.get('text_config.eos_token_id', typed.COUNT, _LEGACY_END)
  return registry.build_model(
    text.TextTower,
    **fields,
    out_dim=shapes.get('text_projection.weight', 2)[0],
    has_head_bias=False,
    causal=True,
    pool='largest' if end == _LEGACY_END else 'end',
    end_token=end,
  )


def _layers(
  shapes: base.Shapes, config: typed.Json, tower: str, kind: str
) -> dict[str, Any]:
  """Returns the fields of the layers of a tower, 'vision' or 'text'."""
  layer, where = f'{tower}_model.encoder.layers.{{}}.', f'{tower}_config'
  up = shapes.get(f'{layer}mlp.fc1.weight', 2)
  heads = config.get(f'{where}.num_attention_heads', typed.COUNT)
  if not heads:
    # Left out where they are the defaults of transformers' class.
    heads = 8 if (kind, tower) == (CLIP, 'text') else 12
  default = 'quick_gelu' if kind == CLIP else 'gelu_pytorch_tanh'
  gelu = config.get(f'{where}.hidden_act', typed.one_of(*GELUS), default)
  return {
    'hidden_size': up[1],
    'mlp_dim': up[0],
    'depth': shapes.count(layer),
    'num_heads': heads,
    'gelu': GELUS[gelu],
    'layer_norm_epsilon': config.get(
      f'{where}.layer_norm_eps', typed.POSITIVE, _EPSILON[kind]
    ),
  }


def kind_of(model: two_towers.TwoTowers) -> str:
  """Returns the model_type of a model."""
  if model.projection:
    return CLIP
  return SIGLIP2 if model.any_grid else SIGLIP


def rules(model: two_towers.TwoTowers) -> list[tables.Rule]:
  """Returns the table for a model."""
  return [*_OF_KIND[kind_of(model)], *RULES]


def write(
  model: two_towers.TwoTowers, params: Any
) -> Iterator[tuple[str, np.ndarray]]:
  """Returns the arrays of a file of parameters whose layers are unrolled.

  Raises:
    KeyError: The format has no place for a parameter.
  """
  return packed(tables.write(rules(model), jax.device_get(params)))


def packed(
  arrays: Iterable[tuple[str, np.ndarray]],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields arrays with the projections of SigLIP's head as one, at the end."""
  parts: dict[str, np.ndarray] = {}
  for name, array in arrays:
    if name.startswith(tuple(f'{_HEAD}.{part}.' for part in _PARTS)):
      parts[name] = array
    else:
      yield name, array
  for kind in ('weight', 'bias') if parts else ():
    joined = [parts[f'{_HEAD}.{part}.{kind}'] for part in _PARTS]
    yield _PACKED + kind, np.concatenate(joined)
