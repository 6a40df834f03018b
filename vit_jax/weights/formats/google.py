"""Checkpoints of google-research/vision_transformer, big_vision and BiT: npz.

The tables use the names of the published files. Newer files number the parts of
a layer differently. big_vision puts `params/` before all names, may stack the
layers, and keeps the optimizer state in its training checkpoints.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import operator
import re

import numpy as np

from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.format import Format

NAME, SUFFIX = 'google', '.npz'
IGNORED = r'(?!)'  # nothing

POSITIONS = 'Transformer/posembed_input/pos_embedding'
_OF_PATCHES = 'pos_embedding'  # big_vision's, with positions of patches only
_LAYER = 'Transformer/encoderblock_#'
_ATTENTION = f'{_LAYER}/MultiHeadDotProductAttention_1'
_MIXER = 'MixerBlock_#'
_MAP = 'MAPHead_0'
_POOLING = f'{_MAP}/MultiHeadDotProductAttention_0'

# Of an encoder, whether of patches or of words.
ENCODER = tables.arrays(
  f"""
blocks_#/norm1          {_LAYER}/LayerNorm_0               norm*
blocks_#/attention/qkv  {_ATTENTION}/{{query,key,value}}   parts*
blocks_#/attention/out  {_ATTENTION}/out                   dense*
blocks_#/norm2          {_LAYER}/LayerNorm_2               norm*
blocks_#/mlp/up         {_LAYER}/MlpBlock_3/Dense_0        dense*
blocks_#/mlp/down       {_LAYER}/MlpBlock_3/Dense_1        dense*
norm                    Transformer/encoder_norm           norm*
head                    head                               dense*
""",
  'flax',
)
_VIT = tables.arrays(
  f"""
patch_embedding      embedding                dense*
class_token          cls
position_embedding   {_OF_PATCHES}            ?positions.learned.tokens=patches
position_embedding   {POSITIONS}
map_head/probe       {_MAP}/probe
map_head/query       {_POOLING}/query         dense*
map_head/key_value   {_POOLING}/{{key,value}} parts*
map_head/out         {_POOLING}/out           dense*
map_head/norm        {_MAP}/LayerNorm_0       norm*
map_head/mlp/up      {_MAP}/MlpBlock_0/Dense_0  dense*
map_head/mlp/down    {_MAP}/MlpBlock_0/Dense_1  dense*
pre_logits           pre_logits               dense*
stem/conv/kernel     conv_root/kernel
stem/norm            gn_root                  group_norm*
stem/stage#/unit#/conv1/kernel      block#/unit#/conv1/kernel
stem/stage#/unit#/conv2/kernel      block#/unit#/conv2/kernel
stem/stage#/unit#/conv3/kernel      block#/unit#/conv3/kernel
stem/stage#/unit#/conv_proj/kernel  block#/unit#/conv_proj/kernel
stem/stage#/unit#/norm1             block#/unit#/gn1      group_norm*
stem/stage#/unit#/norm2             block#/unit#/gn2      group_norm*
stem/stage#/unit#/norm3             block#/unit#/gn3      group_norm*
stem/stage#/unit#/norm_proj         block#/unit#/gn_proj  group_norm*
""",
  'flax',
)
_MIXERS = tables.arrays(
  f"""
patch_embedding            stem                             dense*
blocks_#/norm1             {_MIXER}/LayerNorm_0             norm*
blocks_#/token_mlp/up      {_MIXER}/token_mixing/Dense_0    dense*
blocks_#/token_mlp/down    {_MIXER}/token_mixing/Dense_1    dense*
blocks_#/norm2             {_MIXER}/LayerNorm_1             norm*
blocks_#/channel_mlp/up    {_MIXER}/channel_mixing/Dense_0  dense*
blocks_#/channel_mlp/down  {_MIXER}/channel_mixing/Dense_1  dense*
norm                       pre_head_layer_norm              norm*
head                       head                             dense*
""",
  'flax',
)
# gs://bit_models/BiT-*.npz.
_CONV, _UNIT = 'standardized_conv2d/kernel', 'resnet/block#/unit##'
_ROOT, _HEAD = f'resnet/root_block/{_CONV}', 'resnet/head/conv2d'
_BITS = tables.arrays(
  f"""
