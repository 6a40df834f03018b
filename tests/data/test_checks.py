import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError


def check(**settings) -> None:
  config = config_lib.default()
  config.data.update(settings)
  data.check(config)


def check_augment(augment, **settings) -> None:
  config = config_lib.default()
  config.augment.update(augment)
  tiny.change(config, settings)
  data.check(config)


@pytest.mark.parametrize(
  'settings',
  [
    {},
    {'name': 'imagenet2012', 'split': 'train[:99%]'},
    {'name': 'imagenet_resized/32x32:0.1.0'},
    {'channels': 1, 'mean': (0.1,), 'std': (0.3,)},
    {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)},
    {'crop': 'pad(4)', 'resize': 216},
    {'crop': 'random', 'resize': (224, 300), 'eval_resize': 256},
    {'image_size': (32, 64), 'eval_resize': 40},
    {'crop': 'random_resized((1.0, 1.0))', 'source_size': (32, 32)},
  ],
)
def test_accepts(settings):
  check(**settings)


@pytest.mark.parametrize(
  'settings, message',
  [
    (
      {'name': ''},
      "config.data.name is '': write 'digits', 'scenes', 'volumes',"
      " 'moving_digits', 'tones', 'folder:",
    ),
    (
      {'name': '/tmp'},
      "'scenes', 'volumes', 'moving_digits', 'tones', 'folder:/tmp',",
    ),
    ({'name': 'folder:/no/such'}, "data.name: there is no folder '/no/such'"),
    (
      {'split': 'train[:x]'},
      "config.data.split: 'train\\[:x\\]' is not a split",
    ),
    ({'channels': 2}, 'config.data.channels is 2: choose 1'),
    ({'image_size': 0}, 'config.data.image_size is 0: write one positive'),
    ({'image_size': (1, 2, 3, 4)}, 'config.data.image_size is'),
    ({'source_size': (32, 0)}, 'config.data.source_size is'),
    ({'crop': 'centre'}, "config.data.crop is 'centre': did you mean 'center'"),
    ({'interpolation': 'nearest'}, "interpolation is 'nearest': choose one of"),
    ({'resize_like': 'tf'}, "resize_like is 'tf': choose one of timm, transf"),
    (
      {'interpolation': 'bicubic', 'antialias': False},
      'antialias is False, but config.data.interpolation=bicubic',
    ),
    (
      {'resize_like': 'timm', 'antialias': False},
      'antialias is False, but config.data.resize_like=timm',
    ),
    (
      {'crop': 'random_resized((0.5, 1.5))'},
      r'scale is \(0.5, 1.5\): each must',
    ),
    (
      {'crop': 'random_resized((0.5, 0.1))'},
      'scale is .*the least number first',
    ),
    (
      {'crop': 'random_resized(ratio=(0, 1))'},
      'ratio is .* each must be more than 0',
    ),
    (
      {'crop': 'random_resized(ratio=(1.0,))'},
      r'ratio is \(1.0,\): it must be',
    ),
    ({'crop': 'scaled(zom=(1, 2))'}, "no option 'zom': did you mean 'zoom'"),
    ({'mean': (0.1, 0.2)}, 'data.mean has 2 numbers: write one, or one for'),
    ({'std': (0.5, 0.5)}, 'data.std has 2 numbers'),
    ({'std': (0.5, 0.0, 0.5)}, r'data.std is \(0.5, 0.0, 0.5\): it must be'),
    ({'crop': 'pad(-1)'}, r'data.crop=pad\(-1\): pad is -1'),
    ({'num_workers': -1}, 'data.num_workers is -1: it must be at least 0'),
    ({'num_threads': 0}, 'data.num_threads is 0: it must be at least 1'),
    (
      {'eval_resize': 200},
      r'data.eval_resize is 200: too small to cut config.data.image_size='
      r'\(224, 224\) from it: set config.data.eval_resize to 224 or more, or',
    ),
    ({'eval_resize': (300, 200)}, r'eval_resize to \(224, 224\) or more'),
    ({'eval_resize': '200'}, "data.eval_resize is '200': write one positive"),
    ({'crop': 'random', 'resize': 200}, 'data.resize is 200'),
    (
      {'crop': 'random', 'resize': 0.9},
      'data.resize is 0.9: too small .* set config.data.resize to 1.0 or more$',
    ),
    *(
      ({'eval_resize': text}, 'data.eval_resize is .*border')
      for text in (
        *('middle(0.9)', 'center', 'center()', 'center(1.5)', 'center(0)'),
        *('center(0.9, 1)', 'border(0.9, -1)', 'border(0.9, 300)', 'squash(a)'),
        *('squash(nan)', 'border(1, 2, 3)', 'center(1e-9)', 'center(True)'),
      )
    ),
    ({'eval_resize': -1.5}, 'data.eval_resize is -1.5: as a multiple'),
    ({'eval_resize': float('nan')}, 'data.eval_resize is nan'),
    ({'crop': 'pad(4)', 'resize': 215}, 'data.resize is 215'),
    ({'resize': (32,)}, r'data.resize is \(32,\): write one positive number'),
    ({'eval_resize': ((1, 2), 3)}, 'data.eval_resize is .*: write one positi'),
    ({'eval_resize': 1e308}, 'data.eval_resize is 1e.308: as a multiple of im'),
    ({'resize': 2**40}, 'data.resize is .*: too large, at most 65,536'),
    ({'image_size': (True, 8)}, 'data.image_size is .*: write one positive'),
  ],
)
def test_refuses(settings, message):
  with pytest.raises(UserError, match=message) as e:
    check(**settings)
  assert '\n' not in str(e.value)


