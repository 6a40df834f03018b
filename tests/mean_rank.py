"""An evaluator of a user's own: the rank of the right class."""

from typing import ClassVar

import jax.numpy as jnp

from vit_jax.config import UserError
from vit_jax.evaluation import base


class MeanRank(base.Evaluator):
  """The mean rank of the right class among all, 1 at best; at most `k`."""

  metrics: ClassVar = {'mean_rank': 'min', 'examples': 'max'}

  def __init__(self, spec, k: int = 20):
    super().__init__(spec)
    if k < 2:
      raise UserError(f'k is {k}: all ranks would be 1')
    self.k = k

  def run(self, context):
    total = examples = 0
    for ranks, valid in context.apply(self.ranks, self.spec.split):
      total += ranks[valid].sum()
      examples += valid.sum()
    return {'mean_rank': total / examples, 'examples': examples}

  def ranks(self, objective, params, batch):
    logits = objective.outputs(params, batch)['logits']
    right = jnp.take_along_axis(logits, batch['label'][:, None], axis=1)
    ranks = (logits > right).sum(axis=1) + 1
    return jnp.minimum(ranks, self.k), batch['valid']
