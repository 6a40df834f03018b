"""Recipes that several configs share."""

from collections.abc import Mapping
import dataclasses

import ml_collections

from vit_jax import config as config_lib

_GOOGLE = 'gs://vit_models'

# Pre-trained on ImageNet-21k. The ViT paper's own; those of AugReg
# (arXiv:2106.10270) for the sizes that are not among them: of each the one with
# the best final_val in its index.csv. Mixer: arXiv:2105.01601.
CHECKPOINTS: Mapping[str, str] = {
  'ViT-B/16': f'{_GOOGLE}/imagenet21k/ViT-B_16.npz',
  'ViT-B/32': f'{_GOOGLE}/imagenet21k/ViT-B_32.npz',
  'ViT-L/16': f'{_GOOGLE}/imagenet21k/ViT-L_16.npz',
  'ViT-L/32': f'{_GOOGLE}/imagenet21k/ViT-L_32.npz',
  'ViT-H/14': f'{_GOOGLE}/imagenet21k/ViT-H_14.npz',
  'R50+ViT-B/16': f'{_GOOGLE}/imagenet21k/R50+ViT-B_16.npz',
  'ViT-Ti/16': f'{_GOOGLE}/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'ViT-S/16': f'{_GOOGLE}/augreg/S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'ViT-S/32': f'{_GOOGLE}/augreg/S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03'
  '-do_0.0-sd_0.0.npz',
  'R+ViT-Ti/16': f'{_GOOGLE}/augreg/R_Ti_16-i21k-300ep-lr_0.001-aug_none'
  '-wd_0.03-do_0.0-sd_0.0.npz',
  'R26+ViT-S/32': f'{_GOOGLE}/augreg/R26_S_32-i21k-300ep-lr_0.001-aug_medium2'
  '-wd_0.03-do_0.0-sd_0.0.npz',
  'R50+ViT-L/32': f'{_GOOGLE}/augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium2'
  '-wd_0.1-do_0.0-sd_0.0.npz',
  'Mixer-B/16': 'gs://mixer_models/imagenet21k/Mixer-B_16.npz',
  'Mixer-L/16': 'gs://mixer_models/imagenet21k/Mixer-L_16.npz',
}


@dataclasses.dataclass(frozen=True)
class Dataset:
  """How a dataset is fine-tuned on.

  Attributes:
    steps: Of training.
    train: Split.
    test: Split to evaluate on.
  """

  steps: int
  train: str = 'train'
  test: str = 'test'


# Steps of the ViT paper (arXiv:2010.11929, appendix B.1.1 and table 4).
DATASETS: Mapping[str, Dataset] = {
  'cifar10': Dataset(10_000),
  'cifar100': Dataset(10_000),
  'imagenet2012': Dataset(20_000, test='validation'),
  'oxford_flowers102': Dataset(500),
  'oxford_iiit_pet': Dataset(500),
  'digits': Dataset(500, 'train[:80%]', 'train[80%:]'),
}
_FOLDER = Dataset(2_500, test='val')
_OTHER = Dataset(2_500)


def fine_tuning(
  model: str, dataset: str, path: str = '', image_size: int = 384
) -> ml_collections.ConfigDict:
  """Returns the fine-tuning protocol of the ViT and AugReg papers.

  A fresh head of zeros, positions resized to the new grid, SGD with momentum
  and without weight decay, cosine to zero. The learning rate is to be chosen
  from 0.001, 0.003, 0.01 and 0.03.

  Args:
    model: A name in `CHECKPOINTS`; or what `config.init_from.path` takes.
    dataset: What `config.data.name` takes.
    path: Of the checkpoint, where it is not that of the name.
    image_size: In pixels.
  """
  config = config_lib.default()
  is_name = bool(path) or model in CHECKPOINTS
  config.model.name = model if is_name else config_lib.INIT_FROM
  config.init_from.path = path or CHECKPOINTS.get(model, model)

  config.data.name = dataset
  folder = dataset.startswith('folder:')
  protocol = DATASETS.get(dataset, _FOLDER if folder else _OTHER)
  config.data.split = protocol.train
  config.data.image_size = image_size
  config.data.resize = 448 / 384  # exact; these follow the image size
  config.data.crop = 'random'
  config.data.flip = dataset != 'digits'  # a mirrored digit is another sign
  config.data.eval_resize = 1.0

  config.train.duration = f'{protocol.steps} steps'
  config.train.batch_size = 512
  config.optim.name = 'sgd'
  config.optim.learning_rate = 0.03
  config.optim.momentum = 0.9
  config.optim.warmup = f'{min(500, protocol.steps // 5)} steps'
  config.optim.clip_norm = 1.0

  config.evals.test.split = protocol.test
  config.evals.test.every = f'{max(protocol.steps // 10, 100)} steps'
  config.checkpoint.every = config.evals.test.every
  return config
