"""Segmentation: a class for each pixel, by heads on a ViT's layers."""

import jax
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import segments
from vit_jax.models import setr
from vit_jax.objectives import segmentation
from vit_jax.runs import checkpoint_format
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

# Adam would turn the rounding errors of values whose gradient is zero, before a
# BatchNorm, into steps of the learning rate's size.
RUN = {
  'objective__name': 'segmentation',
  'data__name': 'scenes',
  'data__source_size': (16, 16),
  'data__image_size': 16,
  'data__channels': 3,
  'data__split': 'train[:64]',
  'data__crop': 'pad',
  'data__pad': 2,
  'model__patch_size': 4,
  'evals__val__split': 'test[:12]',
  'train__duration': '8 steps',
  'optim__name': 'sgd',
  'checkpoint__best': 'val/miou',
}
OPTIONS = {'head': 'pup', 'channels': 4, 'convs': 2}


def config_of(options=(), **overrides):
  config = tiny.config(**RUN | overrides)
  config.objective.options.update(OPTIONS | dict(options))
  return config


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('segmentation') / 'run'
  assert loop.run(config_of(), str(path)).status == 0
  return path


def test_a_killed_run_resumes_to_the_bit(finished, tmp_path):
  methods.assert_resumes_to_the_bit(config_of(), finished, tmp_path / 'run')


def test_eight_devices_give_the_same(finished, tmp_path):
  config = config_of(**methods.HOW['8 devices'])
  methods.assert_same_result(config, finished, tmp_path / 'run')


def test_running_statistics_follow_the_batches(finished):
  folder = checkpoint_format.newest_first(finished / 'checkpoints')[0]
  params, _ = checkpoint_format.read_params(folder)
  norm = params['decoder']['decode']['convolutions_0']['norm']
  assert abs(norm['mean']).max() > 1e-4 and abs(norm['var'] - 1).max() > 1e-2


def test_measures_are_those_of_all_pixels(finished):
  """Each pixel of the split counts once, whatever the batches."""
  experiment = experiment_lib.build(config_of())
  objective = experiment.program.objective
  params = objective.init(jax.random.key(0))
  rng = np.random.default_rng(0)
  images = rng.normal(size=(5, 16, 16, 3)).astype(np.float32)
  labels = rng.integers(0, 11, (5, 16, 16)).astype(np.int32)
  labels[:, :3] = 255
  outputs = objective.outputs(params, {'image': images})
  assert outputs['logits'].shape == (5, 16, 16, 11)
  collections = [
    objective.measure(
      {k: x[rows] for k, x in outputs.items()},
      {'map': labels[rows], 'valid': np.array(valid)},
    )
    for rows, valid in (
      (slice(0, 3), [True, True, True]),
      (slice(2, 5), [False, True, True]),
    )
  ]
  found = collections[0].merge(collections[1]).compute()
  matrix = segments.confusion(labels, np.asarray(outputs['segments']), 11)
  wanted = segments.overlaps(matrix)
  assert found['miou'] == pytest.approx(wanted.mean_iou)
  assert found['accuracy'] == pytest.approx(wanted.total)
  assert found['dice'] == pytest.approx(wanted.mean_dice)
  np.testing.assert_allclose(found['iou'], wanted.iou)
  assert found['examples'] == 5


def test_metrics_of_a_run(finished):
  last = [x for x in tiny.metrics(finished) if 'val/miou' in x][-1]
  for name in ('accuracy', 'mean_accuracy', 'dice', 'iou/background', 'iou/9'):
    assert 0 <= last[f'val/{name}'] <= 1, name
  assert last['val/examples'] == 12


@pytest.mark.parametrize(
  ('head', 'loss'),
  [
    *((head, 'cross_entropy') for head in setr.KINDS),
    *(('naive', loss) for loss in list(segmentation.LOSSES)[1:]),
  ],
)
def test_every_head_and_loss_learns(head, loss):
  """The gradient of one batch lowers its loss."""
  config = config_of({'head': head, 'loss': loss}, model__depth=2)
  objective = experiment_lib.build(config).program.objective
  params = objective.init(jax.random.key(0))
  extra = objective.init_extra(params)
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.normal(size=(4, 16, 16, 3)).astype(np.float32),
    'map': rng.integers(0, 11, (4, 16, 16)).astype(np.int32),
  }
  rows = Rng(jax.random.key(1), np.arange(4, dtype=np.int32))

  @jax.jit
  def loss_of(params):
    return objective.loss(params, extra, batch, rows)[0]

  before, grads = jax.jit(jax.value_and_grad(loss_of))(params)
  after = loss_of(jax.tree.map(lambda p, g: p - 0.01 * g, params, grads))
  assert np.isfinite(before) and after < before


def test_a_trunk_of_another_run(finished, tmp_path):
  """The trunk starts from a run's; the heads are new."""
  shape = {k: x for k, x in RUN.items() if k.startswith(('data', 'model'))}
  labelled = shape | {'data__name': 'digits', 'data__split': 'train[:64]'}
  labelled |= {'data__source_size': None, 'evals__val__split': 'train[64:80]'}
  first = tiny.config(**labelled, train__duration='4 steps')
  assert loop.run(first, str(tmp_path / 'first')).status == 0
  config = config_of(
    init_from__path=str(tmp_path / 'first'), model__name='init_from'
  )
  assert loop.run(config, str(tmp_path / 'second')).status == 0
  experiment = experiment_lib.build(config)
  started = experiment.start.take()
  wanted = vit_jax.load(tmp_path / 'first').params
  np.testing.assert_array_equal(
    started['trunk']['patch_embedding']['kernel'],
    wanted['patch_embedding']['kernel'],
  )


@pytest.mark.parametrize(
  ('options', 'overrides', 'message'),
  [
    ({'head': 'psp'}, {}, "options.head is 'psp'"),
    ({'layers': (0, 7)}, {}, r'options.layers is \(0, 7\).*from 0 to'),
    ({'class_weights': (1.0, 2.0)}, {}, 'has 2 numbers.*11 classes'),
    (
      {'class_weights': (1.0,), 'loss': 'focal'},
      {},
      'class_weights do not belong to',
    ),
    ({}, {'train__accumulation': 2}, 'accumulation is 2'),
    ({}, {'data__name': 'digits'}, "learns 'map'"),
    ({}, {'model__name': 'R+ViT-Ti/16'}, 'need a plain ViT'),
  ],
)
def test_mistakes_get_one_line(options, overrides, message):
  config = config_of(options, **overrides)
  if 'data__name' in overrides:
    config.data.source_size, config.data.split = None, 'train[:64]'
    config.evals.val.split = 'train[64:80]'
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    _check_and_build(config)


def _check_and_build(config):
  experiment_lib.check(config)
  experiment_lib.build(config)
