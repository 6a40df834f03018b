"""Whole models of segmentation in the names of mmsegmentation and MONAI.

A file has the trunk and its heads. In mmsegmentation the trunk is its
`VisionTransformer`, with a class token and `final_norm=True`, whose last norm
SETR does not use; in MONAI it is that of `UNETR`.
"""

from collections.abc import Mapping
import functools
import pathlib
from typing import Any
from typing import NamedTuple

from flax import traverse_util
import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.models import layouts
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import tables

# Of `models.setr.SETR`; the kinds of heads have parts of different names.
SETR = tables.arrays("""
decode/norm                   decode_head.norm               norm*
decode/convolutions_#         decode_head.up_convs.#.0       conv_bn*
decode/classifier/dense       decode_head.conv_seg           conv1x1*
auxiliary_#/norm              auxiliary_head.#.norm          norm*
auxiliary_#/convolutions_#    auxiliary_head.#.up_convs.#.0  conv_bn*
auxiliary_#/classifier/dense  auxiliary_head.#.conv_seg      conv1x1*
neck/norms_#                  neck.norm.#                    norm*
neck/inputs_#                 neck.mla.channel_proj.#        conv_bn*
neck/outputs_#                neck.mla.feat_extract.#        conv_bn*
decode/levels_#_#             decode_head.up_convs.#.#       conv_bn*
auxiliary_#/dense             auxiliary_head.#.conv_seg      conv1x1*
""")
# Their own code is told the values that no array shows.
_format = functools.partial(
  format_lib.Format,
  family=vit.ViT,
  matches=lambda file: True,
  preprocess=lambda file, size, channels: ({}, ''),
  resize=lambda file: 'half_pixel',
  image_size=lambda file: file.stored_size or (0, 0),
  channels=lambda file: 3,
  scope=None,
)
_CODE_VALUES = """
num_heads           -        -  given
layer_norm_epsilon  -        -  given
pool                -        -  given
mlp.gelu            =exact   -  noted
num_classes         =0
"""
_SETR_PATCHES = 'patch_embed.projection'
SETR_TRUNK = _format(
  title='mmsegmentation',
  arrays=tables.arrays(f"""
patch_embedding                {_SETR_PATCHES}                    conv*
class_token                    cls_token
position_embedding             pos_embed
blocks_#/norm1                 layers.#.ln1                       norm*
blocks_#/attention/qkv/kernel  layers.#.attn.attn.in_proj_weight  dense
blocks_#/attention/qkv/bias    layers.#.attn.attn.in_proj_bias    flat
blocks_#/attention/out         layers.#.attn.attn.out_proj        dense2*
blocks_#/norm2                 layers.#.ln2                       norm*
blocks_#/mlp/up                layers.#.ffn.layers.0.0            dense*
blocks_#/mlp/down              layers.#.ffn.layers.1              dense*
norm                           ln1                                norm*
"""),
  fields=fields.table(f"""
hidden_size         {_SETR_PATCHES}.weight[0]  -  axes=4
patch_size          {_SETR_PATCHES}.weight[2,3]
depth               layers.#.[#]
mlp_dim             layers.#.ffn.layers.0.0.weight[0]  -  axes=2
attention.qkv_bias  layers.#.attn.attn.in_proj_bias?
class_token         cls_token?
positions.learned   pos_embed?
positions.learned.tokens  -  -  given
{_CODE_VALUES}
"""),
)

# Torch's transposed convolutions are [in, out, ...].
_TRANSPOSED = tables.Layout(
  lambda a, _: np.moveaxis(a[0], (0, 1), (-2, -1)),
  lambda a: [np.moveaxis(a, (-2, -1), (0, 1))],
)
# A dense layer as a convolution of size 1; the file says of how many axes.
_POINTS = tables.Layout(
  lambda a, shape: a[0].reshape(shape[::-1]).T,
  lambda a: [a.T[:, :, None, None, None]],
)
# MONAI's blocks have a norm for cross-attention that UNETR does not use.
UNETR_IGNORED = r'(vit\.)?blocks\.\d+\.(norm_cross_attn|cross_attn)\..*'