stem/conv/kernel                {_ROOT}
stage#/unit#/conv1/kernel       {_UNIT}/a/{_CONV}
stage#/unit#/conv2/kernel       {_UNIT}/b/{_CONV}
stage#/unit#/conv3/kernel       {_UNIT}/c/{_CONV}
stage#/unit#/conv_proj/kernel   {_UNIT}/a/proj/{_CONV}
stage#/unit#/norm1              {_UNIT}/a/group_norm  gamma_norm*
stage#/unit#/norm2              {_UNIT}/b/group_norm  gamma_norm*
stage#/unit#/norm3              {_UNIT}/c/group_norm  gamma_norm*
norm                            resnet/group_norm     gamma_norm*
head/kernel                     {_HEAD}/kernel        conv_of_points
head/bias                       {_HEAD}/bias
""",
  'flax',
)


def _stored(values: base.Values, name: str) -> str:
  """Returns a name in the style of the code that can compute the model."""
  is_big_vision = (
    values['pool'] == 'map'
    or values.get('positions.sincos2d', False)
    or values.get('positions.learned.tokens') == 'patches'
  )
  return f'params/{newer(name)}' if is_big_vision else name


_format = functools.partial(
  Format,
  preprocess=preprocessing.as_timm(preprocessing.GOOGLE),
  resize=lambda file: 'corner',
  scope=None,
)
# GELU and epsilon are as in models_vit.py and models_mixer.py.
_VIT_FIELDS = fields.table(
  f"""
