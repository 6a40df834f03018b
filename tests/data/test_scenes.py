import ml_collections
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import cache as cache_lib
from vit_jax.data import made


def make_config(**settings) -> ml_collections.ConfigDict:
  config = config_lib.default()
  config.data.update(name='scenes', image_size=48, flip=False)
  config.data.update(settings)
  config.train.batch_size = 4
  return config


def open_scenes(split='train', **settings) -> data.Source:
  return data.open_source(make_config(**settings), split)


def test_scenes_have_digits_on_a_background():
  source = open_scenes('test[:60]')
  assert source.image_shape == (64, 64) and len(source) == 60
  assert source.classes == ('background', *'0123456789')
  examples = [source.read(i) for i in range(60)]
  maps = np.stack([e.values['map'] for e in examples])
  assert examples[0].image.shape == (64, 64, 3)
  assert maps.shape[1:] == (64, 64) and maps.dtype == np.uint8
  shares = np.bincount(maps.ravel(), minlength=11) / maps.size
  assert 0.5 < shares[0] < 0.95 and (shares[1:] > 0.002).all()
  # Each digit's colour differs from its surroundings.
  for e, labels in zip(examples, maps, strict=True):
    image = e.image.astype(float)
    for label in set(labels.ravel()) - {0}:
      where = labels == label
      if where.sum() > 30:
        inks = image[where].mean(0)
        assert np.abs(inks - image[labels == 0].mean(0)).max() > 15


def test_no_digit_is_in_both_splits():
  parts = made.digits_in_two()
  train, test = ({x.tobytes() for x in parts[k][0]} for k in ('train', 'test'))
  assert train and test and not train & test


@pytest.mark.parametrize('cache', ['none', 'host'])
@pytest.mark.parametrize('channels', [1, 3])
def test_batches(cache, channels):
  config = make_config(cache=cache, channels=channels, source_size=(40, 52))
  source = data.open_source(config, 'train[:10]')
  whole = source
  if cache == 'host':
    source = cache_lib.decode_split(source, config)
  batch = next(iter(data.eval_batches(source, config, batch_size=4)))
  assert batch['image'].shape == (4, 40, 52, channels)
  for i in range(4):
    expected = whole.read(i)
    np.testing.assert_array_equal(batch['map'][i], expected.values['map'])
    if channels == 3:
      np.testing.assert_array_equal(batch['image'][i], expected.image)
