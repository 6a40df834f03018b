"""Object stores, such as gs://bucket, and the lock of a run there."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import logging as python_logging
import pathlib
import time
from typing import Any
from typing import NamedTuple

import fsspec

from vit_jax import config as config_lib
from vit_jax.config import UserError

LOCK = 'lock.json'  # see `vit_jax.runs.object_store`
_STALE_S = 200  # after the time in a lock, it no longer counts
_ADVICE = 'see to your access to it, or name a local folder'

# What a store says of each object, by its name below a root.
Names = Mapping[str, Mapping[str, Any]]


class Store(NamedTuple):
  """A file system of fsspec, and a path in it."""

  files: Any
  root: str

  def listed(self) -> Names:
    """Returns what the store says of each object, by its name in the root.

    The name of the root itself is '', if it is an object. Names that lead out
    of the root are left out: they come from whoever may write to the bucket.
    """
    self.files.invalidate_cache()
    names = {}
    for path, facts in self.files.find(self.root, detail=True).items():
      name = path.removeprefix(self.root).strip('/')
      if '..' not in pathlib.PurePath(name).parts and not path.endswith('/'):
        names[name] = facts
    return names

  def path(self, name: str) -> str:
    """Returns the path of an object that is named below the root."""
    return f'{self.root}/{name}'.rstrip('/')


def connect(address: str) -> Store:
  """Returns the store of an address, and the path in it."""
  # They warn at each call if there is no account, also of public buckets. What
  # fails for that reason raises an error.
  for name in ('gcsfs', 'google.auth'):
    python_logging.getLogger(name).setLevel(python_logging.ERROR)
  files, root = fsspec.core.url_to_fs(address)
  return Store(files, root.rstrip('/'))


@contextlib.contextmanager
def explained(problem: str, advice: str = _ADVICE) -> Iterator[None]:
  """Turns errors of a store, of any type, into a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    raise UserError(f'{problem}: {config_lib.one_line(e)}; {advice}') from e


def lock_expires_s(lock: Mapping[str, Any]) -> float:
  """Returns for how many seconds the lock of a run still counts."""
  return _STALE_S - (time.time() - lock.get('time', 0))
