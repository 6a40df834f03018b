"""Runs that start from a checkpoint: `config.init_from`."""

import shutil

import jax
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import data
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import describing
from vit_jax.models import values
from vit_jax.runs import safe_io
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.weights.files import containers
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit

# What the checkpoint has that a config's defaults do not.
FIELDS = {
  'patch_size': 4,
  'hidden_size': 16,
  'mlp_dim': 32,
  'num_heads': 2,
  'depth': 1,
  'mlp': "mlp(gelu='exact')",
  'block': 'block(layer_scale=0.1)',
  'registers': 2,
  'initializers': 'lecun',
}
# Neither the starts of layers nor of tokens are among a file's arrays.
EXPECTED = {
  'patch_size': (4, 4),
  'initializers': 'vit',
  'block': 'block(layer_scale=1e-05)',
}


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  """A file of timm's kind, for RGB images of 16 x 16 and 5 classes."""
  directory = tmp_path_factory.mktemp('checkpoint')
  model = models.create_model('ViT-Ti/4', 5, **FIELDS)
  params = models.init_params(model, jax.random.key(3), (16, 16, 3))
  rules = timm_vit.VIT.rules(values.model_values(model))
  arrays = dict(tables.write(rules, params))
  containers.write_safetensors(directory / 'model.safetensors', arrays, {})
  config = {
    'architecture': 'none',
    'model_args': {'num_heads': 2},
    'pretrained_cfg': {
      'input_size': [3, 16, 16],
      'mean': [0.4, 0.5, 0.6],
      'std': [0.2, 0.3, 0.4],
    },
  }
  safe_io.write_json(directory / 'config.json', config)
  return directory


def tuned(checkpoint, **overrides):
  """A config that leaves the model, mean and std to the checkpoint."""
  config = tiny.config(init_from__path=str(checkpoint), **overrides)
  left = [key for key in config.model if key not in ('name', 'scan', 'remat')]
  tiny.change(config, dict.fromkeys(left), 'model.')
  config.model.name = 'init_from'
  return config


def test_the_checkpoint_decides_what_is_open(checkpoint):
  config = tuned(checkpoint)
  experiment_lib.check(config)
  e = experiment_lib.build(config)
  model = e.config.model
  for key, value in FIELDS.items():
    expected = EXPECTED.get(key, value)
    assert model[key] == expected, key
  assert model.num_classes == 10
  # Three channels' became one's.
  assert e.config.data.mean == pytest.approx((0.5,))
  assert e.config.data.std == pytest.approx((0.3,))
  state = e.init()
  original = vit_jax.load(checkpoint)
  np.testing.assert_allclose(
    state.params['patch_embedding']['kernel'],
    original.params['patch_embedding']['kernel'].sum(2, keepdims=True),
    atol=1e-6,
  )
  assert state.params['position_embedding'].shape == (1, 3 + 4, 16)
  assert not np.any(state.params['head']['kernel'])
  np.testing.assert_array_equal(
    state.params['blocks_0']['attention']['qkv']['kernel'],
    original.params['blocks_0']['attention']['qkv']['kernel'],
  )
  stacked = experiment_lib.build(tuned(checkpoint, model__scan=True)).init()
  assert stacked.params['blocks']['norm1']['scale'].shape == (1, 16)


def test_a_run_resumes_and_loads_without_the_checkpoint(checkpoint, tmp_path):
  source = tmp_path / 'source'
  shutil.copytree(checkpoint, source)
  config = tuned(source, train__duration='4 steps', evals__val__every='4 steps')
  whole = tmp_path / 'whole'
  assert loop.run(config, str(whole)).status == 0
  cut = tmp_path / 'cut'
  shutil.copytree(whole, cut)
  (cut / 'DONE').unlink()
  shutil.rmtree(source)
  assert loop.run(config, str(cut)).status == 0
  (expected, actual) = (vit_jax.load(path) for path in (whole, cut))
  jax.tree.map(np.testing.assert_array_equal, expected.params, actual.params)
  assert (
    expected.model.block.mlp.gelu == 'exact' and expected.model.registers == 2
  )
  assert expected.preprocess.mean == pytest.approx((0.5,))
  assert expected.preprocess.interpolation == 'bicubic'
  assert actual.preprocess == expected.preprocess
  config.init_from.path = str(checkpoint)
  with pytest.raises(UserError, match=r'init_from\.path: '):
    loop.run(config, str(cut))


