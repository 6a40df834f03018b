import io

import cv2
import numpy as np
from PIL import Image
import pytest
import stand_in

from vit_jax.config import UserError
from vit_jax.data.host import geometry
from vit_jax.data.host import transforms
from vit_jax.data.host.geometry import Crop


def rng(seed: int = 0) -> np.random.Generator:
  return np.random.default_rng(seed)


def cropped(image: np.ndarray, crop: Crop, seed: int = 0) -> np.ndarray:
  return transforms.transform(image, image.shape[-1], crop, rng(seed))


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('kind', geometry.CROPS)
@pytest.mark.parametrize('size', [(30, 41), (7, 90), (90, 7), (1, 1), (16, 20)])
def test_any_image_becomes_of_the_size(kind, size, channels):
  image = np.resize(stand_in.pixels(1, *size), (*size, channels))
  for resize in (None, 24, (20, 33)):
    crop = Crop(
      kind, (16, 20), resize, (0.08, 1), (0.75, 1.33), pad=3, flip=True
    )
    for seed in range(3):
      actual = cropped(image, crop, seed)
      assert actual.shape == (16, 20, channels) and actual.dtype == np.uint8


@pytest.mark.parametrize('size', [(40, 60), (60, 40), (33, 33), (5, 200)])
def test_random_boxes_keep_area_and_ratio(size):
  crop = Crop('random_resized', (8, 8), None, (0.2, 0.5), (0.5, 2.0))
  boxes = np.array(
    [transforms.sample_box(size, crop, rng(seed)) for seed in range(300)]
  )
  top, left, height, width = boxes.T
  assert (top >= 0).all() and (left >= 0).all()
  assert (top + height <= size[0]).all() and (left + width <= size[1]).all()
  if min(size) > 30:  # there is room for them all
    area = height * width / (size[0] * size[1])
    assert 0.18 < area.min() < 0.25 and 0.45 < area.max() < 0.52
    ratio = width / height
    assert 0.45 < ratio.min() < 0.7 and 1.4 < ratio.max() < 2.2
    # As many wide as tall ones: the ratio is drawn from a logarithmic scale.
    assert 0.4 < (ratio > 1).mean() < 0.6
    assert top.std() > 1 and left.std() > 1


def test_box_that_never_fits_is_the_middle():
  crop = Crop('random_resized', (8, 8), None, (0.9, 1.0), (0.75, 1.33))
  assert transforms.sample_box((10, 100), crop, rng()) == (0, 43, 10, 13)
  assert transforms.sample_box((100, 10), crop, rng()) == (43, 0, 13, 10)


def test_whole_box_of_the_same_size_is_the_image():
  image = stand_in.pixels(0, 16, 16)
  crop = Crop('random_resized', (16, 16), None, (1, 1), (1, 1))
  np.testing.assert_array_equal(cropped(image, crop), image)
  flipped = Crop('random_resized', (16, 16), flip=True)
  seen = {cropped(image, flipped, seed).tobytes() for seed in range(20)}
  assert seen == {image.tobytes(), image[:, ::-1].tobytes()}


def test_pad_moves_the_image_over_black():
  image = stand_in.pixels(0, 16, 20) | 1  # nowhere black
  crop = Crop('pad', (16, 20), pad=2)
  padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
  windows = {
    padded[y : y + 16, x : x + 20].tobytes(): (y, x)
    for y in range(5)
    for x in range(5)
  }
  offsets = {windows[cropped(image, crop, s).tobytes()] for s in range(300)}
  assert len(offsets) == 25  # all of them


def test_center_crop_is_that_of_the_resized_image():
  image = stand_in.pixels(0, 32, 48)
  crop = Crop('center', (16, 16), 16)
  small = np.asarray(
    Image.fromarray(image).resize((24, 16), Image.Resampling.BOX)
  )
  actual = cropped(image, crop).astype(int)
  assert np.abs(actual - small[:, 4:20]).max() <= 1
  exact = Crop('center', (16, 16), (32, 48))
  np.testing.assert_array_equal(cropped(image, exact), image[8:24, 16:32])


def test_resized_keeps_the_ratio_and_holds_the_crop():
  assert Crop('center', (224, 224), 256).resized((500, 375)) == (341, 256)
  assert Crop('center', (224, 224)).resized((500, 375)) == (299, 224)
  assert Crop('center', (224, 224)).resized((224, 224)) == (224, 224)
  assert Crop('center', (224, 224), (256, 240)).resized((9, 9)) == (256, 240)
  # A tall image must still be wide enough.
  assert Crop('center', (224, 320), 256).resized((400, 300)) == (427, 320)
  for size in ((333, 500), (77, 91), (1, 700)):
    for target in ((224, 224), (31, 97)):
      height, width = Crop('center', target).resized(size)
      assert height >= target[0] and width >= target[1]
      assert height == target[0] or width == target[1]


@pytest.mark.parametrize('antialias', [True, False])
def test_antialias_smooths_what_is_shrunk(antialias):
  # Stripes: a quarter is white, but a half of what lies around the samples.
  level = 64 if antialias else 128
  for width in (64, 4):  # also shrunk one way, and enlarged the other
    image = np.zeros((64, width, 1), np.uint8)
    image[::4] = 255
    crop = Crop('center', (8, 8), (8, 8), antialias=antialias)
    assert np.abs(cropped(image, crop).astype(int) - level).max() <= 1


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_means_of_areas_are_those_of_opencv(channels):
  draw = rng(channels)
  for large in (False, True):
    for _ in range(1 if large else 100):
      height, width = (900, 1300) if large else draw.integers(8, 60, 2)
      image = draw.integers(0, 256, (height, width, channels), np.uint8)
      size = (
        int(draw.integers(1, height + 1)),
        int(draw.integers(1, width + 1)),
      )
      expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
      crop = cropped(image, Crop('center', size, size))
      np.testing.assert_array_equal(crop, expected.reshape(*size, channels))


def test_large_jpeg_is_as_sharp_as_if_decoded_whole():
  image = Image.fromarray(stand_in.pixels(0, 40, 60) // 2).resize((1200, 800))
  file = io.BytesIO()
  image.save(file, 'JPEG', quality=95)
  for crop in (
    Crop('center', (64, 64), 80),
    Crop('random_resized', (48, 64), None, (0.5, 0.9), (0.8, 1.2)),
  ):
    quick = transforms.transform(file.getvalue(), 3, crop, rng(1))
    slow = transforms.transform(np.asarray(image), 3, crop, rng(1))
    assert np.abs(quick.astype(int) - slow).mean() < 1


def test_endless_image_is_refused():
  image = np.zeros((1, 100_000, 3), np.uint8)
  with pytest.raises(UserError, match='strip has 1 x 100000 pixels: too long'):
    transforms.transform(image, 3, Crop('center', (224, 224)), rng(), 'strip')
