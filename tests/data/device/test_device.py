"""Crops on the device, against Pillow, the host and jax.image; augmentation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from PIL import Image
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import augmentations
from vit_jax.data import features
from vit_jax.data.device import boxes
from vit_jax.data.device import mixing
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import transforms
from vit_jax.data.host.geometry import Crop

SIZE = (24, 30)
IMAGES = np.stack([stand_in.pixels(i, *SIZE) // 2 for i in range(16)])
LABELS = np.arange(16, dtype=np.int32) % 3
ROWS = jnp.arange(len(IMAGES))
KEY = jax.random.key(1)


def make_features(size):
  return {
    'image': features.Image(size),
    'label': features.Label(('a', 'b', 'c')),
  }


def make_config(**data) -> ml_collections.ConfigDict:
  config = config_lib.default()
  # Left as they are: 0 to 255.
  config.data.update(mean=(0.0,), std=(1 / 255,), image_size=(16, 20))
  config.data.update(data)
  return config


@functools.cache
def compiled(transform, **data):
  return jax.jit(transform(make_config(**data)))


def train_transform(config, size=SIZE):
  return views.train_transform(config, make_features(size))


def eval_transform(config):
  return views.eval_transform(config, SIZE)


def train(images=IMAGES, key=KEY, rows=ROWS, **data) -> np.ndarray:
  batch = {'image': images, 'label': np.zeros(len(images), np.int32)}
  batch = compiled(train_transform, **data)(batch, Rng(key, rows))
  return np.asarray(batch['image'])


def evaluate(images=IMAGES, **data) -> np.ndarray:
  return np.asarray(compiled(eval_transform, **data)(images))


resample = jax.jit(boxes.resample, static_argnames='crop')


BOXES = [(0, 0, 24, 30), (3, 5, 17, 11), (1, 2, 5, 8), (20, 27, 4, 3)]


@pytest.mark.parametrize('box', BOXES)
@pytest.mark.parametrize('size', [(16, 20), (40, 9)])
@pytest.mark.parametrize('interpolation', geometry.INTERPOLATIONS)
def test_resample_equals_pillow(box, size, interpolation):
  crop = Crop('random_resized', size, interpolation=interpolation)
  boxes = jnp.tile(jnp.array(box, jnp.float32), (len(IMAGES), 1))
  actual = resample(jnp.asarray(IMAGES), boxes, crop, None)
  top, left, height, width = box
  for image, result in zip(IMAGES, actual, strict=True):
    expected = Image.fromarray(image).resize(
      size[::-1],
      Image.Resampling[interpolation.upper()],
      box=(left, top, left + width, top + height),
    )
    # Pillow rounds also between columns and rows.
    difference = np.abs(np.asarray(expected, float) - result)
    assert difference.max() <= 1 + (interpolation == 'bicubic')


@pytest.mark.parametrize('antialias', [True, False])
@pytest.mark.parametrize('box', BOXES)
def test_resample_equals_scale_and_translate(box, antialias):
  crop = Crop('random_resized', (16, 20), antialias=antialias)
  boxes = jnp.array([box], jnp.float32)
  actual = resample(jnp.asarray(IMAGES[:1]), boxes, crop, None)[0]
  scale = np.array([16 / box[2], 20 / box[3]], np.float32)
  expected = jax.image.scale_and_translate(
    IMAGES[0].astype(np.float32),
    (16, 20, 3),
    (0, 1),
    scale,
    -np.float32(box[:2]) * scale,
    'linear',
    antialias=antialias,
    precision=jax.lax.Precision.HIGHEST,
  )
  np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_resample_flips():
  crop = Crop('random_resized', (16, 20))
  boxes = jnp.array([BOXES[1]] * 2, jnp.float32)
  images = jnp.asarray(IMAGES[[3, 3]])
  plain, flipped = resample(images, boxes, crop, jnp.array([False, True]))
  np.testing.assert_allclose(flipped, plain[:, ::-1], atol=1e-4)


@pytest.mark.parametrize(
  'size, scale', [((24, 30), (0.2, 0.5)), ((10, 100), (0.9, 1.0))]
)
def test_boxes_are_drawn_as_on_the_host(size, scale):
  crop = Crop('random_resized', (8, 8), None, scale, (0.5, 2.0))
  sample = jax.jit(jax.vmap(functools.partial(boxes.sample_box, size, crop)))
  actual = np.asarray(sample(jax.random.split(KEY, 500)))
  rngs = [np.random.default_rng(i) for i in range(500)]
  expected = np.array([transforms.sample_box(size, crop, r) for r in rngs])
  np.testing.assert_array_equal(actual, np.round(actual))  # whole pixels
  assert (actual[:, :2] >= 0).all()
  assert (actual[:, :2] + actual[:, 2:] <= size).all()
  np.testing.assert_allclose(actual.mean(0), expected.mean(0), atol=1.0)
  np.testing.assert_allclose(actual.std(0), expected.std(0), atol=1.0)


ON_DEVICE = [x for x in geometry.CROPS if x != 'scaled']


@pytest.mark.parametrize('kind', ON_DEVICE)
def test_an_example_depends_on_its_row_alone(kind):
  whole = train(crop=kind)
  assert whole.shape == (16, 16, 20, 3) and whole.dtype == np.float32
  turn = functools.partial(np.roll, shift=5, axis=0)
  moved = train(turn(IMAGES), rows=turn(ROWS), crop=kind)
  np.testing.assert_allclose(moved, turn(whole), atol=1e-4)
  other = train(key=jax.random.key(2), crop=kind)
  assert (other != whole).any()  # at least flipped


def test_pad_moves_images_over_black():
  image = stand_in.pixels(0, *SIZE) | 1  # nowhere black
  images = np.repeat(image[None], 400, axis=0)
  config = {'crop': 'pad(1)', 'image_size': SIZE}
  actual = train(images, rows=jnp.arange(400), **config)
  padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
  counts = {}
  for y, x, step in itertools.product(range(3), range(3), (1, -1)):
    window = padded[y : y + SIZE[0], x : x + SIZE[1]][:, ::step]
    matches = np.abs(actual - window).max(axis=(1, 2, 3)) < 1e-3
    counts[y, x, step] = int(matches.sum())
  assert sum(counts.values()) == 400
  assert min(counts.values()) > 5  # of about 22


def test_random_crop_is_a_window_of_the_resized_image():
  actual = train(crop='random', resize=(20, 25), flip=False)
  resized = evaluate(eval_resize=(20, 25), image_size=(20, 25))
  for image, whole in zip(actual, resized, strict=True):
    assert any(
      np.abs(image - whole[y : y + 16, x : x + 20]).max() < 1e-3
      for y in range(5)
      for x in range(6)
    )


@pytest.mark.parametrize('eval_resize', [None, 18, (20, 26), SIZE])
def test_evaluation_is_that_of_the_host(eval_resize):
  actual = evaluate(eval_resize=eval_resize)
  crop = geometry.eval_crop(make_config(eval_resize=eval_resize))
  rng = np.random.default_rng(0)
  for image, result in zip(IMAGES, actual, strict=True):
    expected = transforms.transform(image, 3, crop, rng).astype(float)
    # They smooth differently when they shrink.
    assert np.abs(expected - result).mean() < (
      0.01 if eval_resize == SIZE else 2
    )


# Also timm's, with odd borders.
_RESIZES = [17, (19, 26), 'center(0.9)', 'squash(0.8)', 'border(0.9, 5, 6, 7)']


@pytest.mark.parametrize('like', ['', *geometry.LIKE])
@pytest.mark.parametrize('eval_resize', _RESIZES)
def test_bicubic_evaluation_is_that_of_the_host(eval_resize, like):
  """Also where what is left over beside the crop is odd."""
  settings = {'interpolation': 'bicubic', 'resize_like': like}
  settings |= {'eval_resize': eval_resize, 'image_size': (16, 16)}
  actual = evaluate(**settings)
  crop = geometry.eval_crop(make_config(**settings))
  rng = np.random.default_rng(0)
  for image, result in zip(IMAGES, actual, strict=True):
    expected = transforms.transform(image, 3, crop, rng).astype(float)
    assert np.abs(expected - result).max() < 2


def test_images_of_the_right_size_are_only_normalised():
  config = make_config(
    image_size=SIZE, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
  )
  transform = views.eval_transform(config, SIZE)
  expected = (IMAGES / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
  np.testing.assert_allclose(transform(IMAGES), expected, atol=1e-5)
  # And so are those that the host has cropped.
  batch = {'image': IMAGES, 'label': LABELS, 'index': LABELS + 7}
  cropped = train_transform(config, None)(batch, Rng(KEY, ROWS))
  np.testing.assert_allclose(cropped['image'], expected, atol=1e-5)
  np.testing.assert_array_equal(cropped['label'], LABELS)
  np.testing.assert_array_equal(cropped['index'], LABELS + 7)


# All that `config.augment` can do.
EVERYTHING = {
  'policy': '3augment',
  'jitter': 'jitter(0.3, 0.0, 0.0, 0.0)',
  'erase': 'erase(0.5)',
  'mixup': 0.8,
  'cutmix': 1.0,
}


def augment_config(**settings):
  config = make_config(crop='pad', mean=(0.4,), std=(0.2,))
  config.augment.update(settings)
  config.model.num_classes = 3
  return config


@functools.cache
def augmented(**settings):
  return jax.jit(train_transform(augment_config(**settings)))


def augment(images=IMAGES, labels=LABELS, rows=ROWS, **settings):
  batch = {'image': images, 'label': labels}
  batch = augmented(**settings)(batch, Rng(KEY, rows))
  assert batch['image'].dtype == np.float32
  return np.asarray(batch['image']), np.asarray(batch['label'])


def test_what_is_done_to_a_pair_depends_on_its_rows_alone():
  images, labels = augment(**EVERYTHING)
  assert images.shape == (16, 16, 20, 3) and labels.shape == (16, 3)
  rows = np.arange(16).reshape(8, 2)[[3, 0, 6, 7, 5, 2, 1, 4]].ravel()
  actual = augment(IMAGES[rows], LABELS[rows], rows, **EVERYTHING)
  np.testing.assert_allclose(actual[0], images[rows], atol=1e-5)
  np.testing.assert_array_equal(actual[1], labels[rows])


def test_the_order_is_policy_jitter_normalise_erase_mix():
  """Each is done to what those before it have left, by a key of its own."""
  config = augment_config(**EVERYTHING).augment
  keys = [
    jax.vmap(
      lambda row, n=n: jax.random.fold_in(jax.random.fold_in(KEY, row), n)
    )
    for n in range(2, 6)
  ]
  keys = [each(ROWS) for each in keys]
  policy = augmentations.make(config.policy, 'augment.policy')
  jitter = augmentations.make(config.jitter, 'augment.jitter')
  erase = augmentations.make(config.erase, 'augment.erase')

  @jax.jit
  def one_by_one(images):
    images = policy(images, keys[0])
    images = jitter(images, keys[1])
    images = (images.astype(jnp.float32) / 255 - 0.4) / 0.2
    images = erase(images, keys[2])
    shares = {'label': jax.nn.one_hot(LABELS, 3)}
    images, targets = mixing.mix(images, shares, keys[3], config)
    return images, targets['label']

  cropped = np.round(255 * (0.2 * augment()[0] + 0.4)).astype(np.uint8)
  images, labels = one_by_one(cropped)
  actual = augment(**EVERYTHING)
  np.testing.assert_allclose(actual[0], images, atol=1e-4)
  np.testing.assert_array_equal(actual[1], labels)


def several(views_of, **settings):
  """Returns the crops of all images as grey levels, [B, crops, H, W, C]."""
  config = make_config(crop='center', flip=False)
  config.augment.update(settings)
  crop = geometry.train_crop(config)
  crop_views = {name: geometry.View(crop, n) for name, n in views_of.items()}
  transform = views.train_transform(config, make_features(SIZE), crop_views)
  batch = {'image': IMAGES, 'label': LABELS}
  actual = jax.jit(transform)(batch, Rng(KEY, ROWS))
  return np.concatenate([np.round(actual[name]) for name in crop_views], axis=1)


def test_each_crop_has_its_probabilities():
  """In the order of the views; the last holds for all further crops."""
  crops = {'global': 2, 'local': 3}
  plain = several(crops)
  actual = several(crops, gray=(1.0, 0.0), solarize=(0.0, 1.0, 0.0))
  is_grey = (actual == actual[..., :1]).all(axis=(2, 3, 4))
  np.testing.assert_array_equal(is_grey.all(axis=0), [1, 0, 0, 0, 0])
  inverted = np.where(plain[:, 1] < 128, plain[:, 1], 255 - plain[:, 1])
  np.testing.assert_array_equal(actual[:, 1], inverted)
  np.testing.assert_array_equal(actual[:, 2:], plain[:, 2:])
  blurred = several(crops, blur=(1.0, 0.0, 1.0))
  changed = (blurred != plain).any(axis=(2, 3, 4)).mean(axis=0)
  # A weak blur may change no grey level.
  assert (changed[[0, 2, 3, 4]] > 0.5).all() and changed[1] == 0
  assert (blurred[:, 2] != blurred[:, 3]).any()


def test_more_probabilities_than_crops_are_refused():
  with pytest.raises(UserError, match=r'augment.blur is .*takes 2 of an image'):
    several({'pair': 2}, blur=(1.0, 0.1, 0.5))


def test_what_interpolates_is_rounded_for_a_policy():
  config = {'crop': 'random_resized', 'flip': False}
  whole = train(**config)
  assert (whole != np.round(whole)).any()
  config = make_config(**config)
  config.augment.jitter = 'jitter(0, 0, 0, 0)'  # changes nothing
  transform = jax.jit(train_transform(config))
  batch = {'image': IMAGES, 'label': LABELS}
  actual = transform(batch, Rng(KEY, ROWS))['image']
  np.testing.assert_allclose(actual, np.round(whole), atol=1e-4)


def test_mixed_images_are_those_that_are_not_mixed():
  plain, _ = augment()
  mixed, labels = augment(cutmix=1.0)
  # Two programs may round a normalised value differently.
  own = np.isclose(mixed, plain, atol=1e-6).all(axis=-1)
  pairs = plain.reshape(8, 2, *plain.shape[1:])[:, ::-1]
  others = np.isclose(mixed, pairs.reshape(plain.shape), atol=1e-6).all(axis=-1)
  assert (own | others).all() and others.any()
  of_own = np.take_along_axis(labels, LABELS[:, None], axis=1)[:, 0]
  assert (of_own >= 0).all() and of_own.min() < 1
