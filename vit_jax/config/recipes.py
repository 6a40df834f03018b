"""Recipes that several configs share.

Fine-tuning and training on ImageNet, then segmentation, then small images.
"""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import checkpoints


@dataclasses.dataclass(frozen=True)
class Dataset:
  """The fine-tuning protocol of a dataset.

  Attributes:
    steps: Number of training steps.
    train: Training split.
    test: Split to evaluate on.
    examples: Number of images in `train`; 0: unknown.
    is_small: Whether its images have fewer than 96 x 96 pixels.
    evaluation: Name of the evaluation on `test`, in `config.evals`.
  """

  steps: int
  train: str = 'train'
  test: str = 'test'
  examples: int = 0
  is_small: bool = False
  evaluation: str = 'test'


# Steps of the ViT paper (arXiv:2010.11929, appendix B.1.1 and table 4).
DATASETS: Mapping[str, Dataset] = {
  'cifar10': Dataset(10_000, examples=50_000, is_small=True),
  'cifar100': Dataset(10_000, examples=50_000, is_small=True),
  'imagenet2012': Dataset(20_000, test='validation', examples=1_281_167),
  'oxford_flowers102': Dataset(500, examples=1_020),
  'oxford_iiit_pet': Dataset(500, examples=3_680),
  'digits': Dataset(500, 'train[:80%]', 'train[80%:]', 1_438, True),
}
_FOLDER = Dataset(2_500, test='val', evaluation='val')
_DEFAULT_DATASET = Dataset(2_500)


def dataset(name: str) -> Dataset:
  """Returns the fine-tuning protocol for a value of `config.data.name`."""
  folder = name.startswith('folder:')
  return DATASETS.get(name, _FOLDER if folder else _DEFAULT_DATASET)


def fine_tuning(
  model: str, data: str, path: str = '', image_size: int = 384
) -> ml_collections.ConfigDict:
  """Returns the fine-tuning protocol of the ViT and AugReg papers.

  The head starts at zeros and the position embeddings are resized to the new
  grid. Training uses SGD with momentum, no weight decay, and a cosine schedule
  to zero. The papers choose the learning rate from 0.001, 0.003, 0.01 and 0.03.

  Args:
    model: A name in `CHECKPOINTS`, or a value of `config.init_from.path`.
    data: A value of `config.data.name`.
    path: Path of the checkpoint; '': as `model` says.
    image_size: Height and width, in pixels.
  """
  config = config_lib.default()
  is_name = bool(path) or model in checkpoints.CHECKPOINTS
  config.model.name = model if is_name else config_lib.INIT_FROM
  config.init_from.path = path or checkpoints.CHECKPOINTS.get(model, model)

  config.data.name = data
  protocol = dataset(data)
  config.data.split = protocol.train
  config.data.image_size = image_size
  config.data.resize = 448 / 384  # exact; these follow the image size
  config.data.crop = 'random'
  config.data.flip = data != 'digits'  # a mirrored digit is another sign
  config.data.eval_resize = 1.0

  config.train.duration = f'{protocol.steps} steps'
  config.train.batch_size = 512
  config.optim.name = 'sgd(momentum=0.9)'
  config.optim.learning_rate = 0.03
  config.optim.warmup = f'{min(500, protocol.steps // 5)} steps'
  config.optim.clip_norm = 1.0

  evaluate(config, protocol, protocol.steps)
  return config


def model_and_dataset(arg: str, file: str) -> tuple[str, str]:
  """Splits the argument MODEL,DATASET of a config file, which errors name."""
  model, comma, dataset = arg.partition(',')
  if not (model and comma and dataset):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write MODEL,DATASET without a space, as in'
      f' {file}:ViT-B/16,cifar10'
    )
  return model, dataset


def low_rank(model: str, data: str) -> ml_collections.ConfigDict:
  """Returns `fine_tuning` of low-rank factors and the head, by AdamW.

  LoRA (arXiv:2106.09685): other parameters are frozen. `fine_tuning` has the
  arguments.
  """
  config = fine_tuning(model, data)
  config.model.block = 'lora(rank=8, alpha=16)'
  config.optim.trainable = r'/lora_|^head/'
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1e-3
  return config


def evaluate(
  config: ml_collections.ConfigDict, protocol: Dataset, steps: int
) -> None:
  """Sets evaluations and checkpoints of a protocol, ten in a run."""
  evaluation = config.evals[protocol.evaluation]
  evaluation.split = protocol.test
  evaluation.every = f'{max(steps // 10, 100)} steps'
  config.checkpoint.every = evaluation.every


# The settings of AugReg (arXiv:2106.10270, section 3.3): policy, and mixup's
# alpha. RandAugment with magnitude 0 still changes images, so 'light1' is not
# 'none'.
AUGREG: Mapping[str, tuple[str, float]] = {
  'none': ('', 0.0),
  'light1': ('randaugment(2,0)', 0.0),
  'light2': ('randaugment(2,10)', 0.2),
  'medium1': ('randaugment(2,15)', 0.2),
  'medium2': ('randaugment(2,15)', 0.5),
  'strong1': ('randaugment(2,20)', 0.5),
  'strong2': ('randaugment(2,20)', 0.8),
}

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_HIDDEN_SIZES = {'Ti': 192, 'S': 384, 'B': 768, 'L': 1024}


