"""Configs of DINO and DINOv2: the settings of the papers, and a step."""

import math

import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.train import experiment as experiment_lib

COMMON = {
  'data.image_size': 224,
  'augment.jitter': 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)',
  'augment.gray': (0.2,),
  'augment.blur': (1.0, 0.1, 0.5),
  'augment.solarize': (0.0, 0.2, 0.0),
  'optim.name': 'adamw',
  'optim.weight_decay': 0.04,
  'optim.final_weight_decay': 0.4,
  'objective.options.local_crops': 8,
  'objective.options.local_size': 96,
  'objective.options.prototypes': 65_536,
  'objective.options.head_layers': 3,
  'objective.options.head_hidden': 2_048,
  'objective.options.bottleneck': 256,
  'objective.options.batch_norm': False,
  'objective.options.student_temperature': 0.1,
  'objective.options.teacher_temperature_start': 0.04,
  'objective.options.teacher_temperature': 0.07,
  'objective.options.teacher_temperature_warmup': '30 epochs',
  'objective.options.centre_momentum': 0.9,
}
DINO = COMMON | {
  'data.crop': 'random_resized(scale=(0.4, 1.0))',
  'objective.options.local_scale': (0.05, 0.4),
  'objective.options.momentum': 0.996,
  'train.batch_size': 1024,
  'optim.warmup': '10 epochs',
  'model.stochastic_depth': 0.1,
}
# DINO: appendix C and the authors' code; DINOv2: `ssl_default_config.yaml`.
PAPERS = {
  'dino_i1k.py:S': DINO
  | {
    'train.duration': '800 epochs',
    'optim.learning_rate': 5e-4 * 4,
    'optim.clip': '',
    'objective.options.trains_scale': True,
    'objective.options.freeze_last_layer': '1 epochs',
  },
  'dino_i1k.py:B': DINO
  | {
    'train.duration': '400 epochs',
    'optim.learning_rate': 7.5e-4 * 4,
    'optim.clip': 'each(0.3)',
    'objective.options.trains_scale': False,
    'objective.options.freeze_last_layer': '3 epochs',
  },
  'dinov2_i1k.py': COMMON
  | {
    'model.name': 'ViT-L/16',
    'model.block': ('block(layer_scale=1e-5, stochastic_depth_uniform=True)'),
    'model.stochastic_depth': 0.3,
    'data.crop': 'random_resized(scale=(0.32, 1.0))',
    'train.batch_size': 2048,
    'train.duration': '125_000 steps',
    'optim.learning_rate': 4e-3 * math.sqrt(2),
    'optim.layer_decay': 0.9,
    'objective.options.local_scale': (0.05, 0.32),
    'objective.options.momentum': 0.992,
    'objective.options.mask_probability': 0.5,
    'objective.options.mask_ratio': (0.1, 0.5),
    'objective.options.patch_weight': 1.0,
    'objective.options.koleo_weight': 0.1,
    'objective.options.trains_scale': True,
  },
}


@pytest.mark.parametrize('name', PAPERS)
def test_settings_are_those_of_the_papers(name):
  config = config_lib.load(str(tiny.ROOT / 'configs' / name))
  experiment_lib.check(config)
  objectives.fill_options(config)
  found = dict(config_lib.flatten(config))
  assert found['optim.schedule'].startswith('cosine(final_factor=')
  for key, value in PAPERS[name].items():
    wanted = pytest.approx(value) if isinstance(value, float) else value
    assert found[key] == wanted, key
