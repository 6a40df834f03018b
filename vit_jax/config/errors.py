"""`UserError`, for mistakes that a user can correct, and what raises it."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import importlib
import importlib.util
import os
import re
from typing import Any

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


class UserError(ValueError):
  """A mistake in a config, a command or a file: one line, and no traceback."""


def join_first(names: Sequence[str], most: int = 5) -> str:
  """Joins the first names with commas; '...' stands for the others."""
  return ', '.join([*names[:most], *(['...'] if names[most:] else [])])


def counted(count: int, noun: str) -> str:
  """Returns a number with its noun, as '1 image' or '2 images'."""
  ending = '' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'
  return f'{count} {noun}{ending}'


def number(value: float | str) -> str:
  """Formats a metric for people: '0.9833', '10,000'."""
  if isinstance(value, str):
    return value
  return f'{value:,.0f}' if 1000 <= abs(value) < 1e9 else f'{value:.4g}'


def one_line(error: BaseException) -> str:
  """Returns an exception's message in one line."""
  return ' '.join(str(error).split()) or type(error).__name__


def reason(error: BaseException) -> str:
  """Returns an exception's message in one line; an OSError's without paths."""
  if isinstance(error, UserError):
    return str(error)
  return getattr(error, 'strerror', None) or one_line(error)


@contextlib.contextmanager
def explained(subject: str, *kinds: type[Exception]) -> Iterator[None]:
  """Turns errors into a UserError whose message begins with `subject`.

  A UserError that begins with it, as one about a key below, stays as it is.

  Args:
    subject: As 'config.data.split', or the path of a file.
    *kinds: The errors; by default only a UserError.
  """
  expected = kinds or (UserError,)
  try:
    yield
  except expected as e:
    if isinstance(e, UserError) and str(e).startswith(subject):
      raise
    raise UserError(f'{subject}: {reason(e)}') from None


def check_package(feature: str, package: str, extra: str) -> None:
  """Raises a UserError if an optional package is missing.

  Args:
    feature: What needs it, as 'the report'.
    package: The name that is imported.
    extra: The extra that installs it.
  """
  spec = importlib.util.find_spec(package)
  # Any folder is found as a package without a file, as the ./wandb of W&B.
  if spec is None or spec.origin is None:
    raise UserError(
      f"{feature} needs {package}: run pip install 'vit_jax[{extra}]'"
    )


def import_package(feature: str, package: str, extra: str) -> Any:
  """Returns an optional package, or a module in it; see `check_package`."""
  check_package(feature, package, extra)
  try:
    return importlib.import_module(package)
  except ImportError as e:
    raise UserError(
      f'{feature} needs {package}, which cannot be imported ({one_line(e)}):'
      f' run pip install --force-reinstall {package.split(".")[0]}'
    ) from None


def nearby(
  path: str,
  exists: Callable[[str], bool] = os.path.exists,
  otherwise: str = '',
) -> str:
  """Ends a message about a path that does not exist: ": did you mean 'a'?".

  Args:
    path: The path.
    exists: Whether a path is one that would do, as `os.path.isdir`.
    otherwise: The end if no path is similar; '': where a relative path was
      looked for.
  """
  near_paths = importlib.import_module('vit_jax.config.near_paths')
  if similar_path := near_paths.find(path, exists):
    return f': did you mean {similar_path!r}?'
  is_relative = path and not os.path.isabs(path)
  return otherwise or (f' in {os.getcwd()}' if is_relative else '')


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
