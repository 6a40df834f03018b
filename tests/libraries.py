"""Libraries on torch, for tests that compare with them."""

import importlib
import importlib.util
import sys

import pytest

# Operators that torchvision registers functions for when it is imported. A
# wheel compiled for another torch lacks them. Models of images do not call
# them, so they are declared here, without a body.
_OPERATORS = """
nms qnms roi_align _roi_align_backward qroi_align ps_roi_align
_ps_roi_align_backward roi_pool _roi_pool_backward ps_roi_pool
_ps_roi_pool_backward deform_conv2d _deform_conv2d_backward
""".split()
_DECLARED = []  # kept, since the declarations end with the object


def imported(name, reason=None):
  """Returns a module of timm, open_clip or transformers, or skips the test."""
  torch = pytest.importorskip('torch', reason=reason)
  try:
    if importlib.util.find_spec('torchvision') is not None:
      importlib.import_module('torchvision')
  except RuntimeError:  # operator torchvision::nms does not exist
    for module in [x for x in sys.modules if x.startswith('torchvision')]:
      del sys.modules[module]
    library = torch.library.Library('torchvision', 'DEF')
    for operator in _OPERATORS:
      library.define(f'{operator}(Tensor x) -> Tensor')
    _DECLARED.append(library)
  return pytest.importorskip(name, reason=reason)
