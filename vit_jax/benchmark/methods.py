"""The methods whose training step is compared with PyTorch's."""

import dataclasses

from vit_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Method:
  """How a method is compared.

  Attributes:
    batch_size: Images in a step, by default.
    model: The model, by default.
    peer: Module of `peers` and class of the formulation in PyTorch; '': none.
    packages: What the peer needs to be installed.
  """

  batch_size: int
  model: str = 'ViT-Ti/16'
  peer: str = ''
  packages: str = ''


METHODS = {
  'beit': Method(16, peer='torch_masked:BEiT', packages='torch transformers'),
  'dino': Method(8, peer='torch_siamese:Dino', packages='torch'),
  'dinov2': Method(8),
  'igpt': Method(
    2, 'iGPT-S', peer='torch_masked:IGPT', packages='torch transformers'
  ),
  'mae': Method(32, peer='torch_masked:MAE', packages='torch transformers'),
  'mocov3': Method(16, peer='torch_siamese:MoCoV3', packages='torch'),
}


def named(name: str) -> Method:
  """Returns a method by the name of its objective.

  Raises:
    UserError: There is no such method.
  """
  if name not in METHODS:
    raise UserError(f'--objective={name}: choose one of {", ".join(METHODS)}')
  return METHODS[name]