def test_a_work_directory_gives_what_it_learned(checkpoint, tmp_path):
  """Same classes: the head is kept; another size: positions are resized."""
  config = tiny.config(train__duration='3 steps', checkpoint__every='3 steps')
  assert loop.run(config, str(tmp_path)).status == 0
  learned = vit_jax.load(tmp_path)
  e = experiment_lib.build(tuned(tmp_path, data__image_size=16))
  params = e.init().params
  np.testing.assert_array_equal(
    params['head']['kernel'], learned.params['head']['kernel']
  )
  assert params['position_embedding'].shape == (1, 16, 16)
  config = tuned(tmp_path)
  config.model.num_classes = 12
  e = experiment_lib.build(config)
  assert not np.any(e.init().params['head']['kernel'])


@pytest.mark.parametrize(
  'fields',
  [
    {'pool': 'map'},
    {'pool': 'token_and_mean'},
    {'head': 'linear(pre_logits=6)'},
  ],
)
def test_another_head_starts_anew(checkpoint, caplog, fields):
  """In a run, and where it is loaded; a table says what is new."""
  caplog.set_level('INFO')
  config = tuned(checkpoint)
  tiny.change(config, fields, 'model.')
  params = experiment_lib.build(config).init().params
  assert not np.any(params['head']['kernel']) and 'zeros: ' in caplog.text
  loaded = vit_jax.load(checkpoint, num_classes=3, **fields)
  new = [x.path for x in loaded.changes if x.action.startswith('new: ')]
  assert all(path in caplog.text for path in new)
  assert ('map_head/probe' in new) == (fields.get('pool') == 'map')
  assert ('pre_logits/kernel' in new) == ('head' in fields)


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ({'init_from__path': ''}, 'init_from.path is empty: say which checkpoint'),
    ({'init_from__resize': 'cubic'}, 'choose one of corner, half_pixel'),
    ({'init_from__path': '/no/such'}, '/no/such'),
    ({'data__image_size': 10}, 'does not divide'),
  ],
)
def test_mistakes_are_named(checkpoint, overrides, message):
  overrides = dict(overrides)
  path = overrides.pop('init_from__path', checkpoint)
  with pytest.raises(UserError, match=message) as error:
    config = tuned(path, **overrides)
    experiment_lib.check(config)
    experiment_lib.build(config)
  assert '\n' not in str(error.value)


def test_what_differs_is_said(checkpoint, tmp_path, caplog):
  config = tiny.config(init_from__path=str(checkpoint), model__mlp_dim=48)
  with pytest.raises(UserError) as error:
    experiment_lib.build(config)
  for part in ('mlp_dim', 'gelu', 'layer_scale1'):
    assert part in str(error.value)
  experiment_lib.build(
    tuned(checkpoint, data__mean=(0.1,), optim__trainable='norm')
  )
  assert 'was trained with (0.4, 0.5, 0.6)' in caplog.text
  assert "--config.optim.trainable='norm|^head/'" in caplog.text
  caplog.clear()  # one number for all channels is the same
  config = tiny.config(train__duration='3 steps', data__mean=(0.5,))
  assert loop.run(config, str(tmp_path)).status == 0
  experiment_lib.build(tuned(tmp_path, data__mean=(0.5,), data__std=(0.5,)))
  assert 'was trained with' not in caplog.text


@pytest.mark.parametrize(
  'given,wanted',
  [
    ({}, 'bicubic'),
    ({'data__interpolation': 'bilinear'}, 'bilinear'),
    ({'data__antialias': False}, ''),  # Pillow's bicubic always smooths
  ],
)
def test_the_interpolation_is_the_checkpoints(checkpoint, given, wanted):
  """timm's is bicubic where `pretrained_cfg` does not say it."""
  config = experiment_lib.build(tuned(checkpoint, **given)).config
  assert config.data.interpolation == wanted
  assert data.Preprocess.from_config(config, {}).interpolation == (
    wanted or 'bilinear'
  )


def test_how_positions_are_resized_is_kept(checkpoint, tmp_path):
  """A run that begins with DINO's encoder resizes as DINO does."""
  loaded = vit_jax.load(checkpoint).adapted(num_classes=0)
  expected = tmp_path / 'dino.safetensors'
  model = describing.with_keys(loaded.model, registers=0, block='block')
  params = models.init_params(model, jax.random.key(3), (16, 16, 3))
  rules = timm_vit.VIT.rules(values.model_values(model))
  arrays = dict(tables.write(rules, params))
  containers.write_safetensors(expected, arrays, {})
  config = tuned(expected, train__duration='3 steps')
  config.model.num_heads = 2
  workdir = tmp_path / 'run'
  assert loop.run(config, str(workdir)).status == 0
  assert vit_jax.load(workdir).resize == 'dino'
  assert loop.run(config, str(workdir)).status == 0  # '' in this config
  config.init_from.resize = 'bicubic'
  other = tmp_path / 'other'
  assert loop.run(config, str(other)).status == 0
  assert vit_jax.load(other).resize == 'bicubic'