_UNETR_PATCHES = 'patch_embedding.patch_embeddings'
UNETR_TRUNK = _format(
  title='MONAI',
  arrays=tables.arrays(f"""
patch_embedding         {_UNETR_PATCHES}                    conv*
position_embedding      patch_embedding.position_embeddings
blocks_#/norm1          blocks.#.norm1                      norm*
blocks_#/attention/qkv  blocks.#.attn.qkv                   dense*
blocks_#/attention/out  blocks.#.attn.out_proj              dense2*
blocks_#/norm2          blocks.#.norm2                      norm*
blocks_#/mlp/up         blocks.#.mlp.linear1                dense*
blocks_#/mlp/down       blocks.#.mlp.linear2                dense*
norm                    norm                                norm*
-                       blocks.#.norm_cross_attn.weight     1[hidden_size]
-                       blocks.#.norm_cross_attn.bias       0[hidden_size]
"""),
  fields=fields.table(f"""
hidden_size         {_UNETR_PATCHES}.weight[0]  -  axes=5
patch_size          {_UNETR_PATCHES}.weight[2,3,4]
depth               blocks.#.[#]
mlp_dim             blocks.#.mlp.linear1.weight[0]  -  axes=2
attention.qkv_bias  blocks.#.attn.qkv.bias?
positions.learned   patch_embedding.position_embeddings?
{_CODE_VALUES}
"""),
)
_UNIT = tables.arrays("""
conv1/kernel          conv1.conv.weight  conv
conv2/kernel          conv2.conv.weight  conv
conv_shortcut/kernel  conv3.conv.weight  conv
""")
# Of the decoder, `models.unetr.UNETR`.
UNETR = [
  *tables.below(_UNIT, 'encoder1/', 'encoder1.layer.'),
  *tables.below(_UNIT, 'encoder#/unit_#/', 'encoder#.blocks.#.1.'),
  *tables.below(_UNIT, 'decoder#/unit/', 'decoder#.conv_block.'),
  *tables.arrays(
    """
encoder#/first/kernel      encoder#.transp_conv_init.conv.weight  transposed
encoder#/doubled_#/kernel  encoder#.blocks.#.0.conv.weight        transposed
decoder#/doubled/kernel    decoder#.transp_conv.conv.weight       transposed
classifier/dense/kernel    out.conv.conv.weight                   points
classifier/dense/bias      out.conv.conv.bias
""",
    transposed=_TRANSPOSED,
    points=_POINTS,
  ),
]


class _Program(NamedTuple):
  """How a program has a whole model."""

  trunk: format_lib.Format
  model_name: str  # of a model that it has
  rules: list[tables.Rule]  # of the objective's parameters
  ignored: str  # regular expression for names in files that are not needed
  optional: Mapping[str, float]  # paths that a file may lack, with their values

  @property
  def name(self) -> str:
    """Its own name."""
    return self.trunk.title


PROGRAMS: Mapping[str, _Program] = {
  'mmseg': _Program(
    SETR_TRUNK,
    'SETR on a ViT with a class token',
    [
      *tables.below(SETR_TRUNK.arrays, 'trunk/', 'backbone.'),
      *tables.below(SETR, 'decoder/', ''),
    ],
    r'.*\.num_batches_tracked',
    {'trunk/norm/scale': 1.0, 'trunk/norm/bias': 0.0},
  ),
  'monai': _Program(
    UNETR_TRUNK,
    'UNETR',
    [
      *tables.below(UNETR_TRUNK.arrays, 'trunk/', 'vit.'),
      *tables.below(UNETR, 'decoder/', ''),
    ],
    UNETR_IGNORED,
    {},
  ),
}


def write(
  trunk: vit.ViT,
  size: base.Size,
  params: Any,
  path: pathlib.Path,
  name: str,
) -> list[str]:
  """Writes a segmentation, `trunk` and `decoder`, to a .safetensors file.

  Returns notes on where the program computes something else.

  Args:
    trunk: The ViT.
    size: Of images, in pixels.
    params: Parameters of the objective.
    path: The file.
    name: A key of `PROGRAMS`.
  """
  program = PROGRAMS[name]
  params = layouts.unstack_all(jax.tree.map(np.asarray, params))
  try:
    tables.entries(program.rules, {'decoder': params['decoder']})
    if refusals := program.trunk.refusals(trunk.clone(scan=False), size):
      raise UserError(
        f'{program.name} has no place for {next(iter(refusals))} of the trunk:'
        ' use --to=vit_jax'
      )
    values = values_lib.model_values(trunk)
    arrays = dict(tables.write(program.rules, params, values))
  except KeyError as e:
    raise UserError(
      f'{program.name} has no place for {e.args[0]}: --to={name} is for'
      f' {program.model_name}'
    ) from None
  if path.suffix != '.safetensors' or path.exists():
    raise UserError(
      f'{path}: --to={name} writes a new .safetensors file; name one'
    )
  containers.write_safetensors(path, arrays, {'format': 'pt'})
  return program.trunk.notes(trunk.clone(scan=False), size)


def read(path: pathlib.Path, like: Any) -> Any:
  """Returns the parameters of a file, in a tree of the structure of `like`."""
  abstract = traverse_util.flatten_dict(
    jax.eval_shape(layouts.unstack_all, like), sep='/'
  )
  with containers.open_arrays(path) as arrays:
    starts = {name.partition('.')[0] for name in arrays.shapes}
    if not starts & {'backbone', 'vit'}:
      raise UserError(
        f'{path} is no segmentation of mmsegmentation or MONAI: names of its'
        ' arrays begin neither with backbone. nor with vit.'
      )
    program = PROGRAMS['mmseg' if 'backbone' in starts else 'monai']
    filled = {}
    for param_path, value in program.optional.items():
      names = [n for x in program.rules for n in x.names(param_path) or ()]
      if not set(names) <= arrays.shapes.keys():
        filled[param_path] = np.full(
          abstract.pop(param_path).shape, value, np.float32
        )
    needed = traverse_util.unflatten_dict(abstract, sep='/')
    try:
      params = tables.read(arrays, program.rules, needed, program.ignored)
    except KeyError as e:
      raise UserError(
        f'{program.name} has no place for {e.args[0]} of the run that --like'
        ' names: name a run of the same model'
      ) from None
    except UserError as e:
      raise UserError(f'{path}: {e}') from None
  flat = traverse_util.flatten_dict(params, sep='/') | filled
  return layouts.relayout(traverse_util.unflatten_dict(flat, sep='/'), like)
