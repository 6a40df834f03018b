"""MoCo v3: runs, published files, and its configs against the paper."""

import re

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.models import describing
from vit_jax.models import projection
from vit_jax.train import experiment as experiment_lib
from vit_jax.weights.files import containers


def config(**overrides):
  settings = {
    'objective__name': 'mocov3',
    'model__positions': "sincos2d(kind='sincos2d_moco')",
    'model__pool': 'token',
    'data__crop': 'random_resized',
    'augment__gray': (0.2,),
    'augment__solarize': (0.0, 0.2),
    'evals__val__split': '',
    'train__duration': '8 steps',
  }
  result = tiny.config(**settings | overrides)
  options = {'width': 32, 'dim': 16, 'momentum': 0.5}
  result.objective.options = result.objective.options.to_dict() | options
  return result


finished = methods.finished(config)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(finished, tmp_path):
  state = methods.final_state(finished)
  for name in (
    'extra/momentum/trunk/class_token',
    'extra/statistics/momentum_projector/norm_0/mean',
    'extra/step',
  ):
    assert name in state
  methods.assert_resumes_to_the_bit(config(), finished, tmp_path / 'run')


@pytest.mark.slow
@pytest.mark.parametrize('model', [{}, {'model__scan': True}])
def test_the_same_on_eight_devices(finished, model):
  """The batch that BatchNorm and the loss see is the whole one."""
  how = config(**methods.LAYOUTS['8 devices'] | model)
  methods.assert_same_result(how, finished)


def test_the_patch_embedding_stays_and_the_momentum_encoder_moves():
  e = experiment_lib.build(config())
  first = jax.device_get(e.init())
  with e.train_batches(0) as batches:
    batch = next(batches)
    state, _ = e.program.train_step(e.init(), batch, np.int32(0))
    state, metrics = e.program.train_step(state, batch, np.int32(1))
  before, after = first.params['trunk'], jax.device_get(state.params['trunk'])
  moved = jax.device_get(state.extra['momentum']['trunk'])
  for key in ('kernel', 'bias'):
    same = before['patch_embedding'][key]
    np.testing.assert_array_equal(after['patch_embedding'][key], same)
    np.testing.assert_array_equal(moved['patch_embedding'][key], same)
  own, theirs = after['class_token'], moved['class_token']
  assert (own != before['class_token']).any() and (own != theirs).any()
  assert int(state.extra['step']) == 2
  assert 0.5 < float(metrics['momentum']) < 1


@pytest.mark.slow
def test_the_loss_falls():
  losses = methods.training_losses(config(train__duration='150 steps'))
  assert np.mean(losses[-40:]) < np.mean(losses[:40]) - 0.1


def test_the_trunk_is_loaded(finished):
  vit = vit_jax.load(finished)
  assert vit.model.num_classes == 0 and 'projector' not in vit.params
  outputs = vit.outputs([np.zeros((8, 8, 1), np.uint8)] * 2)
  assert outputs['features'].shape == (2, 16)


def test_batch_norm_is_torchs():
  torch = pytest.importorskip('torch')
  x = np.random.default_rng(0).normal(2, 3, (6, 5)).astype(np.float32)
  theirs, ours = torch.nn.BatchNorm1d(5), projection.BatchNorm()
  variables = ours.init(jax.random.key(0), jnp.asarray(x))
  for _ in range(2):
    wanted = theirs(torch.tensor(x)).detach().numpy()
    found, moved = ours.apply(variables, x, train=True, mutable=['statistics'])
    variables = variables | moved
    np.testing.assert_allclose(found, wanted, atol=1e-5)
  theirs.eval()
  wanted = theirs(torch.tensor(x)).detach().numpy()
  np.testing.assert_allclose(ours.apply(variables, x), wanted, atol=1e-5)
  for ours_, theirs_ in (
    ('mean', theirs.running_mean),
    ('var', theirs.running_var),
  ):
    found = variables['statistics'][ours_]
    np.testing.assert_allclose(found, theirs_.numpy(), rtol=1e-5)


