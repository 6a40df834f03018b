"""What a release says: one version, its changes, and its workflow."""

import ast
import re

import hostile
import pytest
import tiny
import yaml

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.train import experiment

CHANGES = (tiny.ROOT / 'CHANGELOG.md').read_text()
WORKFLOW = tiny.ROOT / '.github' / 'workflows' / 'ci.yml'


def test_the_version_is_one():
  setup = (tiny.ROOT / 'setup.py').read_text()
  version = re.search(r"version='(.*)'", setup)[1]
  citation = yaml.safe_load((tiny.ROOT / 'CITATION.cff').read_text())
  assert citation['version'] == version
  assert re.search(r'^## (\S+)', CHANGES, re.MULTILINE)[1] == version


def test_each_change_stands_once_below_a_heading():
  """Merges of branches may leave entries twice, or above all headings."""
  _, newest, *_ = re.split(r'^## ', CHANGES, flags=re.MULTILINE)
  start, *sections = re.split(r'^### ', newest, flags=re.MULTILINE)
  assert not re.search('^- ', start, re.MULTILINE)
  entries = [
    ' '.join(entry.split())[:60]
    for section in sections
    for entry in re.split(r'^- ', section, flags=re.MULTILINE)[1:]
  ]
  assert len(entries) > 10 and len({*entries}) == len(entries)


def test_the_workflow_runs_what_there_is():
  jobs = yaml.safe_load(WORKFLOW.read_text())['jobs']
  for job in jobs.values():
    needs = job.get('needs', [])
    assert {*([needs] if isinstance(needs, str) else needs)} <= {*jobs}
    for step in job['steps']:
      for script in re.findall(r'(?:scripts|\.ci)/[\w.]+', step.get('run', '')):
        assert (tiny.ROOT / script).exists(), script


def rows():
  """Yields the cells of the tables of what to write instead."""
  for line in CHANGES.partition('### New')[0].splitlines():
    if line.startswith('| `'):
      yield [cell.strip() for cell in re.split(r' \| ', line.strip('| '))]


SETTINGS = [
  setting
  for _, instead in rows()
  for setting in re.findall(r"`((?:\w+\.)+\w+=['\"].*?['\"])`", instead)
  # These are of other models, and of tasks.
  if not setting.startswith(('model.name=', 'train.variant="tasks'))
]


@pytest.mark.parametrize('setting', SETTINGS)
def test_what_to_write_instead_is_taken(setting):
  sizes = {'model__depth': 3, 'data__image_size': 32, 'data__resize': 32}
  config = tiny.config(model__pool='token', model__class_token=True, **sizes)
  key, value = setting.split('=', 1)
  tiny.change(config, {key: ast.literal_eval(value)})
  experiment.check(config)


def test_keys_that_are_gone_are_told():
  keys = set(hostile.keys())
  gone = [
    re.sub(r'^evals\.NAME', 'evals.val', name)
    for old, _ in rows()
    for name in re.findall(r'`((?:\w+\.)+\w+)`', old)
  ]
  gone = [
    x for x in gone if not x.startswith(('data.base', 'evaluation', 'Loaded'))
  ]
  assert len(gone) > 15 and not keys & {*gone}
  for key in gone:
    with pytest.raises(UserError, match=re.escape(key)) as e:
      config_lib.load(tiny.ROOT / 'configs/digits.py', {key: 1})
    if not key.startswith('objective.') and key != 'evals.val.class_names':
      assert 'did you mean' in str(e.value)
