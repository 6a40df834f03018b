"""BiT (arXiv:1912.11370)."""

from vit_jax.models import resnet
from vit_jax.models.zoo import Keys

MODULE = resnet.BiT
# Units in each stage, and the width factor: section 3 and Table 1 of the paper.
SIZES: dict[str, Keys] = {
  'R50x1': {'stages': (3, 4, 6, 3), 'width_factor': 1},
  'R50x3': {'stages': (3, 4, 6, 3), 'width_factor': 3},
  'R101x1': {'stages': (3, 4, 23, 3), 'width_factor': 1},
  'R101x3': {'stages': (3, 4, 23, 3), 'width_factor': 3},
  'R152x2': {'stages': (3, 8, 36, 3), 'width_factor': 2},
  'R152x4': {'stages': (3, 8, 36, 3), 'width_factor': 4},
}
NAMES = tuple(f'BiT-{size}' for size in SIZES)


PATTERNS = {
  pattern: lambda match: SIZES.get(f'R{match["size"]}')
  for pattern in (
    r'BiT-R(?P<size>\w+)',
    r'resnetv2_(?P<size>\d+x\d)_bit(m|m_in21k|_\w+)?',
  )
}
