"""Every file in configs/ trains one step and evaluates once."""

import re

import jax
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import experiment as experiment_lib
from vit_jax.data import base
from vit_jax.data import splits

CONFIGS = sorted(path.name for path in (tiny.ROOT / 'configs').glob('*.py'))


class StandIn(base.Source):
  """As many examples as CIFAR-10 has, made when they are read."""

  classes = stand_in.CLASSES

  def __init__(self, config, split):
    sizes = {'train': 50_000, 'val': 10_000, 'test': 10_000}
    self._selection = splits.Selection(split, sizes, 'the stand-in')
    self.image_shape = config.data.source_size
    self._size = self.image_shape or (40, 48)

  def __len__(self):
    return len(self._selection)

  def read(self, position):
    index = self._selection.locate(position)[2]
    image = stand_in.png(stand_in.pixels(index, *self._size))
    return base.Example(image, index % 3, index, f'example {index}')

  def fingerprint(self):
    return ''


def shrink(config):
  """Makes batch, image, depth and width small, and nothing else."""
  patch = int(re.search(r'/(\d+)$', config.model.name)[1])
  config.train.batch_size = 8 * config.train.accumulation
  if config.data.source_size is None:
    config.data.image_size = 2 * patch
  if config.data.eval_resize is not None:
    config.data.eval_resize = 2 * patch + 2
  config.model.depth = 2
  config.model.hidden_size = 16
  config.model.mlp_dim = 32
  config.model.num_heads = 2


@pytest.mark.parametrize('name', CONFIGS)
def test_config_trains_and_evaluates(name, monkeypatch):
  config = cli.load_config(str(tiny.ROOT / 'configs' / name))
  shrink(config)
  if config.data.name != 'digits':
    monkeypatch.setattr(data, 'open_source', StandIn)
    config.data.name = 'cifar10'
  experiment_lib.check(config)
  e = experiment_lib.build(config)
  state = e.init()
  with_batches = e.train_batches(0)
  state, metrics = e.train_step(state, next(with_batches), np.int32(0))
  with_batches.close()
  assert metrics['ok'] and int(state.step) == 1
  assert e.eval_sources, 'a config without an evaluation shows no result'
  evals = e.eval_batches(next(iter(e.eval_sources)))
  total = e.eval_step(state.eval_params, next(evals), e.no_metrics())
  evals.close()
  assert 0 <= total.compute()['accuracy'] <= 1


@pytest.mark.parametrize('name', CONFIGS)
def test_config_says_how_it_is_used(name):
  path = tiny.ROOT / 'configs' / name
  text = path.read_text()
  assert f'--config=configs/{name}' in text
  config_lib.check(cli.load_config(str(path)))


def test_the_tutorial_has_its_exact_size():
  """3,195,146 parameters; Dense kernels as Flax starts them."""
  config = cli.load_config(str(tiny.ROOT / 'configs' / 'cifar10_tutorial.py'))
  from vit_jax import models

  model = models.from_config(config.model, 10)
  params = jax.eval_shape(
    lambda: models.init_params(model, jax.random.key(0), (32, 32, 3))
  )
  assert sum(x.size for x in jax.tree.leaves(params)) == 3_195_146
