"""One command measures a model at several sizes."""

import json

import commands
import pytest

from vit_jax import evaluate
from vit_jax.evaluation import variants

SPLIT = '--split=train[80%:]'


def run(capsys, *args):
  assert commands.run(evaluate, *args, '--data=digits', SPLIT) == 0
  return capsys.readouterr().out


def test_a_row_for_each_size_is_what_one_size_gives(digits_run, capsys):
  model = f'--from={digits_run}'
  actual = json.loads(run(capsys, model, '--format=json', '--image_size=8,16'))
  assert [x['image_size'] for x in actual['variants']] == ['8x8', '16x16']
  assert [x['tokens'] for x in actual['variants']] == [4, 16]
  for size, row in zip((8, 16), actual['variants'], strict=True):
    report = json.loads(
      run(capsys, model, '--format=json', f'--image_size={size}')
    )
    assert row['accuracy'] == report['accuracy']
    assert row['loss'] == pytest.approx(report['loss'], rel=1e-5)
    assert row['accuracy_interval'] == report['accuracy_interval']
    assert row['images_per_second'] > 0


def test_merging_and_patches_are_a_table_and_a_picture(
  digits_run, capsys, tmp_path
):
  text = run(
    capsys,
    f'--from={digits_run}',
    '--patch_size=4,2x4',
    '--merge=0,1',
    f'--plot={tmp_path}/curve.png',
  )
  lines = text.strip().splitlines()
  assert len(lines) == 5 and 'images per second' in lines[0]
  assert (tmp_path / 'curve.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_kernels_in_int8_are_one_more_row(digits_run, capsys):
  pytest.importorskip('qwix', reason='needs qwix: vit_jax[quantize]')
  flags = [f'--from={digits_run}', '--format=json']
  actual = json.loads(
    run(capsys, *flags, '--quantize=none,int8', '--merge=0,1')
  )
  rows = actual['variants']
  assert [(x['merge'], x['quantize']) for x in rows] == [
    (merge, quantize) for merge in (0, 1) for quantize in ('none', 'int8')
  ]
  for plain, small in zip(rows[::2], rows[1::2], strict=True):
    assert small['parameter_bytes'] < 0.5 * plain['parameter_bytes']
    assert small['loss'] == pytest.approx(plain['loss'], rel=0.01)
  report = json.loads(run(capsys, *flags, '--quantize=int8'))
  assert report['loss'] == pytest.approx(rows[1]['loss'], rel=1e-5)
  text = run(capsys, f'--from={digits_run}', '--quantize=none,int8')
  assert 'parameter bytes' in text and len(text.strip().splitlines()) == 3


@pytest.mark.parametrize(
  ('speed', 'quality', 'expected'),
  [
    ((1, 2, 3, 4), (0.9, 0.89, 0.5, 0.1), 1),
    ((4, 3, 2, 1), (0.1, 0.5, 0.89, 0.9), 2),  # in any order
    ((1, 2, 3), (0.9, 0.6, 0.3), None),  # a straight line
    ((1, 2, 3), (0.9, 0.2, 0.1), None),  # it falls at once
    ((1, 2), (0.9, 0.1), None),
    ((1, 2, 3), (0.5, 0.5, 0.5), None),
  ],
)
def test_the_knee_is_farthest_above_the_line(speed, quality, expected):
  assert variants.knee(speed, quality) == expected


def test_an_accuracy_may_have_no_interval(tmp_path):
  rows = [
    {'merge': i, 'images_per_second': 10.0 + i, 'accuracy': 0.9 - i / 10}
    for i in range(3)
  ]
  variants.draw(rows, tmp_path / 'curve')
  assert (tmp_path / 'curve.png').read_bytes().startswith(b'\x89PNG')
