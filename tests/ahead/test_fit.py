"""The largest batch that fits."""

import json

import commands
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import pytest
import tiny

from vit_jax.ahead import fit
from vit_jax.ahead import step
from vit_jax.config import UserError
from vit_jax.parallel import topologies
from vit_jax.summary import __main__ as summary


def summarize(*flags):
  config = f'--config={tiny.ROOT}/configs/digits.py'
  return commands.run(summary, config, *flags, '--nomemory')


@given(
  state=st.floats(0, 20),
  image=st.floats(1e-3, 5),
  padding=st.integers(1, 32),
  is_said=st.booleans(),
)
@example(state=13.0, image=0.001, padding=3, is_said=False)
def test_search_is_exact_and_short(state, image, padding, is_said):
  """Memory grows in steps; too much of it is said with its size, or not."""
  limit, tried = 15.75, []

  def needed(size):
    return state + image * -(-size // padding) * padding

  def probe(size):
    tried.append(size)
    memory = needed(size)
    fits = memory <= limit
    return fits, memory if is_said or fits else None

  best, count = fit.search(fit.SIZES, probe, limit)
  assert best == max((x for x in fit.SIZES if needed(x) <= limit), default=0)
  assert count == len(tried) == len(set(tried))
  assert count <= 12


def test_all_ways_to_execute_the_layers(monkeypatch, capsys):
  """The compiler is replaced by one that scales with what is kept."""
  kept = dict(zip(fit.REMATS, (0.1, 0.08, 0.04, 0.01), strict=True))

  def run(config, topology):
    total = 1 + kept[config.model.remat] * config.train.batch_size / 4
    return step.Ahead(
      topology=str(topology),
      devices=4,
      mesh={},
      batch_size=config.train.batch_size,
      accumulation=1,
      limit_gib=15.75,
      problem='' if total <= 15.75 else 'too much',
      total_gib=total,
      model_flops=10**12,
      compile_seconds=1.0,
      step_seconds=0.01,
      mfu=0.5,
    )

  monkeypatch.setattr(topologies, 'missing_extra', lambda _: None)
  monkeypatch.setattr(step, 'run', run)
  assert summarize('--hardware=v5e:2x2', '--fit', '--json') == 0
  report = json.loads(capsys.readouterr().out)
  assert report['ahead'] is None and report['plan'] is None
  rows = [(x['scan'], x['remat'], x['images']) for x in report['fit']]
  assert rows == [
    (scan, remat, images)
    for scan in (False, True)
    for remat, images in zip(fit.REMATS, (144, 184, 368, 1472), strict=True)
  ]
  assert report['fit'][0]['batch_size'] == 4 * 144
  assert summarize('--hardware=v5e:2x2', '--fit') == 0
  output = capsys.readouterr().out
  assert (
    'scanned' in output and '57,600' in output
  )  # images a second: 576 / 0.01


def test_mistakes(monkeypatch):
  with pytest.raises(UserError, match='--fit needs a topology'):
    summarize('--fit')
  with pytest.raises(UserError, match='--fit needs a topology'):
    summarize('--fit', '--hardware=v5e', '--devices=4')
  monkeypatch.setattr(topologies, 'missing_extra', lambda _: 'compile-tpu')
  with pytest.raises(
    UserError, match=r'v5e:1x1: its compiler is missing.*compile-tpu'
  ):
    summarize('--fit', '--hardware=v5e:1x1')
