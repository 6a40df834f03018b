"""Downloads one file: resumes, verifies, and publishes only a complete file.

FILE.part holds an unfinished download, and FILE.part.json its version, so that
a later run can continue. FILE.lock makes other processes wait. `requests` alone
neither resumes nor verifies.
"""

import base64
from collections.abc import Callable
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
from typing import TYPE_CHECKING
from urllib import parse

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import safe_io
from vit_jax.runs import terminal

if TYPE_CHECKING:
  import requests  # imported by the functions, since few runs download

_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two packets
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each retry
BUSY = (408, 429, 500, 502, 503, 504)  # temporary HTTP statuses
# Maximum loss when a connection breaks: urllib3 drops an unfinished chunk.
_CHUNK_BYTES = 1 << 16

Sleep = Callable[[float], None]


class RefusedError(UserError):
  """The server has no such file, or does not show it to everybody."""


@dataclasses.dataclass(frozen=True)
class File:
  """A remote file."""

  url: str  # its URL
  target: pathlib.Path  # path to store it at
  by_hand: str  # advice if the server cannot be reached
  refused: str  # advice if the server refuses access
  # Advice if the server has no such file.
  missing: str = 'check the name, or pass a local path'
  # Digest of the content, hexadecimal, where it is known in advance; '': that
  # which the server announces is compared.
  sha256: str = ''

  def __str__(self) -> str:
    """Returns the URL without parts that may be secret."""
    url = parse.urlsplit(self.url)
    host = url.netloc.rpartition('@')[2]
    query = '...' if url.query else ''
    return parse.urlunsplit((url.scheme, host, url.path, query, ''))


def download(file: File, sleep: Sleep) -> pathlib.Path:
  """Downloads a file, unless it exists; returns its target.

  `sleep` is called with the seconds to wait before a retry.
  """
  if file.target.is_file():
    with config_lib.explained(f'{file.target} cannot be read', OSError):
      algorithm = 'sha256' if file.sha256 else ''
      problem = mismatch(file.target, None, algorithm, file.sha256)
    if problem:  # it was put there by hand, or another was published
      raise UserError(
        f'{file.target} is not {file}: {problem}; remove it and try again, or'
        f' {file.by_hand}'
      )
    return file.target
  part = _Part(file.target)
  try:
    file.target.parent.mkdir(parents=True, exist_ok=True)
    lock_path = file.target.with_name(f'{file.target.name}.lock')
    lock = safe_io.Lock(lock_path, 'download')
    if not lock.acquire(wait=False):
      logging.info('Waiting for another process that downloads %s', file.target)
      lock.acquire()
    try:
      if not file.target.is_file():  # no other process was faster
        version = _receive(file, part, sleep)
        problem = mismatch(
          part.path, version.size, version.algorithm, version.digest
        )
        if problem:
          part.discard()
          raise UserError(
            f'cannot download {file}: {problem}; what came was removed: try'
            f' again, or {file.by_hand}'
          )
        with part.path.open('rb') as content:
          os.fsync(content.fileno())
        part.path.replace(file.target)
        part.discard()
      # A process that waits for the lock finds the target then.
      lock_path.unlink(missing_ok=True)
    finally:
      lock.release()
  except OSError as e:
    raise _cannot_write(file, part, e) from None
  return file.target


def mismatch(
  path: pathlib.Path, size: int | None, algorithm: str, digest: str
) -> str:
  """Returns how a file differs from its announced version; '' if it does not.

  `size` may be None; `algorithm` is as hashlib names it, or '', and `digest`
  hexadecimal.
  """
  with path.open('rb') as content:
    stored = os.fstat(content.fileno()).st_size
    if size not in (None, stored):
      return f'wrong size: {stored:,} bytes, not {size:,}'
    if not algorithm:
      return ''
    computed = hashlib.file_digest(
      content, lambda: hashlib.new(algorithm, usedforsecurity=False)
    ).hexdigest()
  if computed == digest:
    return ''
  return f'wrong {algorithm}: {computed}, not {digest}'


