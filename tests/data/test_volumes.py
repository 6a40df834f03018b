import jax
import ml_collections
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data.device import views

SIZE = (16, 12, 12)


def make_config(size=(8, 8, 8), **augment) -> ml_collections.ConfigDict:
  config = config_lib.default()
  config.data.update(name='volumes', source_size=SIZE, image_size=size)
  config.data.channels = 1
  config.augment.volume.update(augment)
  config.train.batch_size = 6
  return config


def open_volumes(split='train', **settings) -> data.Source:
  config = make_config()
  config.data.update(settings)
  return data.open_source(config, split)


def test_volumes_have_tubes_and_spheres():
  source = open_volumes('test', source_size=(32, 32, 32))
  assert source.image_shape == (32, 32, 32) and len(source) == 40
  assert source.classes == ('background', 'tube', 'sphere')
  examples = [source.read(i) for i in range(8)]
  labels = np.stack([e.values['map'] for e in examples])
  images = np.stack([e.image for e in examples])
  assert images.shape == (8, 32, 32, 32, 1) and images.dtype == np.uint8
  shares = np.bincount(labels.ravel(), minlength=3) / labels.size
  assert shares[0] > 0.8 and (shares[1:] > 0.005).all()
  means = [images[..., 0][labels == i].mean() for i in range(3)]
  assert min(means[1:]) > means[0] + 40


def numbered(config):
  """Returns a transform, and a batch whose maps say where a place was."""
  source = data.open_source(config, 'train')
  batch = next(iter(data.eval_batches(source, config, batch_size=6)))
  assert batch['image'].shape == (6, *SIZE, 1)
  batch['image'] = np.broadcast_to(batch['map'][..., None], (6, *SIZE, 1))
  return jax.jit(views.train_transform(config, source.features)), batch


@pytest.mark.parametrize('settings', [{}, {'flip': 0.5, 'turn': 0.5}])
def test_a_map_follows_its_volume(settings):
  transform, batch = numbered(make_config(**settings, foreground=0.5))
  prepared = transform(batch, stand_in.rows(*range(6)))
  image, labels = (
    np.asarray(prepared['image'][..., 0]),
    np.asarray(prepared['map']),
  )
  assert image.shape == labels.shape == (6, 8, 8, 8)
  np.testing.assert_allclose((image + 1) / 2 * 255, labels, atol=1e-3)
  if not settings:
    whole = batch['map'].astype(np.int32)
    for i in range(6):
      boxes = np.lib.stride_tricks.sliding_window_view(whole[i], (8, 8, 8))
      assert (boxes == labels[i]).all(axis=(3, 4, 5)).any()


def test_crops_around_foreground():
  """The place in the middle has a class, unless the border is near."""
  transform, batch = numbered(make_config(foreground=1.0))
  batch['map'] = np.zeros_like(batch['map'])
  batch['map'][:, 7, 6, 5] = 2
  labels = np.asarray(transform(batch, stand_in.rows(*range(6)))['map'])
  assert (labels[:, 4, 4, 4] == 2).all()
  batch['map'][:] = 0  # then anywhere
  assert transform(batch, stand_in.rows(*range(6)))['map'].shape == (6, 8, 8, 8)
