"""Names of MoCo v3's projector and predictor in the files of its authors.

The trunk has timm's names behind `base_encoder.`, and its projector is `head`.
Layers of a head are numbered with their norms and activations.
"""

import re

from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables

# It trains a base encoder, in a module that splits batches.
_PREFIX = r'(module\.)?(base_encoder\.)?'
# Attention heads by hidden size: its ViT-S has 12, not 6 (section 4 of the
# paper).
HEADS = {384: 12, 768: 12}


def stored(name: str) -> str:
  """Returns the name in a file of a name of timm, or of a head."""
  is_outside = name.startswith(('predictor.', 'momentum_encoder.'))
  return f'module.{"" if is_outside else "base_encoder."}{name}'


def as_timms(name: str) -> str:
  """Returns timm's name for a name in a file, without the prefix."""
  return re.sub(_PREFIX, '', name, count=1)


def mlp_rules(param_path: str, module_name: str) -> list[tables.Rule]:
  """Returns the rules of a head; after each dense layer comes its norm."""
  return tables.arrays(f"""
{param_path}/dense_#/kernel  {module_name}.#.weight  dense        *3
{param_path}/norm_#          {module_name}.#         batch_norm*  *3+1
""")


# How the authors' files store both heads.
OBJECTIVE_TABLE = objective_tables.ObjectiveTable(
  [*mlp_rules('projector', 'head'), *mlp_rules('predictor', 'predictor')],
  stored,
)
