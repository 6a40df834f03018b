"""Two towers of LiT and of big_vision: npz files with `img/`, `txt/` and `t`.

LiT is that of google-research/vision_transformer (models_lit.py) with its own
text transformer; big_vision puts `params/` before all names, may stack layers,
and SigLIP's files have a bias, `b`.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import re
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import google
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule

LIT, BIG_VISION = 'lit', 'big_vision'
IGNORED = r'(opt|extra)/.*'
_PREFIX = 'params/'
_POSITION = 'Transformer/posembed_input/pos_embedding'
_BLOCK = 'txt/Transformer/encoderblock_{}/'
_TEXT = [
  rule('text/token_embedding/embedding', 'txt/Embed_0/embedding'),
  rule('text/position_embedding', 'txt/pos_embedding'),
]
_BERT = 'txt/BertEncoder_0/'
_BERT_LAYER = f'{_BERT}encoder_block/layer_sequence/layers_{{}}/'
_BERT_WORDS = f'{_BERT}embedder/embedders_token_ids/embedding'
# Attention heads by hidden size: the base and large models (arXiv:1810.04805,
# section 3).
_BERT_HEADS = {768: 12, 1024: 16}
_BERT_PARTS = [
  f'{_BERT_LAYER}attention_block/attention_layer/{x}/'
  for x in ('query', 'key', 'value')
]


def _bert_dense(ours: str, theirs: str) -> list[tables.Rule]:
  return [rule(f'text/{ours}/{x}', f'{theirs}/{x}') for x in ('kernel', 'bias')]


def _bert_norm(ours: str, theirs: str) -> list[tables.Rule]:
  return [
    rule(f'text/{ours}/{x}', f'{theirs}/layer_norm/{x}')
    for x in ('scale', 'bias')
  ]


_OF_BERT = [
  *(
    rule(
      f'text/{x}_embedding/embedding',
      f'{_BERT}embedder/embedders_{x}_ids/embedding',
    )
    for x in ('token', 'position', 'segment')
  ),
  *_bert_norm('norm_before', _BERT.rstrip('/')),
  rule(
    'text/blocks_{}/attention/qkv/kernel',
    [f'{x}kernel' for x in _BERT_PARTS],
    tables.split(3, 1, tables.FLAT_OUTPUTS),
  ),
  rule(
    'text/blocks_{}/attention/qkv/bias',
    [f'{x}bias' for x in _BERT_PARTS],
    tables.split(3, 0, tables.FLAT),
  ),
  rule(
    'text/blocks_{}/attention/out/kernel',
    f'{_BERT_LAYER}attention_block/dense_layer/kernel',
    tables.FLAT_INPUTS,
  ),
  rule(
    'text/blocks_{}/attention/out/bias',
    f'{_BERT_LAYER}attention_block/dense_layer/bias',
  ),
  *_bert_norm('blocks_{}/norm1', f'{_BERT_LAYER}attention_block'),
  *_bert_dense('blocks_{}/mlp/up', f'{_BERT_LAYER}mlp_block/mlp/dense_layer'),
  *_bert_dense('blocks_{}/mlp/down', f'{_BERT_LAYER}mlp_block/dense_layer'),
  *_bert_norm('blocks_{}/norm2', f'{_BERT_LAYER}mlp_block'),
  *_bert_dense('head', 'txt/head'),
]
_BESIDE = [
  rule('log_scale', 't', tables.padded(0)),
  rule('logit_bias', 'b', tables.padded(0)),
]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  plain = {name.removeprefix(_PREFIX) for name in names}
  return {'t', 'img/embedding/kernel'} <= plain


def style(names: Iterable[str]) -> str:
  """Returns which code wrote a file with these arrays."""
  is_prefixed = any(name.startswith(_PREFIX) for name in names)
  return BIG_VISION if is_prefixed else LIT


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  prefix = _PREFIX if style(arrays.shapes) == BIG_VISION else ''
  plain = base.Renamed(
    arrays,
    lambda name: _plain(name.removeprefix(prefix)),
    lambda name: prefix + _shown(name),
  )
  unstacked = google.Unstacked(plain)
  has_class = 'img/cls' in unstacked.shapes

  def rename(name: str) -> str:
    tower, _, rest = name.partition('/')
    if tower not in ('img', 'txt'):
      return name
    rest = google.published(rest)
    if name == 'img/pos_embedding' and not has_class:
      rest = _POSITION
    return f'{tower}/{rest}'

  is_newer = any('/MlpBlock_0/' in name for name in unstacked.shapes)

  def restore(name: str) -> str:
    keep = name.endswith(_POSITION) or not is_newer
    return name if keep else google.newer(name)

  def show(name: str) -> str:
    return prefix + _shown(unstacked.stored(name))

  return base.Renamed(unstacked, rename, restore, show)


def _plain(name: str) -> str:
  return name.replace('txt/Encoder_0/', 'txt/Transformer/')


def _shown(name: str) -> str:
  return name.replace('txt/Transformer/', 'txt/Encoder_0/')


def _tower(arrays: containers.Arrays, prefix: str) -> containers.Arrays:
  """Returns the arrays of one tower, without its name before them."""
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
  prefix = _PREFIX if style(arrays.shapes) == BIG_VISION else ''
  return _tower(arrays, f'{prefix}img/')


def describe(
  arrays: base.Renamed, config: typed.Json, text_heads: int | None = None
) -> tuple[two_towers.TwoTowers, tuple[int, int]]:
  """Infers both towers from the arrays' shapes.

  Args:
    arrays: From `prepare`.
    config: Not used: the arrays show all but the heads of BERT.
    text_heads: Attention heads of the text tower, where arrays do not show
      them.

  Returns:
    The model; and the size of images (height, width) that its positions are
    for.

  Raises:
    UserError: The text tower is none of those that can be computed.
  """
  nothing = dataclasses.replace(config, content={})
  hints = base.Hints({}, nothing, nothing, None)
  shapes = base.Shapes(arrays)
  found = google.describe(base.Renamed(_tower(arrays, 'img/')), hints)
  tower = _text(shapes) if _is_own(shapes) else _bert(shapes, text_heads)
  assert isinstance(found.model, flat.ViT)
  image = found.model.parts()
  model = two_towers.TwoTowers(image, tower, has_bias='b' in shapes)
  return model, found.image_size


def _is_own(shapes: base.Shapes) -> bool:
  """Whether the text tower is a transformer like that of images, or BERT.

  Raises:
    UserError: It is neither.
  """
  own, bert = 'txt/Embed_0/embedding', _BERT_WORDS
  if own not in shapes and bert not in shapes:
    raise UserError(
      f'its text tower has no array {own} or {bert}: the transformers and BERT'
      ' of LiT and big_vision can be read'
    )
  return own in shapes


def _text(shapes: base.Shapes) -> text.TextTower:
  """Returns the text tower of LiT and big_vision."""
  vocabulary, hidden = shapes.get('txt/Embed_0/embedding', 2)
  attention = 'MultiHeadDotProductAttention_1/query/kernel'
  return registry.build_model(
    text.TextTower,
    hidden_size=hidden,
    mlp_dim=shapes.get(_BLOCK + 'MlpBlock_3/Dense_0/kernel', 2)[1],
    depth=shapes.count(_BLOCK),
    num_heads=shapes.get(_BLOCK + attention, 3)[1],
    vocabulary=vocabulary,
    length=shapes.get('txt/pos_embedding', 3)[1],
    out_dim=shapes.size('txt/head/kernel', -1),
  )


def _bert(shapes: base.Shapes, heads: int | None) -> text.Bert:
  """Returns LiT's BERT.

  Raises:
    UserError: The number of its heads is not known.
  """
  vocabulary, hidden = shapes.get(_BERT_WORDS, 2)
  known = heads or _BERT_HEADS.get(hidden)
  if known is None or hidden % known:
    raise UserError(
      f'its text tower is a BERT of width {hidden}, and arrays do not show its'
      f' attention heads: text_heads={heads} must be given and divide the width'
    )
  embedders = f'{_BERT}embedder/embedders_'
  return registry.build_model(
    text.Bert,
    hidden_size=hidden,
    mlp_dim=shapes.get(f'{_BERT_LAYER}mlp_block/dense_layer/kernel', 2)[0],
    depth=shapes.count(_BERT_LAYER),
    num_heads=known,
    vocabulary=vocabulary,
    length=shapes.get(f'{embedders}position_ids/embedding', 2)[0],
    segments=shapes.get(f'{embedders}segment_ids/embedding', 2)[0],
    out_dim=shapes.size('txt/head/kernel', -1),
  )


def rules(model: two_towers.TwoTowers) -> list[tables.Rule]:
  """Returns the table for a model."""
  words = [*_TEXT, *tables.below(google.VIT, 'text/', 'txt/')]
  return [
    *(_OF_BERT if isinstance(model.text, text.Bert) else words),
    *_BESIDE,
    *tables.below(
      google.rules(models.flattened(model.image)), 'image/', 'img/'
    ),
  ]


def write(
  model: two_towers.TwoTowers, params: Any, kind: str, stacked: bool
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the arrays of a file.

  Args:
    model: The towers.
    params: Their parameters, layers unrolled.
    kind: `LIT` or `BIG_VISION`.
    stacked: Whether equal layers are one array, as in big_vision with scan.

  Raises:
    KeyError: The format has no place for a parameter.
  """
  stacks: dict[str, list[np.ndarray]] = {}
  for name, array in tables.write(rules(model), params):
    name = _stored(name, kind)
    match = re.fullmatch(r'(.*encoderblock)_\d+(/.*)', name)
    if match is None or not stacked:
      yield name, array
    else:  # layers come in order
      stacks.setdefault(match[1] + match[2], []).append(array)
  for name, layers in stacks.items():
    yield name, np.stack(layers)


def _stored(name: str, kind: str) -> str:
  """Returns the name in a file for a name in the rules."""
  if not name.endswith(_POSITION):
    return (_PREFIX if kind == BIG_VISION else '') + _shown(google.newer(name))
  return name if kind == LIT else _PREFIX + google.newer(name)
