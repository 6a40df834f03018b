"""Photographs of many sizes, and how far two pipelines are apart on them."""

import pathlib

import numpy as np
from PIL import Image
from PIL import ImageOps
import sklearn
import tiny

DATA = tiny.TESTS / 'data'
PHOTOGRAPHS = pathlib.Path(sklearn.__file__).parent / 'datasets' / 'images'
# (width, height): odd, upright, long, smaller and larger than the crop.
SIZES = [(501, 333), (199, 427), (97, 61), (61, 97), (64, 64), (90, 427)]
SIZES += [(65, 80), (1601, 1203)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def jpegs(folder):
  """Returns photographs, as JPEG files of many sizes; writes some of them."""
  paths = [*DATA.glob('*.jpg'), *PHOTOGRAPHS.glob('*.jpg')]
  assert len(paths) == 5
  pictures = [Image.open(path) for path in PHOTOGRAPHS.glob('*.jpg')]
  for i, size in enumerate(SIZES):
    picture, (width, height) = pictures[i % 2], size
    if width > picture.width:
      picture = picture.resize(size, Image.Resampling.LANCZOS)
    paths.append(folder / f'{width}x{height}.jpg')
    picture.crop((0, 0, width, height)).save(paths[-1], quality=90 + i)
  return paths


def opened(path):
  """Returns an image as transformers' `load_image` does."""
  return ImageOps.exif_transpose(Image.open(path)).convert('RGB')


def differences(preprocess, jpegs, reference):
  """Returns the mean difference of each image, of pixels in [0, 1]."""
  return [
    np.abs(
      (preprocess(path)[0] - reference(opened(path))) * preprocess.std
    ).mean()
    for path in jpegs
  ]
