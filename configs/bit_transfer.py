r"""A BiT of ImageNet-21k, fine-tuned on any dataset by BiT's hyper-rule.

  vit-jax train --config=bit_transfer:R50x1,cifar10

MODEL is R50x1, R50x3, R101x1, R101x3, R152x2 or R152x4, with or without BiT-
before it. DATASET is a TFDS name, folder:PATH or digits. A dataset that is not
in `recipes.DATASETS` needs the number of training examples:

  vit-jax train \
      --config=bit_transfer:R50x1,folder:/path/to/images,12000

Source: "Big Transfer (BiT)", arXiv:1912.11370, section 3.3, and its authors'
code (google-research/big_transfer, bit_hyperrule.py). For fewer than 20,000
examples, that code warms up for 100 steps and lowers the learning rate at 40,
60 and 80% of the steps.

Accuracy in the paper: R50x1 on ImageNet-1k 80.68%, CIFAR-10 97.3%, CIFAR-100
86.4%; R152x2 85.15%, 98.5% and 91.2%. On CIFAR the authors also tried batches
of 128 with a learning rate of 0.001, and found them as good. Not run by us: we
could not reach gs://bit_models. A copy works: --config.init_from.path=PATH.

Images below 96 x 96 pixels that are not in the table need
--config.data.image_size=128. To save memory: --config.train.accumulation=8.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

_MODELS = ('R50x1', 'R50x3', 'R101x1', 'R101x3', 'R152x2', 'R152x4')


def get_config(arg: str = 'R50x1,cifar10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: MODEL,DATASET,EXAMPLES.
  """
  model, data, count = recipes.split(arg, 'MODEL,DATASET,EXAMPLES')
  model = model.removeprefix('BiT-')  # as model.name has it
  recipes.choose(model, _MODELS, 'a model')
  dataset = recipes.dataset(data)
  examples = int(count) if count.isdecimal() else dataset.examples
  if not (data and examples):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write MODEL,DATASET,EXAMPLES, as in'
      f' {model},folder:images,12000; without EXAMPLES for'
      f' {", ".join(recipes.DATASETS)}'
    )
  config = config_lib.default()
  config.model.name = f'BiT-{model}'
  config.init_from.path = f'gs://bit_models/BiT-M-{model}.npz'

  config.data.name = data
  config.data.split = dataset.train
  # From 160 or 512 px; exact for any aspect ratio.
  config.data.image_size = 128 if dataset.is_small else 480
  config.data.resize = 160 / 128 if dataset.is_small else 512 / 480
  config.data.crop = 'random'
  config.data.flip = data != 'digits'  # a mirrored digit is another sign
  config.data.eval_resize = 1.0
  config.augment.mixup = 0.1 if examples >= 20_000 else 0.0

  steps = 500 if examples < 20_000 else 10_000 if examples < 500_000 else 20_000
  config.train.duration = f'{steps} steps'
  config.train.batch_size = 512
  config.optim.name = 'sgd(momentum=0.9)'
  config.optim.learning_rate = 0.003
  at = (0.4, 0.6, 0.8) if steps == 500 else (0.3, 0.6, 0.9)
  config.optim.schedule = f'step(at={at}, factor=0.1)'
  config.optim.warmup = '100 steps' if steps == 500 else '500 steps'

  recipes.evaluate(config, dataset, steps)
  return config
