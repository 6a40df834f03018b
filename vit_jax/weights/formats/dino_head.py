"""The heads of DINO, iBOT and DINOv2 in the files of their authors.

Names are as in `models.prototypes.PrototypeHead` and in the authors' class
`DINOHead`: `mlp.0`, `mlp.2` and so on are the dense layers, with a BatchNorm
after each where there is one, and `last_layer` has a weight norm.

The checkpoints of their training hold a `teacher` and a `student`, each with a
trunk behind `backbone.` and one head or two.
"""

import re

from vit_jax.weights.formats import tables

# Heads, for those who read the trunk.
IGNORED = r'(dino_|ibot_)?head\.(mlp|last_layer)\b.*'
_TRUNK = 'backbone.'


def is_whole(name: str) -> bool:
  """Whether only files with a trunk and heads have such a name."""
  return name.startswith(_TRUNK)


def as_timms(name: str) -> str:
  """Returns timm's name for a name in such a file."""
  return name.removeprefix(_TRUNK)


def stored(name: str) -> str:
  """Returns the name in such a file for a name of timm, or of a head."""
  return name if re.match(IGNORED, name) else f'{_TRUNK}{name}'


def rules(
  param_prefix: str, file_prefix: str, layers: int, batch_norm: bool
) -> list[tables.Rule]:
  """Returns the table of a head's parameters and running statistics.

  Its path in the objective's parameters begins with `param_prefix`, such as
  'head/', and its names in the file with `file_prefix`, such as 'head.'.
  """
  dense = 'mlp' if layers == 1 else 'mlp.#'
  table = tables.arrays(f"""
dense_#            {dense}              dense*       *{2 + batch_norm}
norm_#             mlp.#                batch_norm*  *3+1
last_layer/kernel  last_layer.weight_v  dense
last_layer/scale   last_layer.weight_g  column
""")
  return tables.below(table, param_prefix, file_prefix)
