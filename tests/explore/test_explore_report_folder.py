"""A new report takes an earlier one's pictures away, and nothing else."""

import json

import pytest

from vit_jax.explore import report


def write(out, files):
  with report.replacing(out) as new:
    for file in files:
      (new / file).write_text(file)
    (new / 'numbers.json').write_text(json.dumps({'files': files}))


def names(out):
  return {x.name for x in out.iterdir()} - {'numbers.json'}


def test_what_was_there_stays_until_all_went_well(tmp_path):
  out = tmp_path / 'a' / 'b'
  write(out, ['cka.png', 'pca-01.svg'])
  with pytest.raises(ValueError), report.replacing(out) as new:
    (new / 'norms.png').write_text('half')
    raise ValueError
  assert names(out) == {'cka.png', 'pca-01.svg'}
  write(out, ['cka.png', 'norms.png'])
  assert names(out) == {'cka.png', 'norms.png'}


@pytest.mark.parametrize(
  'numbers',
  [
    {'files': ['../a.png', '/a.png', 'b/a.png', '.', '', 'notes.txt', 7]},
    {'files': 'a.png'},
    ['a.png'],
    None,
  ],
)
def test_only_pictures_of_a_report_are_removed(numbers, tmp_path):
  out = tmp_path / 'out'
  (out / 'b').mkdir(parents=True)
  user_files = [
    tmp_path / 'a.png',
    out / 'a.png',
    out / 'b/a.png',
    out / 'notes.txt',
  ]
  for path in user_files:
    path.write_text('mine')
  text = 'no JSON' if numbers is None else json.dumps(numbers)
  (out / 'numbers.json').write_text(text)
  with report.replacing(out) as new:
    (new / 'cka.png').write_text('new')
  assert (out / 'cka.png').read_text() == 'new'
  assert all(path.read_text() == 'mine' for path in user_files)
