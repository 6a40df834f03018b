"""State dicts of torchvision's VisionTransformer, which have no config."""

from collections.abc import Iterable
import re

from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.format import Format

NAME, SUFFIX = 'torchvision', '.safetensors'
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
patch_size          {_PATCH}[2,3]  -  side
>                   -  image_size  side
!                   -  num_classes
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


def describe(file: FileFacts) -> base.Description:
  """Returns the model that a file holds."""
  return format_lib.describe(KINDS, file)


VIT = Format(
  title="torchvision's VisionTransformer",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: True,
  preprocess=preprocessing.as_timm(_DEFAULTS),
  resize=lambda file: 'bicubic',
  scope=None,
)
KINDS = (VIT,)


def usage(
  kind: Format, values: Values, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  del kind
  patch, _ = values['patch_size']
  code = f"""\
import safetensors.torch
from torchvision.models import VisionTransformer

arrays = safetensors.torch.load_file('{directory}/{file}')
tokens = arrays['encoder.pos_embedding'].shape[1] - 1
model = VisionTransformer(
    image_size={patch} * round(tokens**0.5), patch_size={patch},
    num_layers={values['depth']}, num_heads={values['num_heads']},
    hidden_dim={values['hidden_size']}, mlp_dim={values['mlp_dim']},
    num_classes={values['num_classes']})
model.load_state_dict(arrays)"""
  return NAME, code
