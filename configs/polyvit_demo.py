r"""PolyViT: images, videos and sounds on one backbone.

  vit-jax train --config=polyvit_demo \
      --workdir=runs/polyvit

Four tasks: handwritten digits, CIFAR-10, the direction of a moving digit in a
video, and the melody of three tones. All tasks share the layers. Tasks of one
modality share patches and positions. Each task has its own head. Each step
takes a batch of every task. CIFAR-10 is TFDS' `cifar10`, or a folder with
train/<class>/: --config.tasks.cifar10.data.name=folder:/path/to/cifar10.

347,458 parameters, 299,328 of them in the shared layers. Accuracy on held-out
examples, seed 0, 17 minutes on one CPU core; a model for one task, with as many
steps, in brackets:

  digits                   98.3% (98.3%)
  CIFAR-10, a JPEG copy    51.7% (53.2%)
  moving digits            99.9% (100.0%)
  tones                    99.3% (100.0%)

polyvit_demo:TASK trains one task only: digits, cifar10, moving or tones.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

_STEPS = 1_200
# Weight of each task's loss: the hardest one counts most.
_WEIGHTS = {'digits': 1.0, 'cifar10': 3.0, 'moving': 1.0, 'tones': 1.0}


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: A task to train alone; '': all.
  """
  config = config_lib.default()
  config.model.name = 'ViT-Ti/4'
  recipes.small_vit(config)
  config.model.hidden_size = 96
  config.model.mlp_dim = 192
  config.model.num_heads = 3
  config.model.scan = False  # faster steps

  config.train.batch_size = 32
  config.train.variant = "tasks(sampling='accumulated')"
  config.train.log_every = '100 steps'
  config.optim.name = 'muon(momentum=0.95, b2=0.95)'
  config.optim.learning_rate = 3e-3
  config.optim.schedule = 'linear'
  config.optim.warmup = '100 steps'
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 1.0
  config.checkpoint.every = '1_000 steps'

  config.train.duration = f'{_STEPS} steps'

  tasks = {name: config_lib.task(config, x) for name, x in _WEIGHTS.items()}
  _images(tasks['digits'], tasks['cifar10'])
  _video(tasks['moving'])
  _sound(tasks['tones'])
  config.tasks.update(tasks)
  return config_lib.for_task(config, arg) if arg else config


def _images(*tasks: ml_collections.ConfigDict) -> None:
  """Sets the data of digits and of CIFAR-10, which share their patches."""
  digits, cifar10 = tasks
  for task in tasks:
    task.data.image_size = 32
    task.data.crop = 'pad(2)'
  digits.data.name = 'digits'
  digits.data.flip = False  # a mirrored digit is another sign
  digits.data.split = 'train[:80%]'
  digits.evals.val.split = 'train[80%:]'
  cifar10.data.name = 'cifar10'
  cifar10.data.split = 'train[:45000]'
  cifar10.evals.val.split = 'train[45000:]'


def _video(task: ml_collections.ConfigDict) -> None:
  task.model.patch_size = (4, 6, 6)  # a tubelet: frames, height, width
  task.data.name = 'moving_digits'
  task.data.source_size = (10, 24, 24)
  task.data.image_size = (8, 24, 24)
  task.data.channels = 1
  task.data.crop = 'center'
  task.data.flip = False  # what moves left would move right
  task.data.split = 'train'
  task.evals.val.split = 'test'


def _sound(task: ml_collections.ConfigDict) -> None:
  task.model.patch_size = (8, 16)
  task.data.name = 'tones'
  task.data.image_size = (96, 64)  # frames, mels
  task.data.channels = 1
  task.data.split = 'train'
  task.evals.val.split = 'test'
  task.augment.audio.time_mask = 8
  task.augment.audio.frequency_mask = 8
