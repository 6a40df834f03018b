"""Plain names of arrays, for those that training puts a prefix before.

DistributedDataParallel, FSDP and torch.compile wrap a model, and Lightning and
others hold it in an attribute: `module._orig_mod.model.blocks.0.norm1.weight`.
"""

import collections
from collections.abc import Collection
import dataclasses
import re

from vit_jax.config import UserError
from vit_jax.weights.files import archives

# Wrappers of a model or, but for the first, of its layers.
_WRAPPERS = re.compile(
  r'^module\.|(?<![^.])'
  r'(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)'
  r'\.'
)
# Attributes that hold a model, the preferred first.
_HOLDERS = (
  *('model_ema', 'ema_model', 'ema', 'model', 'net', 'network'),
  *('base_model', 'teacher', 'student'),
)
# An attribute that formats have, too, if other parts are beside it.
_ENCODER = 'encoder'
_COUNT = 'n_averaged'  # torch.optim.swa_utils.AveragedModel


@dataclasses.dataclass(frozen=True)
class Names:
  """Plain names of the arrays in a file."""

  stored: dict[str, str]  # names in the file by plain names
  holders: tuple[str, ...]  # in which the model was, the outermost first
  other_holders: tuple[str, ...]  # of `_HOLDERS` beside them


def plain_names(names: Collection[str], holder: str | None = None) -> Names:
  """Returns the names in a file without prefixes.

  Of a model within another module, what is beside it is left out. `holder` is
  the attribute that holds the model, if there are several; None: the first of
  `_HOLDERS` that has at least half as many arrays as the largest.
  """
  plain = {name: _unwrapped(name) for name in names}
  holders: list[str] = []
  other_holders: list[str] = []
  while held := _held([*plain.values()], holder):
    holders.append(held[0])
    other_holders += held[1:]
    prefix = f'{held[0]}.'
    plain = {
      name: _unwrapped(text.removeprefix(prefix))
      for name, text in plain.items()
      if text.startswith(prefix)
    }
  stored: dict[str, str] = {}
  for name, text in plain.items():
    if text in stored:
      raise UserError(f'it holds {archives.array_named(text)} twice')
    stored[text] = name
  if len(stored) > 1:
    stored.pop(_COUNT, None)
  return Names(stored, tuple(holders), tuple(other_holders))


def _unwrapped(name: str) -> str:
  while (inner := _WRAPPERS.sub('', name)) != name:
    name = inner
  return name


def _held(names: Collection[str], holder: str | None) -> list[str]:
  """Returns attributes that hold a model, the one to be read first."""
  counts = collections.Counter(
    name.partition('.')[0] for name in names if '.' in name
  )
  least = max(counts.values(), default=0) / 2
  held = [x for x in _HOLDERS if counts[x] >= max(least, 1)]
  if holder is not None and holder in counts:
    return [holder, *(x for x in held if x != holder)]
  total = sum(name != _COUNT for name in names)
  return held or [_ENCODER] * (counts[_ENCODER] == total > 0)
