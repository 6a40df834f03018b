"""Downloads remote checkpoints once, into a cache.

    hf:owner/name[@revision]   a Hugging Face or timm directory of the Hub
    gs://bucket/key            a file, or the folder of a run or a model; files
                               that all may read need no account
    s3://bucket/key            the same, all with an account
    https://..., http://...    any file

`vit_jax.downloads.places` says where the cache is.
"""

import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import re
import time
from urllib import parse

from vit_jax.config import check_package
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.config.addresses import STORES
from vit_jax.downloads import places
from vit_jax.downloads import transfer

_REMOTE = ('hf:', 'gs://', 's3://', 'https://', 'http://')
_GCS = 'https://storage.googleapis.com'
_FILE = re.compile(r'\.[A-Za-z]\w*$')  # the end of a file's name


def is_remote(path: str) -> bool:
  """Whether a path is an address, so that `fetch` downloads it."""
  return path.startswith(_REMOTE)


def fetch(
  path: str,
  *,
  step: int | str | None = None,
  sleep: transfer.Sleep = time.sleep,
) -> pathlib.Path:
  """Returns the local path of a checkpoint; downloads it first if needed.

  A local path is returned unchanged; of `hf:` it is a directory with
  config.json, the weights, and preprocessor_config.json if there is one. A file
  in the cache is used without asking the server. A download resumes where an
  earlier one stopped (for `hf:` only within the same run), and is checked by
  size and, if the server gives one, by hash. $HF_ENDPOINT names another server
  for `hf:`, and $HF_TOKEN is sent only to that server.

  What is in an object store may change, so its copy is compared with the store
  each time; see `vit_jax.downloads.copies`.

  Args:
    path: A local path, or an address.
    step: The checkpoint that will be read, if it is a run in an object store.
    sleep: Called with the seconds to wait before a retry, but not for `hf:`.
  """
  if path.startswith('hf:'):
    check_package(path, 'huggingface_hub', 'hub')
    from vit_jax.weights import hub

    return hub.fetch(path, places.cache() / 'hub')
  scheme, _, location = path.partition('://')
  if scheme in STORES:
    bucket, _, key = location.partition('/')
    if not re.fullmatch(r'[\w.-]+', bucket, re.ASCII) or not key.strip('/'):
      raise UserError(f'{path!r} must read {scheme}://BUCKET/KEY')
    if scheme == 'gs' and _FILE.search(key):
      return _fetch_gs_file(path, bucket, key, sleep)
    return _fetch_stored(path, step)
  if path.startswith(('https://', 'http://')):
    return transfer.download(_web_file(path), sleep)
  local = places.expand(path)
  if path and os.path.exists(local):
    return local
  hint = ''
  if '://' in path:
    hint = '; known are local paths, https://, http://, gs://, s3:// and hf:'
  elif re.fullmatch(places.REPOSITORY, path, re.ASCII):
    hint = f"; for a repository of the Hugging Face Hub write 'hf:{path}'"
  hint = nearby(str(local) if path else '', otherwise=hint)
  raise UserError(f'{path!r}: there is no such file or directory{hint}')


def _fetch_gs_file(
  path: str, bucket: str, key: str, sleep: transfer.Sleep
) -> pathlib.Path:
  """Downloads a file that all may read; else uses the user's credentials."""
  file = dataclasses.replace(
    _web_file(f'{_GCS}/{bucket}/{parse.quote(key)}'),
    refused='anonymous access was refused; for your own bucket, run pip install'
    " 'vit_jax[gs]'; of a published file take a copy on the Hugging Face Hub,"
    ' such as hf:timm/vit_base_patch16_224.augreg_in21k, or pass a local file',
  )
  try:
    return transfer.download(file, sleep)
  except transfer.RefusedError:
    if importlib.util.find_spec(STORES['gs']) is None:
      raise
    return _fetch_stored(path, None)


def _fetch_stored(path: str, step: int | str | None) -> pathlib.Path:
  scheme = path.partition(':')[0]
  check_package(path, STORES[scheme], scheme)
  from vit_jax.downloads import copies  # here, since few runs need its library

  return copies.fetch(path, step)


def _web_file(url: str) -> transfer.File:
  try:
    parts = parse.urlsplit(url)
    host, port = parts.hostname, parts.port
  except ValueError:
    host = port = None
  if not host or not parts.path.strip('/') or parts.path.endswith('/'):
    raise UserError(f'{url!r} must read {url.split(":")[0]}://HOST/PATH')
  # A file from http must not be used for the same address with https.
  scheme = '' if parts.scheme == 'https' else f'{parts.scheme}+'
  server = scheme + _segment(host) + (f'+{port}' if port else '')
  *folders, name = (_segment(s) for s in parts.path[1:].split('/'))
  if parts.query:
    digest = hashlib.sha256(parts.query.encode()).hexdigest()[:12]
    file = pathlib.PurePath(name)
    name = f'{file.stem}-{digest}{file.suffix}'
  target = places.cache().joinpath('downloads', server, *folders, name)
  return transfer.File(
    url,
    target,
    by_hand=f'download it where there is a network and put it at {target}, or'
    ' pass a local path',
    refused='access was refused; pass a local path',
  )


def _segment(text: str) -> str:
  """Returns one part of a URL's path as a readable and unique file name."""
  name = parse.quote(parse.unquote(text), safe=' +@,=()')
  if name.strip('.'):
    return name
  return name.replace('.', '%2E') or '%'
