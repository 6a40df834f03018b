"""The training loop and its parts.

The package can be called: `vit_jax.train(config, workdir)` does the same as
`python -m vit_jax.main --config=FILE --workdir=PATH`.
"""

from collections.abc import Mapping
import dataclasses
import logging as python_logging
import math
import sys
import types
from typing import Any
from typing import cast

from absl import logging
import ml_collections

from vit_jax import config as config_lib


@dataclasses.dataclass(frozen=True)
class Results:
  """How a run ended: the content of DONE, and the result of `vit_jax.train`.

  Attributes:
    metrics: Results of the last evaluations, as `val/accuracy`, and, with
      `train.skip_nonfinite`, `train/skipped_steps`. After a dry run, the sizes;
      if a signal stopped the run, {}.
    best_step: Step of the best metric; None without `train.patience`.
    reason: Why the run ended before its duration; '': it did not.
    signal: Number of the signal that stopped the run; 0: none.
  """

  metrics: dict[str, float]
  best_step: int | None = None
  reason: str = ''
  signal: int = 0

  @property
  def status(self) -> int:
    """The exit status of the command."""
    return 128 + self.signal if self.signal else 0

  def to_dict(self) -> dict[str, Any]:
    """Returns the content of DONE; None stands for values not finite."""
    done: dict[str, Any] = {
      k: v if math.isfinite(v) else None for k, v in self.metrics.items()
    }
    if self.best_step is not None:
      done['best_step'] = self.best_step
    return done | ({'reason': self.reason} if self.reason else {})

  @classmethod
  def from_dict(cls, done: Mapping[str, Any]) -> 'Results':
    """Returns the results from the content of DONE."""
    metrics = {
      k: math.nan if v is None else v
      for k, v in done.items()
      if k not in ('best_step', 'reason')
    }
    return cls(metrics, done.get('best_step'), done.get('reason', ''))


class _Callable(types.ModuleType):
  """A package that can be called like a function."""

  def __call__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str,
    dry_run: bool = False,
  ) -> Results:
    """Trains, or resumes, in a work directory: see `vit_jax.train.loop.run`."""
    # A command has an allocator of its own, and other programs are told of it.
    if logging.get_absl_logger().isEnabledFor(python_logging.INFO):
      config_lib.wing('vit_jax.parallel.allocator:hint')()
    run = config_lib.wing('vit_jax.train.loop:run')  # it imports jax
    return cast(Results, run(config, workdir, dry_run))


# Python binds `vit_jax.train` to this module whenever a submodule is imported,
# so that only the module itself can be what is called. A module may set its own
# class: docs.python.org/3/reference/datamodel.html, "Customizing module
# attribute access".
sys.modules[__name__].__class__ = _Callable
