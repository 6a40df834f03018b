"""The tables of docs/scaling.md, for a plan that takes seconds."""

import commands
import pytest
import tiny


@pytest.mark.slow
def test_the_line_of_a_model():
  result = commands.python(
    *(tiny.ROOT / 'scripts' / 'scaling.py', '--models=ViT-B/16'),
    *('--devices=1', '--batch_size=8', '--hardware=H100,v5e'),
  )
  assert result.returncode == 0, result.stderr
  titles = [x for x in result.stdout.splitlines() if x.endswith('a step:')]
  assert titles == ['H100, 8 images a step:', 'TPU v5e, 8 images a step:']
  rows = [x for x in result.stdout.splitlines() if x.startswith('| ViT-B/16')]
  assert len(rows) == 2
  for line in rows:
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    assert len(cells) == 9 and cells[1:3] == ['1', '8']
    assert float(cells[4]) > 0
