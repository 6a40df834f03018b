"""The training loop and its parts.

The package can be called: `vit_jax.train(config, workdir)` does the same as
`python -m vit_jax.main --config=FILE --workdir=PATH`.
"""

import sys
import types
from typing import TYPE_CHECKING

import ml_collections

if TYPE_CHECKING:
  from vit_jax.train.results import Results


class _Train(types.ModuleType):
  """A package that can be called like a function."""

  def __call__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str,
    dry_run: bool = False,
  ) -> 'Results':
    """Trains, or resumes, in a work directory: see `vit_jax.train.loop.run`."""
    from vit_jax.train import loop  # it imports jax

    return loop.run(config, workdir, dry_run)


sys.modules[__name__].__class__ = _Train
