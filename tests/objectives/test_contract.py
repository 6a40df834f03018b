"""Mistakes in a user's own objective, which is the example of docs/methods.md.

What breaks the contract is one line that names the objective; any other error
keeps its traceback, which ends at the user's line.
"""

import itertools
import pathlib
import re
import sys

import case_files
import commands
import documented
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

RETURN = (
  "    return loss, {'accuracy': (logits.argmax(-1) == turns).mean()}, extra\n"
)
MORE = '  def outputs(self, params, batch):\n'
TURNS = "    turns = batch['index'] % 4  # the same at each evaluation\n"
MEASURED = (
  "    return metrics.classification(logits, turns, loss, batch['valid'])\n"
)
_count = itertools.count()  # a module is imported once


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes the objective with other lines; returns its config."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(old, new):
    method = documented.blocks('docs/methods.md', 'python')[0]
    assert method.count(old) == 1
    name = f'my_{next(_count)}_method'
    (tmp_path / f'{name}.py').write_text(method.replace(old, new))
    return tiny.config(objective__name=f'{name}:Rotation')

  return write


LINES = {
  'RETURN': RETURN,
  'TURNS': TURNS,
  'MEASURED': MEASURED,
  'LOGITS': (
    "    return {'logits': self.apply(params, images), 'turns': turns}\n"
  ),
}


@pytest.mark.parametrize(
  ('_', 'change', 'message'),
  [
    *case_files.read(pathlib.Path(__file__).with_name('contract.txt')),
    (
      '',
      f'{MORE} ->   def init_extra(self, params):\n    return None\n\n{MORE}',
      'init_extra returns None: it must return a dict of trees of arrays',
    ),
  ],
)
def test_what_breaks_the_contract(write, _, change, message):
  """It is told before anything is compiled."""
  old, _, new = change.partition(' -> ')
  if old in LINES:
    old, new = LINES[old], f'    {new}\n'
  config = write(old, new)
  name = config.objective.name
  with pytest.raises(UserError) as e:  # it also has JAX's notes
    assert experiment_lib.build(config).program.flops
  line = rf'config\.objective\.name={name}: {message}.*'
  assert re.fullmatch(line, str(e.value)), e.value


def test_means_that_the_run_reports_itself(write, tmp_path, monkeypatch):
  """No name that a run writes beside the means of the objective is free."""
  monkeypatch.setattr(mesh_lib, 'peak_flops', lambda mesh: 1e12)
  config = write(RETURN, RETURN.replace("'accuracy'", 'NAME'))
  module = config.objective.name.partition(':')[0]
  with (tmp_path / f'{module}.py').open('a') as file:
    file.write("\nNAME = 'right'\n")
  config.train.update(duration='3 steps', skip_nonfinite=True)
  config.evals.val.split = config.checkpoint.best = ''
  loop.run(config, str(tmp_path / 'run'))
  rows = tiny.metrics(tmp_path / 'run')
  names = {name for row in rows for name in row if name.startswith('train/')}
  names = {name.removeprefix('train/') for name in names} - {'right'}
  assert {'loss', 'mfu', 'skipped_steps', 'useful_seconds'} < names
  program = experiment_lib.build(config).program
  for name in sorted(names | {'ok', 'signal', 'compile_seconds'}):
    monkeypatch.setattr(sys.modules[module], 'NAME', name)
    with pytest.raises(UserError) as e:
      assert program.flops
    assert re.fullmatch(
      rf'config\.objective\.name={module}:Rotation: loss \(Rotation\.loss,'
      rf" .*{module}\.py, line \d+\) returns '{name}', which the run reports"
      rf" itself: rename it, as to 'my_{name}'.*",
      str(e.value),
    ), e.value


def test_a_reserved_mean_of_a_task(write, tmp_path):
  config = write(RETURN, RETURN.replace("'accuracy'", "'ok'"))
  config.train.variant = 'tasks'
  for name in ('one', 'two'):
    config.tasks[name] = config_lib.task(config)
  config.evals.val.split = config.checkpoint.best = ''
  with pytest.raises(UserError, match=r" returns 'ok', which the run reports"):
    loop.run(config, str(tmp_path / 'run'))


def test_an_evaluation_named_as_the_metrics_of_training():
  config = tiny.config(checkpoint__best='')
  config.evals.train = config_lib.evaluation('train[80%:]')
  with pytest.raises(UserError, match=r'config\.evals\.train is an evaluation'):
    experiment_lib.check(config)


@pytest.mark.parametrize(
  'metric, message',
  [
    ('confusion', r"'confusion' of the shape \(\): a metric of that name is a"),
    (
      'ranks',
      r"'ranks' of the shape \(3,\): a metric is one number, or one for",
    ),
  ],
)
def test_metrics_that_cannot_be_shown(write, tmp_path, metric, message):
  value = {'confusion': '0.0', 'ranks': '[1.0, 2.0, 3.0]'}[metric]
  config = write(
    MEASURED,
    '    import clu.metrics, flax\n\n'
    '    @flax.struct.dataclass\n'
    '    class Value(metrics.Count):\n'
    '      def compute(self):\n'
    f'        return jnp.array({value})\n\n'
    f'    made = clu.metrics.Collection.create({metric}=Value)\n'
    "    return made.single_from_model_output(mask=batch['valid'])\n",
  )
  config.train.duration = '3 steps'
  config.checkpoint.best = ''
  with pytest.raises(
    UserError, match=f'^config.evals.val: measure .*{message}'
  ):
    loop.run(config, str(tmp_path / 'run'))


