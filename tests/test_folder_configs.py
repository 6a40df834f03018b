"""The configs for images, and for images and masks, of one's own."""

import shutil

import commands
import cv2
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib

QUICK = {
  'train.duration': '1 steps',
  'optim.warmup': '0 steps',
  'model.hidden_size': 16,
  'model.mlp_dim': 32,
  'model.depth': 2,
  'model.scan': False,
}


def draw(folder, *flags):
  path = tiny.ROOT / 'scripts' / 'draw_shapes.py'
  result = commands.python(path, folder, *flags)
  assert result.returncode == 0, result.stderr
  return folder


def load(name, arg, values=QUICK):
  return config_lib.load(f'{tiny.ROOT}/configs/{name}.py:{arg}', values)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  """Images of three classes that differ in size."""
  folder = tmp_path_factory.mktemp('classes') / 'images'
  return draw(folder, '--train=5', '--val=2')


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
  """Images that differ in size, with maps, and without splits."""
  return draw(
    tmp_path_factory.mktemp('maps') / 'scenes', '--masks', '--count=9'
  )


def test_images_of_classes(images, tmp_path):
  config = load('folder_small', f'folder:{images}')
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert results.metrics['val/examples'] == 6
  vit = vit_jax.load(tmp_path / 'run')
  assert vit.classes == ('dots', 'squares', 'stripes')
  assert vit.predict([np.zeros((30, 50, 3), np.uint8)]).shape == (1, 3)


def test_images_with_maps(scenes, tmp_path):
  config = load('folder_segmentation', f'folder:{scenes}')
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert results.metrics['val/examples'] == 2
  assert 0 <= results.metrics['val/miou'] <= 1
  assert 'val/iou/background' in results.metrics


@pytest.mark.parametrize('name', ['folder_small', 'folder_segmentation'])
@pytest.mark.parametrize(
  ('splits', 'expected'),
  [
    (('train', 'val'), ('train', 'val')),
    (('Training', 'Validation'), ('train', 'val')),
    (('train', 'test'), ('train', 'val')),  # test is taken for it
    (('train',), ('train[:80%]', 'train[80%:]')),
    ((), ('train[:80%]', 'train[80%:]')),
  ],
)
def test_a_fifth_is_held_out_where_there_is_no_val(
  name, splits, expected, images, scenes, tmp_path
):
  for split in splits or ('.',):
    if name == 'folder_small':
      shutil.copytree(images / 'val', tmp_path / split, dirs_exist_ok=True)
    else:
      for folder in ('images', 'masks'):
        shutil.copytree(scenes / folder, tmp_path / split / folder)
  shutil.copy(scenes / 'classes.txt', tmp_path)
  config = load(name, f'folder:{tmp_path}')
  assert (config.data.split, config.evals.val.split) == expected


@pytest.mark.parametrize('name', ['finetune', 'lora'])
def test_fine_tuning_holds_a_fifth_out(name, images, tmp_path):
  config = load(name, f'ViT-B/16,folder:{images}')
  assert (config.data.split, config.evals.val.split) == ('train', 'val')
  shutil.copytree(images / 'val', tmp_path, dirs_exist_ok=True)
  config = load(name, f'ViT-B/16,folder:{tmp_path}')
  splits = config.data.split, config.evals.val.split
  assert splits == ('train[:80%]', 'train[80%:]')


@pytest.mark.parametrize('name', ['folder_small', 'folder_segmentation'])
def test_a_folder_that_is_not_there_is_named_by_the_run(name, tmp_path):
  config = load(name, f'folder:{tmp_path}/none')
  with pytest.raises(config_lib.UserError, match='there is no folder'):
    vit_jax.train(config, str(tmp_path / 'run'))
  assert not (tmp_path / 'run').exists()


def test_drawn_maps_fit_their_images(scenes):
  paths = sorted((scenes / 'images').iterdir())
  sizes = {cv2.imread(str(path)).shape[:2] for path in paths}
  assert len(paths) == 9 and len(sizes) > 5
  for path in paths:
    labels = cv2.imread(str(scenes / 'masks' / f'{path.stem}.png'), -1)
    assert labels.shape == cv2.imread(str(path)).shape[:2]
    assert labels.max() <= 3
