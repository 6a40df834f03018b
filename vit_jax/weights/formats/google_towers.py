"""Two towers of LiT and of big_vision: npz files with `img/`, `txt/` and `t`.

LiT is that of google-research/vision_transformer (models_lit.py) with its own
text transformer; big_vision puts `params/` before all names, may stack layers,
and SigLIP's files have a bias, `b`.
"""

from collections.abc import Iterable
import dataclasses

from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.models import values
from vit_jax.models import vit
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import google
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts

LIT, BIG_VISION = 'lit', 'big_vision'
IGNORED = r'(opt|extra)/.*'
PREFIX = 'params/'
_TABLE = 'txt/Embed_0/embedding'
_BERT = 'txt/BertEncoder_0'
_EMBEDDERS = f'{_BERT}/embedder/embedders_'
_BERT_TABLE = f'{_EMBEDDERS}token_ids/embedding'
_LAYER = f'{_BERT}/encoder_block/layer_sequence/layers_#'
_ATTENTION, _MLP = f'{_LAYER}/attention_block', f'{_LAYER}/mlp_block'
_PARTS = f'{_ATTENTION}/attention_layer'
# Attention heads by hidden size: the base and large models (arXiv:1810.04805,
# section 3).
_BERT_HEADS = {768: 12, 1024: 16}
_LOGIT_ARRAYS = tables.arrays("""
log_scale   t  number
logit_bias  b  number
""")
_WORDS = [
  *tables.arrays("""
text/token_embedding/embedding  txt/Embed_0/embedding
text/position_embedding         txt/pos_embedding
"""),
  *tables.below(google.ENCODER, 'text/', 'txt/'),
]
_BERT_ARRAYS = tables.arrays(
  f"""
text/token_embedding/embedding      {_BERT_TABLE}
text/position_embedding/embedding   {_EMBEDDERS}position_ids/embedding
text/segment_embedding/embedding    {_EMBEDDERS}segment_ids/embedding
text/norm_before                    {_BERT}/layer_norm             norm*
text/blocks_#/attention/qkv         {_PARTS}/{{query,key,value}}   flat_parts*
text/blocks_#/attention/out/kernel  {_ATTENTION}/dense_layer/kernel  flat_inputs
text/blocks_#/attention/out/bias    {_ATTENTION}/dense_layer/bias
text/blocks_#/norm1                 {_ATTENTION}/layer_norm        norm*
text/blocks_#/mlp/up                {_MLP}/mlp/dense_layer         dense*
text/blocks_#/mlp/down              {_MLP}/dense_layer             dense*
text/blocks_#/norm2                 {_MLP}/layer_norm              norm*
text/head                           txt/head                       dense*
""",
  'flax',
)
_LAYERS = 'txt/Transformer/encoderblock_#'
_QUERY = 'MultiHeadDotProductAttention_1/query'
_FIELDS = fields.table(f"""
vocabulary   {_TABLE}[0]  -  axes=2
hidden_size  {_TABLE}[1]
length       txt/pos_embedding[1]  -  axes=3
depth        {_LAYERS}/[#]
num_heads    {_LAYERS}/{_QUERY}/kernel[1]  -  axes=3
mlp_dim      {_LAYERS}/MlpBlock_3/Dense_0/kernel[1]  -  axes=2
out_dim      txt/head/kernel[1]
""")
_BERT_FIELDS = fields.table(
  f"""
vocabulary   {_BERT_TABLE}[0]  -  axes=2
hidden_size  {_BERT_TABLE}[1]
length       {_EMBEDDERS}position_ids/embedding[0]  -  axes=2
segments     {_EMBEDDERS}segment_ids/embedding[0]   -  axes=2
depth        {_LAYER}/[#]
num_heads    =heads()
mlp_dim      {_MLP}/dense_layer/kernel[0]  -  axes=2
out_dim      txt/head/kernel[1]
""",
  heads=lambda file: _BERT_HEADS.get(file.values['hidden_size']),
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  plain = {name.removeprefix(PREFIX) for name in names}
  return {'t', 'img/embedding/kernel'} <= plain


def style(names: Iterable[str]) -> str:
  """Returns which code wrote a file with these arrays."""
  is_prefixed = any(name.startswith(PREFIX) for name in names)
  return BIG_VISION if is_prefixed else LIT


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  prepared = google.prepare(base.Renamed(arrays, _plain), 'img/')
  return base.Renamed(
    prepared, show=lambda name: stored_name(prepared.stored(name))
  )


def _plain(name: str) -> str:
  return name.replace('txt/Encoder_0/', 'txt/Transformer/')


def stored_name(name: str) -> str:
  """Returns the name in a file of the text tower's layers."""
  return name.replace('txt/Transformer/', 'txt/Encoder_0/')


def _tower(arrays: containers.Arrays, prefix: str) -> containers.Arrays:
  shapes = {
    name.removeprefix(prefix): shape
    for name, shape in arrays.shapes.items()
    if name.startswith(prefix)
  }
  return containers.Arrays(shapes, lambda name: arrays.read(prefix + name))


def image_tower(arrays: containers.Arrays) -> containers.Arrays:
  """Returns the arrays of the image tower, as a file of a ViT has them.

  Arrays of other files are returned as they are.
  """
  if not recognises(arrays.shapes):
    return arrays
  prefix = PREFIX if style(arrays.shapes) == BIG_VISION else ''
  return _tower(arrays, f'{prefix}img/')


def describe(
  arrays: base.Renamed, config: typed.Json, text_heads: int | None = None
) -> tuple[two_towers.TwoTowers, tuple[int, int]]:
  """Infers both towers, and the size of images that positions are for.

  `text_heads` are a BERT's heads, which arrays do not show.
  """
  nothing = dataclasses.replace(config, content={})
  image = base.Renamed(_tower(arrays, 'img/'))
  described = google.describe(FileFacts(image, nothing))
  assert isinstance(described.model, vit.ViT)
  heads = {'num_heads': text_heads}
  words = _words(FileFacts(arrays, nothing, caller_values=heads))
  has_bias = 'b' in arrays.shapes
  model = two_towers.TwoTowers(described.model, words, has_bias=has_bias)
  return model, described.image_size


def _words(file: FileFacts) -> text.TextTower | text.Bert:
  """Returns the text tower: like that of images, or BERT."""
  if _TABLE in file.shapes:
    fields.evaluate(_FIELDS, file)
    return registry.build_model(text.TextTower, **file.values)
  if _BERT_TABLE not in file.shapes:
    raise UserError(
      f'its text tower has no array {_TABLE} or {_BERT_TABLE}: the transformers'
      ' and BERT of LiT and big_vision can be read'
    )
  fields.evaluate(_BERT_FIELDS, file)
  heads, hidden = file.values['num_heads'], file.values['hidden_size']
  if heads is None or hidden % heads:
    raise UserError(
      f'its text tower is a BERT of width {hidden}, and arrays do not show its'
      f' attention heads: text_heads={heads} must be given and divide the width'
    )
  return registry.build_model(text.Bert, **file.values)


def rules(model: two_towers.TwoTowers) -> list[tables.Rule]:
  """Returns the table for a model."""
  image = google.VIT.rules(values.model_values(model.image))
  return [
    *(_BERT_ARRAYS if isinstance(model.text, text.Bert) else _WORDS),
    *_LOGIT_ARRAYS,
    *tables.below(image, 'image/', 'img/'),
  ]