def test_refuses_columns_where_there_are_none():
  config = config_lib.default()
  config.data.columns.label = 'species'
  with pytest.raises(UserError, match=r'label is .species., but digits has no'):
    data.check(config)
  config.data.name = 'hf:owner/name'
  data.check(config)


def test_refuses_the_split_of_an_evaluation():
  config = config_lib.default()
  config.evals.test.split = 'test[0:'
  with pytest.raises(
    UserError, match=r"config.evals.test.split: 'test\[0:' is"
  ):
    data.check(config)


@pytest.mark.parametrize(
  'augment, settings',
  [
    ({'policy': 'randaugment(2,10)', 'mixup': 0.2, 'cutmix': 1.0}, {}),
    ({'jitter': 'jitter(0.3, 0.4, 2, 0.5)', 'erase': 'erase(1.0)'}, {}),
    ({'gray': (0.2,), 'blur': (1.0, 0.1)}, {}),
    ({'repeats': 3, 'mix_probability': 0.0, 'cutmix_share': 1.0}, {}),
    ({'mixup': 0.8}, {'train__batch_size': 24, 'train__accumulation': 3}),
    ({}, {'train__batch_size': 7}),
  ],
)
def test_accepts_augmentation(augment, settings):
  check_augment(augment, **settings)


@pytest.mark.parametrize(
  'augment, message',
  [
    ({'policy': 'nonsense'}, "config.augment.policy: .*'nonsense'"),
    (
      {'jitter': 'jitter(0.3)'},
      "augment.jitter=.* needs the option 'contrast'",
    ),
    (
      {'jitter': 'jitter(0.3, -1, 0, 0)'},
      'contrast is -1.0: it must be at least 0',
    ),
    (
      {'jitter': "jitter(0.3, 'a', 0, 0)"},
      'augment.jitter=.* of the type float',
    ),
    (
      {'jitter': 'jitter(0, 0, 0, 0.6)'},
      r'hue is 0.6: it must be in \[0, 0.5\]',
    ),
    ({'jitter': 'erase(0.1)'}, "jitter is 'erase': There are jitter"),
    ({'gray': (0.2, 1.5)}, r'augment.gray is \(0.2, 1.5\): write probabili'),
    ({'blur': ('a',)}, 'config.augment.blur is .* a finite number'),
    ({'solarize': (-0.1,)}, 'config.augment.solarize is .*from 0 to 1'),
    ({'jitter': 'jitter(0, 0, 0, 0, probability=2)'}, 'probability is 2.0'),
    ({'erase': 'erase(1.5)'}, r'probability is 1.5: it must be in \[0, 1\]'),
    ({'erase': 'erase(nan)'}, 'augment.erase=.*nan is no literal'),
    ({'erase': 'erase(0.1, area=(0.0, 0.3))'}, 'area is .* each must be in'),
    ({'erase': 'erase(0.1, area=(0.1, 1.3))'}, r'area is .* in \(0, 1\]'),
    ({'erase': 'erase(0.1, ratio=(2, 1))'}, 'ratio is .*least number first'),
    ({'mixup': -0.1}, 'config.augment.mixup is -0.1: it must be at least 0'),
    ({'cutmix': float('inf')}, 'config.augment.cutmix is inf'),
    ({'mix_probability': -0.5}, 'config.augment.mix_probability is -0.5'),
    ({'cutmix_share': 1.1}, 'config.augment.cutmix_share is 1.1'),
    (
      {'repeats': 0},
      'config.augment.repeats is 0: it must be from 1 to config',
    ),
    ({'repeats': 129}, 'repeats is 129: .* 1 to config.train.batch_size=128'),
  ],
)
def test_refuses_augmentation(augment, message):
  with pytest.raises(UserError, match=message) as e:
    check_augment(augment)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
  'settings, message',
  [
    ({'train__batch_size': 9}, 'pairs of images: make .*=9 a multiple of 2,'),
    (
      {
        'train__batch_size': 18,
        'optim__sam': 'sam(groups=2)',
      },
      'in each of 2 groups of config.optim.sam: make .*=18 a multiple of 4',
    ),
    (
      {'train__batch_size': 12, 'train__accumulation': 4},
      'in each of config.train.accumulation=4 parts: make .* a multiple of 8',
    ),
  ],
)
def test_refuses_to_part_mixed_pairs(settings, message):
  with pytest.raises(UserError, match=message) as e:
    check_augment({'cutmix': 1.0}, **settings)
  assert '\n' not in str(e.value)
  check_augment({}, **settings)
