"""The notebooks: they run, and what is stored is what they show."""

import importlib.util
import os
import re

import pytest
import tiny

for package in ('nbclient', 'nbformat', 'ipykernel'):
  pytest.importorskip(package, reason=f'needs {package}: vit_jax[notebooks]')


def _script():
  path = tiny.ROOT / 'scripts' / 'notebooks.py'
  spec = importlib.util.spec_from_file_location('vit_jax_notebooks', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


notebooks = _script()
NAMES = [path.name for path in notebooks.NOTEBOOKS]


def stored(name):
  return notebooks.read(tiny.ROOT / 'notebooks' / name)


def shown(notebook):
  """Returns the kinds of outputs, cell by cell, each once.

  What a cell prints may come in one piece or in several. Standard error is left
  out: on a busy machine XLA warns there that it compiles slowly.
  """
  return [
    {
      tuple(sorted(x.get('data', [x.get('name')])))
      for x in cell.get('outputs', ())
      if x.get('name') != 'stderr'
    }
    for cell in notebook.cells
  ]


def test_they_are_found():
  assert [name[:2] for name in NAMES] == ['1_', '2_', '3_']


@pytest.mark.parametrize('name', NAMES)
def test_stored(name):
  assert notebooks.problems(stored(name)) == []


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.parametrize('name', NAMES)
def test_runs(name):
  """No cell fails, and each shows the kinds of things that are stored.

  Training is shorter than in the stored notebook: no cell depends on how good
  the model is.
  """
  before = stored(name)
  for cell in before.cells:
    cell.source = re.sub(
      r"(duration ?= ?)'\d+ epochs'", r"\1'2 epochs'", cell.source
    )
    cell.source = cell.source.replace('NUM_STEPS = 800', 'NUM_STEPS = 100')
  quick = {k: x for k, x in os.environ.items() if 'XLA' in k or '_CACHE_' in k}
  after = notebooks.execute(before, **quick)
  assert notebooks.problems(after) == []
  assert shown(after) == shown(before)


def test_problems_are_found():
  import nbformat

  cell = nbformat.v4.new_code_cell('1 + 1', execution_count=2)
  cell.outputs = [
    nbformat.v4.new_output('stream', text='saved in /home/me/runs\n'),
    nbformat.v4.new_output('error', ename='E', evalue='', traceback=[]),
  ]
  found = notebooks.problems(nbformat.v4.new_notebook(cells=[cell]))
  assert found == [
    'its cells were not run once each, from top to bottom',
    'a cell failed',
    'it shows no figure',
    'it shows a path of this machine: /home/me/runs',
  ]


@pytest.mark.notebooks
def test_a_cell_that_fails(tmp_path):
  """It is shown, and the file stays as it was."""
  import nbclient
  import nbformat

  path = tmp_path / 'broken.ipynb'
  cells = [nbformat.v4.new_code_cell(f'{i} / 0') for i in range(2)]
  nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
  before = path.read_bytes()
  with pytest.raises(
    nbclient.exceptions.CellExecutionError, match='ZeroDivisionError'
  ):
    notebooks.main(['notebooks.py', str(path)])
  assert path.read_bytes() == before
  (tmp_path / 'none.ipynb').write_text('{')
  with pytest.raises(notebooks.UserError, match=r'none\.ipynb is no notebook'):
    notebooks.main(['notebooks.py', str(tmp_path / 'none.ipynb')])
