"""The layout of the package, read from its source; nothing is imported."""

import ast
import collections
from collections.abc import Iterator
import dataclasses
import functools
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / 'vit_jax'
BENCHMARKS = 'benchmarks'  # beside the package, and not installed
MOST_LOOSE_MODULES = 5

TABLES = 'tables'  # one module, which all packages import
# From the bottom up. A package imports those of lower levels, and those before
# it on its own level where ALONGSIDE says so.
LEVELS = (
  ('config',),
  (TABLES,),
  ('parallel', 'runs'),
  ('downloads',),
  ('data', 'models', 'optim'),
  ('weights',),
  ('plots',),
  ('evaluation',),
  ('objectives',),
  ('train',),
  ('ahead',),
  ('cli',),
  ('web',),
  ('rerun',),
)
ALONGSIDE = {('runs', 'parallel'), ('optim', 'models')}
# Verbs are above all of them and do not import each other: the loose modules,
# the packages below, and the `__main__` of every other package. So are the
# benchmarks.
VERB_PACKAGES = (
  'compare',
  'explore',
  'export',
  'predict',
  'serve',
  'summary',
  'sweep',
)
MODELS = 'vit_jax.models'
FACADE = 'vit_jax'  # its names are imported on first use, from anywhere
# What trains the digits without pictures: these and what they import.
CORE = (
  *('train.loop', 'objectives.classification', 'evaluation.accuracy'),
  *('models.vit', 'models.attention', 'models.patches', 'models.zoo.vit'),
  *('data.digits', 'data.host.batches', 'data.preprocess', 'data.checks'),
)


@dataclasses.dataclass(frozen=True)
class Import:
  """One module that imports another.

  Attributes:
    source: The module.
    target: The module that it imports.
    top: Whether it does so when it is itself imported.
    typing: Whether it does so for types alone.
  """

  source: str
  target: str
  top: bool
  typing: bool


@functools.cache
def modules() -> dict[str, pathlib.Path]:
  """Returns the files of both packages by the names of their modules."""
  actual = {}
  for path in sorted(
    [*PACKAGE.rglob('*.py'), *(ROOT / BENCHMARKS).rglob('*.py')]
  ):
    name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    actual[name.removesuffix('.__init__')] = path
  return actual


def module_imports(name: str) -> Iterator[Import]:
  """Yields what a module imports of ours, in functions and for types too."""
  tree: ast.AST = ast.parse(modules()[name].read_text())
  waiting = [(tree, True, False)]
  while waiting:
    node, top, typing = waiting.pop()
    for target in targets(node):
      if target.split('.')[0] in (FACADE, BENCHMARKS):
        yield Import(name, target, top, typing)
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    typing = typing or (
      isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node.test)
    )
    top = top and not is_function and not typing
    waiting += [(child, top, typing) for child in ast.iter_child_nodes(node)]


def targets(node: ast.AST) -> list[str]:
  """Returns the modules that a statement imports."""
  if isinstance(node, ast.Import):
    return [alias.name for alias in node.names]
  if not isinstance(node, ast.ImportFrom):
    return []
  assert node.module and not node.level, 'imports are absolute'
  names = [f'{node.module}.{alias.name}' for alias in node.names]
  return [name if name in modules() else node.module for name in names]


@functools.cache
def imports() -> tuple[Import, ...]:
  return tuple(
    statement for name in modules() for statement in module_imports(name)
  )


def package(module: str) -> str:
  """Returns the package of a module: below vit_jax, or a loose module there."""
  parts = module.split('.')
  return BENCHMARKS if parts[0] == BENCHMARKS else [*parts, FACADE][1]


def level(module: str) -> int:
  name = package(module)
  if module.endswith('.__main__'):
    return len(LEVELS)
  actual = [i for i, names in enumerate(LEVELS) if name in names]
  return actual[0] if actual else len(LEVELS)


def points_down(statement: Import) -> bool:
  actual, expected = package(statement.source), package(statement.target)
  if actual == expected or (actual, expected) in ALONGSIDE:
    return True
  return level(statement.target) < level(statement.source)


