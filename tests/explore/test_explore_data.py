"""The contact sheet shows what a step of training feeds the model."""

import importlib
import sys

import commands
import cv2
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax.config import UserError
from vit_jax.explore import __main__ as explore
from vit_jax.explore import inputs
from vit_jax.plots import contact_sheet
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import fed as fed_lib

# On digits, whose batches are of 16.
MIXED = {
  'augment__erase': 0.5,
  'augment__mixup': 0.8,
  'augment__cutmix': 1.0,
  'augment__repeats': 2,
  'data__mean': (0.4,),
  'data__std': (0.3,),
}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
  """Returns what runs the command; gives its captions, title and picture."""
  drawn = {}
  draw = contact_sheet.draw

  def draw_and_remember(images, captions, path, title):
    drawn.update(captions=captions, title=title)
    draw(images, captions, path, title=title)

  monkeypatch.setattr(contact_sheet, 'draw', draw_and_remember)
  monkeypatch.chdir(tmp_path)

  def run_command(*args):
    monkeypatch.setattr(sys, 'argv', ['explore', *args])  # config flags read it
    command = importlib.reload(inputs)  # config flags are defined only once
    assert commands.run(command, *args) == 0
    out = capsys.readouterr().out
    picture = cv2.imread(out.removesuffix('\n'))
    return drawn['captions'], drawn['title'], picture, out

  return run_command


def model_images(config, step):
  """What the model is called with at a step of training."""
  e = experiment_lib.build(config)
  with e.train_batches(step) as batches:
    batch = next(batches)

  state = e.init()

  @jax.jit
  def run(params, batch):
    seen = []

    def look(call, args, kwargs, context):
      if context.method_name == '__call__' and not context.module.path:
        seen.append(args[0])
      return call(*args, **kwargs)

    with nn.intercept_methods(look):
      e.program.update(state.replace(params=params), batch, step)
    return seen[0]

  # Images do not depend on them.
  params = jax.eval_shape(e.program.objective.init, jax.random.key(0))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
  return np.asarray(run(params, batch))


def test_it_is_what_the_model_is_fed():
  config = tiny.config(**MIXED)
  wanted = model_images(config, 5) * np.float32(0.3) + np.float32(0.4)
  found = fed_lib.load(config, 5, 7)  # of 16; the last with its neighbour
  np.testing.assert_allclose(found.images, wanted[:7], atol=1e-5)
  assert len(found.captions) == 7
  shares = [
    line.split(' ')[0] for x in found.captions for line in x.split('\n')
  ]
  assert any(0 < float(share) < 1 for share in shares)


def test_sheet_of_digits(run):
  captions, title, picture, out = run(*tiny.flags(), '--out=sheet.png')
  assert out == 'sheet.png\n' and picture.shape[1] > 8 * 96
  assert len(captions) == 16 and set(captions) <= set('0123456789')
  assert title == '16 of 16, step 0: digits, train[:80%]'


def test_sheet_of_a_folder(run, tmp_path):
  """Cropped on the host, by another config, with a name of its own."""
  folder = stand_in.write_folder(tmp_path / 'images', train=4)
  changes = {
    'data__name': f'folder:{folder}',
    'data__split': 'train',
    'data__channels': 3,
    'data__image_size': 16,
    'augment__mixup': 1.0,
    'augment__jitter': (0.5, 0.0, 0.0, 0.0),
  }
  flags = tiny.flags(**changes)
  captions, title, picture, out = run(*flags, '--count=3', '--step=7')
  assert out == 'runs/data-digits-7.png\n' and picture is not None
  assert len(captions) == 3 and title.startswith('3 of 16, step 7: folder:')
  for caption in captions:
    shares = [line.split(' ')[0] for line in caption.split('\n')]
    if len(shares) == 2:
      assert sum(map(float, shares)) == pytest.approx(1, abs=0.011)
    assert all(line[-3:] in stand_in.CLASSES for line in caption.split('\n'))


@pytest.mark.parametrize(
  'label, caption',
  [
    (np.int32(1), 'bee'),
    (np.array([0.0, 1.0, 0.0]), 'bee'),
    (np.array([0.375, 0.0, 0.625]), '.62 cow\n.38 ant'),
    (np.array([0.001, 0.0, 0.999]), 'cow'),
  ],
)
def test_captions(label, caption):
  assert contact_sheet.caption(label, stand_in.CLASSES) == caption


@pytest.mark.parametrize(
  'args, message',
  [
    (['more'], "unexpected argument 'more'"),
    (['--out=a.jpg'], '--out=a.jpg: what is written is a .png file'),
    (['--out=none/a.png'], '--out=none/a.png: there is no folder none'),
    (['--config.augment.erase=2'], 'config.augment.erase is 2.0'),
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
  'args, status, shown',
  [
    (['date'], 1, "error: 'date' is no verb: choose one of pictures"),
    (['date', '--x=1'], 1, "error: 'date' is no verb"),
    (['--help'], 0, 'data       the images of a training step'),
    (['data', '--help'], 0, '--config=FILE.py      Config file'),
    (['data', '--count=0'], 1, 'error: '),
  ],
)
def test_verbs(monkeypatch, capsys, args, status, shown):
  monkeypatch.setattr(sys, 'argv', ['explore', *args])
  with pytest.raises(SystemExit) as e:
    explore.run()
  assert e.value.code == status
  out, err = capsys.readouterr()
  assert shown in (err if status else out) and not (out if status else err)
