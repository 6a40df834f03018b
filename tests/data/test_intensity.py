"""Images of 16 bits, from their files to what is learned of them."""

import functools
import json
import shutil

import commands
import jax
import methods
import numpy as np
import pytest
import stand_in
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluate
from vit_jax.config import resuming
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import intensity
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import decode
from vit_jax.data.host import levels
from vit_jax.predict import __main__ as predict
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.train import model_inputs

pytestmark = pytest.mark.usefixtures('programs_once')

MEANS = {'bright': 2500, 'dim': 800}  # of 12 bits


def camera(seed: int, mean: float) -> np.ndarray:
  """An image of 12 bits in 16, as scientific cameras write, [9, 8]."""
  noise = np.random.default_rng(seed).normal(mean, 300, (9, 8))
  return np.clip(noise, 0, 4095).astype(np.uint16)


def test_values_of_other_types_stay():
  """A source of one's own may have them."""
  pixels = np.array([[-3, 70000]], np.int32)
  for bits in (8, 16):
    kept = levels.Levels(bits).keep(pixels, 'it')
    np.testing.assert_array_equal(kept, pixels)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('camera')
  for split, count in (('train', 20), ('val', 6)):
    for name, mean in MEANS.items():
      path = root / split / name
      path.mkdir(parents=True)
      for i in range(count):
        seed = i + 100 * (split == 'val') + 1000 * (name == 'dim')
        image = stand_in.png(camera(seed, mean))
        (path / f'{i}.png').write_bytes(image)
  return root


make_config = functools.partial(
  stand_in.config,
  data__image_size=8,
  data__channels=1,
  optim__learning_rate=3e-3,
)


def test_the_range_of_the_type_gets_a_warning(folder, warnings_logged):
  experiment_lib.build(make_config(folder))
  (line,) = [x for x in warnings_logged if '16 bits' in x]
  assert '40 images' in line and 'of 0 to 65535' in line
  assert "--config.data.intensity='percentiles(0.5, 99.5)'" in line
  assert "--config.data.intensity='(0, 4095)'" in line
  warnings_logged.clear()
  experiment_lib.build(make_config(folder, data__intensity=(0, 65535)))
  assert not warnings_logged  # it was asked for


WINDOWS = [(0, 4095), 'percentiles(0.5,99.5)']


@pytest.fixture(scope='module', params=WINDOWS)
def learned(request, folder, tmp_path_factory):
  """A config with a window, and its finished run."""
  path = tmp_path_factory.mktemp('runs') / 'run'
  config = make_config(
    folder,
    data__intensity=request.param,
    train__duration='60 steps',
    checkpoint__every='20 steps',
  )
  assert loop.run(config, str(path)).status == 0
  return config, path


@pytest.mark.slow
def test_what_a_window_shows_is_learned(folder, learned):
  """And a model that is loaded sees the very same window."""
  config, path = learned
  stored = json.loads((path / 'preprocess.json').read_text())
  window, bits = stored['intensity'], stored['bits']
  assert bits == 16
  if config.data.intensity == WINDOWS[0]:
    assert window == [0, 4095]
  else:
    files = (folder / 'train').rglob('*.png')
    values = [decode.as_stored(file.read_bytes()).ravel() for file in files]
    expected = np.percentile(
      np.concatenate(values), [0.5, 99.5], method='inverted_cdf'
    )
    assert window == expected.tolist()
  assert tiny.metrics(path)[-1]['step'] == 60
  actual = [x for x in tiny.metrics(path) if 'val/accuracy' in x]
  assert actual[-1]['val/accuracy'] == 1
  assert '16 bits' not in (path / 'train.log').read_text()
  image = next((folder / 'val' / 'dim').iterdir())
  low, high = window
  stored = decode.as_stored(image.read_bytes())[:8]  # cut to 8 rows
  vit = vit_jax.load(path)
  scaled = np.clip((stored.astype(float) - low) / (high - low), 0, 1)
  (actual,) = vit.preprocess(image)[..., 0]
  np.testing.assert_allclose(actual, 2 * scaled - 1, atol=1e-5)
  assert vit.classes[vit.predict(image).argmax()] == 'dim'


def test_commands_see_the_window(folder, learned, tmp_path, capsys):
  _, path = learned
  commands.run(
    evaluate,
    *(f'--from={path}', f'--data=folder:{folder}', '--split=val'),
    '--format=json',
  )
  assert json.loads(capsys.readouterr().out)['accuracy'] == 1
  small = tmp_path / 'small.png'
  small.write_bytes(stand_in.png(stand_in.pixels(0, 9, 8)))
  images = folder / 'val' / 'dim'
  assert commands.run(predict, f'--from={path}', '--top=1', images, small) == 1
  out, err = capsys.readouterr()
  assert out.count('dim\n') == 6
  assert 'small.png has 8 bits, and the window' in err


