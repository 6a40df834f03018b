"""Remote checkpoints: downloaded once, into a cache, and used from there.

    hf:owner/name[@revision]   a Hugging Face or timm directory of the Hub
    gs://bucket/key            as https://storage.googleapis.com/bucket/key
    https://..., http://...    any file

The cache is $VIT_JAX_CACHE, else ~/.cache/vit_jax:

    downloads/HOST/PATH              files
    hub/OWNER--NAME/REVISION/        directories of the Hub
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import time
from urllib import parse

from vit_jax.config import UserError
from vit_jax.weights import hub
from vit_jax.weights import transfer

_GCS = 'https://storage.googleapis.com'
_REMOTE = ('https://', 'http://', 'gs://', 'hf:')


def is_remote(path: str) -> bool:
  """Returns whether `fetch` takes this for an address, not for a local path."""
  return path.startswith(_REMOTE)


def fetch(path: str, *, sleep: transfer.Sleep = time.sleep) -> pathlib.Path:
  """Returns where a path or an address is on this machine; downloads it first.

  A file in the cache is used without asking the server. A download resumes
  where an earlier one stopped (a file of `hf:` within the same run alone), and
  is checked by size and, where the server gives one, by hash.

  Args:
    path: A local path, or what the module's documentation lists. $HF_ENDPOINT
      names another server for `hf:`, and $HF_TOKEN is shown to it alone.
    sleep: Called with the seconds to wait before trying again; `hf:` does not.

  Returns:
    A file; for `hf:`, a directory with config.json, the weights, and
    preprocessor_config.json where there is one; a local path as it is.

  Raises:
    UserError: There is no such file, it cannot be reached or stored, or what
      came is not what the server announced.
  """
  if path.startswith('hf:'):
    return hub.fetch(path, _cache() / 'hub')
  if path.startswith('gs://'):
    return transfer.download(_gcs_file(path), sleep)
  if is_remote(path):
    return transfer.download(_web_file(path), sleep)
  return _local(path)


def _local(path: str) -> pathlib.Path:
  local = _expand(path)
  if path and os.path.exists(local):
    return local
  if '://' in path:
    hint = '; known are local paths, https://, http://, gs:// and hf:'
  elif re.fullmatch(hub.NAME, path, re.ASCII):
    hint = f"; for a repository of the Hugging Face Hub write 'hf:{path}'"
  else:
    hint = ''
  raise UserError(f'{path!r}: there is no such file or directory{hint}')


def _cache() -> pathlib.Path:
  path = os.environ.get('VIT_JAX_CACHE') or '~/.cache/vit_jax'
  return _expand(path).absolute()


def _expand(path: str) -> pathlib.Path:
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError:  # '~' of nobody
    raise UserError(
      f'{path}: the home directory is not known; write it out (VIT_JAX_CACHE'
      ' names the cache)'
    ) from None


def _gcs_file(path: str) -> transfer.File:
  match = re.fullmatch(r'gs://([\w.-]+)/(.*[^/])', path, re.ASCII)
  if match is None:
    raise UserError(f'{path!r} must read gs://BUCKET/KEY, KEY being a file')
  return dataclasses.replace(
    _web_file(f'{_GCS}/{match[1]}/{parse.quote(match[2])}'),
    refused='anonymous access was refused; take a copy on the Hugging Face'
    ' Hub, such as hf:timm/vit_base_patch16_224.augreg_in21k, or pass a local'
    ' file',
  )


def _web_file(url: str) -> transfer.File:
  try:
    parts = parse.urlsplit(url)
    host, port = parts.hostname, parts.port
  except ValueError:
    host = port = None
  if not host or not parts.path.strip('/') or parts.path.endswith('/'):
    raise UserError(f'{url!r} must read {url.split(":")[0]}://HOST/PATH')
  # An http server must not stand in for the https one of the same name.
  scheme = '' if parts.scheme == 'https' else f'{parts.scheme}+'
  server = scheme + _segment(host) + (f'+{port}' if port else '')
  *folders, name = (_segment(s) for s in parts.path[1:].split('/'))
  if parts.query:
    digest = hashlib.sha256(parts.query.encode()).hexdigest()[:12]
    file = pathlib.PurePath(name)
    name = f'{file.stem}-{digest}{file.suffix}'
  target = _cache().joinpath('downloads', server, *folders, name)
  return transfer.File(
    url,
    target,
    by_hand=f'download it where there is a network and put it at {target}, or'
    ' pass a local path',
    refused='access was refused; pass a local path',
  )


def _segment(text: str) -> str:
  """Returns one part of a URL's path as a file name: readable, and unique."""
  name = parse.quote(parse.unquote(text), safe=' +@,=()')
  if name.strip('.'):
    return name
  return name.replace('.', '%2E') or '%'
