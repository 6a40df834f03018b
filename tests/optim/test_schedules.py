"""Learning rates at landmarks, and over runs of many lengths."""

import documented
import jax
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.optim import schedules

UserError = config_lib.UserError


def make_config(schedule, **settings):
  config = config_lib.default()
  settings = {'learning_rate': 1.0, 'schedule': schedule} | settings
  tiny.change(config, settings, 'optim.')
  return config


def make(schedule, lengths, **settings):
  config = make_config(schedule, **settings)
  return optim.make_schedule(config.optim, optim.Lengths(*lengths))


@pytest.mark.parametrize(
  ('schedule', 'expected'),
  [
    # At 0, halfway through warm-up, at its end, and at 60%, 90%, 100%.
    ('cosine(final_factor=0.1)', [0, 0.5, 1, 0.4719, 0.1271, 0.1]),
    (
      'linear(final_factor=0.1)',
      [0, 0.5, 1, 1 - 0.9 * 50 / 90, 1 - 0.9 * 8 / 9, 0.1],
    ),
    (
      'poly(final_factor=0.1)',
      [0, 0.5, 1, *(0.9 * np.array([40, 10, 0]) ** 0.9 / 90**0.9 + 0.1)],
    ),
    ('step', [0, 0.5, 1, 0.1, 0.01, 0.01]),
    ('constant', [0, 0.5, 1, 1, 1, 1]),
    ("wsd('20 steps', final_factor=0.1)", [0, 0.5, 1, 1, 0.55, 0.1]),
    (
      "rsqrt('20 steps', final_factor=0.1, timescale='25 steps')",
      [0, 0.5, 1, 5 * 75**-0.5, 2.5 * 105**-0.5 + 0.05, 0.1],
    ),
  ],
)
def test_landmarks(schedule, expected):
  """Of 100 steps, 10 of warm-up."""
  fn = make(schedule, (100, 10))
  actual = [float(fn(step)) for step in (0, 5, 10, 60, 90, 100)]
  np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_lengths_may_be_in_epochs():
  config = make_config("wsd('2 epochs')")
  fn = optim.make_schedule(config.optim, optim.Lengths(100, 0, 80, 8))
  np.testing.assert_allclose([fn(80), fn(90), fn(100)], [1, 0.5, 0])


def test_a_schedule_of_the_users(tmp_path, monkeypatch):
  _, code = documented.blocks('docs/configs.md', 'python')
  (tmp_path / 'own_schedules.py').write_text(
    f'{code}\ndef wrong(steps):\n  return 3\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  fn = make('own_schedules:halving(count=4)', (110, 10))
  np.testing.assert_allclose([fn(x) for x in (5, 10, 60)], [0.5, 1, 0.25])
  with pytest.raises(UserError, match="no option 'counts': did you mean 'coun"):
    optim.check(make_config('own_schedules:halving(counts=4)'))
  with pytest.raises(UserError, match='wrong returns int: it must return a f'):
    make('own_schedules:wrong', (110, 10))


def test_an_inclusive_warmup_reaches_the_peak():
  fn = make('cosine', (100, 10), warmup_inclusive=True)
  actual = [float(fn(step)) for step in (0, 3, 9, 10, 100)]
  np.testing.assert_allclose(actual, [0, 1 / 3, 1, 1, 0], atol=1e-6)
  assert float(make('cosine', (9, 1), warmup_inclusive=True)(0)) == 0


def test_weight_decay_follows_half_a_cosine():
  config = make_config('constant', weight_decay=0.04, final_weight_decay=0.4)
  fn = optim.make_decay(config.optim, optim.Lengths(100, 10))
  actual = [float(fn(step)) for step in (0, 25, 50, 100, 120)]
  share = (1 - np.cos(np.pi / 4)) / 2
  expected = [1, 1 + 9 * share, 5.5, 10, 10]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  config.optim.final_weight_decay = None
  assert optim.make_decay(config.optim, optim.Lengths(100))(50) == 1


def test_step_changes_at_the_step():
  fn = make('step', (100,))
  actual = [float(fn(step)) for step in (0, 59, 60, 84, 85)]
  np.testing.assert_allclose(actual, [1, 1, 0.1, 0.1, 0.01], rtol=1e-5)
  fn = make('step(at=(0.55, 0.9))', (100,))
  np.testing.assert_allclose([fn(54), fn(55)], [1, 0.1], rtol=1e-5)
  # Both within the warm-up.
  fn = make('step(at=(0.05, 0.1))', (100, 20))
  np.testing.assert_allclose(float(fn(21)), 0.01, rtol=1e-5)


def test_rsqrt_is_that_of_big_vision():
  """Its formula, with a cooldown to 0."""
  total, warmup, cooldown, timescale = 1000, 100, 50, 300
  schedule = f"rsqrt('{cooldown} steps', timescale='{timescale} steps')"
  fn = make(schedule, (total, warmup), learning_rate=3e-3)
  steps = np.arange(total + 1)
  expected = 3e-3 / np.sqrt(1 + np.maximum(steps - warmup, 0) / timescale)
  expected *= np.minimum(1, steps / warmup)
  expected *= np.minimum(1, (total - steps) / cooldown)
  actual = jax.jit(fn)(steps)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize('schedule', schedules.SCHEDULES)
def test_rises_then_falls_and_ends_right(schedule):
  """Runs and parts of many lengths, short ones as well."""
  for total, warmup, cooldown in (
    (1, 0, 1),
    (2, 1, 1),
    (3, 0, 3),
    (7, 3, 2),
    (10, 9, 1),
    (100, 0, 0),
    (100, 50, 50),
    (1234, 17, 200),
  ):
    options = {
      'cosine': 'final_factor=0.01',
      'linear': 'final_factor=0.01',
      'poly': 'final_factor=0.01',
      'wsd': f"'{cooldown or 1} steps', 0.01",
      'rsqrt': f"'{cooldown} steps', 0.01, '40 steps'",
    }
    text = f'{schedule}({options.get(schedule, "")})'
    fn = make(text, (total, warmup))
    values = np.asarray(jax.vmap(fn)(np.arange(1300)))[: total + 1]
    assert np.isfinite(values).all()
    assert values[0] == float(warmup == 0)
    # Short runs change by steps within the warm-up.
    assert values[warmup] == 1 or (schedule == 'step' and warmup > 0)
    assert (np.diff(values[:warmup]) > 0).all()
    assert (np.diff(values[warmup:]) <= 0).all()
    is_cooled = schedule in ('cosine', 'linear') or (
      schedule in ('wsd', 'rsqrt') and cooldown
    )
    if is_cooled:
      np.testing.assert_allclose(values[-1], 0.01, rtol=1e-4)
    if schedule == 'wsd' and cooldown:
      assert (values[warmup : total - cooldown + 1] == 1).all()


def test_parts_must_fit_the_run():
  config = make_config("wsd('60 steps')", warmup='40 steps')
  optim.check_lengths(config, optim.Lengths(100, 40))
  with pytest.raises(UserError, match=r'^[^\n]*only 99: shorten one of them$'):
    optim.check_lengths(config, optim.Lengths(99, 40))
  with pytest.raises(UserError, match=r'^[^\n]*shorten the warm-up[^\n]*$'):
    optim.check_lengths(config, optim.Lengths(40, 40))
