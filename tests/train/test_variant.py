"""Steps of a user's own that differ by their number: `config.train.variant`."""

import documented
import pytest
import tiny

from vit_jax.config import UserError
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop


@pytest.fixture(autouse=True)
def my_variant(tmp_path, monkeypatch):
  """The module of the docs."""
  blocks = documented.blocks('docs/methods.md', 'python')
  (text,) = (x for x in blocks if 'class Sharpen' in x)
  (tmp_path / 'my_variant.py').write_text(text)
  monkeypatch.syspath_prepend(tmp_path)


def losses(tmp_path, **changes):
  """Returns the loss of each step."""
  changes = {
    'objective__label_smoothing': 0.3,
    'evals__val__every': '',
  } | changes
  path = tmp_path / f'run{len([*tmp_path.iterdir()])}'
  loop.run(tiny.config(**changes, train__duration='6 steps'), str(path))
  return [x['train/loss'] for x in tiny.metrics(path) if 'train/loss' in x]


def test_each_step_is_of_its_variant(tmp_path):
  smooth, sharp = (
    losses(tmp_path),
    losses(tmp_path, objective__label_smoothing=0.0),
  )
  own = losses(tmp_path, train__variant='my_variant:Sharpen(start=3)')
  assert own[:3] == smooth[:3] and own[3] not in (smooth[3], sharp[3])
  own = losses(tmp_path, train__variant='my_variant:Sharpen(start=0)')
  assert own == sharp


BROKEN = """
from vit_jax.train import variant

class Broken(variant.Variant):
  def __init__(self, problem):
    self.problem = problem

  def programs(self, program):
    if self.problem == 'raises':
      raise ValueError('two classes\\nare needed')
    return {'empty': [], 'none': None}.get(self.problem, [program])

  def choose(self, config, step):
    if self.problem == 'cannot choose':
      raise ValueError('no class is left')
    return {'outside': 1, 'text': 'first'}.get(self.problem, 0)
"""


@pytest.mark.parametrize(
  ('problem', 'message'),
  [
    ('raises', 'two classes are needed'),
    ('empty', r'`programs` returned \[\]: it must return a list of one'),
    ('none', '`programs` returned None'),
    ('cannot choose', 'no class is left'),
    ('outside', '`choose` returned 1 for step 0, but there are 1 programs'),
    ('text', "`choose` returned 'first' for step 0"),
  ],
)
def test_programs_and_choices_that_do_not_work(problem, message, tmp_path):
  (tmp_path / 'broken.py').write_text(BROKEN)
  text = f'broken:Broken({problem!r})'
  program = experiment_lib.build(tiny.config(train__variant=text)).program
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$') as e:
    program.variant(0)
  assert str(e.value).startswith(f'config.train.variant={text}: ')
