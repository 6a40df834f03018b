"""The training loop and its parts.

The package can be called: `vit_jax.train(config, workdir)` does the same as
`python -m vit_jax.main --config=FILE --workdir=PATH`.
"""

import importlib
import sys
import types
from typing import cast
from typing import TYPE_CHECKING

import ml_collections

if TYPE_CHECKING:
  from vit_jax.train.results import Results


class _Callable(types.ModuleType):
  """A package that can be called like a function."""

  def __call__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str,
    dry_run: bool = False,
  ) -> 'Results':
    """Trains, or resumes, in a work directory: see `vit_jax.train.loop.run`."""
    # A command has an allocator of its own, and other programs are told of it.
    importlib.import_module('vit_jax.parallel.allocator').hint()
    loop = importlib.import_module('vit_jax.train.loop')  # it imports jax
    return cast('Results', loop.run(config, workdir, dry_run))


# Python binds `vit_jax.train` to this module whenever a submodule is imported,
# so that only the module itself can be what is called. A module may set its own
# class: docs.python.org/3/reference/datamodel.html, "Customizing module
# attribute access".
sys.modules[__name__].__class__ = _Callable