def test_a_run_goes_on_with_its_window(folder, learned, tmp_path):
  """Though the images that it came from are others by then."""
  config, path = learned
  part = tmp_path / 'part'
  shutil.copytree(path, part)
  shutil.rmtree(part / 'checkpoints' / '60')  # as if it had been stopped
  (part / 'DONE').unlink()
  before = config_lib.from_dict(json.loads((part / 'config.json').read_text()))
  resumed = resuming.fill(config, before)
  built = experiment_lib.build(resumed, resumes=True).config
  assert not resuming.differences(before, built)
  if config.data.intensity == WINDOWS[1]:
    assert loop.run(config, str(part)).status == 0
    losses = [methods.losses(p) for p in (path, part)]
    assert losses[0] == losses[1] and len(losses[0]) == 60
  other = make_config(
    folder,
    data__intensity=(0, 5000),
    train__duration='60 steps',
    checkpoint__every='20 steps',
  )
  with pytest.raises(UserError, match=r'data\.intensity'):
    loop.run(other, str(part))


@pytest.mark.parametrize('cache', ['none', 'host', 'device'])
def test_batches_keep_the_bits(folder, cache):
  config = make_config(folder, data__source_size=(9, 8), data__cache=cache)
  e = experiment_lib.build(config).cached()
  with e.eval_batches('val') as batches:
    batch = next(batches)
  assert batch['image'].dtype == np.uint16
  source = data.open_source(config, 'val')
  expected = decode.as_stored(source.read(0).image)
  np.testing.assert_array_equal(batch['image'][0, ..., 0], expected)
  crop = jax.jit(views.eval_transform(e.config, (9, 8)))
  actual = crop(batch['image'])
  assert actual.dtype == np.float32
  np.testing.assert_allclose(
    actual[0].mean(), 2 * expected.mean() / 65535 - 1, atol=1e-3
  )


def test_bits_of_old_runs_stay_8(folder):
  """Such a config.json does not say it."""
  assert (
    experiment_lib.build(make_config(folder), resumes=True).config.data.bits
    == 8
  )


def test_policies_see_what_is_within_the_window():
  """As 8 bits, so that they do what they do to any image."""
  config = config_lib.default()
  config.data.update(image_size=8, bits=16, intensity=(1000, 3000), flip=False)
  config.augment.policy = 'autoaugment'
  plain = config_lib.default()
  plain.data.update(image_size=8, flip=False)
  plain.augment.policy = 'autoaugment'
  rng = np.random.default_rng(0)
  image = rng.integers(900, 3100, (4, 8, 8, 3)).astype(np.uint16)
  scaled = np.clip((image.astype(np.float32) - 1000) / 2000, 0, 1)
  eight = np.round(scaled * 255).astype(np.uint8)
  labels, rows = np.zeros(4, np.int32), np.arange(4)
  actual, expected = (
    views.train_transform(c, {'image': features.Image()})(
      {'image': x, 'label': labels}, Rng(jax.random.key(0), rows)
    )['image']
    for c, x in ((config, image), (plain, eight))
  )
  np.testing.assert_array_equal(actual, expected)


def test_alpha_has_its_own_range():
  image = np.full((2, 2, 4), 1000, np.uint16)
  image[..., 3] = 32768
  actual = levels.Levels(16, (0, 4000)).scale(image)
  np.testing.assert_allclose(actual[0, 0], [0.25, 0.25, 0.25, 0.5], atol=1e-5)


def test_a_window_of_other_bits_is_refused(folder, tmp_path):
  """That of 12 bits would leave images of 8 bits nearly black."""
  shutil.copytree(folder, tmp_path / 'images')
  for path in (tmp_path / 'images').rglob('*.png'):
    path.write_bytes(stand_in.png(np.full((9, 8), 99, np.uint8)))
  config = make_config(tmp_path / 'images', data__intensity=(0, 4095))
  with pytest.raises(UserError, match='have 8 bits, 0 to 255'):
    experiment_lib.build(config)
  # A few among images of 16 bits would spoil the percentiles.
  shutil.rmtree(tmp_path / 'images' / 'train' / 'dim')
  shutil.copytree(folder / 'train' / 'dim', tmp_path / 'images/train/dim')
  config = make_config(tmp_path / 'images', data__intensity=WINDOWS[1])
  with pytest.raises(UserError, match='has 8 bits'):
    experiment_lib.build(config)


def test_explore_data_shows_the_window(folder):
  config = make_config(folder, data__intensity=(0, 4095))
  assert (
    model_inputs.load(config, 0, 16).images['image'].max() > 0.5
  )  # of all 16 bits: 0.05


def test_sample_does_not_depend_on_the_seed(folder):
  source = data.open_source(make_config(folder), 'train')
  first, again = (intensity.count_values(source, 16, 1, 8) for _ in range(2))
  np.testing.assert_array_equal(first.counts, again.counts)
  assert first.images == 8 and first.counts.sum() == 8 * 9 * 8
