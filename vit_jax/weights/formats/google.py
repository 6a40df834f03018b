"""Checkpoints of google-research/vision_transformer, big_vision and BiT: npz.

The tables use the names of the published files. Newer files number the parts of
a layer differently. big_vision puts `params/` before all names, may stack the
layers, and keeps the optimizer state in its training checkpoints.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import re
from typing import Any

import numpy as np

from vit_jax import data
from vit_jax import models
from vit_jax.models import flat
from vit_jax.models import igpt
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule

NAME = 'google'

# Fields that arrays do not show, as in models_vit.py and models_mixer.py.
_FIELDS = {'gelu': 'tanh', 'layer_norm_epsilon': 1e-6}
_GELU = uncommon.GELUS['tanh']


def _pair(
  ours: str,
  theirs: str,
  leaves: tuple[str, str],
  names: tuple[str, str] | None = None,
  layout: tables.Layout = tables.SAME,
) -> list[tables.Rule]:
  """Returns the rules of a layer with two arrays."""
  return [
    rule(f'{ours}/{leaf}', f'{theirs}/{name}', layout)
    for leaf, name in zip(leaves, names or leaves, strict=True)
  ]


_norm = functools.partial(_pair, leaves=('scale', 'bias'))
_group_norm = functools.partial(_norm, layout=tables.padded(0, 1, 2))
_bit_norm = functools.partial(_norm, names=('gamma', 'beta'))
_dense = functools.partial(_pair, leaves=('kernel', 'bias'))


def _attention(ours: str, theirs: str, joined: str) -> list[tables.Rule]:
  names = {'qkv': ('query', 'key', 'value'), 'key_value': ('key', 'value')}
  parts = names[joined]
  return [
    rule(
      f'{ours}/{joined}/{leaf}',
      [f'{theirs}/{part}/{leaf}' for part in parts],
      tables.split(len(parts), axis),
    )
    for leaf, axis in (('kernel', 1), ('bias', 0))
  ] + _dense(f'{ours}/out', f'{theirs}/out')


_LAYER = 'Transformer/encoderblock_{}'
_MAP = 'MAPHead_0'
_BITS = 'resnet/block{}/unit{:02d}'

VIT = [
  *_dense('patch_embedding', 'embedding'),
  rule('class_token', 'cls'),
  rule('position_embedding', 'Transformer/posembed_input/pos_embedding'),
  *_norm('blocks_{}/norm1', f'{_LAYER}/LayerNorm_0'),
  *_attention(
    'blocks_{}/attention', f'{_LAYER}/MultiHeadDotProductAttention_1', 'qkv'
  ),
  *_norm('blocks_{}/norm2', f'{_LAYER}/LayerNorm_2'),
  *_dense('blocks_{}/mlp/up', f'{_LAYER}/MlpBlock_3/Dense_0'),
  *_dense('blocks_{}/mlp/down', f'{_LAYER}/MlpBlock_3/Dense_1'),
  *_norm('norm', 'Transformer/encoder_norm'),
  rule('map_head/probe', f'{_MAP}/probe'),
  *_dense('map_head/query', f'{_MAP}/MultiHeadDotProductAttention_0/query'),
  *_attention(
    'map_head', f'{_MAP}/MultiHeadDotProductAttention_0', 'key_value'
  ),
  *_norm('map_head/norm', f'{_MAP}/LayerNorm_0'),
  *_dense('map_head/mlp/up', f'{_MAP}/MlpBlock_0/Dense_0'),
  *_dense('map_head/mlp/down', f'{_MAP}/MlpBlock_0/Dense_1'),
  *_dense('pre_logits', 'pre_logits'),
  *_dense('head', 'head'),
  # Hybrids.
  rule('stem/conv/kernel', 'conv_root/kernel'),
  *_group_norm('stem/norm', 'gn_root'),
  *(
    rule(
      f'stem/stage{{}}/unit{{}}/{c}/kernel', f'block{{}}/unit{{}}/{c}/kernel'
    )
    for c in ('conv1', 'conv2', 'conv3', 'conv_proj')
  ),
  *(
    line
    for n in ('1', '2', '3', '_proj')
    for line in _group_norm(
      f'stem/stage{{}}/unit{{}}/norm{n}', f'block{{}}/unit{{}}/gn{n}'
    )
  ),
]

MIXER = [
  *_dense('patch_embedding', 'stem'),
  *_norm('blocks_{}/norm1', 'MixerBlock_{}/LayerNorm_0'),
  *_dense('blocks_{}/token_mlp/up', 'MixerBlock_{}/token_mixing/Dense_0'),
  *_dense('blocks_{}/token_mlp/down', 'MixerBlock_{}/token_mixing/Dense_1'),
  *_norm('blocks_{}/norm2', 'MixerBlock_{}/LayerNorm_1'),
  *_dense('blocks_{}/channel_mlp/up', 'MixerBlock_{}/channel_mixing/Dense_0'),
  *_dense('blocks_{}/channel_mlp/down', 'MixerBlock_{}/channel_mixing/Dense_1'),
  *_norm('norm', 'pre_head_layer_norm'),
  *_dense('head', 'head'),
]

# gs://bit_models/BiT-*.npz.
BIT = [
  rule('stem/conv/kernel', 'resnet/root_block/standardized_conv2d/kernel'),
  *(
    rule(
      f'stage{{}}/unit{{}}/conv{ours}/kernel',
      f'{_BITS}/{theirs}/standardized_conv2d/kernel',
    )
    for ours, theirs in (
      ('1', 'a'),
      ('2', 'b'),
      ('3', 'c'),
      ('_proj', 'a/proj'),
    )
  ),
  *(
    line
    for ours, theirs in (('1', 'a'), ('2', 'b'), ('3', 'c'))
    for line in _bit_norm(
      f'stage{{}}/unit{{}}/norm{ours}', f'{_BITS}/{theirs}/group_norm'
    )
  ),
  *_bit_norm('norm', 'resnet/group_norm'),
  rule('head/kernel', 'resnet/head/conv2d/kernel', tables.padded(0, 1)),
  rule('head/bias', 'resnet/head/conv2d/bias'),
]

IGNORED = r'(?!)'  # nothing
_RULES: Mapping[type, Sequence[tables.Rule]] = {
  flat.ViT: VIT,
  mixer.Mixer: MIXER,
  resnet.BiT: BIT,
}
_SIGNS = (
  'embedding/kernel',
  'stem/kernel',
  'resnet/root_block/standardized_conv2d/kernel',
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  known = {published(name) for name in names}
  return any(sign in known for sign in _SIGNS) or any(
    name.startswith(('Transformer/', 'MixerBlock_')) for name in known
  )


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  unstacked = Unstacked(arrays)
  names = {name.removeprefix('params/') for name in unstacked.shapes}
  is_prefixed = any(name.startswith('params/') for name in arrays.shapes)
  is_newer = any(published(name) != name for name in names)

  def rename(name: str) -> str:
    name = published(name)
    # With a class token, the name tells whether that token has a position.
    return _POSITION if name == _PATCHES and 'cls' not in names else name

  def restore(name: str) -> str:
    name = newer(name) if is_newer else name
    return f'params/{name}' if is_prefixed else name

  return base.Renamed(unstacked, rename, restore, unstacked.stored)


_POSITION = 'Transformer/posembed_input/pos_embedding'
_PATCHES = 'pos_embedding'  # big_vision's, with positions of patches only


def rules(model: models.Flat) -> Sequence[tables.Rule]:
  """Returns the table for a model."""
  if (
    isinstance(model, flat.ViT) and not model.positioned_prefix and model.prefix
  ):
    return [rule('position_embedding', _PATCHES), *VIT]
  return _RULES[type(model)]


def stored_name(model: models.Flat, name: str) -> str:
  """Returns a name in the style of the code that can compute the model."""
  is_published = not isinstance(model, flat.ViT) or not (
    model.pool == 'map'
    or model.position_embedding == 'sincos2d'
    or (model.position_tokens == 'patches' and model.prefix)
  )
  return name if is_published else f'params/{newer(name)}'  # big_vision's


def newer(name: str) -> str:
  """Returns the name in newer files for a name in the published files."""
  for old, new in (
    ('Transformer/posembed_input/', ''),
    ('/LayerNorm_2/', '/LayerNorm_1/'),
    ('/MlpBlock_3/', '/MlpBlock_0/'),
    ('DotProductAttention_1', 'DotProductAttention_0'),
  ):
    name = name.replace(old, new)
  return name


def published(name: str) -> str:
  """Returns the name in the published files for a name in newer files."""
  name = name.removeprefix('params/')
  if re.match(r'Transformer/encoderblock(_\d+)?/', name):
    name = name.replace('/LayerNorm_1/', '/LayerNorm_2/')
    name = name.replace('/MlpBlock_0/', '/MlpBlock_3/')
    name = name.replace('DotProductAttention_0', 'DotProductAttention_1')
  return name


class Unstacked(containers.Arrays):
  """Presents stacked layers, `encoderblock/...` [L, ...], as separate ones.

  It leaves out the optimizer state of big_vision's training checkpoints.
  """

  def __init__(self, arrays: containers.Arrays):
    super().__init__({}, self._read)
    self._arrays = arrays
    self._where: dict[str, tuple[str, int]] = {}
    self._last: dict[str, np.ndarray] = {}
    is_training = any(name.startswith('params/') for name in arrays.shapes)
    for name, shape in arrays.shapes.items():
      if is_training and name.startswith(('opt/', 'extra/')):
        continue
      match = re.fullmatch(r'(.*Transformer/encoderblock)(/.*)', name)
      if match is None or not shape:
        self.shapes[name] = shape
        continue
      for layer in range(shape[0]):
        one = f'{match[1]}_{layer}{match[2]}'
        self.shapes[one] = shape[1:]
        self._where[one] = (name, layer)

  def stored(self, name: str) -> str:
    """Returns the name in the file, with the layer's index in a stack."""
    match = re.fullmatch(r'(.*encoderblock)_(\d+)(/.*)', name)
    if not self._where or match is None:
      return name
    return f'{match[1]}{match[3]}[{match[2]}]'

  def _read(self, name: str) -> np.ndarray:
    """Reads one array; keeps a stack in memory until its last layer is read."""
    if name not in self._where:
      return self._arrays.read(name)
    stack, layer = self._where[name]
    if stack not in self._last:
      self._last[stack] = self._arrays.read(stack)
    array = self._last[stack][layer]
    if layer == len(self._last[stack]) - 1:
      del self._last[stack]
    return array


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes."""
  shapes = base.Shapes(arrays)
  if 'stem/kernel' in shapes or shapes.count('MixerBlock_{}/'):
    return _mixer(shapes, hints)
  if 'resnet/root_block/standardized_conv2d/kernel' in shapes:
    return _bit(shapes, hints)
  return _vit(shapes, hints)


def _vit(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  *patch, channels, hidden = shapes.get('embedding/kernel', 4)
  block = 'Transformer/encoderblock_{}/'
  fields: dict[str, Any] = {
    **_FIELDS,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'num_heads': shapes.get(
      block + 'MultiHeadDotProductAttention_1/query/kernel', 3
    )[1],
    'mlp_dim': shapes.get(block + 'MlpBlock_3/Dense_0/kernel', 2)[1],
    'depth': shapes.count(block),
    'pre_logits': shapes.size('pre_logits/kernel', -1),
  }
  has_class, is_map = 'cls' in shapes, 'MAPHead_0/probe' in shapes
  fields['pool'] = 'map' if is_map else 'token' if has_class else 'gap'
  if is_map and has_class:
    fields['class_token'] = True
  stride = 1
  if 'conv_root/kernel' in shapes:
    stages = shapes.stages('block{}/unit{}/', first=1)
    *_, channels, width = shapes.get('conv_root/kernel', 4)
    fields |= {'resnet_stages': stages, 'resnet_width': width}
    stride = 4 * 2 ** max(len(stages) - 1, 0)
  tokens = None
  if _POSITION in shapes:
    tokens = shapes.get(_POSITION, 3)[1] - has_class
  elif _PATCHES in shapes:
    tokens = shapes.get(_PATCHES, 3)[1]
    fields['position_tokens'] = 'patches'
  else:
    fields['position_embedding'] = 'sincos2d'  # big_vision's other kind
  fields['num_classes'] = shapes.size('head/kernel', -1)
  size = base.image_size(tokens, [stride * p for p in patch], hints)
  model = base.build(flat.ViT, fields, hints)
  return _description(model, size, channels, hints)


def _mixer(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  *patch, channels, hidden = shapes.get('stem/kernel', 4)
  block = 'MixerBlock_{}/'
  tokens, tokens_dim = shapes.get(block + 'token_mixing/Dense_0/kernel', 2)
  fields: dict[str, Any] = {
    **_FIELDS,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'tokens_mlp_dim': tokens_dim,
    'mlp_dim': shapes.get(block + 'channel_mixing/Dense_0/kernel', 2)[1],
    'depth': shapes.count(block),
    'num_classes': shapes.size('head/kernel', -1),
  }
  size = base.image_size(tokens, patch, hints)
  model = base.build(mixer.Mixer, fields, hints)
  return _description(model, size, channels, hints)


def _bit(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  root = shapes.get('resnet/root_block/standardized_conv2d/kernel', 4)
  stages = shapes.stages('resnet/block{}/unit{}/', first=1)
  last = 'resnet/block{}/unit01/c/standardized_conv2d/kernel'
  fields: dict[str, Any] = {
    'num_classes': shapes.size('resnet/head/conv2d/kernel', -1),
    'stages': stages,
    'stem_width': root[-1],
    'channels': tuple(
      shapes.get(last.format(stage + 1), 4)[-1] for stage in range(len(stages))
    ),
  }
  size = base.image_size(None, (32, 32), hints)
  model = base.build(resnet.BiT, fields, hints)
  return _description(model, size, root[2], hints)


def _description(
  model: models.Flat,
  size: tuple[int, int],
  channels: int,
  hints: base.Hints,
) -> base.Description:
  preprocess, silent = preprocessing.of_timm(
    hints.config, size, channels, preprocessing.GOOGLE
  )
  return base.Description(
    model, size, {'classes': (), **preprocess}, 'corner', silent
  )


def unsupported(model: models.Flat, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  del image_size
  if isinstance(model, igpt.IGPT):
    return 'an iGPT'
  if not isinstance(model, flat.ViT):
    return None
  wrong = {
    'a distillation token': model.distillation_token,
    'registers': model.registers,
    'LayerScale': model.layer_scale is not None,
    'normalised queries and keys': model.qk_norm,
    'a gated MLP': model.gated_mlp,
    'queries and keys without biases': not model.qkv_bias,
    'a head that reads class token and mean': model.pool == 'token+gap',
    'a class token that nothing reads': model.pool in ('gap', 'map')
    and 'class_token' in model.prefix,
    'a LayerNorm after the mean': model.pool == 'gap' and model.norm_after_pool,
    'a model without positions': model.position_embedding == 'none',
    f'positions of the kind {model.position_embedding}': (
      model.position_embedding in ('sincos2d_mae', 'sincos2d_moco')
    ),
    **uncommon.parts(model),
  }
  return base.first_of(wrong)


def notes(model: models.Flat) -> list[str]:
  """Returns notes on where the format's own code computes something else."""
  if isinstance(model, resnet.BiT):
    if model.num_groups == 32 and model.zero_padded_pool:
      return []
    return ["BiT's own code has 32 groups, and zeros around what it pools"]
  found = []
  # model.gelu and model.layer_norm_epsilon, or options of parts.
  fields = models.fields_of(model)
  if fields['gelu'] != _FIELDS['gelu']:
    gelu = uncommon.GELUS[fields['gelu']]
    found.append(f'{gelu}; the code of this format has {_GELU}')
  if fields['layer_norm_epsilon'] != _FIELDS['layer_norm_epsilon']:
    epsilon = f'{fields["layer_norm_epsilon"]:g} in its LayerNorms'
    found.append(f'the epsilon {epsilon}; the code of this format has 1e-06')
  return [f'this model has {what}' for what in found]


def companions(
  model: models.Flat, preprocess: data.Preprocess, image_size: tuple[int, int]
) -> dict[str, dict[str, Any]]:
  """Returns the JSON files by name; the format itself needs none."""
  del model, preprocess, image_size
  return {'config.json': {}}


def usage(model: models.Flat, directory: str, file: str) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the arrays."""
  del model
  code = f"import numpy as np\narrays = np.load('{directory}/{file}')"
  return 'NumPy', code