@dataclasses.dataclass(frozen=True)
class _Version:
  validator: str  # ETag or date, for If-Range; '' if there is none
  size: int | None  # in bytes; None if unknown
  algorithm: str  # of the digest, 'md5' or 'sha256'; '' without one
  digest: str  # of the content, hexadecimal


class _Part:
  """The received part of a file, and the version that it belongs to."""

  def __init__(self, target: pathlib.Path):
    self.path = target.with_name(f'{target.name}.part')
    self._info = target.with_name(f'{target.name}.part.json')

  @property
  def size(self) -> int:
    return self.path.stat().st_size if self.path.exists() else 0

  def version(self) -> _Version | None:
    """Returns the version; None if there is nothing to continue."""
    try:
      return _Version(**safe_io.parse_json(safe_io.read_text(self._info)))
    except (OSError, ValueError, TypeError):
      return None

  def begin(self, version: _Version) -> None:
    """Empties the file, and then records the version, in this order."""
    self.path.write_bytes(b'')
    self._info.write_text(json.dumps(dataclasses.asdict(version)), 'utf-8')

  def discard(self) -> None:
    self._info.unlink(missing_ok=True)
    self.path.unlink(missing_ok=True)


class _InterruptedError(Exception):
  """The connection broke or the server is busy: a retry may help."""

  def __init__(self, reason: str, answered: bool = True):
    super().__init__(reason)
    self.answered = answered  # whether a server did at all


def _receive(file: File, part: _Part, sleep: Sleep) -> _Version:
  """Downloads a file; retries as long as more of it arrives."""
  furthest, failures, answered = part.size, 0, False
  while True:
    try:
      return _attempt(file, part)
    except _InterruptedError as e:
      answered |= e.answered
      if part.size > furthest:
        furthest, failures = part.size, 0
      # Without any answer the machine is offline: fail at once.
      if failures == len(_PAUSES) or not answered:
        hint = ' (what has come is kept)' if part.size else ''
        raise UserError(
          f'cannot download {file}: {e}; try again{hint}, or {file.by_hand}'
        ) from None
      logging.warning('%s: %s; trying again', file, e)
      sleep(_PAUSES[failures])
      failures += 1


def _attempt(file: File, part: _Part) -> _Version:
  """Requests the missing bytes once, and keeps those that arrive."""
  import requests

  version = part.version()
  if version and version.size == part.size:
    return version
  headers = {'Accept-Encoding': 'identity'}  # ranges count uncompressed bytes
  if version and version.validator and part.size:
    headers['Range'] = f'bytes={part.size}-'
    headers['If-Range'] = version.validator
  try:
    response = requests.get(
      file.url, headers=headers, stream=True, timeout=_TIMEOUT
    )
  except requests.RequestException as e:
    raise _InterruptedError(_reason(e), answered=False) from None
  with response:
    if not (version and _continues(response, version, part.size)):
      if response.status_code in (206, 416):
        part.discard()
        raise _InterruptedError('the file has changed on the server')
      _check_status(file, response)
      version = _announced(file, response)
      part.begin(version)
    logging.info(
      'Downloading %s from %s on (of %s) to %s',
      *(file, _megabytes(part.size), _megabytes(version.size), file.target),
    )
    progress = terminal.ProgressBar(
      version.size, 'B', file.target.name, part.size
    )
    with progress, part.path.open('ab') as content:
      try:
        for chunk in response.iter_content(_CHUNK_BYTES):
          content.write(chunk)
          progress.update(len(chunk))
      except requests.RequestException as e:
        reason = f'the connection was cut: {_reason(e)}'
        raise _InterruptedError(reason) from None
  if version.size is not None and part.size < version.size:
    raise _InterruptedError(
      f'it ended at {part.size:,} of {version.size:,} bytes'
    )
  return version


def _continues(
  response: 'requests.Response', version: _Version, offset: int
) -> bool:
  """Whether a partial response continues at `offset`, in the same version."""
  content = response.headers.get('Content-Range', '')
  match = re.fullmatch(r'bytes (\d+)-\d+/(\d+|\*)', content.strip())
  return (
    response.status_code == 206
    and match is not None
    and int(match[1]) == offset
    and match[2] in ('*', str(version.size))
    and _validator(response) in ('', version.validator)
  )


