"""A linear probe on an iGPT's features on ImageNet-1k (Chen et al., 2020).

vit-jax train --config=igpt_probe_i1k:SIZE,LAYER

SIZE is S (default), M or L. LAYER is the layer of the features, counted from 0;
the default is the middle one. The checkpoint is runs/igpt_i1k, a run of
configs/igpt_i1k.py. --config.init_from.path selects another, for example
hf:openai/imagegpt-small.

Source: "Generative Pretraining from Pixels", section 3.4: SGD with momentum for
a million steps. Accuracy of iGPT-L at 32x32: 60.3%. Not run by us.
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
  scale = (224 / 384) ** 2, (224 / 256) ** 2
  config.data.crop = f'random_resized(scale={scale}, ratio=(1.0, 1.0))'
  config.data.flip = False

  options = f'(feature_layer={int(layer)})' if layer else ''
  config.model.name = f'iGPT-{size}{options}'
  config.model.scan = True

  config.train.duration = '1_000_000 steps'
  config.train.batch_size = 128
  config.optim.name = 'sgd(momentum=0.9)'
  # The paper tries 30, 10, 3, ... and takes the best.
  config.optim.learning_rate = 3.0
  config.optim.trainable = '^head/'

  config.evals.val.split = 'train[96%:]'
  config.evals.test.split = 'validation'
  config.evals.val.every = '50_000 steps'
  config.checkpoint.every = '10_000 steps'
  return config
