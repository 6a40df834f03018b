"""The recipes of SETR and UNETR have the settings of their sources."""

import jax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data import target_kinds
from vit_jax.train import cost

# arXiv:2012.15840, section 4.1.
SETR = {
  'model.name': 'ViT-L/16',
  'optim.name': 'sgd(momentum=0.9)',
  'optim.weight_decay': 0.0,
  'data.crop': 'scaled(zoom=(0.5, 2.0))',
  'data.flip': True,
  'objective.options.auxiliary_weight': 0.4,
}
DATA = {
  'ade20k': {
    'data.image_size': 512,
    'train.batch_size': 16,
    'train.duration': '160000 steps',
    'optim.learning_rate': 1e-3,
    'optim.schedule': 'poly(power=0.9, final_factor=1e-4/0.001)',
  },
  'cityscapes': {
    'data.image_size': 768,
    'train.batch_size': 8,
    'train.duration': '80000 steps',
    'optim.learning_rate': 1e-2,
    'optim.schedule': 'poly(power=0.9, final_factor=1e-4/0.01)',
  },
  'pascal': {
    'data.image_size': 480,
    'train.batch_size': 16,
    'train.duration': '80000 steps',
    'optim.learning_rate': 1e-3,
    'optim.schedule': 'poly(power=0.9, final_factor=1e-4/0.001)',
  },
}
# Layers counted from 1, as in the paper.
LAYERS = {
  'naive': (10, 15, 20, 24),
  'pup': (10, 15, 20, 24),
  'mla': (6, 12, 18, 24),
}
# arXiv:2103.10504, sections 3 and 4.
UNETR = {
  'data.image_size': (96, 96, 96),
  'data.volume.spacing': (1.0, 1.0, 1.0),
  'data.volume.window': (-1000.0, 1000.0),
  'augment.volume.foreground': 0.5,
  'model.name': 'ViT-B/16',
  'model.patch_size': (16, 16, 16),
  'train.batch_size': 6,
  'train.duration': '20_000 steps',
  'optim.name': 'adamw',
  'optim.learning_rate': 1e-4,
  'objective.options.overlap': 0.5,
  'objective.options.layers': (3, 6, 9),
}


# arXiv:2101.08461.
TRANS2SEG = {
  'data.image_size': 512,
  'train.duration': '50 epochs',
  'optim.learning_rate': 1e-4,
  'objective.options.width': 256,
  'objective.options.depth': 4,
  'objective.options.heads': 8,
}


def load(name):
  config = config_lib.load(str(tiny.ROOT / 'configs' / f'{name}.py'))
  return config, dict(config_lib.flatten(config))


@pytest.mark.parametrize('head', LAYERS)
@pytest.mark.parametrize('data', DATA)
def test_setr_settings(head, data):
  _, values = load(f'setr_{head}_{data}')
  wanted = SETR | DATA[data] | {'objective.options.head': head}
  assert {key: values[key] for key in wanted} == wanted
  assert (
    tuple(x + 1 for x in values['objective.options.layers']) == LAYERS[head]
  )
  (rule,) = values['optim.rules']
  assert rule[1] == 10.0


@pytest.mark.parametrize(
  ('name', 'wanted'), [('unetr_btcv', UNETR), ('trans2seg_trans10k', TRANS2SEG)]
)
def test_settings(name, wanted):
  values = load(name)[1]
  assert {key: values[key] for key in wanted} == wanted


def test_codes_of_the_data():
  assert load('setr_pup_ade20k')[1]['data.map.labels'] == tuple(range(1, 151))
  found = load('setr_pup_cityscapes')[1]['data.map.labels']
  assert len(found) == 19 and found[0] == 7 and found[-1] == 33
  assert 14 not in found and 18 not in found


def count_of(name, image, classes):
  """Returns the numbers of parameters of a recipe's trunk and heads."""
  config, _ = load(name)
  config.model.num_classes = 0
  names = tuple(map(str, range(classes)))
  there = {'image': image, 'map': target_kinds.SegmentationMap(names)}
  objectives.fill_options(config)
  made = objectives.create(config, there)
  params = jax.eval_shape(made.init, jax.random.key(0))
  return {
    name: sum(
      x.size
      for path, x in jax.tree_util.tree_leaves_with_path(part)
      if getattr(path[-1], 'key', '') not in ('mean', 'var')
    )
    for name, part in params['decoder'].items()
  } | {'trunk': sum(x.size for x in jax.tree.leaves(params['trunk']))}


# head -> parameters of mmsegmentation's heads for ADE20K's 150 classes.
HEADS = {
  'naive': {'decode': 303_254, 'auxiliary_0': 369_302},
  'pup': {'decode': 4_171_414, 'auxiliary_2': 2_990_742},
  'mla': {'decode': 1_848_470, 'auxiliary_3': 38_550, 'neck': 3_420_160},
}


@pytest.mark.parametrize('head', HEADS)
def test_setr_has_the_published_heads(head):
  found = count_of(f'setr_{head}_ade20k', features.Image(), 150)
  assert HEADS[head].items() <= found.items()
  count = 4 if head == 'mla' else 3
  assert len([x for x in found if x.startswith('auxiliary')]) == count


def test_unetr_has_the_published_size():
  """MONAI's of 14 classes: 92.8 million parameters."""
  image = input_kinds.Volume((96, 96, 96))
  found = count_of('unetr_btcv', image, 14)
  assert found['trunk'] == 88_340_736
  assert sum(found.values()) == 92_784_046


@pytest.mark.slow
@pytest.mark.parametrize('name', ['setr_pup_ade20k', 'setr_mla_cityscapes'])
def test_the_cost_of_a_step_with_chosen_layers(name):
  """Layers of 24 are read; a model of fewer would not have them."""
  config, _ = load(name)
  config.data.image_size = 32
  config.model.update(hidden_size=16, mlp_dim=32, num_heads=2, num_classes=0)
  objectives.fill_options(config)
  config.objective.options.channels = 4
  there = {
    'image': features.Image(),
    'map': target_kinds.SegmentationMap(('a', 'b', 'c')),
  }
  made = objectives.create(config, there)
  params = jax.eval_shape(made.init, jax.random.key(0))
  found = cost.step_flops(config, there, params)
  assert 0 < 2 * found.forward < found.step
