"""The best checkpoint of a run: `WORKDIR/best/STEP/`.

`config.checkpoint.best` names the metric.
"""

import contextlib
import math
import pathlib
from typing import Any

from vit_jax.parallel import processes
from vit_jax.runs import checkpoint
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib


class Best:
  """Keeps the checkpoint with the best value of a metric, as 'val/accuracy'.

  Attributes:
    store: The directory of the checkpoint.
    step: Its step; 0: there is none yet.
  """

  def __init__(
    self, directory: pathlib.Path, metric: str, lower_is_better: bool
  ):
    self.step = 0
    self._metric, self._sign = metric, -1 if lower_is_better else 1
    self._value: float | None = None
    for step, value in processes.call_on_first(lambda: self._stored(directory)):
      if self._is_better(value):
        self.step, self._value = step, value
    self.store = checkpoint.Store(
      directory,
      lambda steps: set(steps) if self._value is None else {self.step},
    )

  def save(self, step: int, state: Any, metrics: dict[str, float]) -> None:
    """Does what `checkpoint.Checkpointer.save_best` says."""
    value = metrics.get(self._metric)
    if value is None or not self._is_better(value) or self.store.has(step):
      return
    self.step, self._value = step, float(value)
    self.store.save(step, state.replace(opt_state=None), metrics)

  def _is_better(self, value: float) -> bool:
    if self._value is None:
      return not math.isnan(value)
    return self._sign * value > self._sign * self._value

  def _stored(self, directory: pathlib.Path) -> list[tuple[int, float]]:
    bests = []
    for path in workdir_lib.newest_first(directory):
      with contextlib.suppress(restoring.DamagedError):
        info = restoring.read_info(path)
        value = (info['metrics'] or {}).get(self._metric)
        if value is not None:
          bests.append((info['step'], value))
    return bests