def published(finished, path):
  """Writes a run as a file with the names of the authors' files."""
  from vit_jax.models import values
  from vit_jax.weights.formats import moco
  from vit_jax.weights.formats import tables
  from vit_jax.weights.formats import timm_vit

  e = experiment_lib.build(config(init_from__path=str(finished)))
  params = jax.device_get(e.init().params)
  model = describing.with_keys(e.program.objective.model, positions='learned')
  positions = {'position_embedding': np.zeros((1, 5, 16), np.float32)}
  trunk = params['trunk'] | positions
  arrays = {
    f'module.{prefix}_encoder.{name}': np.ascontiguousarray(x)
    for prefix in ('base', 'momentum')
    for name, x in tables.write(
      timm_vit.VIT.rules(values.model_values(model)), trunk
    )
  }
  whole = e.program.objective.foreign('timm')
  heads = {k: params[k] for k in ('projector', 'predictor')}
  for name, x in tables.write(whole.rules, heads):
    arrays[moco.stored(name)] = np.ascontiguousarray(x)
  for i in (1, 4, 7):  # what a file has beside the parameters
    name = f'module.base_encoder.head.{i}.num_batches_tracked'
    arrays[name] = np.ones(1, np.int64)
  containers.write_safetensors(path, arrays, {'format': 'pt'})
  return params


def test_files_of_the_authors_load(finished, tmp_path):
  path = tmp_path / 'moco.safetensors'
  params = published(finished, path)
  vit = vit_jax.load(path, num_heads=2)
  assert vit.model.num_classes == 0 and vit.format == 'timm'
  np.testing.assert_array_equal(
    vit.params['class_token'], params['trunk']['class_token']
  )
  e = experiment_lib.build(
    config(init_from__path=str(path), model__mlp="mlp(gelu='exact')")
  )
  found = jax.device_get(e.init().params)
  for name in ('projector', 'predictor'):
    jax.tree.map(np.testing.assert_array_equal, found[name], params[name])


def test_its_small_vit_has_twelve_heads():
  """As its files do not say; DeiT's of the same sizes has six."""
  from vit_jax.weights.formats import moco

  assert moco.HEADS == {384: 12, 768: 12}


@pytest.mark.parametrize(
  ('overrides', 'options', 'message'),
  [
    ({'train__batch_size': 1}, {}, 'batch_size is 1, .*at least 2'),
    ({'train__accumulation': 2}, {}, 'needs the whole batch at once'),
    ({}, {'temperature': 0.0}, 'options.temperature is 0.0: .*more than 0'),
    ({}, {'momentum': 1.5}, r'options.momentum is 1.5: .*in \[0, 1\]'),
    ({}, {'dim': 0}, 'objective.options.dim is 0'),
    ({}, {'predictor_layers': 0}, 'options.predictor_layers is 0'),
    ({'augment__mixup': 0.2}, {}, 'takes several of an image'),
    ({'augment__blur': (1.0, 0.1, 0.5)}, {}, 'takes 2 of an image'),
  ],
)
def test_mistakes_get_one_line(overrides, options, message):
  wrong = config(**overrides)
  wrong.objective.options.update(options)
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    experiment_lib.check(wrong)
    experiment_lib.build(wrong).program.setup  # noqa: B018


@pytest.mark.parametrize('size', ['S/16', 'B/16'])
def test_the_papers_settings(size):
  """Sections 4 and 5 of the paper, and the commands of its code."""
  pretrain = config_lib.load(f'{tiny.ROOT}/configs/mocov3_i1k.py:{size}')
  objectives.fill_options(pretrain)
  found = {
    key: value
    for key, value in config_lib.flatten(pretrain)
    if re.match('optim|train|objective.options|augment|model', key)
  }
  wanted = {
    'optim.learning_rate': 1.5e-4 * 4096 / 256,
    'optim.weight_decay': 0.1,
    'optim.warmup': '40 epochs',
    'train.batch_size': 4096,
    'train.duration': '300 epochs',
    'model.num_heads': 12,
    'objective.options.temperature': 0.2,
    'objective.options.momentum': 0.99,
    'objective.options.width': 4096,
    'objective.options.dim': 256,
    'objective.options.freeze_patches': True,
    'augment.jitter': 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)',
    'augment.gray': (0.2,),
    'augment.blur': (1.0, 0.1),
    'augment.solarize': (0.0, 0.2),
  }
  assert {k: found[k] for k in wanted} == wanted
  probe = config_lib.load(f'{tiny.ROOT}/configs/mocov3_probe_i1k.py:{size},x')
  optim = probe.optim
  assert (optim.name, optim.learning_rate, optim.weight_decay) == (
    'sgd(momentum=0.9)',
    12,
    0,
  )
  assert probe.train.duration == '90 epochs' and optim.trainable == '^head/'
