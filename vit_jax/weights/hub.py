"""Model directories of the Hugging Face Hub, with `huggingface_hub`.

Downloads go to a plain directory of our cache (the library's `local_dir`), so
that a user without a network can put the same files there. The library leaves
some tasks to this module: to choose files, to give errors of one line, to fail
at once without a network, and to check the sha256. It removes an incomplete
file and keeps complete ones.
"""

import dataclasses
import functools
import os
import pathlib
import re
from typing import TYPE_CHECKING
from urllib import parse

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.downloads import checksums
from vit_jax.downloads import places
from vit_jax.downloads import transfer
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  import huggingface_hub

NAME = r'\w[\w.-]*/\w[\w.-]*'
_INDEX = 'model.safetensors.index.json'
_TORCH_INDEX = 'pytorch_model.bin.index.json'
# Of the texts of CLIP and SigLIP.
_VOCABULARIES = ('merges.txt', 'spiece.model')


def fetch(path: str, cache: pathlib.Path) -> pathlib.Path:
  """Returns the directory of a repository; downloads it first if needed.

  Args:
    path: hf:OWNER/NAME or hf:OWNER/NAME@REVISION.
    cache: Directory with a directory for each repository and revision.

  Returns:
    A directory with config.json, the weights and, if there are these files,
    preprocessor_config.json and the vocabulary of texts.

  Raises:
    UserError: There is no such repository, it cannot be reached or stored, or
      the download differs from what the Hub announced.
  """
  match = re.fullmatch(rf'hf:({NAME})(?:@([\w./+-]+))?', path, re.ASCII)
  if match is None:
    raise UserError(f'{path!r} must read hf:OWNER/NAME or hf:OWNER/NAME@BRANCH')
  name, revision = match[1], match[2] or 'main'
  folder = parse.quote(revision, safe='+') if revision.strip('.') else '%2E'
  directory = cache / name.replace('/', '--') / folder
  if _is_whole(directory):
    return directory
  repository = _Repository(name, revision, directory, places.hub(), _token())
  config = repository.get('config.json')
  if _has_texts(config):
    for vocabulary in _VOCABULARIES:
      repository.find(vocabulary)
  # The weights come last, so a directory with weights is complete.
  repository.find('preprocessor_config.json')
  if repository.find('model.safetensors'):
    return directory
  if index := repository.find(_INDEX):
    for shard in _shards(index):
      repository.get(shard)
    return directory
  if repository.find('pytorch_model.bin'):
    return directory
  if index := repository.find(_TORCH_INDEX):
    for shard in _shards(index):
      repository.get(shard)
  else:
    raise UserError(
      f'{path} has neither model.safetensors, {_INDEX} nor pytorch_model.bin;'
      ' pass the URL of its weights'
    )
  return directory


def _has_texts(config: pathlib.Path) -> bool:
  """Whether a config.json is that of a model with a text tower."""
  try:
    found = safe_io.parse_json(config.read_bytes())
  except (OSError, ValueError):  # reported when the model is read
    return False
  return isinstance(found, dict) and 'text_config' in found


def check_name(path: str) -> str:
  """Returns the repository's name of an address to write to.

  Args:
    path: hf:OWNER/NAME.

  Raises:
    UserError: It does not read so.
  """
  match = re.fullmatch(rf'hf:({NAME})', path, re.ASCII)
  if match is None:
    raise UserError(f'{path!r} must read hf:OWNER/NAME')
  return match[1]


def push(directory: pathlib.Path, path: str) -> str:
  """Uploads a directory in one commit, to a new or an existing repository.

  Args:
    directory: The files; others of the repository stay as they are.
    path: hf:OWNER/NAME. $HF_ENDPOINT names another server. The token is
      $HF_TOKEN, else that of `hf auth login`.

  Returns:
    The address of the repository's page.

  Raises:
    UserError: The server cannot be reached, or refuses.
  """
  import huggingface_hub  # imported here, since few runs upload
  from huggingface_hub import errors

  name = check_name(path)
  api = huggingface_hub.HfApi(endpoint=places.hub(), token=_token())
  try:
    api.create_repo(name, exist_ok=True)
    api.upload_folder(
      repo_id=name,
      folder_path=directory,
      commit_message=f'Upload {directory.name}',
    )
  except (OSError, errors.HTTPError, errors.LocalTokenNotFoundError) as e:
    status = getattr(getattr(e, 'response', None), 'status_code', None)
    hint = 'try again with the same command and another directory'
    if status in (None, 401, 403):
      hint = 'set HF_TOKEN to a token that may write there, or hf auth login'
    raise UserError(
      f'cannot upload to {path}: {config_lib.one_line(e)}; {hint}; the files'
      f' are in {directory}'
    ) from None
  return f'{places.hub()}/{name}'


def _token() -> str | None:
  """Returns $HF_TOKEN; None: the library may use that of `hf auth login`."""
  token = os.environ.get('HF_TOKEN', '').strip()
  if not re.fullmatch('[!-~]*', token):
    raise UserError('HF_TOKEN has spaces or odd characters: it is not a token')
  return token or None