def split(arg: str, form: str) -> list[str]:
  """Splits the argument of a config at its commas.

  The form, as 'VARIANT,AUG,REG' for 'B/16,medium2', gives the number of parts;
  those that are left out are ''.
  """
  parts, most = arg.split(','), len(form.split(','))
  if len(parts) > most:
    raise config_lib.UserError(f'{arg!r} after the colon: write {form}')
  return parts + [''] * (most - len(parts))


def choose(value: str, choices: Collection[str], noun: str) -> str:
  """Returns `value` if it is one of `choices`.

  `noun` is a name for these in the error.
  """
  if value not in choices:
    names = ', '.join(filter(None, choices))  # '': left out
    raise config_lib.UserError(
      f'{value!r} is not {noun} of this recipe: choose one of {names}'
    )
  return value


def vit_name(variant: str) -> str:
  """Returns the name of a model, `R26+ViT-S/32` for `R26+S/32`."""
  stem, plus, size = variant.rpartition('+')
  return f'{stem}{plus}ViT-{size}'


def hidden_size(variant: str) -> int:
  """Returns the hidden size of `B/16` or `R26+S/32`."""
  return _HIDDEN_SIZES[variant.rpartition('+')[2].partition('/')[0]]


def imagenet() -> ml_collections.ConfigDict:
  """Returns the common part of Google's recipes from scratch on ImageNet-1k.

  It has Inception crops and flips at 224 px; Adam with b1 = 0.9 and b2 = 0.999,
  a warm-up of 10,000 steps, and clipping at norm 1. The last hundredth of the
  training images is `val`, the 50,000 validation images are `test`. Layers
  compute in bfloat16, since TPUs multiply in it. One thing differs: Google's
  mixup draws one share for a whole batch, ours one for each pair.
  """
  config = config_lib.default()
  config.data.name = 'imagenet2012'
  config.data.split = 'train[:99%]'
  config.data.image_size = 224
  config.data.crop = 'random_resized(scale=(0.05, 1.0))'
  config.data.eval_resize = 256
  config.data.mean = (0.5,)
  config.data.std = (0.5,)

  config.train.dtype = 'bfloat16'
  config.optim.name = 'adamw'
  config.optim.warmup = '10_000 steps'
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'train[99%:]'
  config.evals.test.split = 'validation'
  _every(config, '5 epochs')
  return config


def imagenet21k() -> ml_collections.ConfigDict:
  """Returns `imagenet` for ImageNet-21k, with a folder of images per class.

  The classes overlap, so the loss is 'sigmoid' and the head's bias starts at
  -10. Images are ordered by hashes of their names: the first 25,600 are `test`,
  the next 25,600 `val`.
  """
  config = imagenet()
  config.data.name = 'folder:imagenet21k'
  config.data.split = 'train[51200:]'
  config.evals.val.split = 'train[25600:51200]'
  config.evals.test.split = 'train[:25600]'
  config.objective.loss = 'sigmoid'
  config.model.head = 'linear(bias=-10.0)'
  _every(config, '1 epochs')
  return config


def augreg(config: ml_collections.ConfigDict, setting: str) -> None:
  """Applies AugReg's optimization and one of the settings in `AUGREG`."""
  choose(setting, AUGREG, 'a setting')
  config.augment.policy, config.augment.mixup = AUGREG[setting]
  config.train.batch_size = 4096
  config.optim.learning_rate = 1e-3
  config.optim.schedule = 'cosine'
  # Multiplied by the learning rate in their code, too.
  config.optim.weight_decay = 0.1
  config.optim.name = "adamw(momentum_dtype='bfloat16')"


def deit() -> ml_collections.ConfigDict:
  """Returns the common part of DeiT and DeiT III on ImageNet-1k.

  It has AdamW with b1 = 0.9 and b2 = 0.999; a warm-up of 5 epochs, then a
  cosine; repeated augmentation, so that an epoch has as many images as
  ImageNet, but only a third of them are different; and mixup or CutMix.

  The authors' code differs in these points. Its warm-up starts at 1e-6. Its
  cosine changes per epoch, ours per step. It draws the share of mixup and
  CutMix once per batch, ours once per pair. It resizes bicubically and computes
  in float16 (mixed precision), ours bilinearly and in bfloat16. It fills the
  corners that shears leave empty with the mean colour, ours with grey.
  """
  config = _from_pytorch((0.08, 1.0))
  config.augment.mixup = 0.8
  config.augment.cutmix = 1.0
  config.augment.cutmix_share = 0.5
  config.augment.repeats = 3
  config.optim.warmup = '5 epochs'

  config.evals.test.split = 'validation'
  _every(config, '5 epochs')
  return config


