"""Losses that parts of a model add to that of the objective, as of experts."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax.extend import core as jax_core
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax.data.device.rng import Rng
from vit_jax.models import stack
from vit_jax.objectives import base
from vit_jax.objectives.extensions import contract


@dataclasses.dataclass
class _Losses:
  """Losses of parts, while the loss of an objective is traced.

  Attributes:
    arrays: Those of each application of the model, [L'].
    are_added: Whether the objective adds them itself.
    trace: The trace in which its loss is computed.
  """

  arrays: list[jax.Array] = dataclasses.field(default_factory=list)
  are_added: bool = False
  trace: Any = dataclasses.field(
    default_factory=jax_core.get_opaque_trace_state
  )


class Balanced(base.Objective):
  """Adds the mean of the losses of parts to the loss of an objective.

  An objective may also add them itself, from `apply_train` with
  `mutable=['losses']`.
  """

  _losses: _Losses | None = None  # while a step is traced

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss with that of the parts, which is also a scalar."""
    self._losses = losses = _Losses()
    try:
      loss, scalars, extra = super().loss(params, extra, batch, rng)
    finally:
      self._losses = None
    if losses.are_added:
      return loss, scalars, extra
    if not losses.arrays:
      raise config_lib.UserError(
        f'config.objective.name={self.config.objective.name} cannot balance'
        " experts: set routing='soft' or loss=0 in config.model.mlp"
      )
    balance = jnp.stack(losses.arrays).mean()
    return loss + balance, scalars | {contract.BALANCE: balance}, extra

  def _apply_in_training(
    self, params: base.Params, images: jax.Array, arguments: Mapping[str, Any]
  ) -> Any:
    """Applies the model, and keeps the losses of its parts."""
    losses, mutable = self._losses, arguments.get('mutable', [])
    if losses is None or stack.LOSSES in mutable:
      if losses is not None:
        losses.are_added = True
      return super()._apply_in_training(params, images, arguments)
    if losses.trace != jax_core.get_opaque_trace_state():
      raise config_lib.UserError(
        f'config.objective.name={self.config.objective.name} applies the model'
        ' within jax.lax.map or another transformation: take the balancing'
        " losses of experts from apply_train(..., mutable=['losses']) and add"
        ' them to the loss, or set loss=0 in config.model.mlp'
      )
    arguments = {**arguments, 'mutable': [*mutable, stack.LOSSES]}
    outputs, state = super()._apply_in_training(params, images, arguments)
    losses.arrays += jax.tree.leaves(state.pop(stack.LOSSES))
    return (outputs, state) if mutable else outputs
