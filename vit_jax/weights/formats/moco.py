"""Names of MoCo v3's projector and predictor in the files of its authors.

The trunk has timm's names behind `base_encoder.`, and its projector is `head`.
Layers of a head are numbered with their norms and activations.
"""

import re

from vit_jax.weights.formats import tables
from vit_jax.weights.formats import whole

# It trains a base encoder, in a module that splits batches.
_PREFIX = r'(module\.)?(base_encoder\.)?'
# Attention heads by hidden size: its ViT-S has 12, not 6 (section 4 of the
# paper).
HEADS = {384: 12, 768: 12}


def whole_of(projector: int, predictor: int) -> whole.Whole:
  """Returns how the authors' files store both heads, by numbers of layers."""
  table = [
    *mlp_rules('projector', 'head', projector),
    *mlp_rules('predictor', 'predictor', predictor),
  ]
  return whole.Whole(table, stored)


def mlp_rules(ours: str, theirs: str, layers: int) -> list[tables.Rule]:
  """Returns the rules of a head; after each dense layer comes its norm."""
  lines = (
    f"""
{ours}/dense_{i}/kernel  {theirs}.{3 * i}.weight  dense
{ours}/norm_{i}          {theirs}.{3 * i + 1}     norm*
"""
    for i in range(layers)
  )
  return tables.arrays(''.join(lines))


def stored(name: str) -> str:
  """Returns the name in a file of a name of timm, or of a head."""
  is_outside = name.startswith(('predictor.', 'momentum_encoder.'))
  return f'module.{"" if is_outside else "base_encoder."}{name}'


def as_timms(name: str) -> str:
  """Returns timm's name for a name in a file, without the prefix."""
  return re.sub(_PREFIX, '', name, count=1)