def probe() -> ml_collections.ConfigDict:
  """Returns the common part of linear probes on ImageNet-1k.

  Only a linear layer learns, from random crops and flips: SGD without weight
  decay, a batch of 1024 and a cosine without a warm-up. The layer starts at
  zeros, that of most authors at random.
  """
  config = deit()
  config.data.eval_resize = 256
  config.augment.mixup = 0.0
  config.augment.cutmix = 0.0
  config.augment.repeats = 1
  config.train.batch_size = 1024
  config.optim.name = 'sgd(momentum=0.9)'
  config.optim.weight_decay = 0.0
  config.optim.warmup = '0 steps'
  config.optim.trainable = '^head/'
  return config


def dino() -> ml_collections.ConfigDict:
  """Returns the common part of DINO and DINOv2 on ImageNet-1k.

  Two global crops of 224 pixels and eight local ones of 96; AdamW whose weight
  decay grows from 0.04 to 0.4, of all parameters but biases, norms and
  LayerScale; a warm-up of 10 epochs, whose last step has the full learning
  rate; and the crops' augmentation: colour jitter, grey, blur (always in the
  first crop, seldom in the second, half of the local ones), solarization of the
  second crop.

  Differences to the authors' code: it resizes bicubically with Pillow and
  computes in float16 (mixed precision), ours in bfloat16.
  """
  config = _from_pytorch((0.4, 1.0))
  config.data.interpolation = 'bicubic'
  config.augment.jitter = 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)'
  config.augment.gray = (0.2,)
  config.augment.blur = (1.0, 0.1, 0.5)
  config.augment.solarize = (0.0, 0.2, 0.0)

  config.objective.options.resize = 'dino'  # of the positions of local crops
  config.optim.warmup = '10 epochs'
  config.optim.warmup_inclusive = True
  config.optim.weight_decay = 0.04
  config.optim.final_weight_decay = 0.4
  config.optim.decay_pattern = (
    r'(kernel|tokens?|position_embedding|last_layer/scale)$'
  )
  config.checkpoint.every = '5 epochs'
  return config


def _from_pytorch(
  crop_scale: tuple[float, float],
) -> ml_collections.ConfigDict:
  """Returns what recipes of PyTorch's libraries share on ImageNet-1k."""
  config = config_lib.default()
  config.data.name = 'imagenet2012'
  config.data.split = 'train'
  config.data.image_size = 224
  config.data.crop = f'random_resized(scale={crop_scale})'
  config.data.mean = IMAGENET_MEAN
  config.data.std = IMAGENET_STD
  config.model.mlp = "mlp(gelu='exact')"
  config.model.initializers = 'deit'
  config.train.dtype = 'bfloat16'
  config.optim.schedule = 'cosine'
  return config


def _every(config: ml_collections.ConfigDict, length: str) -> None:
  config.evals.val.every = length
  config.evals.test.every = length
  config.checkpoint.every = length


# Stored numbers of Cityscapes' 19 classes, from road to bicycle, in *_labelIds.
CITYSCAPES = (
  *(7, 8, 11, 12, 13, 17, 19, 20, 21, 22),
  *(23, 24, 25, 26, 27, 28, 31, 32, 33),
)


@dataclasses.dataclass(frozen=True)
class _Protocol:
  """How SETR is trained on a dataset, in the paper's section 4.1."""

  crop: int  # side in pixels
  short: int | None  # side of an image before it is scaled; None: as stored
  steps: int
  batch: int
  rate: float  # initial learning rate
  # Of an auxiliary head of 'naive' and 'pup', in mmsegmentation's configs.
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
  The head is 'naive', 'pup' or 'mla'; `data` is `config.data.name`.
  """
  protocol = _SETR[dataset]
  config = config_lib.default()
  config.data.name = data
  config.data.split = 'train'
  config.data.image_size = protocol.crop
  config.data.crop = 'scaled(zoom=(0.5, 2.0))'
  config.data.resize = config.data.eval_resize = protocol.short
  config.data.mean = IMAGENET_MEAN
  config.data.std = IMAGENET_STD
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


def cifar10() -> ml_collections.ConfigDict:
  """Returns a config for CIFAR-10: 45,000 images to train on, 5,000 held out.

  The split is the tutorial's. Mean and std are of its pixels.
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
  """Returns what several configs of CIFAR-10 share; arg: a number of epochs."""
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

  Captions are made of the names of the classes. Training has none of the
  templates of the evaluations.
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
  """Returns the common part of learning clips that the code makes."""
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
  """Returns the number of epochs that is the argument of a config."""
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
  """Returns the common part of DINO and DINOv2 on CIFAR-10."""
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

  `name` is a TFDS dataset with 60,000 training and 10,000 test images; a patch
  of 4 gives 49 tokens, of 7 16 tokens.
  """
  choose(patch, ('4', '7'), 'a patch size')
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
