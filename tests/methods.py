"""All training methods in a small size, and what their tests have in common."""

from collections.abc import Iterable
from collections.abc import Mapping
import pathlib
import re
import shutil
from typing import Any

import jax
import ml_collections
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data.device.rng import Rng
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import loop

_TIMES = re.compile('time|second|data_wait|goodput|mfu|stall')
_PATCHES_OF_2 = {'model.name': 'ViT-Ti/2', 'evals.val.split': ''}
BEIT_TRUNK = {
  'model.name': 'ViT-Ti/2',
  'model.positions': 'relative_bias',
  'model.block': 'block(layer_scale=0.1)',
  'model.attention': 'attention(key_bias=False)',
  'model.mlp': "mlp(gelu='exact')",
  'model.pool': 'token',
}
MAE_TRUNK = {
  'model.name': 'ViT-Ti/2',
  'model.positions': "sincos2d(kind='sincos2d_mae')",
  'model.mlp': "mlp(gelu='exact')",
  'model.pool': 'token',
}
_DINO = _PATCHES_OF_2 | {
  'model.registers': 2,
  'data.crop': 'random_resized(scale=(0.4, 1.0))',
  'optim.clip': 'each(3.0)',
  'optim.weight_decay': 0.04,
  'optim.final_weight_decay': 0.4,
  'options.prototypes': 32,
  'options.head_hidden': 16,
  'options.bottleneck': 8,
  'options.local_crops': 2,
  'options.local_size': 4,
  'options.freeze_last_layer': '2 steps',
  'options.resize': 'bicubic',
}
_SEGMENTATION = {
  'options.channels': 4,
  # Adam would turn the rounding errors of values whose gradient is zero, before
  # a BatchNorm, into steps of the learning rate's size.
  'optim.name': 'sgd',
}
# What a method needs beside its name, which ends at a comma: keys of a config;
# those of `config.objective.options` begin with `options.`.
METHODS: dict[str, dict[str, Any]] = {
  'classification': {'model.depth': 2, 'train.ema_decay': 0.9},
  'classification, normalised': {
    'model.head': "linear(norm='batch')",
    'optim.name': 'sgd',
  },
  'classification, patches': {
    'model.num_classes': 10,  # what the data decide, for a replay
    'data.mean': (0.5,),
    'data.std': (0.5,),
    'model.name': 'ViT-Ti/2',
    'model.dropout_rate': 0.1,
    'train.variant': 'patches((2, (2, 4), 4))',
    'train.ema_decay': 0.9,
    'evals.val.patch_size': 4,
    'evals.val.every': '',
  },
  'regression': {
    'data.name': 'configs.digits_regression:InkCentre',
    'data.crop': 'center',
    'checkpoint.best': 'val/r2',
    'train.ema_decay': 0.9,
  },
  'multilabel': {
    'data.name': 'configs.digits_multilabel:Pairs',
    'data.image_size': (8, 16),
    'checkpoint.best': 'val/map',
    'train.ema_decay': 0.9,
  },
  'mean_teacher:MeanTeacher': {'checkpoint.best': 'val/loss'},
  # The test says where a run is.
  'distillation': {'options.teacher': '', 'data.mean': (0.2,)},
  'mae': MAE_TRUNK
  | {
    'options.decoder_width': 16,
    'options.decoder_depth': 2,
    'options.decoder_heads': 2,
    'checkpoint.best': 'val/loss',
  },
  'beit': BEIT_TRUNK
  | {
    'options.tokens': 24,
    'options.masked': 6,
    'options.block_least': 2,
    'model.mask_token': True,
    'evals.val.split': '',
  },
  'tokenizer': {
    'model.name': 'ViT-Ti/2',
    'options.tokens': 24,
    'options.decoder_depth': 1,
  },
  'dino': _DINO
  | {
    'model.depth': 2,
    'model.stochastic_depth': 0.3,
    'options.teacher_temperature_warmup': '4 steps',
  },
  'dinov2': _DINO
  | {
    'model.depth': 2,
    'model.stochastic_depth': 0.3,
    'model.mask_token': True,
    'options.patch_prototypes': 16,
  },
  'mocov3': {
    'model.positions': "sincos2d(kind='sincos2d_moco')",
    'model.pool': 'token',
    'data.crop': 'random_resized',
    'augment.gray': (0.2,),
    'augment.solarize': (0.0, 0.2),
    'evals.val.split': '',
    'options.width': 32,
    'options.dim': 16,
    'options.momentum': 0.5,
  },
  'igpt': {
    'model.name': 'iGPT-S(colours=4)',
    'model.pool': None,  # a ViT's
    'model.depth': 2,
    'model.initializers': 'lecun',
    'train.ema_decay': 0.9,
    'checkpoint.best': 'val/loss',
  },
  'contrastive': {
    'data.split': 'train[:200]',
    'data.captions': 'templates:a {}.|the number {}.|{} as an image.',
    'data.tokenizer': 'words',
    'data.text_length': 12,
    'evals.val.split': '',
    'evals.zero': {
      'split': 'train[200:230]',
      'kind': "zero_shot(templates='a {}.|one {}.')",
    },
    'evals.pairs': {'split': 'train[200:230]', 'kind': 'retrieval'},
    'checkpoint.best': 'zero/accuracy',
    'options.dim': 8,
    'options.text_width': 16,
    'options.text_depth': 1,
    'options.text_heads': 2,
    'optim.name': 'sgd',
  },
  'segmentation': _SEGMENTATION
  | {
    'options.head': 'pup',
    'options.convs': 2,
    'data.name': 'scenes',
    'data.source_size': (16, 16),
    'data.image_size': 16,
    'data.channels': 3,
    'data.split': 'train[:64]',
    'data.crop': 'pad(2)',
    'model.patch_size': 4,
    'evals.val.split': 'test[:12]',
    'checkpoint.best': 'val/miou',
  },
  'segmentation, volumes': _SEGMENTATION
  | {
    'options.head': 'unetr',
    'options.channels': 2,
    'options.layers': (0, 0, 0),
    'data.name': 'volumes',
    'data.source_size': (24, 16, 16),
    'data.image_size': (16, 16, 16),
    'data.channels': 1,
    'data.split': 'train[:32]',
    'model.patch_size': (16, 16, 16),
    'augment.volume.foreground': 0.5,
    'augment.volume.flip': 0.5,
    'augment.volume.turn': 0.5,
    'evals.val.split': 'test[:6]',
    'train.batch_size': 8,
    'checkpoint.best': 'val/dice',
  },
}
# Their loss or a statistic is of the whole batch.
UNDIVIDED = (
  *('classification, normalised', 'dinov2', 'mocov3'),
  *('segmentation', 'segmentation, volumes'),
)


