"""PolyViT-B/16: nine datasets of images, videos and sounds on one backbone.

  vit-jax train --config=polyvit_b16:/path/to/data

/path/to/data has the folders kinetics400, moments_in_time, vggsound and
audioset, each with train/<class>/ and val/<class>/. The images are those of
TFDS. The clips of AudioSet have several labels; the recipe reads a folder with
one class per clip. A source of your own with `labels` replaces it:
--config.tasks.audioset.data.name=my_module:MySource and
--config.tasks.audioset.objective.name=multilabel.

Source: "PolyViT: co-training vision transformers on images, videos and audio",
arXiv:2111.12993, and its code (scenic, projects/polyvit, config polyvit_all).
Each dataset gets the steps of its single-task training, and its own learning
rate. The task of a step is drawn in proportion to these steps. The backbone
starts from a ViT-B/16 of ImageNet-21k. Not run by us.

Differences: videos have no colour and scale jittering. SpecAugment masks one
range of frames and one of bands, theirs four and one. The mean over several
clips of a video is not evaluated.
"""

import ml_collections

from vit_jax import config as config_lib

# Steps of training alone, and learning rate.
_IMAGES = {
  'imagenet2012': (20_000, 0.03),
  'cifar10': (10_000, 0.03),
  'cifar100': (10_000, 0.03),
  'oxford_iiit_pet': (500, 0.03),
  'resisc45': (2_500, 0.1),
}
# Training examples, epochs of training alone, and learning rate.
_VIDEOS = {
  'kinetics400': (214_834, 30, 0.1),
  'moments_in_time': (791_297, 10, 0.25),
}
_SOUNDS = {'vggsound': (172_427, 50, 0.5), 'audioset': (20_361, 50, 0.5)}
# Splits of training and of validation; of others the last 2% are held out.
_SPLITS = {
  'imagenet2012': ('train[:99%]', 'train[99%:]'),
  'oxford_iiit_pet': ('train[:90%]', 'train[90%:]'),
  'resisc45': ('train[:60%]', 'train[60%:80%]'),
}
_BATCH_SIZE = 64  # of videos and of sounds


def get_config(arg: str = 'data') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The folder of the videos and sounds.
  """
  config = config_lib.default()
  config.model.name = 'ViT-B/16'
  config.init_from.path = 'ViT-B/16'
  config.train.batch_size = 512
  config.train.variant = "tasks(sampling='weighted')"
  config.optim.name = 'sgd'
  config.optim.learning_rate = 1.0  # times the factor of each task
  config.optim.clip_norm = 1.0
  config.checkpoint.every = '5_000 steps'

  for name, (steps, rate) in _IMAGES.items():
    config.tasks[name] = _image(config, name, steps, rate)
  warmup = 500.0
  for name, (examples, epochs, rate) in (_VIDEOS | _SOUNDS).items():
    per_epoch = examples // _BATCH_SIZE
    make = _video if name in _VIDEOS else _sound
    steps = epochs * per_epoch
    config.tasks[name] = make(config, f'{arg}/{name}', steps, rate)
    warmup += 2.5 * per_epoch
  config.optim.warmup = f'{warmup:.0f} steps'
  total = sum(task.weight for task in config.tasks.values())
  config.train.duration = f'{total:.0f} steps'
  return config


def _image(
  config: ml_collections.ConfigDict, name: str, steps: int, rate: float
) -> ml_collections.ConfigDict:
  task = config_lib.task(config, weight=steps, rate_factor=rate)
  task.data.name = name
  task.data.image_size = 384
  task.data.eval_resize = 1.0  # both sides, whatever their ratio
  train, val = _SPLITS.get(name, ('train[:98%]', 'train[98%:]'))
  task.data.split, task.evals.val.split = train, val
  task.evals.val.every = '5_000 steps'
  return task


def _video(
  config: ml_collections.ConfigDict, path: str, steps: int, rate: float
) -> ml_collections.ConfigDict:
  task = config_lib.task(
    config, weight=steps, batch_size=_BATCH_SIZE, rate_factor=rate
  )
  task.model.patch_size = (4, 16, 16)
  task.data.name = f'video:{path}'
  task.data.image_size = (32, 224, 224)
  task.data.video.stride = 2
  task.data.video.short = 'pad'
  task.data.crop = 'random'
  task.data.resize = task.data.eval_resize = 256
  task.evals.val.split = 'val'
  return task


def _sound(
  config: ml_collections.ConfigDict, path: str, steps: int, rate: float
) -> ml_collections.ConfigDict:
  task = config_lib.task(
    config, weight=steps, batch_size=_BATCH_SIZE, rate_factor=rate
  )
  task.model.stochastic_depth = 0.3
  task.data.name = f'audio:{path}'
  task.data.image_size = (800, 128)  # 8 seconds, mels
  task.data.channels = 1
  task.augment.audio.time_mask = 48
  task.augment.audio.frequency_mask = 48
  task.augment.mixup = 0.3
  task.evals.val.split = 'val'
  return task
