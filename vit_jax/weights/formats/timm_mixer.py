"""timm's MlpMixer."""

from vit_jax.config import UserError
from vit_jax.models import mixer
from vit_jax.models.zoo import mixer as named
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

ARRAYS = tables.arrays("""
patch_embedding            stem.proj                  conv*
blocks_#/norm1             blocks.#.norm1             norm*
blocks_#/token_mlp/up      blocks.#.mlp_tokens.fc1    dense*
blocks_#/token_mlp/down    blocks.#.mlp_tokens.fc2    dense*
blocks_#/norm2             blocks.#.norm2             norm*
blocks_#/channel_mlp/up    blocks.#.mlp_channels.fc1  dense*
blocks_#/channel_mlp/down  blocks.#.mlp_channels.fc2  dense*
norm                       norm                       norm*
head                       head                       dense*
""")
B, _STEM = 'blocks.#.', 'stem.proj.weight'


def tokens_mlp_dim(file: FileFacts) -> int:
  """Returns the size of the hidden layer of the MLP over tokens."""
  hidden = file.shape('blocks.#.mlp_tokens.fc1.weight', 2)[0]
  if file.size(B + 'mlp_tokens.fc2.weight', 1) != hidden:
    raise UserError(
      'it has gated MLPs, as in timm with mlp_layer=GluMlp: those of a Mixer'
      ' are not computed here'
    )
  return hidden


FIELDS = fields.table(
  """
hidden_size           stem.proj.weight[0]  -  axes=4
patch_size            stem.proj.weight[2,3]
block.tokens_mlp_dim  tokens_mlp_dim()
mlp_dim               blocks.#.mlp_channels.fc1.weight[0]  -  axes=2
depth                 blocks.#.[#]
num_classes           head.weight[0]
mlp.gelu              =exact  -  noted
layer_norm_epsilon    =1e-6   -  noted
>                     .img_size  image_size
>                     .in_chans  image_channels
""",
  tokens_mlp_dim,
  below='model_args',
)


def image_size(file: FileFacts) -> Size:
  """Returns (height, width) of the images that its tokens are of."""
  tokens = file.size(B + 'mlp_tokens.fc1.weight', 1)
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  return base.image_size(tokens, patch, file.hints, default)


def _name(values: Values) -> str | None:
  """Returns timm's name; None: its names' sizes cannot be changed."""
  for size, patch in (('S', 16), ('S', 32), ('B', 16), ('B', 32), ('L', 16)):
    sizes = {'patch_size': (patch, patch), **named.SIZES[size]}
    sizes['block.tokens_mlp_dim'] = sizes.pop('tokens_mlp_dim')
    if sizes.items() <= values.items():
      return f'mixer_{size.lower()}{patch}_224'
  return None


MIXER = Format(
  title="timm's MlpMixer",
  family=mixer.Mixer,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(f'{_STEM}|{B}mlp_tokens.'),
  image_size=image_size,
  channels=lambda file: file.size(_STEM, 1),
  preprocess=timm_names.preprocess,
  resize=lambda file: 'bicubic_antialias',
  scope='model_args',
  unread_keys=fields.unread_keys(
    timm_names.COMMON
    + 'embed_dim mlp_ratio nlhb num_blocks patch_size act_layer=gelu'
    + ' global_pool=avg'
    + timm_names.LAYER_NORM
  ),
  header=lambda values: {
    'architecture': _name(values) or 'mixer_b16_224',
    'global_pool': 'avg',
  },
  obstacle=lambda values: None if _name(values) else 'a Mixer of this size',
)
