"""Recipes of segmentation that several configs share."""

from collections.abc import Mapping
import dataclasses

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import checkpoints
from vit_jax.config import recipes

# Stored numbers of Cityscapes' 19 classes, from road to bicycle, in *_labelIds.
CITYSCAPES = (
  *(7, 8, 11, 12, 13, 17, 19, 20, 21, 22),
  *(23, 24, 25, 26, 27, 28, 31, 32, 33),
)


@dataclasses.dataclass(frozen=True)
class _Protocol:
  """How SETR is trained on a dataset, in the paper's section 4.1.

  Attributes:
    crop: Side of a crop, in pixels.
    short: Short side of an image before it is scaled; None: as stored.
    steps: Number of steps.
    batch: Images in a batch.
    rate: Initial learning rate.
    auxiliary_convs: Convolutions of an auxiliary head of 'naive' and 'pup', in
      mmsegmentation's configs.
  """

  crop: int
  short: int | None
  steps: int
  batch: int
  rate: float
  auxiliary_convs: int = 1


_SETR: Mapping[str, _Protocol] = {
  'ade20k': _Protocol(512, 512, 160_000, 16, 1e-3, auxiliary_convs=2),
  'cityscapes': _Protocol(768, 1024, 80_000, 8, 1e-2),
  'pascal': _Protocol(480, None, 80_000, 16, 1e-3),
}
_LAYERS = (9, 14, 19, 23)  # after 10, 15, 20 and 24 of ViT-L's
_MLA_LAYERS = (5, 11, 17, 23)


def setr(head: str, dataset: str, data: str) -> ml_collections.ConfigDict:
  """Returns SETR with ViT-L/16 on a folder of images and maps.

  Source: "Rethinking semantic segmentation from a sequence-to-sequence
  perspective with transformers", arXiv:2012.15840, section 4.1; what it leaves
  to mmsegmentation is as in its configs of SETR.

  Differences: mmsegmentation avoids crops that one class fills by more than
  75%, fills small images with their mean and not with black, changes colours
  by other formulas, and multiplies the heads' learning rate, but not the least
  one, by 10. Evaluation in training sees the middle crop of each image.

  Args:
    head: 'naive', 'pup' or 'mla'.
    dataset: A key of the protocols above.
    data: `config.data.name`.
  """
  protocol = _SETR[dataset]
  config = config_lib.default()
  config.data.name = data
  config.data.split = 'train'
  config.data.image_size = protocol.crop
  config.data.crop = 'scaled(zoom=(0.5, 2.0))'
  config.data.resize = config.data.eval_resize = protocol.short
  config.data.mean = recipes.IMAGENET_MEAN
  config.data.std = recipes.IMAGENET_STD
  config.augment.jitter = 'jitter(32/255, 0.5, 0.5, 18/360, probability=0.5)'

  config.model.name = 'ViT-L/16'
  config.model.dropout_rate = 0.1
  config.init_from.path = checkpoints.CHECKPOINTS['ViT-L/16']
  config.init_from.resize = 'half_pixel'

  config.objective.name = 'segmentation'
  config.objective.options.head = head
  config.objective.options.layers = _MLA_LAYERS if head == 'mla' else _LAYERS
  config.objective.options.channels = 256
  config.objective.options.auxiliary_weight = 0.4
  config.objective.options.auxiliary_convs = protocol.auxiliary_convs

  config.train.duration = f'{protocol.steps} steps'
  config.train.batch_size = protocol.batch
  config.optim.name = 'sgd(momentum=0.9)'
  config.optim.weight_decay = 0.0
  config.optim.learning_rate = protocol.rate
  config.optim.schedule = f'poly(power=0.9, final_factor=1e-4/{protocol.rate})'
  config.optim.rules = (('^decoder/(decode|auxiliary_)', 10.0, None),)

  every = f'{protocol.steps // 10} steps'
  config.evals.val.split = 'val'
  config.evals.val.every = every
  config.checkpoint.every = every
  config.checkpoint.best = 'val/miou'
  return config