def config(
  method: str,
  options: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
  **overrides: Any,
) -> ml_collections.ConfigDict:
  """Returns the tiny config of a method.

  Args:
    method: A key of METHODS.
    options: Sets further keys of `objective.options`.
    **overrides: Set other keys, as of `tiny.config`, or `options.*` as in
      METHODS.
  """
  result = tiny.config()
  result.objective.name = method.partition(',')[0]
  groups = {'options': result.objective.options, 'evals': result.evals}
  values = {key.replace('__', '.'): x for key, x in overrides.items()}
  for key, value in (METHODS[method] | values).items():
    group, _, name = key.rpartition('.')
    if group in groups:
      is_evaluation = isinstance(value, dict)
      value = config_lib.evaluation(**value) if is_evaluation else value
      groups[group][name] = value
    else:
      config_lib.set_value(result, key, value)
  result.objective.options.update(dict(options))
  tiny.skip_without_devices(result)
  return result


def finished(method: str) -> Any:
  """Returns a fixture: the work directory of a finished run of a method."""

  @pytest.fixture
  def workdir(method_run):
    return method_run(method)

  return workdir


def losses(path: pathlib.Path) -> list[float]:
  """Returns the training losses of a run, step by step."""
  return [x['train/loss'] for x in tiny.metrics(path) if 'train/loss' in x]


def final_state(path: pathlib.Path) -> dict[str, str]:
  """Returns the checksums of all arrays of the last checkpoint."""
  folder = workdir_lib.newest_first(path / 'checkpoints')[0]
  arrays = restoring.read_info(folder)['arrays']
  return {name: x['checksum'] for name, x in arrays.items()}


def assert_resumes_to_the_bit(
  config: ml_collections.ConfigDict, path: pathlib.Path, copy: pathlib.Path
) -> None:
  """Checks that a run without its last checkpoint ends in the same bits.

  Args:
    config: Its config.
    path: Its work directory.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  (copy / 'DONE').unlink()
  shutil.rmtree(workdir_lib.newest_first(copy / 'checkpoints')[0])
  assert loop.run(config, str(copy)).status == 0
  measured = [
    [
      {k: x for k, x in line.items() if not _TIMES.search(k)}
      for line in tiny.metrics(workdir)
      if 'train/loss' in line or 'val/loss' in line
    ]
    for workdir in (path, copy)
  ]
  assert measured[0] == measured[1]
  assert final_state(copy) == final_state(path)


def assert_learns(
  objective: objectives.Objective, batch: Mapping[str, np.ndarray]
) -> None:
  """Checks that the gradient of a batch lowers its loss."""
  params = jax.jit(objective.init)(jax.random.key(0))
  extra = objective.init_extra(params)
  rows = np.arange(len(batch['image']), dtype=np.int32)
  rng = Rng(jax.random.key(1), rows)

  @jax.jit
  def loss_fn(params):
    return objective.loss(params, extra, batch, rng)[0]

  before, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
  after = loss_fn(jax.tree.map(lambda p, g: p - 0.01 * g, params, grads))
  assert np.isfinite(before) and after < before