hidden_size         embedding/kernel[3]  -  axes=4
patch_size          embedding/kernel[0,1]
depth               {_LAYER}/[#]
num_heads           {_ATTENTION}/query/kernel[1]          -  axes=3
mlp_dim             {_LAYER}/MlpBlock_3/Dense_0/kernel[1]  -  axes=2
mlp.gelu            =tanh  -  noted
layer_norm_epsilon  =1e-6  -  noted
patches             conv_root/kernel?hybrid:patches
patches.stages      stages()
patches.width       conv_root/kernel[3]  -  else=None
class_token         cls?
positions.learned   {POSITIONS}|{_OF_PATCHES}?
positions.learned.tokens  {_OF_PATCHES}?patches:all
positions.sincos2d  {POSITIONS}|{_OF_PATCHES}?False:True
pool                {_MAP}/probe?map:cls?token:mean
pool.gelu           =gelu()  -  noted
head.pre_logits     pre_logits/kernel[1]
num_classes         head/kernel[1]
!                   class_token  pool=token
""",
  stages=lambda file: (
    file.stages('block#/unit#/', first=1)
    if file.has('conv_root/kernel')
    else None
  ),
  gelu=lambda file: file.values['mlp.gelu'],
)
VIT = _format(
  title="Google's ViT",
  family=vit.ViT,
  arrays=[*ENCODER, *_VIT],
  fields=_VIT_FIELDS,
  matches=lambda file: True,
  stored=_stored,
)
MIXER = _format(
  title="Google's Mixer",
  family=mixer.Mixer,
  arrays=_MIXERS,
  fields=fields.table(
    f"""
hidden_size           stem/kernel[3]  -  axes=4
patch_size            stem/kernel[0,1]
depth                 {_MIXER}/[#]
block.tokens_mlp_dim  {_MIXER}/token_mixing/Dense_0/kernel[1]    -  axes=2
mlp_dim               {_MIXER}/channel_mixing/Dense_0/kernel[1]  -  axes=2
mlp.gelu              =tanh  -  noted
layer_norm_epsilon    =1e-6  -  noted
num_classes           head/kernel[1]
"""
  ),
  matches=lambda file: file.has('stem/kernel') or file.has('MixerBlock_'),
  image_size=lambda file: base.image_size(
    file.size(f'{_MIXER}/token_mixing/Dense_0/kernel', 0),
    file.values['patch_size'],
    file,
  ),
)


BIT = _format(
  title="Google's BiT",
  family=resnet.BiT,
  arrays=_BITS,
  fields=fields.table(
    f"""
stem_width        {_ROOT}[3]  -  axes=4
stages            stages()
channels          widths()
num_groups        =32    -  noted
zero_padded_pool  =True  -  noted
num_classes       {_HEAD}/kernel[3]
""",
    widths=lambda file: file.widths(
      f'resnet/block#/unit01/c/{_CONV}', -1, first=1
    ),
    stages=lambda file: file.stages('resnet/block#/unit#/', first=1),
  ),
  matches=lambda file: file.has(_ROOT),
)
KINDS: Sequence[Format] = (MIXER, BIT, VIT)
_SIGNS = 'embedding/kernel', 'stem/kernel', _ROOT


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  plain = {published(name) for name in names}
  return any(sign in plain for sign in _SIGNS) or any(
    name.startswith(('Transformer/', 'MixerBlock_')) for name in plain
  )


def prepare(arrays: containers.Arrays, tower: str = '') -> base.Renamed:
  """Returns the arrays under the names that the rules use.

  `tower` is what is before the names of a ViT that is a tower, as 'img/'.
  """
  unstacked = _unstacked(arrays)
  names = {name.removeprefix('params/') for name in unstacked.shapes}
  is_prefixed = any(name.startswith('params/') for name in arrays.shapes)
  is_newer = any(published(name) != name for name in names)
  has_class = f'{tower}cls' in names

  def rename(name: str) -> str:
    name = published(name)
    # With a class token, the name tells whether that token has a position.
    is_of_all = name == tower + _OF_PATCHES and not has_class
    return tower + POSITIONS if is_of_all else name

  def restore(name: str) -> str:
    name = newer(name) if is_newer else name
    return f'params/{name}' if is_prefixed else name

  is_stacked = any('/encoderblock/' in name for name in arrays.shapes)

  def show(name: str) -> str:
    match = re.fullmatch(r'(.*encoderblock)_(\d+)(/.*)', name)
    if match is None or not is_stacked:
      return name
    return f'{match[1]}{match[3]}[{match[2]}]'

  return base.Renamed(unstacked, rename, restore, show)


# Parts of names in the published files, and in newer ones.
_NEWER = (
  ('/LayerNorm_2/', '/LayerNorm_1/'),
  ('/MlpBlock_3/', '/MlpBlock_0/'),
  ('DotProductAttention_1', 'DotProductAttention_0'),
)


def newer(name: str) -> str:
  """Returns the name in newer files for a name in the published files."""
  for old, new in (('Transformer/posembed_input/', ''), *_NEWER):
    name = name.replace(old, new)
  return name


def published(name: str) -> str:
  """Returns the name in the published files for a name in newer files."""
  name = name.removeprefix('params/')
  if re.match(r'(\w+/)?Transformer/encoderblock(_\d+)?/', name):
    for old, new in _NEWER:
      name = name.replace(new, old)
  return name


def _unstacked(arrays: containers.Arrays) -> containers.Arrays:
  """Returns stacked layers, `encoderblock/...` [L, ...], as separate ones.

  It leaves out the optimizer state of big_vision's training checkpoints. Stacks
  stay in memory, since layers are read one after the other.
  """
  is_training = any(name.startswith('params/') for name in arrays.shapes)
  shapes: dict[str, tuple[int, ...]] = {}
  layers: dict[str, tuple[list[str], Callable[..., np.ndarray]]] = {}
  for name, sides in arrays.shapes.items():
    if is_training and name.startswith(('opt/', 'extra/')):
      continue
    shapes[name] = sides
    match = re.fullmatch(r'(.*Transformer/encoderblock)(/.*)', name)
    if match and sides and 0 not in sides:
      for i in range(sides[0]):
        layers[f'{match[1]}_{i}{match[2]}'] = [name], operator.itemgetter(i)
  stacks = {name for (name,), _ in layers.values()}
  read_stack = functools.cache(arrays.read)

  def read(name: str) -> np.ndarray:
    return read_stack(name) if name in stacks else arrays.read(name)

  return base.derived(containers.Arrays(shapes, read), layers)


def describe(file: FileFacts) -> base.Description:
  """Returns the model that a file holds."""
  return format_lib.describe(KINDS, file)


def usage(
  kind: Format, values: base.Values, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the arrays."""
  del kind, values
  code = f"import numpy as np\narrays = np.load('{directory}/{file}')"
  return 'NumPy', code