def _check_status(file: File, response: 'requests.Response') -> None:
  status = f'status {response.status_code} {response.reason or ""}'.strip()
  if response.status_code in BUSY:
    raise _InterruptedError(status)
  if response.status_code in (401, 403):
    raise RefusedError(f'cannot download {file}: {status}: {file.refused}')
  if response.status_code == 404:
    raise RefusedError(f'cannot download {file}: {status}: {file.missing}')
  if response.status_code != 200:
    raise UserError(f'cannot download {file}: {status}; {file.by_hand}')
  if response.headers.get('Content-Type', '').startswith('text/html'):
    raise UserError(
      f'cannot download {file}: a web page came in its place; give the address'
      ' of the file itself, and see that the network asks for no log-in'
    )


def _announced(file: File, response: 'requests.Response') -> _Version:
  """Returns the version that the server describes in its headers."""
  length = response.headers.get('Content-Length', '')
  size = int(length) if length.isdecimal() else None
  validator = _validator(response)
  if response.headers.get('Content-Encoding', 'identity') != 'identity':
    size, validator = None, ''  # both describe the compressed bytes
  linked = _hub_header(response, 'X-Linked-Size')
  if linked.isdecimal():
    if size not in (None, int(linked)):
      raise UserError(
        f'cannot download {file}: wrong size: {size:,} bytes are offered where'
        f' there should be {int(linked):,}; try again later, or {file.by_hand}'
      )
    size = int(linked)
  if file.sha256:
    return _Version(validator, size, 'sha256', file.sha256)
  etag = _hub_header(response, 'X-Linked-Etag') or _hub_header(response, 'ETag')
  if re.fullmatch('"?[0-9a-f]{64}"?', etag):
    return _Version(validator, size, 'sha256', etag.strip('"'))
  # Google's digest is of the stored bytes, which may be compressed.
  stored = response.headers.get('X-Goog-Stored-Content-Encoding', 'identity')
  hashes = response.headers.get('X-Goog-Hash', '')
  match = re.search(r'\bmd5=([A-Za-z0-9+/]{22}==)', hashes)
  if match and stored == 'identity':
    digest = base64.b64decode(match[1]).hex()
    return _Version(validator, size, 'md5', digest)
  return _Version(validator, size, '', '')


def _validator(response: 'requests.Response') -> str:
  etag = response.headers.get('ETag', '')
  if etag and not etag.startswith('W/'):  # a weak one allows other bytes
    return etag
  return response.headers.get('Last-Modified', '')


def _hub_header(response: 'requests.Response', header: str) -> str:
  """Returns a header of the Hub's own response, even after a redirect."""
  for answer in (*response.history, response):
    if 'X-Repo-Commit' in answer.headers and header in answer.headers:
      return answer.headers[header]
  return ''


def _cannot_write(file: File, part: _Part, error: OSError) -> UserError:
  if error.errno not in (errno.ENOSPC, errno.EDQUOT):
    return UserError(
      f'cannot write {file.target}: {error.strerror or error}; make the cache'
      ' writable, or set VIT_JAX_CACHE to another directory'
    )
  version = part.version()
  needed = 'more'
  if version and version.size:
    needed = f'{_megabytes(version.size - part.size)} more'
  directory = next(d for d in file.target.parents if d.exists())
  free = _megabytes(shutil.disk_usage(directory).free)
  return UserError(
    f'no room for {file.target}: {needed} needed, {free} free; make room and'
    ' try again (what has come is kept), or set VIT_JAX_CACHE to a directory on'
    ' another disk'
  )


def _megabytes(size: int | None) -> str:
  return 'unknown size' if size is None else f'{size / 1e6:,.1f} MB'


def _reason(error: BaseException) -> str:
  """Returns the innermost cause of an error of `requests`."""
  import requests

  if isinstance(error, requests.Timeout):
    return 'the server does not answer in time'
  if isinstance(error, ValueError):  # its text may show a secret
    return 'the address is not valid'
  while True:
    causes = (error.__cause__, getattr(error, 'reason', None), *error.args)
    cause = next((c for c in causes if isinstance(c, BaseException)), None)
    if cause is None:
      return config_lib.reason(error)
    error = cause
