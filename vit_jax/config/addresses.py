"""Addresses of object stores, where a path is expected."""

import os
import re

from vit_jax.config.errors import UserError
from vit_jax.config.packages import check_package

# 'gs://bucket/run', also as pathlib writes it: 'gs:/bucket/run'.
_ADDRESS = re.compile(r'([A-Za-z][A-Za-z0-9+.-]+):/|(hf):')

# Object stores that a work directory may be in, and the packages that read
# them.
STORES = {'gs': 'gcsfs', 's3': 's3fs'}

# What shows a bucket as a folder.
_MOUNTS = {
  'gs': 'mount the bucket, as with gcsfuse, and name the mounted folder',
  's3': 'mount the bucket, as with mount-s3, and name the mounted folder',
  'hf': 'write to a local folder, which vit_jax.convert --push uploads',
  'file': 'write the path alone',
}

# What copies from a bucket.
_COPIES = {'gs': 'gcloud storage cp -r', 's3': 'aws s3 cp --recursive'}


def is_in_store(path: str) -> bool:
  """Whether a path is the address of an object store."""
  return path.partition('://')[0] in STORES


def store_address(path: str | os.PathLike[str], label: str) -> str | None:
  """Returns the address of an object store; None for any other path.

  `label` names the path in errors, as '--workdir'.
  """
  scheme, _, name = os.fspath(path).partition(':/')
  if scheme not in STORES:
    return None
  address = f'{scheme}://{name.lstrip("/")}'
  check_package(f'{label}={address}', STORES[scheme], scheme)
  return address


def check_local(path: str | os.PathLike[str], label: str) -> None:
  """Raises a UserError if a path is an address, as of a bucket.

  Python would take 'gs://bucket/run' for the folder 'gs:' in this one. `label`
  names the path in the error, as '--workdir'.
  """
  text = os.fspath(path)
  if match := _ADDRESS.match(text):
    scheme = (match[1] or match[2]).lower()
    advice = _MOUNTS.get(scheme, 'name a local folder, or a mounted one')
    raise UserError(f'{label}={text}: it must be a local path: {advice}')


def check_data(path: str, label: str) -> None:
  """Raises a UserError if data is in an object store, which is not read.

  `label` comes before the path in the error, as 'config.data.name=folder:'.
  """
  scheme = path.partition(':/')[0]
  if scheme in _COPIES:
    raise UserError(
      f'{label}{path}: data is read from local files: copy it, as with'
      f' {_COPIES[scheme]} {path} FOLDER, or {_MOUNTS[scheme]}'
    )