@pytest.mark.parametrize('head_norm', ['none', 'batch'])
def test_an_extra_with_the_key_of_running_statistics(
  tmp_path, monkeypatch, head_norm
):
  """It is not taken for the statistics of a classifier's `head_norm`."""
  monkeypatch.syspath_prepend(tmp_path)
  name = f'my_{next(_count)}_method'
  (tmp_path / f'{name}.py').write_text(
    'import jax.numpy as jnp\n'
    'from vit_jax.objectives import classification\n\n'
    'class Mine(classification.Classification):\n'
    '  def init_extra(self, params):\n'
    "    return {'statistics': {'means': jnp.zeros(3)}}\n"
  )
  config = tiny.config(
    objective__name=f'{name}:Mine', model__head=f'linear(norm={head_norm!r})'
  )
  with pytest.raises(UserError, match=r"returns 'means' under 'statistics', "):
    loop.run(config, str(tmp_path / 'run'))


@pytest.mark.parametrize(
  'base, limits, message',
  [
    ('Objective', "{'x': '[2, 3]'}", 'options.x is 1.0: it must be'),
    ('Objective', "{'x': ['a', 'b']}", 'options.x is 1.0: choose one of a, b'),
    ('Objective', "{'x': '(0, 1'}", r"limits\['x'\] is '\(0, 1': write"),
    ('Objective', "{'y': '(0, 1]'}", "limits has 'y', which is no option"),
    ('contrastive.Contrastive', None, ''),  # whose options it does not have
  ],
)
def test_limits_of_options(tmp_path, monkeypatch, base, limits, message):
  monkeypatch.syspath_prepend(tmp_path)
  name = f'my_{next(_count)}_method'
  (tmp_path / f'{name}.py').write_text(
    'from vit_jax.objectives import contrastive\n'
    'from vit_jax.objectives.base import Objective\n\n'
    f'class Limited({base}):\n'
    "  options = {'x': 1.0}\n"
    + (f'  limits = {limits}\n' if limits else '')
    + '  @classmethod\n'
    '  def check(cls, config):\n'
    '    pass\n'
    '  def loss(self, *args):\n'
    '    pass\n'
  )
  config = tiny.config(objective__name=f'{name}:Limited')
  if not message:
    objectives.check(config)
    return
  with pytest.raises(UserError, match=message):
    objectives.check(config)


@pytest.mark.parametrize(
  'old, new, message',
  [
    (RETURN, RETURN.replace(', extra', ", {'a': loss}"), "has a new 'a'"),
    (
      RETURN,
      RETURN.replace(', extra', ', None'),
      'has the structure PyTreeDef(None), which was PyTreeDef({}),',
    ),
    (
      MORE,
      '  def init_extra(self, params):\n'
      "    return {'count': jnp.zeros(()), 'sum': jnp.zeros(3)}\n\n"
      '  def after_update(self, extra, params, step):\n'
      f"    return {{'count': jnp.ones(2)}}\n\n{MORE}",
      "lacks 'sum', has 'count' as float32[2], which was float32[]",
    ),
  ],
)
def test_an_extra_that_changes(write, old, new, message, tmp_path):
  config = write(old, new)
  name = config.objective.name
  with pytest.raises(UserError) as e:
    loop.run(config, str(tmp_path / 'run'))
  assert str(e.value).startswith(
    f'config.objective.name={name}: extra {message} after a step: what loss'
  )


def test_an_extra_that_changes_in_a_task(write, tmp_path):
  config = write(RETURN, RETURN.replace(', extra', ", {'a': loss}"))
  for name in ('one', 'two'):
    config.tasks[name] = config_lib.task(config)
  config.train.variant = "tasks(sampling='accumulated')"
  config.evals.val.split = config.checkpoint.best = ''
  with pytest.raises(
    UserError, match=r"^task one: .*Rotation: extra has a new 'a' after"
  ):
    loop.run(config, str(tmp_path / 'run'))


@pytest.mark.parametrize(
  'line',
  ['x = logits @ logits', "x = self.config['none']", 'if loss > 1: x = 1'],
)
def test_other_errors_end_at_the_line_of_the_user(write, tmp_path, line):
  config = write(RETURN, f'    {line}\n{RETURN}')
  name = config.objective.name
  result = commands.python(
    *('-m', 'vit_jax.main', *tiny.flags(objective__name=name)),
    f'--workdir={tmp_path}/run',
    env=commands.CPU_ENV | {'PYTHONPATH': f'{tiny.ROOT}:{tmp_path}'},
  )
  assert result.returncode == 1 and 'Traceback' in result.stderr
  last = result.stderr.splitlines()[-1]
  file = tmp_path / f'{name.partition(":")[0]}.py'
  assert last.startswith(f'in your file {file}, line ')
  assert last.endswith(f': {line}')


@pytest.mark.parametrize(
  'name, message',
  [
    (
      ':Rotatoin',
      r"has no class 'Rotatoin', which must be .*; it has Rotation",
    ),
    ('s:Rotation', r"finds no module '\w+s': did you mean 'my_\d+_method'\?$"),
  ],
)
def test_a_name_that_is_not_there(write, monkeypatch, tmp_path, name, message):
  config = write(RETURN, RETURN)
  module = config.objective.name.partition(':')[0]
  monkeypatch.chdir(tmp_path)
  config.objective.name = f'{module}{name}'
  with pytest.raises(UserError, match=message):
    experiment_lib.check(config)


@pytest.mark.parametrize(
  'new, message',
  [
    ('x = none\n\n\nclass R', r"NameError: name 'none' .* \(.*\.py, line 9\)$"),
    ('class R(R', r'SyntaxError: .*, line \d+\)$'),
  ],
)
def test_a_module_that_cannot_be_imported(write, new, message):
  config = write('class R', new)
  with pytest.raises(UserError, match=message) as e:
    experiment_lib.check(config)
  assert '\n' not in str(e.value)
