"""The comparison with golden files, on tiny directories of the same format."""

import json

import golden
import golden_cases
import numpy as np
import pytest


def write_cases(directory, *cases):
  directory.mkdir(exist_ok=True)
  (directory / 'cases.json').write_text(json.dumps(cases))
  return str(directory)


def clip_case(directory, name, shapes, clip=0.5):
  """Writes a case of clipped gradients of some shapes; returns its entry."""
  directory.mkdir(exist_ok=True)
  rng, arrays, described = np.random.default_rng(len(shapes)), {}, {}
  for i, shape in enumerate(shapes):
    grad = rng.normal(size=shape).astype(np.float32)
    factor = min(1.0, clip / (np.linalg.norm(grad) + 1e-6))
    arrays |= {f'grad_{i}': grad, f'clipped_{i}': (factor * grad)}
    described |= {
      f'grad_{i}': f'{shape} float32: input',
      f'clipped_{i}': f'{shape} float32: result',
    }
  grads = [arrays[f'grad_{i}'] for i in range(len(shapes))]
  arrays['norms'] = np.float32([np.linalg.norm(x) for x in grads])
  described['norms'] = f'[{len(shapes)}] float32: norms'
  np.savez(directory / f'{name}_expected.npz', **arrays)
  return {
    'name': name,
    'clip': clip,
    'expected': f'{name}_expected.npz',
    'arrays': described,
    'tolerance': 1e-6,
  }


def resize_case(directory, name, size):
  """Writes a case in which an image [2 h, 2 w] becomes one of [h, w]."""
  directory.mkdir(exist_ok=True)
  h, w = size
  x = np.random.default_rng(h).normal(size=(1, h, 2, w, 2, 3))
  arrays = {
    'x': x.reshape(1, 2 * h, 2 * w, 3).astype(np.float32),
    'one': np.ones((1, 1, 1, 2), np.float32),
    f'down_{h}x{w}_aF': x.mean(axis=(2, 4)).astype(np.float32),
    'one_pixel_2x5_aT': np.ones((1, 2, 5, 2), np.float32),
  }
  np.savez(directory / f'{name}_expected.npz', **arrays)
  return {
    'name': name,
    'dims': {'sizes': []},
    'files': [f'{name}_expected.npz'],
    'inputs': {'x': {}, 'one': {}},
    'outputs': {},
    'tolerance': {'atol': 1e-5},
  }


def printed_lines(capsys, *directories):
  """Returns the exit status and the lines of the output."""
  status = golden.main(list(directories))
  return status, capsys.readouterr().out.splitlines()


def test_a_number_behind_a_name_is_another_size(tmp_path, capsys):
  first, second = tmp_path / 'a', tmp_path / 'b'
  status, lines = printed_lines(
    capsys,
    write_cases(
      first,
      clip_case(first, 'dino_clip', [[2, 3]]),
      clip_case(first, 'dino_clip_2', [[4], [1, 2, 3], [5, 1]], clip=2.0),
    ),
    write_cases(
      second,
      resize_case(second, 'resize_bilinear', (3, 2)),
      resize_case(second, 'resize_bilinear_12', (2, 5)),
    ),
  )
  assert status == 0
  assert [line.split()[0] for line in lines[:-1]] == [
    'dino_clip',
    'dino_clip_2',
    'resize_bilinear',
    'resize_bilinear_12',
  ]
  assert all(line.endswith(' ok') for line in lines[:-1])
  assert lines[-1] == '4 of 4 cases agree'


@pytest.mark.parametrize('name', ['dino_clips', 'dino_clip_large', 'clip_2'])
def test_an_unknown_name_fails_alone(name, tmp_path, capsys):
  cases = [clip_case(tmp_path, x, [[3]]) for x in (name, 'dino_clip_3')]
  status, lines = printed_lines(capsys, write_cases(tmp_path, *cases))
  assert status == 1
  assert lines[0].split() == [name, 'no', 'function', 'FAILED']
  assert lines[1].endswith(' ok')


def test_a_case_that_differs_fails(tmp_path, capsys):
  cases = [clip_case(tmp_path, f'dino_clip_{i}', [[3], [2]]) for i in (1, 2)]
  cases[0]['clip'] *= 1.001
  status, lines = printed_lines(capsys, write_cases(tmp_path, *cases))
  assert status == 1
  assert lines[0].endswith('FAILED') and 'clipped_' in lines[0]
  assert lines[1:] == [lines[1], '1 of 2 cases agree']


def test_missing_and_damaged_files_fail_in_one_line(tmp_path, capsys):
  cases = [clip_case(tmp_path, f'dino_clip_{i}', [[3]]) for i in (1, 2, 3)]
  (tmp_path / 'dino_clip_1_expected.npz').unlink()
  damaged = tmp_path / 'dino_clip_2_expected.npz'
  damaged.write_bytes(damaged.read_bytes()[:100])
  good_folder, broken = write_cases(tmp_path, *cases), tmp_path / 'broken'
  broken.mkdir()
  (broken / 'cases.json').write_text('[{')
  status = golden.main([str(broken), str(tmp_path / 'nowhere'), good_folder])
  printed = capsys.readouterr()
  assert status == 1
  lines = printed.out.splitlines()
  assert [line.split()[-1] for line in lines[:-1]] == ['FAILED', 'FAILED', 'ok']
  errors = printed.err.splitlines()
  assert len(errors) == 2
  assert all(line.startswith('error: ') for line in errors)
  assert golden.main([good_folder]) == 1
  assert golden.main([str(broken)]) == 1


def test_ids_are_exact_and_numbers_are_not(tmp_path):
  arrays = {
    'ids': np.array([[3, 1]], np.int32),
    'mask': np.array([True, False]),
    'loss': np.float32(2.0),
    'open': np.float32([np.nan, np.inf]),
  }
  np.savez(tmp_path / 'x.npz', **arrays)
  fields = {
    'name': 'x',
    'expected': 'x.npz',
    'arrays': dict.fromkeys(arrays, '[] int32: answer'),
    'tolerance': 10.0,
  }
  case = golden_cases.Case(tmp_path, fields)
  changed = {k: x + 1 if k in ('ids', 'loss') else x for k, x in arrays.items()}
  good = {k: x.is_good for k, x in case.judged(changed).items()}
  assert good == {'ids': False, 'mask': True, 'loss': True, 'open': True}
  wrong = arrays | {'mask': np.array([True, True]), 'open': np.zeros(2)}
  good = {k: x.is_good for k, x in case.judged(wrong).items()}
  assert good == {'ids': True, 'mask': False, 'loss': True, 'open': False}
  with pytest.raises(ValueError, match='there is no answer for loss'):
    case.judged({k: x for k, x in arrays.items() if k != 'loss'})
  with pytest.raises(ValueError, match='ids has the shape'):
    case.judged(arrays | {'ids': np.zeros(2, np.int32)})
