"""Images and labels: from files to batches.

A `Source` gives random access to encoded examples; `train_batches` and
`eval_batches` make batches of them, on threads or worker processes. What
happens to a batch on the device is in `vit_jax.data.device`: it needs JAX, and
nothing else here imports it.
"""

from vit_jax.data.base import Source
from vit_jax.data.batches import Batch
from vit_jax.data.batches import Batches
from vit_jax.data.batches import eval_batches
from vit_jax.data.batches import train_batches
from vit_jax.data.checks import check
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import open_source
from vit_jax.data.sources import open_split
from vit_jax.data.splits import SplitError

__all__ = [
  'Batch',
  'Batches',
  'Preprocess',
  'Source',
  'SplitError',
  'check',
  'eval_batches',
  'open_source',
  'open_split',
  'train_batches',
]
