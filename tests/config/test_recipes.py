"""The published recipes, against tables written from their papers and code.

Where both differ, or the paper is silent, the docstring of the config says what
was followed.
"""

import math

import jax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.config import parts
from vit_jax.config import recipes
from vit_jax.data.host import geometry
from vit_jax.optim import optimizers
from vit_jax.train import experiment as experiment_lib

TRAINING = (tiny.TESTS / 'config' / 'recipes_training.txt').read_text()

REGULARISATION = (
  tiny.TESTS / 'config' / 'recipes_regularisation.txt'
).read_text()

# At 224 px but for DeiT III, BiT and CIFAR, with 1,000 classes but for CIFAR.
# The published sizes, with what the recipe adds to them and takes away: hidden
# layers of D * (D + 1), class tokens, positions and scales of D.
PARAMETERS = {
  'vit_s16_i1k.py': 22_050_664 + 384 * (385 - 1 - 197),
  'vit_i1k.py:Ti/16': 5_717_416 + 192 * 193,
  'vit_i1k.py:S/32': 22_878_952 + 384 * 385,
  'vit_i1k.py:B/16': 86_567_656 + 768 * 769,
  'vit_i1k.py:R+Ti/16,none': 6_337_704 + 192 * 193,
  'vit_i1k.py:R26+S/32,none': 36_431_912 + 384 * 385,
  'vit_i21k.py:S/16': 22_050_664,
  'vit_paper_i1k.py:L/32,i21k': 306_535_400 + 1024 * 1025,
  'mixer_i1k.py': 59_880_472,
  'sam_i1k.py:B/32': 88_224_232,
  'gsam_i1k.py:S/16': 22_050_664 - 384 * 2,
  'deit_i1k.py:Ti': 5_717_416,
  'deit_i1k.py:S': 22_050_664,
  'deit_i1k.py:B,distilled': 86_567_656 + 768 * 2 + 769 * 1000,
  'deit3_i1k.py:S': 22_050_664 + 384 * (2 * 12 - 1),
  'deit3_i1k.py:B,run': 86_567_656 + 768 * (2 * 12 - 1),
  'deit3_i1k.py:H': 632_045_800 + 1280 * (2 * 32 - 1 - 16**2 + 11**2),
  'cifar100.py': 2_709_796,
}


def rows(table):
  """Returns the lines of a table as parameters, named by their config."""
  lines = [x.split() for x in table.splitlines() if not x.startswith('#')]
  return [pytest.param(*line, id=line[0]) for line in lines]


def load(name):
  return config_lib.load(f'{tiny.ROOT}/configs/{name}')


def value(rate):
  return 0.0 if rate is None else rate


def length(text):
  """Returns (90, 'epochs') for '90e'."""
  return int(text[:-1]), {'e': 'epochs', 's': 'steps'}[text[-1]]


@pytest.mark.parametrize(
  'name, duration, batch_size, optimizer, rate, warmup, schedule, end, decay,'
  ' multiplied_by, clip',
  rows(TRAINING),
)
def test_recipe_trains_as_published(
  name,
  duration,
  batch_size,
  optimizer,
  rate,
  warmup,
  schedule,
  end,
  decay,
  multiplied_by,
  clip,
):
  config = load(name)
  train, actual = config.train, config.optim
  assert config_lib.parse_duration(train.duration) == length(duration)
  assert train.batch_size == int(batch_size)
  kind = parts.parse(actual.name, 'optim.name').name
  assert kind == {'adam': 'adamw'}.get(optimizer, optimizer)
  assert math.isclose(actual.learning_rate, float(rate))
  assert config_lib.parse_duration(actual.warmup) == length(warmup)
  assert parts.parse(actual.schedule, 'optim.schedule').name == schedule
  if schedule not in ('step', 'constant'):
    final = actual.learning_rate * optim.schedule(actual).final_factor
    assert math.isclose(final, float(end))
  highest = actual.learning_rate * actual.weight_decay
  factor = {'rate': actual.learning_rate, 'schedule': 1}[multiplied_by]
  assert math.isclose(highest, factor * float(decay))
  scale = 1000 if optimizer == 'lamb' else 1  # of a loss that was a mean
  assert actual.clip_norm == scale * float(clip)
  if optimizer != 'sgd':
    method = optimizers.method(actual)
    assert method.eps == scale * 1e-8
    assert (method.b1, method.b2) == (0.9, 0.999)


