"""State dicts of torchvision's VisionTransformer, which have no config."""

from collections.abc import Iterable
import re

from vit_jax import models
from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

NAME = 'torchvision'
IGNORED = r'(?!)'  # nothing

_LAYER = 'encoder.layers.encoder_layer_#'
_PATCH = 'conv_proj.weight'
ARRAYS = tables.arrays(f"""
patch_embedding                conv_proj                                conv*
class_token                    class_token
position_embedding             encoder.pos_embedding
blocks_#/norm1                 {_LAYER}.ln_1                            norm*
blocks_#/attention/qkv/kernel  {_LAYER}.self_attention.in_proj_weight   dense
blocks_#/attention/qkv/bias    {_LAYER}.self_attention.in_proj_bias     flat
blocks_#/attention/out         {_LAYER}.self_attention.out_proj         dense2*
blocks_#/norm2                 {_LAYER}.ln_2                            norm*
blocks_#/mlp/up                {_LAYER}.mlp.0                           dense*
blocks_#/mlp/down              {_LAYER}.mlp.3                           dense*
norm                           encoder.ln                               norm*
pre_logits                     heads.pre_logits                         dense*
head                           heads.head                               dense*
""")


FIELDS = fields.table(
  f"""
hidden_size         {_PATCH}[0]  -  axes=4
patch_size          {_PATCH}[2,3]
mlp_dim             {_LAYER}.mlp.0.weight[0]  -  axes=2
depth               {_LAYER}.[#]
num_classes         heads.head.weight[0]
head.pre_logits     heads.pre_logits.weight[0]
num_heads           =heads()  -  given
positions.learned   =True
mlp.gelu            =exact    -  noted
layer_norm_epsilon  =1e-6     -  noted
""",
  heads=lambda file: base.num_heads(file.values),
)
# Of the published checkpoints: ViT_B_16_Weights.IMAGENET1K_V1 and its kin.
_DEFAULTS = preprocessing.Defaults(interpolation='bilinear', resize_like='')


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  return {'conv_proj.weight', 'encoder.pos_embedding'} <= {*names}


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names of newer versions of torchvision."""

  def rename(name: str) -> str:
    name = re.sub(r'\.mlp\.linear_1\.', '.mlp.0.', name)
    return re.sub(r'\.mlp\.linear_2\.', '.mlp.3.', name)

  return base.Renamed(arrays, rename)


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes."""
  return format_lib.describe(KINDS, arrays, hints)


def image_size(file: FileFacts) -> Size:
  """Returns (height, width) that the positions are for."""
  tokens = file.size('encoder.pos_embedding', 1) - 1
  return base.image_size(tokens, file.values['patch_size'], file.hints)


def lacks(values: Values) -> str | None:
  """Returns what their class has no place for, though its arrays have."""
  (height, width), image = values['patch_size'], values['image_size']
  if height != width:
    return f'patch_size={values["patch_size"]}'
  if image[0] != image[1]:
    return 'positions of a grid that is not square'
  return None if values['num_classes'] else 'num_classes=0'


VIT = Format(
  title="torchvision's VisionTransformer",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: True,
  image_size=image_size,
  channels=lambda file: file.size(_PATCH, 1),
  preprocess=preprocessing.as_timm(_DEFAULTS),
  resize=lambda file: 'bicubic',
  scope=None,
  lacks=lacks,
)
KINDS = (VIT,)


class Writer(base.Writer):
  """Writes nothing beside the arrays."""

  def usage(
    self, kind: Format, model: models.Model, directory: str, file: str
  ) -> tuple[str, str]:
    """Returns the name of a program, and Python code that loads the model."""
    del kind
    assert isinstance(model, vit.ViT)
    values = model.block.attention.num_heads, model.block.mlp.hidden_dim
    patch, _ = model.patches.patch_size
    code = f"""\
import safetensors.torch
from torchvision.models import VisionTransformer

arrays = safetensors.torch.load_file('{directory}/{file}')
tokens = arrays['encoder.pos_embedding'].shape[1] - 1
model = VisionTransformer(
    image_size={patch} * round(tokens**0.5), patch_size={patch},
    num_layers={model.depth}, num_heads={values[0]},
    hidden_dim={model.hidden_size}, mlp_dim={values[1]},
    num_classes={model.num_classes})
model.load_state_dict(arrays)"""
    return NAME, code
