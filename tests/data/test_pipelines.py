"""Images are prepared for models of others as their own libraries do it."""

import io
import json
import math

from foreign import random_model
import numpy as np
import other_libraries
from photographs import differences
from photographs import MEAN
from photographs import STD
from PIL import Image
import pytest

import vit_jax
from vit_jax import data
from vit_jax.data.host import crop_modes
from vit_jax.data.host import geometry
from vit_jax.weights.formats import export


def timms(image, size, crop_pct, mode, interpolation):
  """Does what timm's `create_transform` composes for evaluation.

  Of timm/data/transforms_factory.py and torchvision's Resize, CenterCrop,
  ToTensor and Normalize; as of timm 1.0.31 and torchvision 0.28.
  """
  scaled = int(size[0] / crop_pct), int(size[1] / crop_pct)
  width, height = image.size
  if mode == 'squash':
    new = scaled
  elif mode == 'border':
    ratio = max(height / scaled[0], width / scaled[1])
    new = round(height / ratio), round(width / ratio)
  elif size[0] == size[1]:
    short = min(width, height)
    new = int(scaled[0] * height / short), int(scaled[0] * width / short)
  else:  # ResizeKeepRatio
    ratio = min(height / scaled[0], width / scaled[1])
    new = round(height / ratio), round(width / ratio)
  image = image.resize(new[::-1], Image.Resampling[interpolation.upper()])
  top, left = ((n - m) / 2.0 for n, m in zip(new, size, strict=True))
  top = round(top) if top > 0 else math.floor(-top) * -1
  left = round(left) if left > 0 else math.floor(-left) * -1
  cut = Image.new('RGB', size[::-1], tuple(round(255 * x) for x in MEAN))
  cut.paste(image, (-left, -top))
  pixels = np.asarray(cut, np.float32) / 255
  return (pixels - np.float32(MEAN)) / np.float32(STD)


@pytest.mark.parametrize(
  'size,crop_pct,mode,interpolation',
  [
    ((64, 64), 0.9, 'center', 'bicubic'),
    ((64, 64), 0.875, 'center', 'bilinear'),
    ((72, 72), 0.95, 'center', 'bicubic'),
    ((64, 64), 1.0, 'center', 'bicubic'),
    ((64, 64), 0.9, 'squash', 'bicubic'),
    ((64, 40), 0.9, 'center', 'bicubic'),
    ((112, 112), 0.875, 'center', 'bicubic'),  # 128 and not 129
    ((48, 80), 0.875, 'squash', 'bilinear'),
    ((64, 64), 0.9, 'border', 'bicubic'),
    ((40, 64), 1.0, 'border', 'bilinear'),
  ],
)
def test_timms_pixels(tmp_path, jpegs, size, crop_pct, mode, interpolation):
  export.write(random_model(size=size), tmp_path / 'x', 'timm', 'here')
  path = tmp_path / 'x' / 'config.json'
  config = json.loads(path.read_text())
  del config['vit_jax']  # timm does not write this
  config['pretrained_cfg'] |= {
    'mean': MEAN,
    'std': STD,
    'crop_pct': crop_pct,
    'crop_mode': mode,
    'interpolation': interpolation,
  }
  path.write_text(json.dumps(config))
  loaded = vit_jax.load(tmp_path / 'x')

  def theirs(image):
    return timms(image, size, crop_pct, mode, interpolation)

  assert max(differences(loaded.preprocess, jpegs, theirs)) < 1e-6
  # It is written as it was read, in each format and in a work directory's file.
  for form in ('timm', 'google'):
    export.write(loaded, tmp_path / form, form, 'here')
    assert vit_jax.load(tmp_path / form).preprocess == loaded.preprocess
  written = json.loads((tmp_path / 'timm' / 'config.json').read_text())
  written = written['pretrained_cfg']
  assert (written['crop_mode'], written['interpolation']) == (
    mode,
    interpolation,
  )
  assert written['crop_pct'] == crop_pct
  stored = json.loads(json.dumps(loaded.preprocess.to_dict()))
  assert data.Preprocess.from_dict(stored) == loaded.preprocess


_CROP_PCTS = (0.84, 0.875, 0.9, 0.92, 0.935, 0.94, 0.95, 0.96, 0.965, 1.0)


@pytest.fixture(scope='module')
def from_timm(tmp_path_factory):
  """A function that makes the preprocessing of a file of timm's."""
  path = tmp_path_factory.mktemp('timm') / 'x'
  export.write(random_model(size=(64, 64)), path, 'timm', 'here')
  config = json.loads((path / 'config.json').read_text())
  del config['vit_jax']

  def make(image_size=None, **pretrained):
    config['pretrained_cfg'] |= {'mean': MEAN, 'std': STD} | pretrained
    (path / 'config.json').write_text(json.dumps(config))
    return vit_jax.load(path, image_size=image_size).preprocess

  return make


@pytest.mark.parametrize('crop_pct', _CROP_PCTS)
def test_sizes_follow_the_fraction(from_timm, crop_pct):
  preprocess = from_timm(crop_pct=crop_pct, crop_mode='center')
  for side in range(32, 513):
    resized = math.floor(side / crop_pct)
    assert preprocess.at_size((side, side)).resize == resized, side
    # By way of a third size, none of which is remembered.
    back = preprocess.at_size((37, 41)).at_size((side, side))
    assert back.resize == resized, side
  for side in (112, 160, 161):
    config = preprocess.to_config()
    config.data.image_size = (side, side)
    assert geometry.eval_crop(config).resize == math.floor(side / crop_pct)


