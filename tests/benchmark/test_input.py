"""The benchmark's part about images, with few of them; no time is asserted."""

import json

import numpy as np
import pytest

from benchmarks import input as input_lib
from benchmarks import input_peers
from benchmarks import photographs
from vit_jax import config as config_lib
from vit_jax.data.host import decode

FEW = input_lib.Sizes(photographs=4, large=1, small=8, batch=2, epochs=1)


def measure(rivals):
  config = config_lib.default()
  config.train.batch_size = 4
  return input_lib.measure(config, blocks=2, rivals=rivals, sizes=FEW)


def test_every_row_has_its_ratio():
  rows = json.loads(json.dumps(measure(('cv2', 'pillow')), allow_nan=False))
  assert list(rows) == [
    'crop/cv2',
    'crop_smooth/cv2',
    'crop_smooth/pillow',
    'large/cv2',
    'large/pillow',
    'large/whole',
    'large_eval/whole',
    'folder_1/cv2_1',
    'folder_2/folder_1',
    'records_2/records_1',
    'records_1/folder_1',
    'records_2/folder_2',
    'folder_smooth_2/folder_2',
    'small_1/imread',
    'small_2/imread',
    'small_2/small_1',
  ]
  for name, row in rows.items():
    low, high = row['ratio_range']
    assert 0 < low <= row['ratio'] <= high
    assert row['images_per_second'] > 0 and row['baseline'] > 0
    assert row['against'] == name.split('/')[1]
    assert row.get('difference', 0) < 3
  assert rows['large_eval/whole']['reduced'] == 1
  assert rows['large_eval/whole']['least_psnr'] > 30


def test_other_images_are_not_timed(monkeypatch):
  def black(cut, size, antialias):
    return np.zeros((*size, 3), np.uint8)

  monkeypatch.setattr(input_peers, '_with_cv2', black)
  with pytest.raises(config_lib.UserError, match='from those of cv2: by'):
    measure(('cv2',))


def test_batches_of_other_images_are_not_timed(monkeypatch):
  """Here of other boxes."""
  monkeypatch.setattr(input_lib, '_CROP', 2)
  with pytest.raises(
    config_lib.UserError, match='from those of the files of folder: by'
  ):
    measure(())


@pytest.mark.skipif(
  input_peers.create('tensorflow') is None, reason='TensorFlow is needed'
)
def test_tensorflow():
  rows = measure(('tensorflow',))
  assert {'crop/tensorflow', 'folder_2/tensorflow_2'} <= set(rows)


def test_photographs_are_of_the_size_that_they_have():
  first, second = photographs.make(2, 375, 500)
  assert first == photographs.make(1, 375, 500)[0] != second
  assert 50_000 < len(first) < 80_000
  assert decode.jpeg_size(first) == (375, 500)
