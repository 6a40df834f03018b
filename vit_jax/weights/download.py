"""Downloads remote checkpoints once, into a cache.

    hf:owner/name[@revision]   a Hugging Face or timm directory of the Hub
    gs://bucket/key            as https://storage.googleapis.com/bucket/key
    https://..., http://...    any file

`vit_jax.downloads.places` says where the cache is.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import time
from urllib import parse

from vit_jax.config import check_package
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.downloads import places
from vit_jax.downloads import transfer

_REMOTE = ('hf:', 'gs://', 'https://', 'http://')
_GCS = 'https://storage.googleapis.com'


def is_remote(path: str) -> bool:
  """Whether a path is an address, so that `fetch` downloads it."""
  return path.startswith(_REMOTE)


def fetch(path: str, *, sleep: transfer.Sleep = time.sleep) -> pathlib.Path:
  """Returns the local path of a checkpoint; downloads it first if needed.

  A local path is returned unchanged; of `hf:` it is a directory with
  config.json, the weights, and preprocessor_config.json if there is one. A file
  in the cache is used without asking the server. A download resumes where an
  earlier one stopped (for `hf:` only within the same run), and is checked by
  size and, if the server gives one, by hash. $HF_ENDPOINT names another server
  for `hf:`, and $HF_TOKEN is sent only to that server. `sleep` is called with
  the seconds to wait before a retry, but not for `hf:`.
  """
  if path.startswith('hf:'):
    check_package(path, 'huggingface_hub', 'hub')
    from vit_jax.weights import hub

    return hub.fetch(path, places.cache() / 'hub')
  if path.startswith('gs://'):
    match = re.fullmatch(r'gs://([\w.-]+)/(.*[^/])', path, re.ASCII)
    if match is None:
      raise UserError(f'{path!r} must read gs://BUCKET/KEY, KEY being a file')
    file = dataclasses.replace(
      _web_file(f'{_GCS}/{match[1]}/{parse.quote(match[2])}'),
      refused='anonymous access was refused; take a copy on the Hugging Face'
      ' Hub, such as hf:timm/vit_base_patch16_224.augreg_in21k, or pass a local'
      ' file',
    )
    return transfer.download(file, sleep)
  if path.startswith(('https://', 'http://')):
    return transfer.download(_web_file(path), sleep)
  local = places.expand(path)
  if path and os.path.exists(local):
    return local
  hint = ''
  if '://' in path:
    hint = '; known are local paths, https://, http://, gs:// and hf:'
  elif re.fullmatch(places.REPOSITORY, path, re.ASCII):
    hint = f"; for a repository of the Hugging Face Hub write 'hf:{path}'"
  hint = nearby(str(local) if path else '', otherwise=hint)
  raise UserError(f'{path!r}: there is no such file or directory{hint}')


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
