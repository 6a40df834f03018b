"""The contact sheet shows what a step of training feeds the model."""

import importlib
import re
import sys

import commands
import cv2
from flax import linen as nn
import jax
import jax.numpy as jnp
import lettering
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.explore import __main__ as explore
from vit_jax.explore import inputs
from vit_jax.plots import class_colours
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import model_inputs
from vit_jax.train import step as step_lib

# On digits, whose batches are of 16.
MIXED = {
  'augment__erase': 'erase(0.5)',
  'augment__mixup': 0.8,
  'augment__cutmix': 1.0,
  'augment__repeats': 2,
  'data__mean': (0.4,),
  'data__std': (0.3,),
}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
  """Returns what runs the command; gives its picture and its output."""
  monkeypatch.chdir(tmp_path)

  def run_command(*args):
    monkeypatch.setattr(sys, 'argv', ['explore', *args])  # config flags read it
    command = importlib.reload(inputs)  # config flags are defined only once
    assert commands.run(command, *args) == 0
    out = capsys.readouterr().out
    return cv2.imread(out.removesuffix('\n'))[..., ::-1].copy(), out

  return run_command


def model_images(config, step):
  """What the model is called with at a step of training."""
  e = experiment_lib.build(config)
  with e.train_batches(step) as batches:
    batch = next(batches)

  state = e.init()

  @jax.jit
  def run(params, batch):
    inputs_seen = []

    def look(call, args, kwargs, context):
      if context.method_name == '__call__' and not context.module.path:
        inputs_seen.append(args[0])
      return call(*args, **kwargs)

    with nn.intercept_methods(look):
      before = state.replace(params=params)
      step_lib.train_step(e.program.setup, before, batch, step)
    return inputs_seen[0]

  # Images do not depend on them.
  params = jax.eval_shape(e.program.objective.init, jax.random.key(0))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
  return np.asarray(run(params, batch))


def test_it_is_what_the_model_is_fed():
  config = tiny.config(**MIXED)
  expected = model_images(config, 5) * np.float32(0.3) + np.float32(0.4)
  actual = model_inputs.load(config, 5, 7)  # of 16; the last with its neighbour
  np.testing.assert_allclose(actual.images['image'], expected[:7], atol=1e-5)
  assert len(actual.captions) == 7
  assert any(re.search(r'\d+% class \d', x) for x in actual.captions)


def test_sheet_of_digits(run):
  picture, out = run(*tiny.flags(), '--out=sheet.png')
  assert out == 'sheet.png\n' and picture.shape[1] > 8 * 192
  title = '16 of 16 examples of step 0: digits, train[:80%]'
  assert lettering.shows(picture, title, bold=True)
  digits = (lettering.places(picture, str(i)) for i in range(10))
  assert sum(map(len, digits)) == 16


def test_sheet_of_a_folder(run, tmp_path):
  """Cropped on the host, by another config, with a name of its own."""
  folder = stand_in.write_folder(tmp_path / 'images', train=4)
  changes = {
    'data__name': f'folder:{folder}',
    'data__split': 'train',
    'data__channels': 3,
    'data__image_size': 16,
    'augment__mixup': 1.0,
    'augment__jitter': 'jitter(0.5, 0.0, 0.0, 0.0)',
  }
  flags = tiny.flags(**changes)
  picture, out = run(*flags, '--count=3', '--step=7')
  assert out == 'runs/data-digits-7.png\n' and picture.shape[1] > 3 * 192
  actual = model_inputs.load(tiny.config(**changes), 7, 3).captions
  for caption in actual:
    lines = caption.split(',\n')
    shares = [int(line.split('%')[0]) for line in lines if '%' in line]
    assert sum(shares) in ((99, 100, 101) if shares else (0,))
    assert all(line[-3:] in stand_in.CLASSES for line in lines)


def test_crops_and_masks_are_those_of_the_method():
  """Of iBOT's kind each global crop has a mask, and of MAE the image."""
  config = config_lib.load(f'{tiny.ROOT}/configs/digits_dinov2.py')
  actual = model_inputs.load(config, 3, 4)
  names = ['global 1', 'global 2', 'local 1', 'local 2']
  assert list(actual.images) == names
  assert actual.images['local 1'].shape[1] < actual.images['global 1'].shape[1]
  assert list(actual.hidden) == names[:2]
  assert any(mask.any() for mask in actual.hidden.values())
  pixels = model_inputs.sheet(actual)
  for head in (*names, 'global 2, masked'):
    assert lettering.shows(pixels, head), head
  config = config_lib.load(f'{tiny.ROOT}/configs/digits_mae.py')
  (mask,) = model_inputs.load(config, 3, 4).hidden.values()
  patches = mask[0].size
  ratio = config.objective.options.get('mask_ratio', 0.75)
  assert (mask.sum(axis=(1, 2)) == round(ratio * patches)).all()


def test_label_maps_are_beside_their_images():
  config = config_lib.load(f'{tiny.ROOT}/configs/scenes_setr.py')
  actual = model_inputs.load(config, 0, 2)
  (labels,) = actual.maps.values()
  assert labels.shape == actual.images['image'].shape[:-1]
  pixels = model_inputs.sheet(actual)
  assert lettering.shows(pixels, 'background')
  names = actual.features['map'].names
  for i in set(np.unique(labels).tolist()) - {0} & set(range(len(names))):
    colour = class_colours.label_colours(names)[i]
    assert (pixels == colour).all(axis=-1).sum() > 100


@pytest.mark.parametrize(
  'label, caption',
  [
    (np.int32(1), 'bee'),
    (np.array([0.0, 1.0, 0.0]), 'bee'),
    (np.array([0.375, 0.0, 0.625]), '62% cow,\n38% ant'),
    (np.array([0.001, 0.0, 0.999]), 'cow'),
  ],
)
def test_captions(label, caption):
  assert model_inputs.caption(label, stand_in.CLASSES) == caption
  assert model_inputs.caption(np.int32(2), ('a', 'b', 'नि')) == '2: नि'


@pytest.mark.parametrize(
  'args, message',
  [
    (['more'], "unexpected argument 'more'"),
    (['--out=a.jpg'], '--out=a.jpg: what is written is a .png file'),
    (['--out=none/a.png'], '--out=none/a.png: there is no folder none'),
    (['--config.augment.erase=erase(2)'], 'probability is 2.0'),
    (['--config.data.split=foo'], "config.data.split: digits has no split 'f"),
    (['--config.train.duration=5'], 'config.train.duration'),
  ],
)
def test_mistakes(run, args, message):
  with pytest.raises(UserError, match=message):
    run(*tiny.flags(), *args)


def test_config_is_needed(run):
  with pytest.raises(UserError, match='--config is missing'):
    run()


@pytest.mark.parametrize(
  'args, status, text',
  [
    (['date'], 1, "error: 'date' is no verb: choose one of pictures"),
    (['date', '--x=1'], 1, "error: 'date' is no verb"),
    (['--help'], 0, 'data       the images of a training step'),
    (['data', '--help'], 0, '--config=FILE.py      Config file'),
    (['data', '--count=0'], 1, 'error: '),
  ],
)
def test_verbs(monkeypatch, capsys, args, status, text):
  monkeypatch.setattr(sys, 'argv', ['explore', *args])
  with pytest.raises(SystemExit) as e:
    explore.run()
  assert e.value.code == status
  out, err = capsys.readouterr()
  assert text in (err if status else out) and not (out if status else err)
