"""The recipes of CLIP, SigLIP and LiT have the settings of their sources."""

import jax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models

# Values of the papers' tables and of the authors' configs, by our keys.
TEXT = 'objective.options.text_'
RECIPES = {
  # arXiv:2103.00020, tables 18 and 20.
  'clip_b32': {
    'data.image_size': 224,
    'data.tokenizer': 'clip',
    'train.batch_size': 32_768,
    'train.duration': '32 epochs',
    'optim.name': 'adamw(b2=0.98, eps=1e-6)',
    'optim.learning_rate': 5e-4,
    'optim.weight_decay': 0.2,
    'optim.warmup': '2_000 steps',
    'objective.options.largest_scale': 100.0,
    'objective.options.dim': 512,
    f'{TEXT}width': 512,
    f'{TEXT}depth': 12,
    f'{TEXT}heads': 8,
  },
  # arXiv:2303.15343, and big_vision.
  'siglip_b16': {
    'train.batch_size': 32_768,
    'train.duration': '9e9 examples',
    'optim.learning_rate': 1e-3,
    'optim.name': 'adafactor(b2=0.95)',
    'optim.weight_decay': 1e-4,
    'data.tokenizer': 'sentencepiece',
    'data.text_length': 64,
    'objective.options.loss': 'sigmoid',
    'objective.options.dim': 0,
    f'{TEXT}width': 768,
    f'{TEXT}pool': 'last',
    f'{TEXT}causal': False,
  },
  # big_vision's lit_coco.py.
  'lit_b16': {
    'train.batch_size': 4096,
    'train.duration': '5_000 steps',
    'optim.learning_rate': 1e-3,
    'optim.weight_decay': 0.01,
    'optim.warmup': '150 steps',
    'optim.clip_norm': 1.0,
    'data.tokenizer': 'wordpiece',
    'data.text_length': 16,
    'objective.options.locked': 'image',
  },
}


@pytest.mark.parametrize('name', RECIPES)
def test_settings(name):
  config = config_lib.load(str(tiny.ROOT / 'configs' / f'{name}.py'))
  values = dict(config_lib.flatten(config))
  wanted = RECIPES[name]
  assert {key: values[key] for key in wanted} == wanted


def test_shares_of_the_siglip_schedule():
  """The warm-up is 3% of the run."""
  config = config_lib.load(str(tiny.ROOT / 'configs' / 'siglip_b16.py'))
  steps = [
    config_lib.num_steps(text, 10**9, config.train.batch_size)
    for text in (config.optim.warmup, config.train.duration)
  ]
  assert steps[0] / steps[1] == pytest.approx(0.03, rel=1e-3)


def test_clip_has_the_published_image_tower():
  """151.3 million parameters with the text tower: 87.8 are the image's."""
  config = config_lib.load(str(tiny.ROOT / 'configs' / 'clip_b32.py'))
  model = models.from_config(config.model, 0)
  params = models.abstract_params(model, (224, 224, 3))
  count = sum(x.size for x in jax.tree.leaves(params))
  assert count + 768 * 512 == 87_849_216
