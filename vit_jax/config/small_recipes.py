"""Recipes for small images that several configs share."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def cifar10() -> ml_collections.ConfigDict:
  """Returns a config for CIFAR-10: 45,000 images to train on, 5,000 held out.

  The split is the tutorial's; mean and std are those of its pixels.
  """
  config = config_lib.default()
  config.data.name = 'cifar10'
  config.data.split = 'train[:45000]'
  config.data.image_size = 32
  config.data.source_size = (32, 32)
  config.data.mean = (0.4914, 0.4822, 0.4465)
  config.data.std = (0.2470, 0.2435, 0.2616)
  config.evals.val.split = 'train[45000:]'
  config.evals.test.split = 'test'
  return config


def cifar10_trained(arg: str) -> ml_collections.ConfigDict:
  """Returns what several configs of CIFAR-10 share, for a number of epochs.

  Args:
    arg: Number of epochs.

  Raises:
    UserError: It is none.
  """
  count = epochs(arg)
  config = cifar10()
  config.data.crop = 'pad(2)'

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.pool = 'mean'
  config.model.positions = 'sincos2d'

  config.train.duration = f'{count} epochs'
  config.train.batch_size = 128
  muon(config)
  config.optim.schedule = 'linear'
  config.optim.warmup = '50 steps'

  config.evals.val.every = f'{max(1, count // 10)} epochs'
  config.checkpoint.every = config.evals.val.every
  return config


def muon(config: ml_collections.ConfigDict) -> None:
  """Sets Muon, which learns more in few epochs than AdamW (docs/cifar10.md)."""
  config.optim.name = 'muon(momentum=0.95, b2=0.95)'
  config.optim.learning_rate = 3e-3
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 1.0


def cifar10_captioned(arg: str) -> ml_collections.ConfigDict:
  """Returns the common part of learning CIFAR-10 with captions.

  Captions are made of the names of the classes. The templates of the
  evaluations are not among those of training.

  Args:
    arg: Number of epochs.

  Raises:
    UserError: It is none.
  """
  config = cifar10_trained(arg)
  config.data.tokenizer = 'words'
  config.data.text_length = 12
  config.data.captions = (
    'templates:a photo of a {}.|a small photo of the {}.|an image of a {}.|'
    'the picture shows a {}.|a blurry picture of the {}.|this is a {}.|'
    'one {} in a small image.'
  )
  config.objective.name = 'contrastive'
  config.objective.options = {
    'text_width': 128,
    'text_mlp_dim': 256,
    'text_depth': 2,
    'text_heads': 4,
  }
  every = config.evals.val.every
  config.evals.val.split = ''
  config.evals.test.split = ''
  config.evals.zero_shot = config_lib.evaluation(
    kind="zero_shot(templates='a small picture of one {}.|"
    "this image shows the {}.')",
    split='train[45000:]',
    every=every,
  )
  config.evals.retrieval = config_lib.evaluation(
    kind='retrieval', split='train[45000:]'
  )
  return config


def small_vit(config: ml_collections.ConfigDict) -> None:
  """Sets a trunk of 134,000 parameters in the layers, for quick runs."""
  config.model.hidden_size = 64
  config.model.mlp_dim = 128
  config.model.num_heads = 4
  config.model.depth = 4
  config.model.pool = 'mean'
  config.model.initializers = 'lecun'
  config.model.scan = True  # compiles sooner


def clips(steps: int, learning_rate: float) -> ml_collections.ConfigDict:
  """Returns the common part of learning clips that the code makes.

  Args:
    steps: Number of steps; there are two evaluations.
    learning_rate: The peak.
  """
  config = config_lib.default()
  config.data.split = 'train'
  config.data.channels = 1
  small_vit(config)
  config.train.duration = f'{steps} steps'
  config.train.batch_size = 32
  config.optim.learning_rate = learning_rate
  config.optim.warmup = '50 steps'
  config.optim.weight_decay = 0.1
  config.optim.clip_norm = 1.0
  config.evals.val.split = 'test'
  config.evals.val.every = f'{steps // 2} steps'
  config.checkpoint.every = f'{steps // 2} steps'
  return config


def epochs(arg: str) -> int:
  """Returns the number of epochs that is the argument of a config.

  Raises:
    UserError: It is none.
  """
  if not arg.isdecimal() or not int(arg):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write a number of epochs, 1 or more, as in'
      ' configs/cifar10.py:10'
    )
  return int(arg)


def cifar10_unlabelled(arg: str) -> ml_collections.ConfigDict:
  """Returns the common part of pre-training on CIFAR-10 without labels.

  The model is much smaller than that of configs/cifar10.py: 134,000 parameters
  in the layers. Probes are fitted to 10,000 labelled images, and measured on
  the 5,000 that are held out, twice in a run.

  Args:
    arg: Number of epochs.

  Raises:
    UserError: It is none.
  """
  count = epochs(arg)
  config = cifar10()
  config.model.name = 'ViT-Ti/4'
  small_vit(config)
  config.train.duration = f'{count} epochs'
  config.train.batch_size = 128
  muon(config)
  config.optim.warmup = f'{count / 10} epochs'
  config.evals.val.split = ''
  config.evals.test.split = ''
  for kind in ('linear', 'knn'):
    config.evals[kind] = config_lib.evaluation(
      kind=f"{kind}(train_split='train[:10000]')",
      split='train[45000:]',
      every=f'{count / 2} epochs',
    )
  config.checkpoint.every = f'{count / 2} epochs'
  return config


def cifar10_crops(arg: str, method: str) -> ml_collections.ConfigDict:
  """Returns the common part of DINO and DINOv2 on CIFAR-10.

  Args:
    arg: Number of epochs.
    method: 'dino' or 'dinov2'.

  Raises:
    UserError: The number of epochs is none.
  """
  config = cifar10_unlabelled(arg)
  config.data.crop = 'random_resized(scale=(0.4, 1.0))'
  config.augment.jitter = 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)'
  config.augment.gray = (0.2,)
  config.augment.solarize = (0.0, 0.2, 0.0)
  config.model.positions = 'sincos2d'
  config.objective.name = method
  options = config.objective.options
  options.local_crops = 2
  options.local_size = 16
  options.prototypes = 1_024
  options.head_hidden = 512
  options.bottleneck = 128
  options.batch_norm = True
  options.momentum = 0.99
  return config


def grey_28(name: str, patch: str) -> ml_collections.ConfigDict:
  """Returns a small ViT for 28 x 28 grey images, as used in teaching.

  Args:
    name: TFDS dataset with 60,000 training and 10,000 test images.
    patch: '4' (49 tokens) or '7' (16 tokens).
  """
  recipes.choose(patch, ('4', '7'), 'a patch size')
  config = config_lib.default()
  config.data.name = name
  config.data.split = 'train[:55000]'
  config.data.image_size = 28
  config.data.source_size = (28, 28)
  config.data.channels = 1
  config.data.crop = 'pad(2)'

  config.model.name = f'ViT-Ti/{patch}'
  config.model.hidden_size = 64
  config.model.mlp_dim = 128
  config.model.num_heads = 4
  config.model.depth = 6
  config.model.initializers = 'lecun'
  config.model.scan = True  # compiles faster

  config.train.batch_size = 128
  config.optim.learning_rate = 1e-3
  config.optim.warmup = '1 epochs'
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'train[55000:]'
  config.evals.test.split = 'test'
  config.evals.val.every = '1 epochs'
  config.checkpoint.every = '1 epochs'
  config.checkpoint.best = 'val/accuracy'
  return config
