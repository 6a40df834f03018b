"""torchvision beside a PyTorch that it was not built for.

PyPI's torchvision 0.28.0 is built for PyTorch with CUDA, whose packages take
5 GB. Without them `pip install --no-deps torchvision==0.28.0` installs it
beside PyTorch for CPUs, where its operators cannot be loaded, and its import
fails. timm, open_clip and transformers import it; their transforms and ViTs
call none of the operators.
"""

import importlib
import importlib.util
import sys
from typing import Any

# Those that torchvision describes to PyTorch even where they are missing.
_OPERATORS = ('nms', 'qnms')
_LIBRARIES: list[Any] = []  # an operator lives as long


def define_missing() -> None:
  """Makes torchvision importable, if it is installed; call it before others."""
  if importlib.util.find_spec('torchvision') is None:
    return
  try:
    importlib.import_module('torchvision')
  except RuntimeError:  # operator torchvision::nms does not exist
    import torch

    for name in [x for x in sys.modules if x.split('.')[0] == 'torchvision']:
      del sys.modules[name]
    library = torch.library.Library('torchvision', 'FRAGMENT')
    _LIBRARIES.append(library)
    for name in _OPERATORS:
      library.define(
        f'{name}(Tensor boxes, Tensor scores, float iou) -> Tensor'
      )
    importlib.import_module('torchvision')