@dataclasses.dataclass(frozen=True)
class _Repository:
  """A revision of a repository, and the directory that its files go to."""

  name: str
  revision: str
  directory: pathlib.Path
  endpoint: str
  token: str | None = dataclasses.field(repr=False)

  def get(self, name: str) -> pathlib.Path:
    """Returns a file, which must be on the Hub."""
    file = self.find(name)
    if file is None:
      raise UserError(
        f'cannot download {self._url(name)}: status 404 Not Found: check the'
        ' name, or pass a local path'
      )
    return file

  def find(self, name: str) -> pathlib.Path | None:
    """Returns a file, downloaded if needed; None if it is not on the Hub."""
    import huggingface_hub  # imported here, since few runs download
    from huggingface_hub import errors

    file = self.directory / name
    if file.is_file():
      return file
    try:
      self.directory.mkdir(parents=True, exist_ok=True)
      metadata = self._metadata(name)
      huggingface_hub.hf_hub_download(
        self.name,
        name,
        revision=self.revision,
        local_dir=self.directory,
        endpoint=self.endpoint,
        token=self.token,
      )
      self._verify(file, metadata.size, metadata.etag or '')
    except (OSError, errors.HTTPError) as e:
      if isinstance(e, errors.HfHubHTTPError) and e.response.status_code == 404:
        return None
      raise self._error(name, e) from None
    return file

  def _url(self, name: str) -> str:
    import huggingface_hub

    return huggingface_hub.hf_hub_url(
      self.name, name, revision=self.revision, endpoint=self.endpoint
    )

  def _metadata(self, name: str) -> 'huggingface_hub.HfFileMetadata':
    """Requests size and hash of a file.

    Without a network `hf_hub_download` would retry for half a minute. This
    retries only if the server is busy.
    """
    import huggingface_hub
    from huggingface_hub import errors

    ask = functools.partial(
      huggingface_hub.get_hf_file_metadata,
      self._url(name),
      token=self.token,
      endpoint=self.endpoint,
    )
    try:
      return ask(retry_on_errors=False)
    except errors.HfHubHTTPError as e:
      if e.response.status_code not in transfer.BUSY:
        raise
    return ask(retry_on_errors=True)

  def _verify(self, file: pathlib.Path, size: int | None, etag: str) -> None:
    """Compares size and sha256, and removes a file that differs."""
    has_digest = re.fullmatch('[0-9a-f]{64}', etag)
    algorithm = 'sha256' if has_digest else ''
    if problem := checksums.mismatch(file, size, algorithm, etag):
      file.unlink()
      raise UserError(
        f'cannot download {self._url(file.name)}: {problem}; what came was'
        f' removed: try again, or {self._by_hand}'
      )

  def _error(self, name: str, error: Exception) -> UserError:
    response = getattr(error, 'response', None)
    page = f'{self.endpoint}/{self.name}'
    if response is not None:
      problem = f'status {response.status_code} {response.reason_phrase}'
      if response.status_code in (401, 403):
        problem += (
          ': there is no such repository, or not for everyone: accept its terms'
          f' at {page} if it has any, and set HF_TOKEN'
        )
        return UserError(f'cannot download {self._url(name)}: {problem}')
    elif getattr(error, 'errno', None) is not None:
      problem = config_lib.reason(error)
      return UserError(
        f'cannot write {self.directory / name}: {problem}; make room for it, or'
        ' set VIT_JAX_CACHE to another directory'
      )
    else:
      problem = config_lib.one_line(error.__cause__ or error)
    return UserError(
      f'cannot download {self._url(name)}: {problem}; try again, or'
      f' {self._by_hand}'
    )

  @property
  def _by_hand(self) -> str:
    page = f'{self.endpoint}/{self.name}/tree'
    return (
      'where there is a network, download config.json, model.safetensors (or'
      f' {_INDEX} and the files that it names, or pytorch_model.bin) and, if'
      ' there is one, preprocessor_config.json from'
      f' {page}/{parse.quote(self.revision, safe="")}, and put them into'
      f' {self.directory}; or pass a local path'
    )


def _is_whole(directory: pathlib.Path) -> bool:
  def has(*names: str) -> bool:
    return all((directory / name).is_file() for name in names)

  if not has('config.json'):
    return False
  if has('model.safetensors') or has('pytorch_model.bin'):
    return True
  return any(
    has(index) and has(*_shards(directory / index))
    for index in (_INDEX, _TORCH_INDEX)
  )


def _shards(index: pathlib.Path) -> list[str]:
  """Returns names of the files in an index, which are in its directory."""
  kind = 'bin' if index.name == _TORCH_INDEX else 'safetensors'
  try:
    stored = safe_io.parse_json(safe_io.read_text(index))
    names = set(stored['weight_map'].values())
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
    raise UserError(
      f'{index} is no index of {kind} files ({type(e).__name__}:'
      f' {config_lib.one_line(e)}); remove it and try again'
    ) from None
  for name in names:
    if not re.fullmatch(rf'\w[\w.-]*\.{kind}', str(name), re.ASCII):
      raise UserError(
        f'{index} names {name!r}, which is no {kind} file beside it; it is'
        ' not to be trusted: take another repository'
      )
  if not names:
    raise UserError(f'{index} names no files; remove it and try again')
  return sorted(names)
