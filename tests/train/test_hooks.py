"""Hooks of a user's own: `config.train.hooks`."""

import documented
import pytest
import tiny

from vit_jax.train import loop


@pytest.fixture(autouse=True)
def my_hook(tmp_path, monkeypatch):
  """The module of the docs."""
  blocks = documented.blocks('docs/methods.md', 'python')
  (text,) = (x for x in blocks if 'class KernelNorm' in x)
  (tmp_path / 'my_hook.py').write_text(text)
  monkeypatch.syspath_prepend(tmp_path)


def norms(workdir):
  """Returns what the hook reported, by step."""
  name = 'train/kernel_norm'
  return [(x['step'], x[name]) for x in tiny.metrics(workdir) if name in x]


def test_a_hook_acts_beside_the_steps_of_a_run_and_of_its_resumption(tmp_path):
  config = tiny.config(train__hooks='my_hook:KernelNorm(every=4)')
  results = loop.run(config, str(tmp_path / 'run'))
  assert [step for step, _ in norms(tmp_path / 'run')] == [0, 4, 8, 12]
  (tmp_path / 'run' / 'DONE').unlink()
  assert loop.run(config, str(tmp_path / 'run')) == results
  assert [step for step, _ in norms(tmp_path / 'run')] == [0, 4, 8, 12]


def test_a_hook_ends_a_run_which_is_evaluated_and_saved(tmp_path):
  config = tiny.config(train__hooks='my_hook:KernelNorm(every=3, most=0.0)')
  config.train.hooks += ' + my_hook:KernelNorm'
  results = loop.run(config, str(tmp_path / 'run'))
  assert results.reason.startswith('the kernel has the norm')
  assert results.metrics['val/examples'] == 359
  assert (tmp_path / 'run' / 'checkpoints' / '0').exists()
