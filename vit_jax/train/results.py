"""How a run ended: the content of DONE, and the result of `vit_jax.train`."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from vit_jax.runs import reporting

_MOST = 4  # metrics in the last line of the log


@dataclasses.dataclass(frozen=True)
class Results:
  """How a run ended.

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

  def __str__(self) -> str:
    parts = [reporting.results_text(self.metrics, _MOST)]
    if self.reason:
      parts.append(f'it ended early: {self.reason}')
    return '; '.join(parts)
