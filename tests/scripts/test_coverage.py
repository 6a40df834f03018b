"""The table of models of other libraries that can be read."""

import importlib.util

import commands
import other_libraries
import pytest
import tiny


def run(*flags):
  return commands.python(tiny.ROOT / 'scripts' / 'coverage.py', *flags)


@pytest.mark.slow
def test_models_of_transformers():
  pytest.importorskip('torch', reason='needs torch and transformers')
  other_libraries.imported('transformers')
  result = run('--transformers', '--only=VisionModel')
  assert result.returncode == 0, result.stderr
  rows = [x.split(' | ') for x in result.stdout.splitlines() if '| 2 |' in x]
  actual = {row[0].strip('| '): row[2] for row in rows}
  assert actual['SiglipVisionModel'].startswith('agrees (features)')
  assert actual['Aimv2VisionModel'].startswith('agrees (features)')
  agree = sum(x.startswith('agrees') for x in actual.values())
  line = f'transformers: {agree} of {len(actual)} models agree.'
  assert line in result.stdout


def test_what_is_missing_is_one_line():
  result = run()
  assert result.returncode == 1
  assert 'give --timm, --transformers or both' in result.stderr
  if importlib.util.find_spec('timm') is None:
    result = run('--timm')
    assert result.returncode == 1 and 'pip install' in result.stderr
    assert 'Traceback' not in result.stderr
