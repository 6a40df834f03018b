import subprocess
import sys

import numpy as np

from vit_jax import config as config_lib
from vit_jax import data


def open_digits(split='train', channels=1) -> data.Source:
  config = config_lib.default()
  config.data.update(name='digits', channels=channels)
  return data.open_source(config, split)


def test_holds_all_digits_once():
  from sklearn import datasets

  stored = datasets.load_digits()
  source = open_digits()
  assert len(source) == 1797 and source.image_shape == (8, 8)
  assert source.classes == tuple('0123456789')
  examples = [source.read(i) for i in range(len(source))]
  assert [e.index for e in examples] == list(range(1797))
  expected = sorted(
    (int(label), np.round(image / 16 * 255).astype(np.uint8).tobytes())
    for label, image in zip(stored.target, stored.images, strict=True)
  )
  assert (
    sorted((e.values['label'], e.image.tobytes()) for e in examples) == expected
  )


def test_slices_hold_all_classes_and_are_disjoint():
  train, test = open_digits('train[:80%]'), open_digits('train[80%:]')
  assert len(train) == 1438 and len(test) == 359
  assert test.read(0).index == 1438
  for source in (train, test):
    counts = np.bincount(
      [source.read(i).values['label'] for i in range(len(source))]
    )
    assert len(counts) == 10 and counts.min() > 0.07 * len(source)


def test_channels():
  grey, rgb, rgba = (open_digits(channels=c).read(5).image for c in (1, 3, 4))
  assert grey.shape == (8, 8, 1)
  np.testing.assert_array_equal(rgb, np.repeat(grey, 3, -1))
  np.testing.assert_array_equal(rgba[..., :3], rgb)
  assert (rgba[..., 3] == 255).all()


# Modules of data that training the digits loads.
CORE = {
  'augmentations',
  *('base', 'checks', 'digits', 'features', 'preprocess', 'sources', 'splits'),
  *('device', 'device.crops', 'device.rng', 'device.views'),
  *('host', 'host.batches', 'host.geometry', 'host.levels', 'host.prefetch'),
}

_LOADED = """
import sys
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data.device import views

config = config_lib.load('digits')
data.check(config)
source = data.open_split(config)
batches = data.train_batches(source, config, start_step=0, num_steps=1)
next(batches)
batches.close()
views.train_transform(config, source.features)
views.eval_batch(config, source.features)
data.Preprocess.from_config(config, source.features).to_dict()
print(*(x for x in sys.modules if x.startswith('vit_jax.data.')))
"""


def test_wings_are_not_loaded():
  command = [sys.executable, '-c', _LOADED]
  run = subprocess.run(command, capture_output=True, text=True, check=True)
  loaded = {x.removeprefix('vit_jax.data.') for x in run.stdout.split()}
  assert loaded == CORE
