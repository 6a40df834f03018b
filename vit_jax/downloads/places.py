"""Where downloads come from and where they are kept.

The cache is $VIT_JAX_CACHE, else ~/.cache/vit_jax:

    downloads/HOST/PATH              checkpoints that are one file
    hub/OWNER--NAME/REVISION/        directories of the Hub
    stores/SCHEME/BUCKET/PATH        copies of what is read from a bucket
    vocabularies/NAME                of tokenizers
    xla/                             compiled programs, which are made here
    runs/                            copies of runs that train in a bucket
"""

import os
import pathlib

from vit_jax.config import UserError
from vit_jax.config.addresses import check_local

REPOSITORY = r'\w[\w.-]*/\w[\w.-]*'  # OWNER/NAME on the Hub


def cache() -> pathlib.Path:
  """Returns the directory of the cache, which may not exist yet."""
  path = os.environ.get('VIT_JAX_CACHE') or '~/.cache/vit_jax'
  check_local(path, 'VIT_JAX_CACHE')
  return expand(path).absolute()


def expand(path: str) -> pathlib.Path:
  """Returns a path with the home directory in place of '~'."""
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError:  # '~' of an unknown user
    raise UserError(
      f'{path}: the home directory is not known; write it out (VIT_JAX_CACHE'
      ' names the cache)'
    ) from None


def hub() -> str:
  """Returns the address of the Hugging Face Hub, or of $HF_ENDPOINT."""
  endpoint = os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'
  if not endpoint.startswith(('https://', 'http://')):
    raise UserError(f'HF_ENDPOINT={endpoint!r} must start with https://')
  return endpoint.rstrip('/')
