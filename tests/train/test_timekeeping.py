"""Where the time goes, by a clock that the tests advance."""

import json
import pathlib
import time

import jax
import jax.numpy as jnp
import pytest

from vit_jax.runs import reporting
from vit_jax.train import clock as clock_lib


class Clock:
  """Shows the seconds that were spent so far, on compiling apart from it."""

  def __init__(self) -> None:
    self.now = 0.0
    self.compiled = 0.0

  def compile(self, seconds: float) -> None:
    self.now += seconds
    self.compiled += seconds

  def keeper(self, age: float = 0.0) -> clock_lib.Timekeeper:
    return clock_lib.Timekeeper(age, lambda: self.now, lambda: self.compiled)


def test_rates():
  clock = Clock()
  keeper = clock.keeper()
  for _ in range(5):
    with keeper.waiting():
      clock.now += 0.5
    clock.now += 1.5
    list(keeper.steps(1, 32))
  with keeper.paused():
    clock.now += 90
  measures = keeper.read()
  assert measures['images_per_second'] == 16
  assert measures['data_wait'] == 0.25
  assert measures['goodput'] == 7.5 / 100
  assert 'compile_seconds' not in measures
  assert keeper.read() == {}
  clock.now += 4
  list(keeper.steps(1, 32))
  measures = keeper.read()
  assert (measures['images_per_second'], measures['data_wait']) == (8, 0)


def test_percentiles_of_the_steps_since_the_last_reading():
  clock = Clock()
  keeper = clock.keeper()
  names = [f'step_seconds_{name}' for name in ('p50', 'p90', 'p99', 'max')]
  for seconds in range(100, -1, -1):
    clock.now += seconds
    list(keeper.steps(1, 32))
  measures = keeper.read()
  assert [measures[name] for name in names] == [50, 90, 99, 100]
  clock.now += 3
  list(keeper.steps(1, 32))
  measures = keeper.read()
  assert [measures[name] for name in names] == [3, 3, 3, 3]


def test_pauses_and_compiling_are_no_part_of_a_step():
  clock = Clock()
  keeper = clock.keeper()
  clock.compile(20)  # the initialisation
  clock.now += 5
  keeper.resume(0.0)
  with keeper.waiting():
    clock.now += 1
  clock.compile(40)
  clock.now += 2
  list(keeper.steps(1, 32))
  measures = keeper.read()
  assert measures['step_seconds_max'] == 3
  assert measures['compile_seconds'] == 60
  assert measures['goodput'] == 2 / 68
  with keeper.paused():
    clock.compile(10)  # what evaluates
    clock.now += 7
    with keeper.saving():
      clock.now += 0.5
  clock.now += 2
  list(keeper.steps(1, 32))
  measures = keeper.read()
  assert measures['step_seconds_max'] == 2
  assert measures['compile_seconds'] == 10
  assert measures['goodput'] == 4 / 87.5


def test_a_call_ends_when_the_devices_end_it():
  """Not when the host reads it, which has given them the next one before."""
  clock = Clock()
  keeper = clock.keeper()
  marks, ends = [], []
  for _ in range(3):  # a step takes 2 s; the host reads it up to 1.5 s later
    clock.now += 0.5
    marks.append(keeper.mark())
    ends.append(len(ends) * 2 + 2.5)
  clock.now = 10
  for mark, end in zip(marks, ends, strict=True):
    list(keeper.steps(1, 32, mark, end))
  measures = keeper.read()
  assert measures['images_per_second'] == 96 / 6.5
  assert measures['step_seconds_p50'] == 2
  assert measures['step_seconds_max'] == 2.5


def test_compiling_while_the_devices_work():
  """The next program is compiled for longer than the first step runs."""
  clock = Clock()
  keeper = clock.keeper()
  first = keeper.mark()
  clock.compile(30)
  with keeper.waiting():
    clock.now += 0.25  # while the devices are idle
  second = keeper.mark()
  clock.now = 31.25
  list(keeper.steps(1, 32, first, 4.0))
  list(keeper.steps(2, 64, second, 31.25))
  assert keeper.read()['step_seconds_max'] == 4
  assert keeper.saved()['useful_seconds'] == 5