def test_every_package_has_its_level():
  packages = {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
  levelled = [name for names in LEVELS for name in names]
  assert packages | {TABLES} == {*levelled, *VERB_PACKAGES}
  assert len(levelled) == len(set(levelled))


def test_imports_point_down():
  wrong = [
    f'{statement.source} imports {statement.target}'
    for statement in imports()
    if statement.source != FACADE and not points_down(statement)
  ]
  assert not wrong, '\n'.join(wrong)


def test_nothing_imports_the_facade():
  """Which imports lazily from all levels."""
  wrong = [
    statement.source for statement in imports() if statement.target == FACADE
  ]
  assert not wrong


def test_models_import_nothing_of_ours():
  """But the language of parts, and what imports a part by a text."""
  modules = 'errors', 'options', 'parts', 'registry'
  language = {f'{FACADE}.config.{x}' for x in modules}
  wrong = [
    f'{statement.source} imports {statement.target}'
    for statement in imports()
    if package(statement.source) == 'models' != package(statement.target)
    and statement.target not in language
  ]
  assert not wrong, '\n'.join(wrong)


def test_no_import_is_circular():
  """At import time, packages included, which are imported before modules."""
  graph = collections.defaultdict(set)
  for statement in imports():
    if not statement.top:
      continue
    graph[statement.source].add(statement.target)
    parts = statement.target.split('.')
    for end in range(1, len(parts)):
      parent = '.'.join(parts[:end])
      if not f'{statement.source}.'.startswith(
        f'{parent}.'
      ):  # else it has begun
        graph[statement.source].add(parent)
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as e:
    pytest.fail(' -> '.join(e.args[1]))


def definitions(module: str) -> set[str]:
  """Returns the names that a module defines or imports."""
  names = set[str]()
  for node in ast.parse(modules()[module].read_text()).body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      names.add(node.name)
    elif isinstance(node, ast.ImportFrom | ast.Import):
      names |= {x.asname or x.name for x in node.names}
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      names |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
  return names


def test_what_is_imported_by_text_exists():
  """As `config_lib.wing('vit_jax.data.tar:TarSource')` and tables of texts."""
  name = re.compile(rf'{FACADE}(\.\w+){{2,}}(:\w+)?|{FACADE}\.\w+:\w+')
  wrong = []
  for source, path in modules().items():
    for node in ast.walk(ast.parse(path.read_text())):
      text = node.value if isinstance(node, ast.Constant) else None
      if not isinstance(text, str) or not name.fullmatch(text):
        continue
      module, _, attribute = text.partition(':')
      exists = module in modules() and (
        not attribute or attribute in definitions(module)
      )
      if not exists:
        wrong.append(f'{source} names {text}')
  assert not wrong, '\n'.join(wrong)


def loaded_by(*names: str) -> set[str]:
  """Returns modules, and those that they import at module level."""
  waiting, loaded = [*names], set[str]()
  while waiting:
    module = waiting.pop()
    if module not in loaded:
      loaded.add(module)
      waiting += [x.target for x in imports() if x.source == module and x.top]
  return loaded


def test_the_core_is_small_and_imports_no_wing():
  """Neither when it is imported nor in a function; it names wings by texts."""
  core = loaded_by(*(f'{FACADE}.{x}' for x in CORE))
  wrong = [
    f'{x.source} imports {x.target}'
    for x in imports()
    if x.source in core - {FACADE} and x.target not in core and not x.typing
  ]
  assert not wrong, '\n'.join(wrong)
  lines = sum(len(modules()[x].read_text().splitlines()) for x in core)
  assert len(core) <= 71 and lines <= 14_700


def test_the_plain_vit_imports_no_further_part():
  parts = ('attention', 'block', 'patches', 'vit', 'zoo.vit')
  loaded = loaded_by(MODELS, *(f'{MODELS}.{x}' for x in parts))
  assert len([x for x in loaded if package(x) == 'models']) <= 15
  assert not [x for x in loaded if x.startswith(f'{MODELS}.parts')]


def test_training_imports_what_every_run_needs():
  loaded = loaded_by(f'{FACADE}.train.loop')
  unneeded = {'ahead', 'downloads', 'plots', 'rerun', 'weights'}
  assert not {package(x) for x in loaded} & unneeded
  wings = (
    *('accumulation', 'cost', 'dry_run', 'flops', 'method_pictures'),
    *('model_inputs', 'patches', 'pictures', 'relayout', 'resuming', 'tasks'),
    'trunk',
  )
  assert not loaded & {f'{FACADE}.train.{x}' for x in wings}
  shared = {x for x in loaded if package(x) in ('parallel', 'runs')}
  assert {x.rpartition('.')[2] for x in shared} == {
    *('memory', 'mesh', 'processes', 'sharding'),
    *('checkpoint', 'logs', 'reporting'),
    *('safe_io', 'workdir'),
  }


def test_loose_modules_are_few():
  # Without __init__ and __main__, the package as a library and as a program.
  loose = [x.stem for x in PACKAGE.glob('[a-z]*.py') if x.stem != TABLES]
  assert len(loose) <= MOST_LOOSE_MODULES, loose
  assert not (PACKAGE / 'utils.py').exists()