@pytest.mark.parametrize(
  'name, policy, jitter, mixup, cutmix, erase, repeats, smoothing, loss, bias,'
  ' dropout, depth',
  rows(REGULARISATION),
)
def test_recipe_regularises_as_published(
  name,
  policy,
  jitter,
  mixup,
  cutmix,
  erase,
  repeats,
  smoothing,
  loss,
  bias,
  dropout,
  depth,
):
  config = load(name)
  augment, model, objective = config.augment, config.model, config.objective
  assert augment.policy.replace(' ', '') == policy.removeprefix('-')
  colours = 'jitter({0}, {0}, {0}, 0.0)'.format(float(jitter))
  assert augment.jitter == (colours if float(jitter) else '')
  assert (augment.mixup, augment.cutmix) == (float(mixup), float(cutmix))
  erased = augment.erase and parts.parse(augment.erase, 'erase').args[0]
  assert (erased or 0, augment.repeats) == (float(erase), int(repeats))
  assert objective.label_smoothing == float(smoothing)
  assert objective.loss == loss
  head = parts.parse(model.head or 'linear', 'model.head')
  assert head.options.get('bias', 0.0) == float(bias)
  assert value(model.dropout_rate) == float(dropout)
  assert value(model.attention_dropout_rate) == 0
  assert value(model.stochastic_depth) == float(depth)


@pytest.mark.parametrize('name', PARAMETERS)
def test_recipe_has_the_published_size(name):
  config = load(name)
  model = models.from_config(config.model, 100 if 'cifar' in name else 1000)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  params = models.abstract_params(model, (*size, 3))
  actual = sum(x.size for x in jax.tree.leaves(params))
  assert actual == PARAMETERS[name]


@pytest.mark.parametrize(
  'name',
  [
    *sorted({row.id.split(':')[0] for row in rows(REGULARISATION)}),
    'vit_paper_i1k.py:L/32,i21k',
    'deit_i1k.py:B,distilled',
    'deit3_i1k.py:H',
    'deit3_i1k.py:H,run',
    'mnist.py:7',
    'fashion_mnist.py:7',
  ],
)
def test_recipe_passes_the_checks(name):
  config = load(name)
  if config.data.name.startswith('folder:'):
    with pytest.raises(config_lib.UserError, match='there is no folder'):
      experiment_lib.check(config)
    config.data.name = 'imagenet21k'
  if config.objective.name == 'distillation':
    with pytest.raises(config_lib.UserError, match='say which model teaches'):
      experiment_lib.check(config)
    config.objective.options.teacher = 'teacher.npz'
  experiment_lib.check(config)


@pytest.mark.parametrize(
  ('name', 'resize', 'size', 'flip'),
  [
    ('R50x1,cifar10', 160, 128, True),
    ('R152x4,oxford_flowers102', 512, 480, True),
    ('R50x1,folder:images,30000', 512, 480, True),
    ('R50x1,digits', 160, 128, False),
    ('BiT-R50x1,cifar10', 160, 128, True),
  ],
)
def test_hyper_rule_depends_on_the_images(name, resize, size, flip):
  config = load(f'bit_transfer.py:{name}')
  assert config.data.image_size == size and config.data.flip == flip
  assert math.isclose(config.data.resize * size, resize)
  assert config.data.crop == 'random' and config.data.eval_resize == 1.0
  model = name.partition(',')[0].removeprefix('BiT-')
  assert config.model.name == f'BiT-{model}'
  assert config.init_from.path == f'gs://bit_models/BiT-M-{model}.npz'


