"""The notebooks: they run, and what is stored is what they show."""

import ast
import importlib.util
import os
import re
import types

import numpy as np
from PIL import Image
import pytest
import tiny

import vit_jax

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


def outputs(notebook):
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


def code(name, tag=''):
  """Returns the sources of the code cells of a notebook that have a tag.

  The lines that are commands of IPython are left out.
  """
  return [
    re.sub(r'^%.*$', '', cell.source, flags=re.MULTILINE)
    for cell in stored(name).cells
    if cell.cell_type == 'code'
    and (not tag or tag in cell.metadata.get('tags', ()))
  ]


@pytest.mark.parametrize('name', NAMES)
def test_public_names_alone_are_used(name):
  """A lesson imports `vit_jax` itself, and reads the names that it exports."""
  imported, packages = set(), {}
  for node in ast.walk(ast.parse('\n'.join(code(name)))):
    if isinstance(node, ast.Import):
      imported |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      imported.add(node.module)
    elif isinstance(node, ast.Attribute):
      package, _, owner = ast.unparse(node.value).rpartition('.')
      if owner == 'vit_jax':
        packages.setdefault('vit_jax', set()).add(node.attr)
      elif package == 'vit_jax':
        packages.setdefault(owner, set()).add(node.attr)
  assert {x for x in imported if x.startswith('vit_jax')} == {'vit_jax'}
  assert packages.pop('vit_jax') <= set(vit_jax.__all__)
  for package, names in packages.items():
    members = [getattr(getattr(vit_jax, package), x) for x in names]
    assert not any(isinstance(x, types.ModuleType) for x in members)


@pytest.mark.parametrize('name', NAMES)
def test_solutions_are_folded(name):
  """In JupyterLab, and on the pages."""
  solutions = [
    cell.metadata
    for cell in stored(name).cells
    if 'solution' in cell.metadata.get('tags', ())
  ]
  assert len(solutions) >= 2
  for metadata in solutions:
    assert 'hide-cell' in metadata.tags
    assert metadata.jupyter.source_hidden


@pytest.fixture(scope='module')
def cifar10(tmp_path_factory):
  """A folder with the layout of CIFAR-10, and a few images of noise."""
  root = tmp_path_factory.mktemp('cifar10')
  rng = np.random.default_rng(0)
  for split, count in (('train', 7), ('test', 2)):
    for label in range(10):
      folder = root / split / f'class{label}'
      folder.mkdir(parents=True)
      for i in range(count):
        pixels = rng.integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f'{i}.png')
  return root


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.parametrize('name', NAMES)
def test_runs(name, cifar10):
  """No cell fails, and each shows the kinds of things that are stored.

  Training is shorter than in the stored notebook, and figures are smaller: no
  cell depends on how good the model is.
  """
  before = stored(name)
  for cell in before.cells:
    cell.source = re.sub(r"'\d+ epochs'", "'1 epochs'", cell.source)
    cell.source = re.sub(r'(NUM_STEPS =) \d+', r'\1 20', cell.source)
    cell.source = cell.source.replace("['retina']", "['png']")
  quick = {k: x for k, x in os.environ.items() if 'XLA' in k or '_CACHE_' in k}
  after = notebooks.execute(before, CIFAR10=f'folder:{cifar10}', **quick)
  assert notebooks.problems(after) == []
  assert outputs(after) == outputs(before)


@pytest.mark.parametrize('name', NAMES[:2])
def test_without_cifar10(name, monkeypatch, tmp_path, capsys):
  """A cell that finds no copy prints one sentence."""
  monkeypatch.setenv('CIFAR10', f'folder:{tmp_path}/none')
  names = {'os': os, 'np': np, 'vit_jax': vit_jax}
  for source in code(name, 'cifar10'):
    exec(source, names)
  (line,) = capsys.readouterr().out.splitlines()
  assert line.startswith('No copy of CIFAR-10, so this part is skipped:')


def test_problems_are_found():
  import nbformat

  cell = nbformat.v4.new_code_cell('1 + 1', execution_count=2)
  cell.outputs = [
    nbformat.v4.new_output('stream', text='saved in /home/me/runs\n'),
    nbformat.v4.new_output('error', ename='E', evalue='', traceback=[]),
  ]
  actual = notebooks.problems(nbformat.v4.new_notebook(cells=[cell]))
  assert actual == [
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
