"""The training loop and what it consists of.

The package can be called: `vit_jax.train(config, workdir)` does from Python
what `python -m vit_jax.main --config=FILE --workdir=PATH` does.
"""

import sys
import types
from typing import TYPE_CHECKING

import ml_collections

if TYPE_CHECKING:
  from vit_jax.train.results import Results


class _Train(types.ModuleType):
  """A package that is a function, too: both have the name `train`."""

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