@pytest.mark.parametrize('mode', crop_modes.CROP_MODES)
@pytest.mark.parametrize('interpolation', geometry.INTERPOLATIONS)
def test_pixels_of_the_timm_that_is_installed(
  from_timm, jpegs, mode, interpolation
):
  """Equal but for the rounding of the normalisation in float32."""
  create_transform = other_libraries.imported('timm.data').create_transform
  fields = {'interpolation': interpolation, 'crop_mode': mode}
  sizes = [(112, 112), (161, 161), (64, 41), (41, 64), (33, 35)]
  for crop_pct, size in zip(_CROP_PCTS[:5], sizes, strict=True):
    transform = create_transform(
      (3, *size), crop_pct=crop_pct, mean=MEAN, std=STD, **fields
    )
    preprocess = from_timm(crop_pct=crop_pct, **fields).at_size(size)

    def theirs(image, transform=transform):
      return transform(image).numpy().transpose(1, 2, 0)

    assert max(differences(preprocess, jpegs, theirs)) < 1e-6, size


def test_another_image_size_from_timms_file(from_timm, jpegs):
  """Through `load`, a work directory's file and a config."""
  preprocess = from_timm((112, 160), crop_pct=0.875, crop_mode='border')
  assert preprocess.resize == (128, 182)
  stored = json.loads(json.dumps(preprocess.to_dict()))
  again = data.Preprocess.from_dict(stored)
  np.testing.assert_array_equal(again(jpegs[:2]), preprocess(jpegs[:2]))
  crop = geometry.eval_crop(preprocess.to_config())
  assert (crop.resize, crop.crop_pct, crop.border) == ((128, 182), 0.875, True)
  with pytest.raises(vit_jax.config.UserError, match='182'):
    data.Preprocess.from_dict(stored | {'resize': [128, 183]})


def test_evaluation_has_the_same_pixels(tmp_path, jpegs):
  """A split that `evaluate` reads, through the whole input pipeline."""
  (tmp_path / 'train' / 'a').mkdir(parents=True)
  for path in jpegs:
    (tmp_path / 'train' / 'a' / path.name).write_bytes(path.read_bytes())
  preprocess = data.Preprocess(
    classes=('a',),
    image_size=(64, 64),
    channels=3,
    mean=(0.0,),
    std=(1.0,),
    resize=71,
    interpolation='bicubic',
    resize_like='timm',
  )
  config = preprocess.to_config()
  config.data.name = f'folder:{tmp_path}'
  source = data.open_source(config, 'train')
  batch = next(data.eval_batches(source, config, batch_size=len(jpegs)))
  paths = [source.read(i).origin for i in range(len(jpegs))]
  np.testing.assert_array_equal(
    batch['image'], np.round(255 * preprocess(paths)).astype(np.uint8)
  )


def test_timms_size_for_images_of_another_size(tmp_path):
  """224 of 248 is a crop of 0.9, which makes 426 of 384 and not 425."""
  export.write(random_model(size=(224, 224)), tmp_path / 'x', 'timm', 'here')
  path = tmp_path / 'x' / 'config.json'
  config = json.loads(path.read_text())
  del config['vit_jax']
  config['pretrained_cfg']['crop_pct'] = 0.9
  path.write_text(json.dumps(config))
  assert vit_jax.load(tmp_path / 'x').preprocess.resize == 248
  larger = vit_jax.load(tmp_path / 'x', image_size=384)
  assert larger.preprocess.resize == 426


def test_files_of_before_are_bilinear():
  stored = {
    'classes': ['a'],
    'image_size': [16, 16],
    'channels': 3,
    'mean': [0.5],
    'std': [0.5],
    'resize': 20,
    'antialias': True,
  }
  preprocess = data.Preprocess.from_dict(stored)
  assert (preprocess.interpolation, preprocess.resize_like) == ('bilinear', '')


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_channels_are_resized_each_by_itself(channels):
  """An alpha does not weigh the colours, and grey stays grey."""
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (50, 40, channels), np.uint8)
  preprocess = data.Preprocess(
    (), (20, 16), channels, (0.0,), (1 / 255,), interpolation='bicubic'
  )
  pixels = preprocess(image)[0]
  for c in range(channels):
    expected = Image.fromarray(image[..., c]).resize(
      (16, 20), Image.Resampling.BICUBIC
    )
    np.testing.assert_allclose(pixels[..., c], expected, atol=1e-4)


def test_a_damaged_file_is_still_named(tmp_path, jpegs):
  data_of = jpegs[0].read_bytes()
  (tmp_path / 'x.jpg').write_bytes(data_of[: len(data_of) // 2])
  preprocess = data.Preprocess(
    (), (16, 16), 3, (0.5,), (0.5,), resize_like='timm'
  )
  with pytest.raises(vit_jax.config.UserError, match=r'x\.jpg is damaged'):
    preprocess(tmp_path / 'x.jpg')
  assert preprocess(io.BytesIO(data_of).getvalue()).shape == (1, 16, 16, 3)
