"""Images and labels: from files to batches.

A `Source` gives random access to encoded examples; `train_batches` and
`eval_batches` make batches of them, on threads or worker processes. The device
augments and normalises the batches (`vit_jax.data.device`), and may keep a
whole dataset in its memory (`vit_jax.data.cache`). Only these two import JAX.

The names below are imported on first use, so that `python -m vit_jax.data` can
parse its flags before the slow imports.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax.data.base import Source as Source
  from vit_jax.data.checks import check as check
  from vit_jax.data.held_out import hold_out as hold_out
  from vit_jax.data.host.batches import eval_batches as eval_batches
  from vit_jax.data.host.batches import train_batches as train_batches
  from vit_jax.data.host.prefetch import Batch as Batch
  from vit_jax.data.host.prefetch import Batches as Batches
  from vit_jax.data.preprocess import Preprocess as Preprocess
  from vit_jax.data.sources import open_source as open_source
  from vit_jax.data.sources import open_split as open_split
  from vit_jax.data.splits import SplitError as SplitError

_MODULES = {
  'Batch': 'host.prefetch',
  'Batches': 'host.prefetch',
  'Preprocess': 'preprocess',
  'Source': 'base',
  'SplitError': 'splits',
  'check': 'checks',
  'eval_batches': 'host.batches',
  'hold_out': 'held_out',
  'open_source': 'sources',
  'open_split': 'sources',
  'train_batches': 'host.batches',
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'vit_jax.data.{_MODULES[name]}')
  return getattr(module, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
