"""Configs of methods that cannot work are refused in one line: mistakes.txt."""

import pathlib

import methods
import mistakes
import pytest

from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop


def build(config, workdir):
  del workdir  # nothing is run
  experiment_lib.check(config)
  experiment = experiment_lib.build(config)
  _ = experiment.program.setup
  experiment.init()


STAGES = {
  'check': lambda config, workdir: experiment_lib.check(config),
  'build': build,
  'run': loop.run,
}


@pytest.mark.parametrize(
  ('section', 'changes', 'pattern'),
  mistakes.cases(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(section, changes, pattern, tmp_path):
  method, stage = section.split('; ')
  config = methods.config(method, **changes)
  with mistakes.told(pattern):
    STAGES[stage](config, str(tmp_path / 'run'))
