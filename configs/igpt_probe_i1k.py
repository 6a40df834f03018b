"""A linear probe on an iGPT's features on ImageNet-1k (Chen et al., 2020).

python -m vit_jax.main --config=configs/igpt_probe_i1k.py:SIZE,LAYER

The checkpoint is that of configs/igpt_i1k.py at runs/igpt_i1k, or another one
at --config.init_from.path, such as hf:openai/imagegpt-small. SIZE is S, M or L,
by default S; LAYER the layer whose features are read, from 0, by default the
middle one. Settings are those of section 3.4 of Generative Pretraining from
Pixels: SGD with momentum for a million steps. Not run by us. The paper reports
60.3% for iGPT-L at 32x32.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = 'S') -> ml_collections.ConfigDict:
  """Returns the config; `arg` is SIZE,LAYER."""
  size, layer = recipes.split(arg, 'SIZE,LAYER')
  size = recipes.choose(size or 'S', ('S', 'M', 'L'), 'a size')
  if layer and not layer.isdecimal():
    raise config_lib.UserError(f'{layer!r} is no layer: write a number from 0')
  config = config_lib.default()
  config.init_from.path = 'runs/igpt_i1k'

  config.data.name = 'imagenet2012'
  config.data.split = 'train[:96%]'
  config.data.image_size = 32
  config.data.crop = 'random_resized'
  config.data.crop_scale = ((224 / 384) ** 2, (224 / 256) ** 2)
  config.data.crop_ratio = (1.0, 1.0)
  config.data.flip = False

  config.model.name = f'iGPT-{size}'
  config.model.scan = True
  if layer:
    config.model.feature_layer = int(layer)

  config.train.duration = '1_000_000 steps'
  config.train.batch_size = 128
  config.optim.name = 'sgd'
  config.optim.momentum = 0.9
  # The paper tries 30, 10, 3, ... and takes the best.
  config.optim.learning_rate = 3.0
  config.optim.trainable = '^head/'

  config.evals.val.split = 'train[96%:]'
  config.evals.test.split = 'validation'
  config.evals.val.every = '50_000 steps'
  config.checkpoint.every = '10_000 steps'
  return config
