"""UNETR on volumes, which are larger than the crops that it learns from."""

import functools
import json
import re

import commands
import cv2
import jax
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.data import volumes as volumes_lib
from vit_jax.evaluation import windows
from vit_jax.objectives import trained
from vit_jax.predict import __main__ as predict
from vit_jax.summary import __main__ as summary
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

make_config = functools.partial(methods.config, 'segmentation, volumes')
finished = methods.finished('segmentation, volumes')


@pytest.mark.slow
def test_metrics_of_a_run(finished):
  last = [x for x in tiny.metrics(finished) if 'val/dice' in x][-1]
  names = ('miou', 'class_dice/background', 'class_dice/sphere', 'iou/tube')
  for name in names:
    assert 0 <= last[f'val/{name}'] <= 1, name
  assert last['val/examples'] == 6


@pytest.mark.slow
def test_windows_are_those_of_the_host():
  """A larger volume is predicted by windows that overlap by a half."""
  objective = experiment_lib.build(make_config()).program.objective
  params = jax.jit(objective.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  volumes = rng.normal(size=(2, 24, 16, 16, 1)).astype(np.float32)

  @jax.jit
  def apply(volumes):
    return objective.outputs(params, {'image': volumes})['logits']

  expected = windows.slide(apply, volumes, (16, 16, 16), (8, 8, 8))
  actual = apply(volumes)
  assert actual.shape == (2, 24, 16, 16, 3)
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_commands_measure_and_describe_a_run(finished, capsys):
  args = f'--from={finished}', '--data=volumes', '--split=test[:6]'
  args += ('--source_size=24x16x16', '--format=json')
  assert commands.run(evaluate, *args) == 0
  actual = json.loads(capsys.readouterr().out)
  last = [x for x in tiny.metrics(finished) if 'val/dice' in x][-1]
  for name in ('dice', 'class_dice/background', 'accuracy'):
    assert actual[name] == pytest.approx(last[f'val/{name}'], abs=1e-6)
  assert np.array(actual['confusion']).sum() == 6 * 24 * 16 * 16
  args = f'--from={finished}', '--nomemory', '--format=json'
  assert commands.run(summary, *args) == 0
  rows = json.loads(capsys.readouterr().out)['modules']
  assert [1, 1, 16] in [row['output_shape'] for row in rows]


def test_a_map_is_that_of_the_windows(finished, tmp_path, capsys):
  size = (24, 20, 17)
  scan = volumes_lib.VolumesSource('test', size).read(0).image
  np.save(tmp_path / 'scan.npy', scan[..., 0])
  small = tmp_path / 'small.npy'
  np.save(small, scan[:9, :20, :16])
  args = f'--from={finished}', tmp_path, f'--output={tmp_path}/maps'
  assert commands.run(predict, *args) == 0
  assert 'tube' in capsys.readouterr().out
  loaded = vit_jax.load(finished)
  objective, params = trained.restored(loaded)
  batch = loaded.preprocess.normalized(scan)[None]
  expected = objective.outputs(params, {'image': batch})['segments'][0]
  actual = np.load(tmp_path / 'maps' / 'scan.map.npy')
  assert (actual == expected).mean() > 0.999
  assert np.load(tmp_path / 'maps' / 'small.map.npy').shape == (9, 20, 16)
  overlay = cv2.imread(str(tmp_path / 'maps' / 'scan.overlay.png'))
  assert overlay.shape == (24, 17 + 17 + 20, 3)


def test_labels_need_the_memory_of_one_window_deep():
  rng = np.random.default_rng(0)
  volume = rng.normal(size=(19, 7, 8, 2)).astype(np.float32)
  kernel = rng.normal(size=(2, 3)).astype(np.float32)

  def apply(x):
    return x @ kernel * (1 + np.arange(x.shape[1])[:, None, None, None])

  for window in ((6, 4, 8), (6, 9, 10), (24, 4, 4)):
    stride = windows.strides(window, 0.4)
    logits = windows.slide(apply, volume[None], window, stride, pad=True)
    actual = windows.labels(apply, volume, window, stride)
    np.testing.assert_array_equal(actual, logits[0].argmax(axis=-1))


@pytest.mark.parametrize(
  ('flags', 'name', 'message'),
  [
    ((), 'scan.png', r'scan.png is no scan: this model takes volumes'),
    ((), 'colours.npy', 'colours.npy has 2 channels, but the model takes 1'),
    ((), 'float.npy', 'float.npy holds float32, which has no range'),
    ((), 'text.npy', 'text.npy is damaged, or no scan'),
    (('--flip',), 'scan.npy', '--scales and --flip are for images'),
    (('--image_size=32x32',), 'scan.npy', r'write \(depth, height, width\)'),
  ],
)
def test_scans_that_do_not_fit(
  flags, name, message, finished, tmp_path, capsys
):
  np.save(tmp_path / 'colours.npy', np.zeros((16, 16, 16, 2), np.uint8))
  np.save(tmp_path / 'float.npy', np.zeros((16, 16, 16), np.float32))
  np.save(tmp_path / 'scan.npy', np.zeros((16, 16, 16), np.uint8))
  for no_scan in ('text.npy', 'scan.png'):
    (tmp_path / no_scan).write_text('no array')
  args = f'--from={finished}', tmp_path / name, f'--output={tmp_path}/maps'
  if not flags:
    assert commands.run(predict, *args) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
  else:
    with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
      commands.run(predict, *args, *flags)


@pytest.mark.slow
def test_a_run_starts_from_another_with_larger_crops(finished, tmp_path):
  """Positions are resized along all three axes."""
  config = make_config(
    init_from__path=str(finished),
    data__image_size=(32, 16, 16),
    data__source_size=(32, 16, 16),
    train__duration='3 steps',
  )
  assert loop.run(config, str(tmp_path / 'run')).status == 0


@pytest.mark.slow
@pytest.mark.parametrize('head', ['unetr', 'naive', 'linear'])
def test_every_head_learns(head):
  """The gradient of one batch lowers its loss."""
  layers = (0, 0, 0) if head == 'unetr' else (0,)
  config = make_config({'head': head, 'layers': layers})
  objective = experiment_lib.build(config).program.objective
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.normal(size=(2, 16, 16, 16, 1)).astype(np.float32),
    'map': rng.integers(0, 3, (2, 16, 16, 16)).astype(np.int32),
  }
  methods.assert_learns(objective, batch)
