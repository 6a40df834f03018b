"""A text transformer: tokens of a caption to one vector.

It is the encoder of the ViT on embedded tokens. CLIP's attends to earlier
tokens only and is read at the end of the text (arXiv:2103.00020, section 2.4);
the towers of LiT (arXiv:2111.07991) and SigLIP (arXiv:2303.15343) attend to all
tokens and are read at the last position. LiT's other tower is BERT
(arXiv:1810.04805), which is read at the first.

In comments: B texts, T tokens, D hidden size, E the size of the output.
"""

from collections.abc import Mapping
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import encoder
from vit_jax.models import fields
from vit_jax.models.context import Context

POOLS = ('last', 'first', 'end', 'largest')
_VOCABULARY = fields.Field(fields.Kind.SIZE, least=1, most=2**24)


class TextTower(encoder.Encoder):
  """Tokens to features, as the image's trunk.

  Attributes, beside the ones in `encoder.Encoder`:
    vocabulary: Number of different tokens.
    length: T, the largest number of tokens.
    out_dim: E, size of the last layer's output; 0: no such layer.
    has_head_bias: Whether the last layer has a bias.
    pool: Position that is read: 'last'; 'first'; 'end', the first `end_token`;
      'largest', the first token with the largest number, which the end is in
      CLIP's vocabulary.
    end_token: Number of the token that ends a text, for 'end'.
  """

  vocabulary: Annotated[int, _VOCABULARY]
  length: Annotated[int, fields.SIZE]
  out_dim: Annotated[int, fields.fitted(least=0)] = 0
  has_head_bias: Annotated[bool, fields.FUNCTION] = True
  pool: Annotated[str, fields.unseen(choices=POOLS)] = 'last'
  end_token: Annotated[int, fields.unseen(least=0, most=2**24)] = 0

  @nn.compact
  def __call__(
    self,
    tokens: jax.Array,
    attended: jax.Array | None = None,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns tokens and features; captures attention as a ViT's trunk does.

    `tokens` [B, T, D] are after the last norm; `pooled`, float32 [B, D], is the
    one that is read; `features` are float32 [B, E], or [B, D] without a last
    layer.

    Args:
      tokens: int32 [B, T].
      attended: bool [B, T], tokens that others attend to, as without padding;
        None: all.
      train: Whether to apply dropout; needs `rngs={'dropout': key}`.
      rows: int32 [B], the texts' positions in the global batch, if this is a
        part of one; by default 0 to B - 1.
    """
    count = _length(self, tokens)
    key = dropout.make_key(self, tokens, rows) if train else None
    x = _table(self, self.vocabulary, 'token_embedding')(tokens)
    shape = (1, self.length, self.hidden_size)
    position = self.param('position_embedding', self.starts.position, shape)
    x += position[:, :count].astype(x.dtype)
    x = dropout.embedded(x, self.dropout_rate, self.depth, key)
    context = Context(attended=attended, dropout_key=key)
    x, _ = self.layers(x, context)
    x = self.norm(x)
    if self.pool in ('first', 'last'):
      pooled = x[:, 0 if self.pool == 'first' else -1]
    else:
      scores = tokens if self.pool == 'largest' else tokens == self.end_token
      places = scores.argmax(axis=1)[:, None, None]
      pooled = jnp.take_along_axis(x, places, axis=1)[:, 0]
    features = pooled = pooled.astype(jnp.float32)
    if self.out_dim:
      features = nn.Dense(
        self.out_dim,
        use_bias=self.has_head_bias,
        kernel_init=self.starts.kernel,
        name='head',
      )(pooled)
    return {'tokens': x, 'pooled': pooled, 'features': features}


class Bert(encoder.Encoder):
  """BERT, read at the first token, as LiT's text tower.

  Attributes, beside the ones in `encoder.Encoder`:
    vocabulary: Number of different tokens; 0 is padding.
    length: T, the largest number of tokens.
    segments: Number of kinds of sentences; a caption is of the first.
    out_dim: E, size of the last layer's output.
  """

  class_defaults: ClassVar[Mapping[str, Any]] = {
    'block': 'vit_jax.models.parts.blocks:BertBlock',
    'layer_norm_epsilon': 1e-12,
  }

  vocabulary: Annotated[int, _VOCABULARY]
  length: Annotated[int, fields.SIZE]
  segments: Annotated[int, fields.fitted(least=1)] = 2
  out_dim: Annotated[int, fields.fitted(least=1)] = 1

  @nn.compact
  def __call__(
    self,
    tokens: jax.Array,
    attended: jax.Array | None = None,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns what `TextTower` does; padding is not attended to."""
    count = _length(self, tokens)
    key = dropout.make_key(self, tokens, rows) if train else None
    x = _table(self, self.vocabulary, 'token_embedding')(tokens)
    x += _table(self, self.length, 'position_embedding')(jnp.arange(count))
    x += _table(self, self.segments, 'segment_embedding')(jnp.zeros(1, int))
    x = self.norm.copy(name='norm_before')(x)
    x = dropout.embedded(x, self.dropout_rate, self.depth, key)
    attended = tokens != 0 if attended is None else attended
    context = Context(attended=attended, dropout_key=key)
    x, _ = self.layers(x, context)
    pooled = x[:, 0].astype(jnp.float32)
    head = nn.Dense(self.out_dim, kernel_init=self.starts.kernel, name='head')
    return {'tokens': x, 'pooled': pooled, 'features': head(pooled)}


# What both towers do, in their compact methods.


def _length(tower: TextTower | Bert, tokens: jax.Array) -> int:
  """Returns the length of the texts, which the positions must reach."""
  count = tokens.shape[1]
  if count > tower.length:
    raise ValueError(
      f'a text of {count} tokens is longer than the tower, {tower.length}'
    )
  return count


def _table(tower: TextTower | Bert, count: int, name: str) -> nn.Embed:
  """Returns a layer that maps numbers below `count` to vectors."""
  return nn.Embed(
    count,
    tower.hidden_size,
    dtype=tower.dtype,
    embedding_init=tower.starts.position,
    name=name,
  )
