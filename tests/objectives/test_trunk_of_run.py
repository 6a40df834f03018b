"""A user's objective whose model is not that of its config.

`load`, `evaluate` and `export` build the model from the config: a run that they
would read as another function is refused when it starts.
"""

import itertools
import json

import commands
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.runs import safe_io
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

METHOD = """
from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.models import describing
from vit_jax.models import parts
from vit_jax.models import vit
from vit_jax.objectives import {module} as ours


class WindowViT(vit.ViT):
  def __call__(self, images, *args, **kwargs):
    return super().__call__(images[:, ::-1], *args, **kwargs)


class Net(nn.Module):
  @nn.compact
  def __call__(self, images, train=False, rows=None):
    return nn.Dense(10)(images.reshape(len(images), -1))


class Wrapped(nn.Module):
  trunk: vit.ViT

  @nn.compact
  def __call__(self, images, train=False, rows=None):
    x = self.trunk(images, train=train, rows=rows)
    return nn.Dense(10, name='adapter')(x)


class Mine(ours.{name}):
  def __init__(self, config, features):
    super().__init__(config, features)
    self.plain = self.model
{init}
"""
# Layers beside the trunk, of which the logits are computed.
LAYERS_BESIDE = """
    self.adapter = nn.Dense(10, kernel_init=nn.initializers.lecun_normal())

  def inputs(self, params, images):
    {features}

  def init(self, key):
    trunk = super().init(key)
    images = jnp.zeros((1, *self.image_shape))
    features = self.inputs({{'trunk': trunk}}, images)
    adapter = self.adapter.init(key, features)['params']
    return {{'trunk': trunk, 'adapter': adapter}}

  def outputs(self, params, batch):
    features = self.inputs(params, batch['image'])
    return {{'logits': self.adapter.apply(
      {{'params': params['adapter']}}, features)}}

  def loss(self, params, extra, batch, rng):
    logits = self.outputs(params, batch)['logits']
    return self.cross_entropy(logits, batch['label']).mean(), {{}}, extra
"""
WITH_HEAD = LAYERS_BESIDE.format(
  features="return self.apply(params['trunk'], images)[:, ::-1]"
)
WITHOUT_HEAD = (
  LAYERS_BESIDE.format(features="return self.apply(params['trunk'], images)")
  + """
  @classmethod
  def num_outputs(cls, features):
    return 0

  def output_facts(self):
    return {}
"""
)
OWN_OUTPUTS = """    self.flipped = True

  def outputs(self, params, batch):
    return {'logits': self.apply(params, batch['image'][:, ::-1])}

  def loss(self, params, extra, batch, rng):
    logits = self.outputs(params, batch)['logits']
    return self.cross_entropy(logits, batch['label']).mean(), {}, extra
"""
PROJECTOR = """    self.projector = nn.Dense(3)

  def init(self, key):
    trunk = super().init(key)
    projector = self.projector.init(key, jnp.zeros((1, 10)))['params']
    return {'trunk': trunk, 'projector': projector}

  def outputs(self, params, batch):
    logits = self.apply(params['trunk'], batch['image'])
    variables = {'params': params['projector']}
    projected = self.projector.apply(variables, logits)
    return {'logits': logits, 'projected': projected}

  def loss(self, params, extra, batch, rng):
    logits = self.outputs(params, batch)['logits']
    return self.cross_entropy(logits, batch['label']).mean(), {}, extra
"""
_count = itertools.count()  # a module is imported once


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes an objective; returns the name of its class."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(init, module='classification', name='Classification'):
    file = f'own_{next(_count)}_trunk'
    text = METHOD.format(init=init, module=module, name=name)
    (tmp_path / f'{file}.py').write_text(text)
    return f'{file}:Mine'

  return write


SUBCLASS = '    self.model = parts.as_class(self.model, WindowViT)\n'
OTHER_INIT = (
  '    self.model = self.model\n\n'
  '  def init(self, key):\n'
  '    return super().init(key) | {"window": jnp.zeros(3)}\n'
)


