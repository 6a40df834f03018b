"""Random erasing."""

import functools

import jax
import numpy as np

from vit_jax.data.device import erasing

SIZE = (24, 30)
IMAGES = np.full((400, *SIZE, 3), 7, np.float32)
KEYS = jax.random.split(jax.random.key(0), len(IMAGES))
AREA, RATIO = (0.02, 1 / 3), (0.3, 10 / 3)


@functools.cache
def compiled(probability, area):
  def erase(images, keys):
    return erasing.Erase(probability, area, RATIO)(images, keys)

  return jax.jit(erase)


def erase(images=IMAGES, keys=KEYS, probability=1.0, area=AREA) -> np.ndarray:
  return np.asarray(compiled(probability, area)(images, keys))


def test_rectangles_become_noise():
  images = erase()
  boxes = []
  for image in images:
    changed = image != 7
    assert (changed == changed[..., :1]).all()
    y, x = np.nonzero(changed[..., 0])
    boxes.append((y.min(), x.min(), np.ptp(y) + 1, np.ptp(x) + 1))
    assert len(y) == boxes[-1][2] * boxes[-1][3]  # all of the rectangle
  noise = images[images != 7]
  assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
  assert len(np.unique(noise)) > 0.99 * len(noise)

  top, left, height, width = np.array(boxes).T
  area = height * width / (SIZE[0] * SIZE[1])
  assert area.min() < 0.04 and 0.31 < area.max() < 0.36
  assert abs(area.mean() - np.mean(AREA)) < 0.02  # uniform
  ratio = np.log(height / width)
  assert abs(np.median(ratio)) < 0.1 and ratio.min() < -0.9 < 0.9 < ratio.max()
  assert height.max() < SIZE[0] and width.max() <= SIZE[1]
  for start, side, whole in [(top, height, 24), (left, width, 30)]:
    free = whole - side
    shares = start[free > 9] / free[free > 9]
    assert shares.min() == 0 and shares.max() == 1  # up to both edges
    assert abs(shares.mean() - 0.5) < 0.05


def test_probability():
  changed = (erase(probability=0.25) != 7).any(axis=(1, 2, 3))
  assert 0.19 < changed.mean() < 0.31
  assert (erase(probability=0.0) == IMAGES).all()


def test_what_never_fits_is_left_out():
  assert (erase(area=(1.0, 1.0)) == IMAGES).all()


def test_result_depends_on_own_key_alone():
  images = np.random.default_rng(0).random((8, *SIZE, 1), np.float32)
  order = np.random.default_rng(1).permutation(8)
  actual = erase(images, KEYS[:8])
  assert actual.dtype == np.float32 and (actual != images).any()
  assert (erase(images[order], KEYS[order]) == actual[order]).all()
  assert (erase(images[3:4], KEYS[3:4])[0] == actual[3]).all()
