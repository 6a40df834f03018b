"""Further layers: parallel, branched, and with norms behind the residuals.

In comments: B images, T tokens, R of them that are read, D hidden size.
"""

from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import fields
from vit_jax.models import refusals
from vit_jax.models.block import Block
from vit_jax.models.block import drop
from vit_jax.models.block import scoped
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose
from vit_jax.models.parts import as_class


class PostNorm(Block):
  """The two norms follow attention and MLP, before the sums.

  Swin Transformer V2 (arXiv:2111.09883, section 3.1).
  """

  def attend(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what attention adds to x, [B, R, D]."""
    y = self.norm.copy(name='norm1')(self.attention(x, context))
    return self.drop_attention(self.scale(1, y), context)

  def transform(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what the MLP adds to x, [B, R, D]."""
    y = self.norm.copy(name='norm2')(scoped(self.mlp)(x, context))
    return self.drop_path(self.scale(2, y), context, Purpose.MLP_PATH)


class BertBlock(Block):
  """A norm follows each residual, as in BERT (arXiv:1810.04805)."""

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    y = self.drop_attention(self.attention(x, context), context)
    x = self.norm.copy(name='norm1')(self.add(x, y, context))
    y = scoped(self.mlp)(x, context)
    return self.norm.copy(name='norm2')(self.add(x, y, context))


class Parallel(Block):
  """The MLP reads what attention reads, after one norm; they have one residual.

  Scaling Vision Transformers to 22 Billion Parameters (arXiv:2302.05442,
  section 2).
  """

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if its MLP cannot be beside attention."""
    wrong = {
      "mlp='experts'": hasattr(self.mlp, 'routes_tokens'),
      'layer_scale_mlp=False: they have one scale': not self.layer_scale_mlp,
    }
    refusals.refuse(wrong, "block='parallel' does not go with {}")

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    normed = self.norm.copy(name='norm1')(x)
    y = self.attention(normed, context)
    y = drop(y, self.dropout_rate, Purpose.ATTENTION_OUTPUT, context)
    y = y + scoped(self.mlp)(normed[:, : context.num_read], context)
    # One sum, with one factor.
    y = self.drop_path(self.scale(1, y), context, Purpose.ATTENTION_PATH)
    return self.add(x, y, context)


class _Branch(Block):
  """One of several attentions beside each other, and the MLP behind it."""

  @nn.compact
  def __call__(  # type: ignore[override]
    self, method: str, x: jax.Array, context: Context
  ) -> jax.Array:
    return getattr(self, method)(x, context)


class Branches(Block):
  """Several attentions beside each other, whose outputs are added, then MLPs.

  Three things everyone should know about Vision Transformers
  (arXiv:2203.09795, section 3). The further ones are in `branch_1`,
  `branch_2`, ... Captured weights are of the heads of all of them.

  Attributes, beside the ones in `Block`:
    count: Number of attentions, and of MLPs.
  """

  count: Annotated[int, fields.function(least=1, most=100)] = 2

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if parts are of one attention or one MLP."""
    wrong = {
      "mlp='experts'": hasattr(self.mlp, 'routes_tokens'),
      'shared=False of positions, of one attention': any(
        not getattr(x, 'shared', True) for x in model.positions
      ),
    }
    refusals.refuse(wrong, "block='branches' does not go with {}")

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    branches = [
      as_class(
        self,
        _Branch,
        attention=self.attention.clone(parent=None),
        mlp=self.mlp.clone(parent=None),
        norm=self.norm.clone(parent=None),
        parent=self,
        name=f'branch_{i}',
      )
      for i in range(1, self.count)
    ]
    contexts = self._contexts(context)
    y = self.attend(x, contexts[0])
    for branch, branch_context in zip(branches, contexts[1:], strict=True):
      y += branch('attend', x, branch_context)
    for name in contexts[0].outputs:
      captures = [branch_context.outputs[name] for branch_context in contexts]
      context.outputs[name] = jnp.concatenate(captures, axis=1)
    x = self.add(x, y, context)
    y = self.transform(x, contexts[0])
    for branch, branch_context in zip(branches, contexts[1:], strict=True):
      y += branch('transform', x, branch_context)
    return self.add(x, y, context)

  def _contexts(self, context: Context) -> list[Context]:
    """Returns the context of each branch; the first has the layer's key."""
    key = context.dropout_key and context.dropout_key.fold(Purpose.BRANCHES)
    added: list[jax.Array | None] = [None] * self.count
    if context.perturbation is not None:
      added = [*jnp.split(context.perturbation, self.count, axis=1)]
    return [
      context.replace(
        dropout_key=key and key.fold(i) if i else context.dropout_key,
        perturbation=added[i],
        outputs=context_lib.Outputs(),
      )
      for i in range(self.count)
    ]
