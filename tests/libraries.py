"""timm and open_clip, for tests that compare with them."""

import importlib.util
import sys

import pytest

# Operators that torchvision registers functions for when it is imported. A
# wheel compiled for another torch lacks them. Neither library calls them for
# ViTs, so they are declared here, without a body.
_OPERATORS = """
nms qnms roi_align _roi_align_backward qroi_align ps_roi_align
_ps_roi_align_backward roi_pool _roi_pool_backward ps_roi_pool
_ps_roi_pool_backward deform_conv2d _deform_conv2d_backward
""".split()
_DECLARED = []  # kept, since the declarations end with the object


def imported(name):
  """Returns a module, or skips the test if a library is not there."""
  torch = pytest.importorskip('torch')
  if importlib.util.find_spec('torchvision') is None:
    pytest.skip('needs torchvision')
  try:
    import torchvision  # noqa: F401
  except RuntimeError:  # operator torchvision::nms does not exist
    for module in [x for x in sys.modules if x.startswith('torchvision')]:
      del sys.modules[module]
    library = torch.library.Library('torchvision', 'DEF')
    for operator in _OPERATORS:
      library.define(f'{operator}(Tensor x) -> Tensor')
    _DECLARED.append(library)
  return pytest.importorskip(name)
