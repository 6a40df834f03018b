"""Model directories of the Hugging Face Hub, by `huggingface_hub`.

Downloads go to a plain directory of our cache (the library's `local_dir`), so
that a user without a network can put the same files there. This module chooses
the files, fails at once without a network, checks the sha256, and gives errors
of one line. The library resumes within a download, and removes what it did not
finish.
"""

from collections.abc import Collection
import dataclasses
import os
import pathlib
import re
from urllib import parse

import huggingface_hub
from huggingface_hub import errors

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.downloads import places
from vit_jax.downloads import transfer
from vit_jax.weights.files import containers

_NAME = places.REPOSITORY
# The preferred first; an index names the files that hold the weights.
_WEIGHTS = (
  'model.safetensors',
  'model.safetensors.index.json',
  'pytorch_model.bin',
  'pytorch_model.bin.index.json',
)
# A repository may lack them; the last two are of the texts of CLIP and SigLIP.
_OPTIONAL_FILES = ('preprocessor_config.json', 'merges.txt', 'spiece.model')


def fetch(path: str, cache: pathlib.Path) -> pathlib.Path:
  """Returns the directory of a repository; downloads it first if needed.

  The path reads hf:OWNER/NAME or hf:OWNER/NAME@REVISION. The directory has
  config.json, the weights and, if there are these files,
  preprocessor_config.json and the vocabulary of texts.
  """
  match = re.fullmatch(rf'hf:({_NAME})(?:@([\w./+-]+))?', path, re.ASCII)
  if match is None:
    raise UserError(f'{path!r} must read hf:OWNER/NAME or hf:OWNER/NAME@BRANCH')
  name, revision = match[1], match[2] or 'main'
  folder = parse.quote(revision, safe='+') if revision.strip('.') else '%2E'
  directory = cache / name.replace('/', '--') / folder
  files = [directory / file_name for file_name in _WEIGHTS]
  if (directory / 'config.json').is_file() and any(
    file.is_file()
    and all((directory / shard).is_file() for shard in _shards(file))
    for file in files
  ):
    return directory
  repository = _Repository(name, revision, directory, places.hub(), _token())
  repository.find('config.json', is_needed=True)
  for file_name in _OPTIONAL_FILES:
    repository.find(file_name)
  for file_name in _WEIGHTS:
    if file := repository.find(file_name):
      for shard in _shards(file):
        repository.find(shard, is_needed=True)
      return directory
  raise UserError(
    f'{path} has neither {", ".join(_WEIGHTS[:-1])} nor {_WEIGHTS[-1]}; pass'
    ' the URL of its weights'
  )


def _shards(file: pathlib.Path) -> Collection[str]:
  """Returns the names of the files in an index; of another file none."""
  if file.suffix != '.json':
    return ()
  return sorted({*containers.weight_map(file).values()})


def check_name(path: str) -> str:
  """Returns the repository's name of an address to write to, hf:OWNER/NAME."""
  match = re.fullmatch(rf'hf:({_NAME})', path, re.ASCII)
  if match is None:
    raise UserError(f'{path!r} must read hf:OWNER/NAME')
  return match[1]


def push(directory: pathlib.Path, path: str) -> str:
  """Uploads a directory in one commit, to a new or an existing repository.

  Other files of the repository stay as they are. $HF_ENDPOINT names another
  server. The token is $HF_TOKEN, else that of `hf auth login`. Returns the
  address of the repository's page.
  """
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
    hint = 'try again with the same command and another directory'
    if _status(e) in (None, 401, 403):
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


def _status(error: Exception) -> int | None:
  return getattr(getattr(error, 'response', None), 'status_code', None)


@dataclasses.dataclass(frozen=True)
class _Repository:
  """A revision of a repository, and the directory that its files go to."""

  name: str
  revision: str
  directory: pathlib.Path
  endpoint: str
  token: str | None = dataclasses.field(repr=False)

  def find(self, name: str, is_needed: bool = False) -> pathlib.Path | None:
    """Returns a file, downloaded if needed; None if it is not on the Hub."""
    file = self.directory / name
    if file.is_file():
      return file
    url = huggingface_hub.hf_hub_url(
      self.name, name, revision=self.revision, endpoint=self.endpoint
    )
    try:
      self.directory.mkdir(parents=True, exist_ok=True)
      metadata = self._metadata(url)
      huggingface_hub.hf_hub_download(
        self.name,
        name,
        revision=self.revision,
        local_dir=self.directory,
        endpoint=self.endpoint,
        token=self.token,
      )
      digest = metadata.etag or ''  # of small files it is none
      algorithm = 'sha256' if re.fullmatch('[0-9a-f]{64}', digest) else ''
      problem = transfer.mismatch(file, metadata.size, algorithm, digest)
    except (OSError, errors.HTTPError) as e:
      if _status(e) == 404 and not is_needed:
        return None
      if getattr(e, 'errno', None) is not None:
        raise UserError(
          f'cannot write {file}: {config_lib.reason(e)}; make room for it, or'
          ' set VIT_JAX_CACHE to another directory'
        ) from None
      raise UserError(f'cannot download {url}: {self._problem(e)}') from None
    if problem:
      file.unlink()
      raise UserError(
        f'cannot download {url}: {problem}; what came was removed: try again,'
        f' or {self._by_hand}'
      )
    return file

  def _metadata(
    self, url: str, retry: bool = False
  ) -> huggingface_hub.HfFileMetadata:
    """Requests size and hash of a file; asks a busy server again.

    Without a network `hf_hub_download` would retry for half a minute.
    """
    try:
      return huggingface_hub.get_hf_file_metadata(
        url,
        token=self.token,
        endpoint=self.endpoint,
        retry_on_errors=retry,
      )
    except errors.HfHubHTTPError as e:
      if retry or _status(e) not in transfer.BUSY:
        raise
    return self._metadata(url, retry=True)

  def _problem(self, error: Exception) -> str:
    status = _status(error)
    if status == 404:
      return 'status 404 Not Found: check the name, or pass a local path'
    if status in (401, 403):
      return (
        f'status {status}: there is no such repository, or not for everyone:'
        f' accept its terms at {self.endpoint}/{self.name} if it has any, and'
        ' set HF_TOKEN'
      )
    problem = config_lib.one_line(error.__cause__ or error)
    if status:
      problem = f'status {status}'
    return f'{problem}; try again, or {self._by_hand}'

  @property
  def _by_hand(self) -> str:
    page = f'{self.endpoint}/{self.name}/tree'
    return (
      'where there is a network, download config.json, model.safetensors (or'
      f' {_WEIGHTS[1]} and the files that it names, or pytorch_model.bin) and,'
      f' if there is one, {_OPTIONAL_FILES[0]} from'
      f' {page}/{parse.quote(self.revision, safe="")}, and put them into'
      f' {self.directory}; or pass a local path'
    )
