"""The methods that are compared with PyTorch's."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from vit_jax.config import UserError

_BOTH = 'torch transformers'


@dataclasses.dataclass(frozen=True)
class Method:
  """How a method is compared.

  Attributes:
    config: Name of the file in configs/ with its settings.
    batch_size: Images in a step, by default.
    model: The model, by default.
    peer: Module of `peers` and class of the formulation in PyTorch; '': none.
    packages: What the peer needs to be installed.
    parts: What is timed.
    changes: Other values of keys of the config.
  """

  config: str
  batch_size: int
  model: str = 'ViT-Ti/16'
  peer: str = ''
  packages: str = 'torch'
  parts: tuple[str, ...] = ('train',)
  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


METHODS = {
  'beit': Method('beit_i1k', 16, peer='torch_library:BEiT', packages=_BOTH),
  'clip': Method(
    'clip_b32', 8, 'ViT-B/32', 'torch_library:CLIP', packages=_BOTH
  ),
  'dino': Method('dino_i1k', 8, peer='torch_siamese:Dino'),
  'dinov2': Method('dinov2_i1k', 8),
  'igpt': Method('igpt_i1k', 2, 'iGPT-S', 'torch_library:IGPT', _BOTH),
  'mae': Method('mae_i1k', 32, peer='torch_library:MAE', packages=_BOTH),
  'mocov3': Method('mocov3_i1k', 16, peer='torch_siamese:MoCoV3'),
  'setr': Method(
    'setr_pup_ade20k',
    2,
    peer='torch_dense:SETR',
    parts=('train', 'infer'),
    changes={
      'model.num_classes': 150,
      'model.dropout_rate': 0.0,
      'init_from.path': '',
      'init_from.resize': '',
      'objective.options.layers': (2, 5, 8, 11),  # of 12; ViT-L has 24
      'optim.name': 'adamw',
      'optim.learning_rate': 1e-3,
      'optim.rules': (),
    },
  ),
  'unetr': Method(
    'unetr_btcv',
    1,
    peer='torch_monai:UNETR',
    packages='torch monai',
    parts=('train', 'infer'),
    changes={
      'model.num_classes': 14,
      'model.patch_size': (16, 16, 16),
      'augment.volume.foreground': 0.0,
      'augment.volume.flip': 0.0,
      'augment.volume.turn': 0.0,
      'augment.volume.scale': 0.0,
      'augment.volume.shift': 0.0,
    },
  ),
}


def named(name: str) -> Method:
  """Returns a method by its name.

  Raises:
    UserError: There is no such method.
  """
  if name not in METHODS:
    raise UserError(f'--objective={name}: choose one of {", ".join(METHODS)}')
  return METHODS[name]
