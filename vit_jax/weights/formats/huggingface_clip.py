"""CLIP and SigLIP in the format of Hugging Face transformers.

Both have a `vision_model`, a `text_model` and a `logit_scale`; config.json has
what arrays do not show of either tower.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any
from typing import cast

from vit_jax.config import UserError
from vit_jax.models import text as text_lib
from vit_jax.models import two_towers
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.format import Format

CLIP, SIGLIP, SIGLIP2 = 'clip', 'siglip', 'siglip2'
FORMAT = 'huggingface'
IGNORED = r'.*\.position_ids'
# What the published configs of CLIP say of the end of a text, before they were
# corrected; transformers then reads the largest token.
_LEGACY_END = 2
_WORDS = 'text_model.'
_IMAGE = tables.below(towers.ARRAYS, 'image/', '')
_TEXT = [
  *tables.below(towers.layers(_WORDS), 'text/', ''),
  *tables.arrays(f"""
text/token_embedding/embedding  {_WORDS}embeddings.token_embedding.weight
text/norm                       {_WORDS}final_layer_norm  norm*
"""),
]
_CLIP = tables.arrays("""
image_projection                visual_projection         dense*
text/head                       text_projection           dense*
log_scale                       logit_scale
""")
_SIGLIP = tables.arrays(f"""
text/head                       {_WORDS}head              dense*
log_scale                       logit_scale               number
logit_bias                      logit_bias                number
""")
# Of patches that are cut already.
_CUT = tables.arrays(
  f'image/patch_embedding/kernel  {towers.PATCH}  cut', cut=tables.linear(3)
)
_OF_KIND = {CLIP: _CLIP, SIGLIP: _SIGLIP, SIGLIP2: [*_CUT, *_SIGLIP]}

_LAYER = f'{_WORDS}encoder.layers.#'


def _text_format(
  num_heads: int, gelu: str, epsilon: str, text: str, **attributes: Any
) -> Format:
  """Returns the format of a text tower, whose config is `text_config`."""
  table = fields.table(
    f"""
hidden_size         {_LAYER}.mlp.fc1.weight[1]  hidden_size        axes=2
mlp_dim             {_LAYER}.mlp.fc1.weight[0]  intermediate_size  axes=2
depth               {_LAYER}.[#]                num_hidden_layers
num_heads           -  num_attention_heads!     COUNT default={num_heads}
mlp.gelu            -  hidden_act!  GELUS       default={gelu}
                    write=activation()
layer_norm_epsilon  -  layer_norm_eps!          POSITIVE default={epsilon}
vocabulary  {_WORDS}embeddings.token_embedding.weight[0]  vocab_size
length      {_WORDS}embeddings.position_embedding.weight[0]
            max_position_embeddings
{text}
""",
    # The number by which transformers finds the end of a text.
    end=lambda values: (
      _LEGACY_END if values['pool'] == 'largest' else values['end_token']
    ),
    pool=lambda file: (
      'largest' if file.values['end_token'] == _LEGACY_END else 'end'
    ),
    activation=common.activation,
    GELUS=common.GELUS,
  )
  return common.class_format(
    (),
    'text tower',
    [],
    table,
    family=text_lib.TextTower,
    image_size=lambda file: (1, 1),
    channels=lambda file: 3,
    preprocess=lambda file, size, channels: ({}, ''),
    **attributes,
  )


_TEXTS = {
  CLIP: _text_format(
    8,
    'sigmoid',
    '1e-5',
    f"""
out_dim           text_projection.weight[0]
has_head_bias     =False
attention.causal  =True
end_token         -  eos_token_id!  COUNT default={_LEGACY_END} write=end()
pool              =pool()
!                 -  !pool=last&!pool=first
""",
  ),
  SIGLIP: _text_format(
    12,
    'tanh',
    '1e-6',
    f"""
out_dim  {_WORDS}head.weight[0]  projection_size
pool     =last
""",
  ),
}
_TEXTS[SIGLIP2] = _TEXTS[SIGLIP]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  return {'logit_scale', f'{_WORDS}final_layer_norm.weight'} <= {*names}


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  return base.Renamed(arrays)


def describe(
  arrays: base.Renamed, config: typed.Json, text_heads: int | None = None
) -> tuple[two_towers.TwoTowers, tuple[int, int]]:
  """Infers both towers, as `google_towers.describe`.

  config.json has the numbers of heads: `text_heads` is not used.
  """
  del text_heads
  kind = config.get('model_type', typed.TEXT)
  if kind not in _OF_KIND:
    raise UserError(
      f'its config.json says model_type {kind!r}: two towers of'
      f' {", ".join(map(repr, _OF_KIND))} can be read'
    )
  tower = FileFacts(towers.prepare(arrays), towers.tower_config(config))
  image = format_lib.describe(towers.KINDS, tower)
  words = config.get('text_config', typed.OBJECT, {})
  file = FileFacts(arrays, dataclasses.replace(config, content=words))
  words_model = _TEXTS[kind].describe(file)
  return two_towers.TwoTowers(
    cast(vit.ViT, image.model),
    cast(text_lib.TextTower, words_model.model),
    file.size('visual_projection.weight', 0),
    has_bias=kind != CLIP,
    any_grid=kind == SIGLIP2,
  ), image.image_size


def model_type(model: two_towers.TwoTowers) -> str:
  """Returns the model_type of a model."""
  if model.projection:
    return CLIP
  return SIGLIP2 if model.any_grid else SIGLIP


def rules(model: two_towers.TwoTowers) -> list[tables.Rule]:
  """Returns the table for a model."""
  return [*_OF_KIND[model_type(model)], *_IMAGE, *_TEXT]


def objective_table(
  model: two_towers.TwoTowers, shape: tuple[int, ...]
) -> objective_tables.ObjectiveTable | None:
  """Returns how a file of both towers stores what is beside the image tower.

  `shape` is that of an image, (height, width, channels). None: transformers has
  no class for these towers.
  """
  image, tower = model.image.clone(scan=False), model.text
  size = shape[0], shape[1]
  kind = format_lib.storing(towers.KINDS, image, size)
  if not isinstance(tower, text_lib.TextTower) or kind is None:
    return None
  is_clip = kind is towers.CLIP
  name = CLIP if is_clip else SIGLIP
  words = values_lib.model_values(tower)
  form = _TEXTS[name]
  if form.unnamed(words) or form.lack(words):
    return None
  if bool(model.projection) != is_clip or model.has_bias == is_clip:
    return None
  of_clip = {'projection_dim': model.projection} if is_clip else {}
  values = values_lib.model_values(image)
  values |= {'image_size': size, 'image_channels': shape[2]}
  content = {
    'model_type': name,
    'architectures': ['CLIPModel' if is_clip else 'SiglipModel'],
    'text_config': {
      'model_type': f'{name}_text_model',
      **form.config(words),
      **of_clip,
    },
    'vision_config': kind.config(values),
    **of_clip,
  }
  return objective_tables.ObjectiveTable(
    [*_OF_KIND[name], *_TEXT], config=content
  )
