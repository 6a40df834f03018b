r"""Runs the notebooks, and stores them with their outputs.

  CIFAR10=folder:/path/to/cifar10 python scripts/notebooks.py
  CIFAR10=cifar10 python scripts/notebooks.py notebooks/1_build_a_vit.ipynb

CIFAR10 names the copy of CIFAR-10, as config.data.name does: the stored outputs
have its results.

Each runs from top to bottom in a new process and an empty folder, on the CPU.
If a cell fails, its traceback is shown and nothing is stored. Outputs that
differ from run to run are removed: times, and the path of the folder, which
becomes a dot. Needs the extra [notebooks].
"""

from collections.abc import Iterator
import copy
import importlib.util
import json
import os
import pathlib
import re
import tempfile
from typing import Any

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.runs import safe_io

FLAGS = flags.FlagValues()

_ROOT = pathlib.Path(__file__).absolute().parents[1]
NOTEBOOKS = sorted((_ROOT / 'notebooks').glob('*.ipynb'))
_SECONDS = 600  # limit for a cell
_MOST_BYTES = 2**20  # limit for a notebook
_PATH = re.compile(
  r'(?<![\w.:/])/(home|mnt|opt|private|root|tmp|usr|Users|var)/|'
  + re.escape(str(_ROOT))
)
_KERNEL = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}


def main(argv: list[str]) -> None:
  """Runs and stores the given notebooks, or all."""
  for package in ('nbclient', 'nbformat', 'ipykernel'):
    if importlib.util.find_spec(package) is None:
      raise UserError(
        f"notebooks need {package}: run pip install -e '.[notebooks]'"
      )
  import nbformat

  paths = [pathlib.Path(path) for path in argv[1:]] or NOTEBOOKS
  for path in paths:
    notebook = execute(read(path))
    if found := problems(notebook):
      raise UserError(f'{path}: {"; ".join(found)}')
    with safe_io.replacing(path) as file:
      nbformat.write(notebook, file)
    logging.info('%s ran', path)


def read(path: pathlib.Path) -> Any:
  """Reads a notebook by nbformat.

  Raises:
    UserError: The file is not a notebook.
  """
  import nbformat

  try:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
  except (OSError, ValueError, nbformat.ValidationError) as e:
    raise UserError(f'{path} is no notebook: {one_line(e)[:100]}') from None
  return notebook


def execute(notebook: Any, **variables: str) -> Any:
  """Returns a notebook with the outputs of a new run.

  Args:
    notebook: Notebook from `read`, which is not changed.
    **variables: Further environment variables of the run.

  Raises:
    nbclient.exceptions.CellExecutionError: A cell failed.
  """
  import nbclient

  notebook = copy.deepcopy(notebook)
  with tempfile.TemporaryDirectory() as folder:
    client = nbclient.NotebookClient(
      notebook,
      timeout=_SECONDS,
      kernel_name='python3',
      record_timing=False,
      resources={'metadata': {'path': folder}},
    )
    client.execute(env=_environment(folder) | variables)
    _clean(notebook, os.path.realpath(folder))
  return notebook


def _environment(folder: str) -> dict[str, str]:
  """Returns an environment that does not depend on the settings here."""
  ours = ('IPY', 'JAX_', 'MPL', 'XLA_')
  kept = {k: x for k, x in os.environ.items() if not k.startswith(ours)}
  return kept | {
    'IPYTHONDIR': os.path.join(folder, '.ipython'),
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(_ROOT),
    'VIT_JAX_ALLOCATOR': 'none',  # else a line names a path of this machine
  }


def _clean(notebook: Any, folder: str) -> None:
  """Removes outputs that differ from run to run."""
  notebook.metadata = {
    'kernelspec': _KERNEL,
    'language_info': {'name': 'python'},
  }
  for output in _outputs(notebook):
    if 'metadata' in output:  # the sizes at which figures are shown stay
      sizes = output.metadata.get('image/png')
      output.metadata = {'image/png': sizes} if sizes else {}
    for holder, key in _texts(output):
      holder[key] = holder[key].replace(folder, '.')


def _outputs(notebook: Any) -> Iterator[Any]:
  for cell in notebook.cells:
    yield from cell.get('outputs', ())


def _texts(output: Any) -> Iterator[tuple[Any, str]]:
  """Yields the texts of an output, each as a dict and a key in it."""
  if output.output_type == 'stream':
    yield output, 'text'
  for kind in output.get('data', {}):
    if kind.startswith('text/'):
      yield output.data, kind


def problems(notebook: Any) -> list[str]:
  """Returns the problems of a stored notebook, one line each.

  It must have run from top to bottom without an error, show figures, be small,
  and contain no path of a machine.

  Args:
    notebook: Notebook from `read`.
  """
  code = [cell for cell in notebook.cells if cell.cell_type == 'code']
  found = []
  if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
    found.append('its cells were not run once each, from top to bottom')
  outputs = list(_outputs(notebook))
  if any(output.output_type == 'error' for output in outputs):
    found.append('a cell failed')
  if not any('image/png' in output.get('data', {}) for output in outputs):
    found.append('it shows no figure')
  for output in outputs:
    for holder, key in _texts(output):
      if match := _PATH.search(holder[key]):
        line = holder[key][match.start() :].splitlines()[0]
        found.append(f'it shows a path of this machine: {line}')
  if (size := len(json.dumps(notebook))) > _MOST_BYTES:
    found.append(f'it has {size} bytes, more than {_MOST_BYTES}')
  return found


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
