"""Measures how the time of a run is spent, over all its starts.

The time of a step is the time between the end of the previous step and its own
end, as the devices reach them: the host asks for a step before it reads the
metrics of the previous one. Pauses (evaluations, checkpoints) do not count, nor
does the time for which the devices are idle while JAX traces, compiles or reads
its compile cache. The step time without the wait for the batch is useful time.
Goodput is the useful time of all steps so far, divided by the time since the
run was first started, including the time when it was stopped. If a step had to
be repeated after a kill, only its last repetition is useful.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import datetime
import functools
import pathlib
import threading
import time
from typing import NamedTuple

import jax
import numpy as np

from vit_jax.runs import safe_io

Clock = Callable[[], float]


class Mark(NamedTuple):
  """The time at which a call was given to the devices.

  Attributes:
    time: Seconds, on the clock of the `Timekeeper`.
    stopped: Seconds of pauses and of compiling so far.
    waited: Seconds of waits for batches so far.
  """

  time: float
  stopped: float
  waited: float


class Timekeeper:
  """Measures how the time of a run is spent.

  Evaluations, checkpoints and everything else that is not training must be
  inside `paused()`.

  Attributes:
    steps_per_second: Between the last two readings.
  """

  def __init__(
    self,
    age: float = 0.0,
    clock: Clock = time.perf_counter,
    compile_clock: Clock | None = None,
  ):
    """Starts to measure compile time.

    Args:
      age: Seconds since the run was first started; see `age`.
      clock: Returns seconds.
      compile_clock: Returns the seconds that were spent on compiling, which
        `clock` includes; None: as measured by JAX.
    """
    self._clock = clock
    self._compile_clock = compile_clock or jax_compile_clock()
    self._born = clock() - age
    self.steps_per_second = 0.0
    self._compiled = self._compile_clock()  # at the last reading
    self.resume(0.0)

  def resume(self, useful_seconds: float) -> None:
    """Begins the first step of this start.

    `useful_seconds` is of all previous steps, as `saved` returned it.
    """
    self._useful = useful_seconds
    self._stalled = 0.0  # since the last checkpoint
    self._steps: list[float] = []  # since the last reading
    self._images = 0
    self._waited = 0.0
    self._paused = 0.0  # in all, as the next
    self._batch_waits = 0.0
    self._last = self.mark()  # of the previous call
    self._end = self._last.time  # of the previous call, on the devices

  def now(self) -> float:
    """Returns the time, from any thread."""
    return self._clock()

  def mark(self) -> Mark:
    """Returns the time at which a call has just been given to the devices."""
    stopped = self._paused + self._compile_clock()
    return Mark(self._clock(), stopped, self._batch_waits)

  def steps(
    self,
    count: int,
    images: int,
    mark: Mark | None = None,
    end: float | None = None,
  ) -> Iterator[None]:
    """Counts the steps of one call to the devices; yields once for each.

    Args:
      count: Number of steps; each gets an equal part of the time.
      images: Their number in all these steps, over all devices and processes.
      mark: When the call was given to the devices; None: now.
      end: When the devices had computed it, as `now` showed it; None: now.
    """
    mark = mark or self.mark()
    end = self.now() if end is None else end
    busy = max(0.0, end - max(self._end, mark.time))
    stopped = mark.stopped - self._last.stopped
    # What the host did while the devices had the previous call delayed nothing.
    idle = max(0.0, end - self._end - busy - stopped)
    seconds = (idle + busy) / count
    waited = min(idle, mark.waited - self._last.waited) / count
    self._last, self._end = mark, end
    for _ in range(count):
      self._steps.append(seconds)
      self._images += images // count
      self._waited += waited
      self._useful += seconds - waited
      yield

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Encloses the wait for the next batch."""
    start = self._now()
    try:
      yield
    finally:
      self._batch_waits += self._now() - start

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Encloses everything that is not training; pauses may be nested."""
    start = self._now() - self._paused
    try:
      yield
    finally:
      self._paused = self._now() - start

  @contextlib.contextmanager
  def saving(self) -> Iterator[None]:
    """Encloses the blocking part of saving a checkpoint, which is a pause."""
    start = self._now()
    with self.paused():
      yield
    self._stalled += self._now() - start

  def read(self) -> dict[str, float]:
    """Returns the measures since the last reading, and resets them.

    Returns:
      images_per_second; data_wait: the fraction of the time that training
      waited for data; step_seconds_p50, _p90, _p99 (percentiles) and _max;
      compile_seconds, if something was compiled; and goodput, of the whole run.
      Empty if no step has ended.
    """
    if not self._steps:
      return {}
    steps, waited = np.array(self._steps), self._waited
    images, self._images = self._images, 0
    self._steps, self._waited = [], 0.0
    measures = {}
    if seconds := float(steps.sum()):
      self.steps_per_second = len(steps) / seconds
      measures['images_per_second'] = images / seconds
      measures['data_wait'] = waited / seconds
    for percent in (50, 90, 99):
      value = float(np.percentile(steps, percent))
      measures[f'step_seconds_p{percent}'] = value
    measures['step_seconds_max'] = float(steps.max())
    before, self._compiled = self._compiled, self._compile_clock()
    if self._compiled > before:
      measures['compile_seconds'] = self._compiled - before
    return measures | {'goodput': self._goodput()}

  def saved(self) -> dict[str, float]:
    """Returns the measures to report at the step of each checkpoint.

    Returns:
      checkpoint_stall: seconds for which saving blocked training, since the
      last checkpoint; useful_seconds, for `resume` from this checkpoint;
      goodput.
    """
    stalled, self._stalled = self._stalled, 0.0
    return {
      'checkpoint_stall': stalled,
      'useful_seconds': self._useful,
      'goodput': self._goodput(),
    }

  def _goodput(self) -> float:
    return self._useful / (self._clock() - self._born)

  def _now(self) -> float:
    """Returns the time on a clock that stops while JAX compiles."""
    return self._clock() - self._compile_clock()


def age(workdir: pathlib.Path) -> float:
  """Returns the seconds since a run was first started; 0 without a run.json."""
  record = safe_io.read_json(workdir / 'run.json')
  if record is None:
    return 0.0
  started = datetime.datetime.fromisoformat(record['runs'][0]['started'])
  return max(0.0, time.time() - started.timestamp())


@functools.cache
def jax_compile_clock() -> Clock:
  """Returns a clock that runs only while JAX traces, lowers and compiles.

  It includes reading from JAX's compile cache, and starts at 0 with the first
  call of this function. Only compilation in the main thread counts, since other
  threads do not delay steps.
  """
  seconds = 0.0
  spans: list[tuple[float, float]] = []

  def note(
    event: str, start_time: float, end_time: float, **_: str | int
  ) -> None:
    nonlocal seconds
    if not event.startswith('/jax/core/compile/'):
      return
    if threading.current_thread() is not threading.main_thread():
      return
    while spans and spans[-1][0] >= start_time:  # nested in this span
      inner_start, inner_end = spans.pop()
      seconds -= inner_end - inner_start
    spans.append((start_time, end_time))
    seconds += end_time - start_time

  jax.monitoring.register_event_time_span_listener(note)
  return lambda: seconds