@pytest.mark.parametrize(
  'init, message',
  [
    (
      SUBCLASS,
      r'self\.model is a WindowViT, but config.model builds a ViT',
    ),
    ('    self.model = Net()\n', r'self\.model is a Net, but config.model'),
    (
      '    self.model = Wrapped(self.model)\n',
      r'self\.model is a Wrapped, but',
    ),
    (
      '    self.model = Wrapped(self.model)\n\n'
      '  def trunk(self, params):\n'
      '    return self.plain, params["trunk"]\n',
      r'self\.model is a Wrapped, but config.model builds a ViT',
    ),
    (
      f'{SUBCLASS}\n'
      '  def trunk(self, params):\n'
      '    return self.plain, params\n',
      r'self\.model is a WindowViT, but config.model builds a ViT',
    ),
    (
      '    self.model = describing.with_keys(self.model, pool="token")\n',
      r"is a ViT with pool='token', but .*: set config\.model\.pool='token'",
    ),
    (
      '    self.model = describing.with_keys(self.model, block="merging(1)")\n',
      r"is a ViT with block='merging.merge=1.', but .* with block='block'",
    ),
    (
      '    self.model = self.model.clone(num_classes=7)\n',
      r'is a ViT with num_classes=7, but config.model builds one with num_cl',
    ),
    (
      OTHER_INIT,
      r'the parameters of trunk\(params\) are not .*: window: not in',
    ),
    (
      '    self.model = self.model\n\n'
      '  def trunk(self, params):\n'
      '    return self.model, jax.tree.map(lambda x: 2 * x, params)\n',
      r'Mine\.trunk returns other parameters than it is given: it must return',
    ),
    (
      f'{SUBCLASS}    self.other, self.model = self.model, self.plain\n\n'
      '  def trunk(self, params):\n'
      '    return self.other, params\n',
      r'trunk\(params\) is a WindowViT, but config.model builds a ViT',
    ),
  ],
  ids=[
    'subclass',
    'module',
    'wrapper',
    'wrapper_of_trunk',
    'subclass_beside',
    'function',
    'merge',
    'classes',
    'parameters',
    'scaled',
    'own_trunk',
  ],
)
def test_a_model_that_the_config_does_not_build(write, init, message):
  config = tiny.config(objective__name=write(init))
  with pytest.raises(UserError, match=message) as e:
    experiment_lib.build(config)
  assert '\n' not in str(e.value)


def test_logits_from_parameters_beside_the_trunk(write):
  """The commands that compute the model alone would take its own head."""
  config = tiny.config(objective__name=write(WITH_HEAD))
  config.evals.val.split = ''
  config.checkpoint.best = ''
  message = r'outputs computes logits .* \(adapter/bias, adapter/kernel\)'
  with pytest.raises(UserError, match=message) as e:
    experiment_lib.build(config)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
  'init',
  [
    '    self.model = self.model.clone(remat="full")\n',
    WITHOUT_HEAD,
    OWN_OUTPUTS,
    PROJECTOR,
  ],
  ids=['remat', 'head_beside', 'own_outputs', 'projector'],
)
def test_commands_measure_what_was_trained(write, init, tmp_path, capsys):
  name = write(init)
  run = str(tmp_path / 'run')
  results = loop.run(tiny.config(objective__name=name), run)
  args = '--data=digits', '--split=train[80%:]', '--format=json'
  assert commands.run(evaluate, f'--from={run}', *args) == 0
  measured = json.loads(capsys.readouterr().out)['accuracy']
  assert measured == pytest.approx(results.metrics['val/accuracy'], abs=1e-6)


@pytest.mark.parametrize(
  'path, module, name',
  [
    ('digits_mae.py', 'mae', 'MAE'),
    ('digits_dino.py', 'dino', 'Dino'),
    ('flexivit_digits.py', 'classification', 'Classification'),
    ('digits_igpt.py', 'igpt', 'IGPT'),
  ],
)
def test_subclasses_of_our_methods(write, path, module, name):
  config = config_lib.load(tiny.ROOT / 'configs' / path)
  config.objective.name = write('', module, name)
  assert experiment_lib.build(config).total_steps


def test_a_run_whose_parameters_are_of_another_model(digits_run, tmp_path):
  """The advice can be followed: there is no model to give fields to."""
  for name in ('preprocess.json', 'run.json', 'checkpoints'):
    (tmp_path / name).symlink_to(digits_run / name)
  config = safe_io.read_json(digits_run / 'config.json')
  config['model']['registers'] = 2
  safe_io.write_json(tmp_path / 'config.json', config)
  with pytest.raises(
    UserError, match=r'\. Restore config\.json if it was chang'
  ) as e:
    vit_jax.load(tmp_path)
  assert ': not in the run' in str(e.value)
  vit_jax.load(digits_run).predict(np.zeros((1, 8, 8, 1), np.uint8))


def test_a_model_of_ones_own_in_the_config():
  config = tiny.config(model__name='my_window:WindowViT')
  message = "'my_window:WindowViT' is a class of your own: name a model of ours"
  with pytest.raises(UserError, match=message):
    experiment_lib.check(config)