def test_a_save_in_the_midst_of_a_step():
  clock = Clock()
  keeper = clock.keeper()
  clock.now += 1
  for _ in range(2):
    with keeper.saving():
      clock.now += 0.5
  clock.now += 1
  list(keeper.steps(1, 32))
  assert keeper.saved() == {
    'checkpoint_stall': 1,
    'useful_seconds': 2,
    'goodput': 2 / 3,
  }
  assert keeper.saved()['checkpoint_stall'] == 0
  assert keeper.read()['step_seconds_p50'] == 2


def run(
  workdir: pathlib.Path,
  clock: Clock,
  start: int,
  stop: int,
  seconds: float,
) -> list[float]:
  """Does as a run that logs at every 4th step and saves at every 5th.

  Returns:
    Goodput as it was reported.
  """
  keeper = clock.keeper(age=clock.now)
  clock.now += 10  # to read the checkpoint
  lines = []
  with reporting.Reporter(workdir, 100, start) as reporter:
    keeper.resume(reporter.before('useful_seconds') or 0.0)
    for step in range(start + 1, stop + 1):
      clock.now += seconds
      list(keeper.steps(1, 32))
      measures = keeper.read() if step % 4 == 0 else {}
      if step % 5 == 0:
        with keeper.saving():
          clock.now += 1
        measures |= keeper.saved()
      reporter.write(step, 0.0, measures)
      if 'goodput' in measures:
        lines.append(measures['goodput'])
  return lines


def test_goodput_over_restarts(tmp_path):
  clock = Clock()
  whole = run(tmp_path, clock, 0, 5, 2)
  assert whole == [8 / 18, 10 / 21]
  # Stopped after the checkpoint of step 5, and started 79 seconds later.
  clock.now += 79
  assert run(tmp_path, clock, 5, 10, 4) == [22 / 122, 30 / 131]


def test_steps_that_a_kill_costs_count_once(tmp_path):
  clock = Clock()
  run(tmp_path, clock, 0, 9, 2)  # killed: steps 6 to 9 are lost
  now = clock.now
  assert run(tmp_path, clock, 5, 10, 3)[-1] == (10 + 15) / (now + 26)
  # Killed before it saved anything, a run begins anew, but not its age.
  now = clock.now
  assert run(tmp_path, clock, 0, 4, 1) == [4 / (now + 14)]


def test_age(tmp_path):
  assert clock_lib.age(tmp_path) == 0
  runs = [{'started': f'2001-01-0{day}T00:00:00+01:00'} for day in (1, 2)]
  (tmp_path / 'run.json').write_text(json.dumps({'runs': runs}))
  assert clock_lib.age(tmp_path) > 20 * 365 * 24 * 3600
  runs[0]['started'] = '9001-01-01T00:00:00+00:00'  # a clock that was wrong
  (tmp_path / 'run.json').write_text(json.dumps({'runs': runs}))
  assert clock_lib.age(tmp_path) == 0


def test_what_jax_compiles_is_noted():
  clock = clock_lib.jax_compile_clock()
  before = clock()
  double = jax.jit(lambda x: 2 * x)
  double(jnp.ones(3))
  compiled = clock()
  assert compiled > before
  double(jnp.ones(3))
  assert clock() == compiled
  # Of spans within a span, the outer one counts.
  event = '/jax/core/compile/jaxpr_trace_duration'
  now, unit = time.time(), 1e-4
  for start, end in ((1, 2), (2, 4), (0, 5), (6, 7)):
    jax.monitoring.record_event_time_span(
      event, now + start * unit, now + end * unit
    )
  jax.monitoring.record_event_time_span('/jax/another', now, now + 1)
  assert clock() - compiled == pytest.approx(6 * unit, rel=0.1)
