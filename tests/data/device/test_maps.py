"""Maps of classes are cropped and mirrored as their images, on the device."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax.data import features
from vit_jax.data import target_kinds
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry

SIZE = (96, 120)
COUNT = 8
CLASSES = 200


def make_features(size=SIZE):
  return {
    'image': features.Image(size),
    'map': target_kinds.SegmentationMap(tuple(map(str, range(CLASSES)))),
  }


def make_config(**data) -> ml_collections.ConfigDict:
  config = config_lib.default()
  # Left as they are: 0 to 255.
  config.data.update(mean=(0.0,), std=(1 / 255,), channels=1)
  config.data.update(image_size=(72, 80), antialias=False)
  config.data.update(data)
  return config


def make_batch() -> dict[str, np.ndarray]:
  """Returns images whose grey levels are their labels, in blocks."""
  blocks = np.random.default_rng(0).integers(1, CLASSES, (COUNT, 4, 5))
  labels = blocks.repeat(24, 1).repeat(24, 2).astype(np.uint8)
  return {'image': labels[..., None], 'map': labels}


def train(config, batch, rows=None, key=1, **settings):
  transform = jax.jit(
    views.train_transform(config, make_features(), **settings)
  )
  rows = jnp.arange(COUNT) if rows is None else rows
  return jax.device_get(transform(batch, Rng(jax.random.key(key), rows)))


OPTIONS = {'pad': '(3)', 'random_resized': '(scale=(0.3, 0.9))'}
ON_DEVICE = [x for x in geometry.CROPS if x != 'scaled']


@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
@pytest.mark.parametrize('crop', ON_DEVICE)
def test_a_map_follows_its_image(crop, interpolation):
  config = make_config(
    crop=crop + OPTIONS.get(crop, ''), interpolation=interpolation
  )
  batch = make_batch()
  prepared = train(config, batch)
  labels = prepared['map']
  assert labels.dtype == np.int32 and labels.shape == (COUNT, 72, 80)
  assert set(np.unique(labels)) <= {*np.unique(batch['map']), 255}
  pixels = np.round(prepared['image'][..., 0])
  is_padding = labels == 255
  assert is_padding.any() == (crop == 'pad')
  inner = stand_in.same_neighbours(labels)
  # Bicubic weights reach two stored pixels, at most four of an enlarged crop.
  for _ in range(3 if interpolation == 'bicubic' else 0):
    inner &= stand_in.same_neighbours(inner.astype(int))
  assert inner.mean() > 0.2
  expected = np.where(is_padding, 0, labels)
  np.testing.assert_array_equal(pixels[inner], expected[inner])


def test_evaluation_takes_the_middle():
  config, batch = (
    make_config(image_size=(80, 100), eval_resize=SIZE),
    make_batch(),
  )
  prepare = jax.jit(views.eval_batch(config, make_features()))
  actual = prepare(batch | {'index': np.arange(COUNT)})
  expected = batch['map'][:, 8:88, 10:110]
  np.testing.assert_array_equal(actual['map'], expected)
  np.testing.assert_allclose(actual['image'][..., 0], expected, atol=1e-3)
  # What the host has cropped already is only converted.
  config.data.image_size = SIZE
  kept = views.eval_batch(config, make_features(None))(batch)
  np.testing.assert_array_equal(kept['map'], batch['map'])


def test_several_crops_of_an_image_have_no_map():
  crop = geometry.Crop('random_resized', (16, 16), None, (0.3, 1.0))
  made = {'global': geometry.View(crop, 2)}
  prepared = train(make_config(), make_batch(), views=made)
  assert set(prepared) == {'global'}


def test_colours_may_change():
  config = make_config()
  config.augment.update(policy='3augment', jitter='jitter(0.3, 0.3, 0.0, 0.0)')
  plain = train(make_config(), make_batch())
  prepared = train(config, make_batch())
  np.testing.assert_array_equal(prepared['map'], plain['map'])
  assert (prepared['image'] != plain['image']).any()
