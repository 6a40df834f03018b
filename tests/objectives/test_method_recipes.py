"""Recipes have the settings of their sources, which recipes.txt has."""

import ast
import collections
import itertools
import pathlib

import case_files
import jax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data import target_kinds
from vit_jax.train import cost

HEADS, DATA = ('naive', 'pup', 'mla'), ('ade20k', 'cityscapes', 'pascal')


def settings():
  """Returns values by their keys, by config."""
  values = collections.defaultdict(dict)
  path = pathlib.Path(__file__).with_name('recipes.txt')
  for section, key, text in case_files.read(path):
    if key.startswith('options.'):
      key = f'objective.{key}'
    for name, head, data in itertools.product(section.split(), HEADS, DATA):
      name = name.replace('HEAD', head).replace('DATA', data)
      values[name][key] = ast.literal_eval(text)
  return values


def load(name):
  stem, _, argument = name.partition(':')
  path = f'{tiny.ROOT}/configs/{stem}.py'
  config = config_lib.load(f'{path}:{argument}' if argument else path)
  objectives.fill_options(config)
  return config, dict(config_lib.flatten(config))


@pytest.mark.parametrize(('name', 'expected'), settings().items())
def test_settings(name, expected):
  _, values = load(name)
  for key, value in expected.items():
    is_number = isinstance(value, float)
    assert values[key] == (pytest.approx(value) if is_number else value), key


@pytest.mark.parametrize('name', ['dino_i1k:S', 'dino_i1k:B', 'dinov2_i1k'])
def test_dinos_rate_ends_above_zero(name):
  _, values = load(name)
  assert values['optim.schedule'].startswith('cosine(final_factor=')


def test_the_rate_of_setrs_heads():
  for head, data in itertools.product(HEADS, DATA):
    (rule,) = load(f'setr_{head}_{data}')[1]['optim.rules']
    assert rule[1] == 10.0


@pytest.mark.parametrize(
  ('size', 'sizes'),
  [('S', (24, 512, 8)), ('M', (36, 1024, 8)), ('L', (48, 1536, 16))],
)
def test_sizes_of_igpt(size, sizes):
  model = models.from_config(load(f'igpt_i1k:{size}')[0].model, 0)
  num_heads = model.block.attention.num_heads
  assert (model.depth, model.hidden_size, num_heads) == sizes
  assert model.colours == 512


def test_the_layer_of_a_probe_of_igpt():
  config, _ = load('igpt_probe_i1k:L,20')
  assert models.from_config(config.model, 1000).read == 20


def test_shares_of_the_siglip_schedule():
  """The warm-up is 3% of the run."""
  config, _ = load('siglip_b16')
  steps = [
    config_lib.num_steps(text, 10**9, config.train.batch_size)
    for text in (config.optim.warmup, config.train.duration)
  ]
  assert steps[0] / steps[1] == pytest.approx(0.03, rel=1e-3)


def test_clip_has_the_published_image_tower():
  """151.3 million parameters with the text tower: 87.8 are the image's."""
  config, _ = load('clip_b32')
  params = models.abstract_params(
    models.from_config(config.model, 0), (224, 224, 3)
  )
  count = sum(x.size for x in jax.tree.leaves(params))
  assert count + 768 * 512 == 87_849_216


def test_codes_of_the_data():
  assert load('setr_pup_ade20k')[1]['data.map.labels'] == tuple(range(1, 151))
  actual = load('setr_pup_cityscapes')[1]['data.map.labels']
  assert len(actual) == 19 and actual[0] == 7 and actual[-1] == 33
  assert 14 not in actual and 18 not in actual


def count_parameters(name, image, classes):
  """Returns the numbers of parameters of a recipe's trunk and heads."""
  config, _ = load(name)
  config.model.num_classes = 0
  names = tuple(map(str, range(classes)))
  kinds = {'image': image, 'map': target_kinds.SegmentationMap(names)}
  objectives.fill_options(config)
  objective = objectives.create(config, kinds)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  return {
    name: sum(
      x.size
      for path, x in jax.tree_util.tree_leaves_with_path(part)
      if getattr(path[-1], 'key', '') not in ('mean', 'var')
    )
    for name, part in params['decoder'].items()
  } | {'trunk': sum(x.size for x in jax.tree.leaves(params['trunk']))}


# head -> parameters of mmsegmentation's heads for ADE20K's 150 classes.
PARAMETERS = {
  'naive': {'decode': 303_254, 'auxiliary_0': 369_302},
  'pup': {'decode': 4_171_414, 'auxiliary_2': 2_990_742},
  'mla': {'decode': 1_848_470, 'auxiliary_3': 38_550, 'neck': 3_420_160},
}


@pytest.mark.parametrize('head', PARAMETERS)
def test_setr_has_the_published_heads(head):
  actual = count_parameters(f'setr_{head}_ade20k', features.Image(), 150)
  assert PARAMETERS[head].items() <= actual.items()
  count = 4 if head == 'mla' else 3
  assert len([x for x in actual if x.startswith('auxiliary')]) == count


def test_unetr_has_the_published_size():
  """MONAI's of 14 classes: 92.8 million parameters."""
  image = input_kinds.Volume((96, 96, 96))
  actual = count_parameters('unetr_btcv', image, 14)
  assert actual['trunk'] == 88_340_736
  assert sum(actual.values()) == 92_784_046


@pytest.mark.slow
@pytest.mark.parametrize('name', ['setr_pup_ade20k', 'setr_mla_cityscapes'])
def test_the_cost_of_a_step_with_chosen_layers(name):
  """Layers of 24 are read; a model of fewer would not have them."""
  config, _ = load(name)
  config.data.image_size = 32
  config.model.update(hidden_size=16, mlp_dim=32, num_heads=2, num_classes=0)
  objectives.fill_options(config)
  config.objective.options.channels = 4
  kinds = {
    'image': features.Image(),
    'map': target_kinds.SegmentationMap(('a', 'b', 'c')),
  }
  objective = objectives.create(config, kinds)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  actual = cost.step_flops(config, kinds, params)
  assert 0 < 2 * actual.forward < actual.step