@pytest.mark.parametrize(
  ('data', 'falls'),
  [
    ('oxford_iiit_pet', [100, 200, 300, 400, 500]),
    ('cifar10', [500, 3000, 6000, 9000, 10_000]),
    ('imagenet2012', [500, 6000, 12_000, 18_000, 20_000]),
  ],
)
def test_hyper_rule_falls_where_its_code_does(data, falls):
  actual = load(f'bit_transfer.py:R50x1,{data}').optim
  warmup, *falls, total = falls
  rate = optim.make_schedule(actual, optim.Lengths(total, warmup))
  assert math.isclose(rate(warmup // 2), 0.003 / 2, rel_tol=1e-6)
  for i, step in enumerate(falls):
    before, after = 0.003 * 0.1**i, 0.003 * 0.1 ** (i + 1)
    assert math.isclose(rate(step - 1), before, rel_tol=1e-5)
    assert math.isclose(rate(step + 1), after, rel_tol=1e-5)


@pytest.mark.parametrize(
  ('name', 'rho', 'lowest', 'alpha'),
  [
    ('sam_i1k.py:B/16', 0.2, None, None),
    ('gsam_i1k.py:S/16', 0.6, 0, 1),
    ('gsam_i1k.py:B/16', 0.6, 0.2, 0.4),
    ('gsam_i1k.py:B/32', 0.6, 0.1, 0.6),
    ('gsam_i1k.py:Mixer-B/16', 0.5, 0.2, 0.01),
  ],
)
def test_perturbations_are_those_published(name, rho, lowest, alpha):
  options = parts.parse(load(name).optim.sam, 'optim.sam').options
  expected = {'rho': rho, 'rho_min': lowest, 'alpha': alpha, 'groups': 64}
  assert options == {k: x for k, x in expected.items() if x is not None}


def test_images_are_cut_and_normalised_as_published():
  inception, deit = load('vit_s16_i1k.py').data, load('deit_i1k.py').data
  crops = [
    geometry.train_crop(load(f'{x}_i1k.py')) for x in ('vit_s16', 'deit')
  ]
  assert [x.scale for x in crops] == [(0.05, 1), (0.08, 1)]
  assert crops[0].ratio == crops[1].ratio == (3 / 4, 4 / 3)
  assert inception.eval_resize == deit.eval_resize == 256
  assert inception.mean == inception.std == (0.5,)
  assert deit.mean == (0.485, 0.456, 0.406)
  assert deit.std == (0.229, 0.224, 0.225)
  sizes = [load(f'deit3_i1k.py:{s}').data.image_size for s in 'SBLH']
  assert sizes == [224, 192, 192, 154]  # 154: patches of 14 in 160 px
  fine_tuned = load('deit3_i1k.py:H,runs/first')
  assert fine_tuned.data.image_size == 224
  assert fine_tuned.init_from.path == 'runs/first'


def test_nothing_that_is_evaluated_is_trained_on():
  for name in ('vit_s16_i1k.py', 'vit_i21k.py', 'cifar100.py', 'mnist.py'):
    config = load(name)
    held_out = {spec.split for spec in config.evals.values()}
    assert config.data.split not in held_out
    assert config.evals.val.split.startswith('train[')


@pytest.mark.parametrize('variant', ['Ti/16', 'R26+S/32', 'B/32', 'R50+L/32'])
def test_hidden_size_is_that_of_the_model(variant):
  model = models.create_model(recipes.vit_name(variant))
  assert recipes.hidden_size(variant) == model.hidden_size


@pytest.mark.parametrize(
  'config',
  [
    'finetune.py:runs/mine,folder:images',
    'bit_transfer.py:R50x1,folder:images,1000',
  ],
)
def test_val_of_a_folder_is_not_called_test(config):
  config_of_file = config_lib.load(f'{tiny.ROOT}/configs/{config}')
  assert (
    config_of_file.evals.val.split == 'val' and config_of_file.evals.val.every
  )
  assert config_of_file.evals.test.split == ''
  assert config_of_file.checkpoint.every == config_of_file.evals.val.every
