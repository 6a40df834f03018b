"""The commands of the pages, and how their programs parse them.

`vit-jax VERB` is read as the module of the verb, and `--config=NAME` as the
file of that name: a command has one form here, however a page writes it.
"""

import ast
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import re
import runpy
import shlex
import sys
from typing import Any

from absl import flags
from absl.testing import flagsaver
import tiny

from vit_jax import cli
from vit_jax.cli import verbs
from vit_jax.explore import __main__ as explore
import vit_jax.main

PAGES = (
  'CONTRIBUTING.md',
  'README.md',
  *sorted(f'docs/{x.name}' for x in tiny.ROOT.glob('docs/*.md')),
)
_BLOCK = re.compile(
  r'^(?P<fence>`{3,})(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=fence)$',
  re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(
  r'(python3? -m|python scripts/|bash |scripts/\w+\.\w+ |pip install|docker'
  r'|kubectl|\w+=\S+ python)'
)
_LANGUAGES = ('', 'sh', 'console')  # of blocks that hold commands
_PROMPT = re.compile(r'^\$ ', re.MULTILINE)
_VERB = re.compile(r'^((?:\w+=\S+ )*)vit-jax ([a-z]+)\b')
_CONFIG_NAME = re.compile(r'(--config=)(\w+)(?=[:\s]|$)')
# The name of a program.
_MENTION = re.compile(r'python -m (vit_jax\.|benchmarks)[\w.]*')
_PROGRAMS = ('python -m vit_jax', 'python -m benchmarks', 'python scripts/')
# Stands for what a reader replaces.
_EXAMPLES = {
  '/path/to/cifar10': 'images',
  'MODEL,DATASET': 'runs/digits,folder:images',
  'RUN RUN': 'runs/digits runs/digits-2',
  '$seed': '1',
  '_id=K': '_id=1',
  'runs/cifar10': 'runs/digits',
  ':EPOCHS': ':10',
  ':SIZE,LAYER': ':S,11',
  ':SIZE': ':S',
  'configs/x.py': 'configs/digits.py',
}


@dataclasses.dataclass(frozen=True)
class Program:
  """A program with its flags parsed.

  Attributes:
    names: Global names of its module.
    flags: Its flags, with the values of the command.
    arguments: Name of the program and the arguments that are not flags.
  """

  names: dict[str, Any]
  flags: flags.FlagValues
  arguments: list[str]


def read(page: str) -> str:
  return (tiny.ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
  """Returns the code blocks of a page in one language, '' being none."""
  matches = _BLOCK.finditer(read(page))
  return [x['code'] for x in matches if x['language'] == language]


def spans(page: str) -> list[str]:
  """Returns the code within the lines of a page, as `this`."""
  prose = _BLOCK.sub('', read(page)).replace(r'\|', '|')
  return [' '.join(x.split()) for x in re.findall(r'`([^`]+)`', prose)]


def commands(page: str) -> list[str]:
  """Returns the commands of a page, each on one line, in their order."""
  lines = [x for x in spans(page) if not _MENTION.fullmatch(_canonical(x))]
  for language in _LANGUAGES:
    for text in blocks(page, language):
      lines += _PROMPT.sub('', text).replace('\\\n', ' ').splitlines()
  parts = [' '.join(part.split()) for x in lines for part in x.split('&&')]
  canonical = [_canonical(x) for x in parts]
  return list(dict.fromkeys(x for x in canonical if _COMMAND.match(x)))


def _canonical(command: str) -> str:
  """Returns a command with its module and the path of its config file.

  Raises:
    KeyError: `vit-jax` has no such verb.
  """
  command = _VERB.sub(
    lambda x: f'{x[1]}python -m vit_jax.{verbs.VERBS[x[2]][0]}', command
  )
  return _CONFIG_NAME.sub(r'\1configs/\2.py', command)


def indented(page: str) -> list[str]:
  """Returns the lines of code that are set off by four spaces."""
  text = read(page)
  lines = re.findall(
    r'^    (\S.*)$',
    re.sub(r'^```.*?^```$', '', text, flags=re.DOTALL | re.M),
    re.M,
  )
  return [x for x in lines if 'vit_jax.' in x]


def docstring_commands() -> list[str]:
  """Returns the commands in docstrings of modules, each on one line."""
  files = [
    path
    for pattern in (
      *('configs/**/*.py', 'scripts/*.py', 'vit_jax/**/*.py'),
      'benchmarks/**/*.py',
    )
    for path in sorted(tiny.ROOT.glob(pattern))
  ]
  docs = [ast.get_docstring(ast.parse(x.read_text()), False) for x in files]
  text = '\n'.join(doc or '' for doc in docs).replace('\\\n', ' ')
  lines = [_canonical(' '.join(line.split())) for line in text.splitlines()]
  return list(dict.fromkeys(x for x in lines if is_ours(x)))


def is_ours(command: str) -> bool:
  """Returns whether a command runs a Python program of this repository."""
  return command.startswith(_PROGRAMS)


def words(command: str) -> list[str]:
  """Returns the arguments of a command, with examples for placeholders."""
  for placeholder, example in _EXAMPLES.items():
    command = command.replace(placeholder, example)
  return shlex.split(command)


@contextlib.contextmanager
def parsed(command: list[str]) -> Iterator[Program]:
  """Parses a command's flags as its program does; yields the program.

  Args:
    command: Words of the command; those from a lone -- on are ignored.

  Raises:
    UserError: A flag, config or key does not exist, or a value does not parse.
  """
  if '--' in command:
    command = command[: command.index('--')]
  path, args = _program(command)
  before = flagsaver.save_flag_values()
  argv, sys.argv = sys.argv, [str(path), *args]  # config flags read it
  try:
    if path == pathlib.Path(vit_jax.main.__file__):  # defines shared flags
      names = vars(vit_jax.main)
    else:
      names = runpy.run_path(str(path), run_name='documented')
    values = names.get('FLAGS', flags.FLAGS)
    yield Program(names, values, cli.parse_flags(sys.argv, values))
  finally:
    sys.argv = argv
    flagsaver.restore_flag_values(before)


def _program(command: list[str]) -> tuple[pathlib.Path, list[str]]:
  """Returns the file of a program, and its arguments."""
  if command[:2] != ['python', '-m']:
    return tiny.ROOT / command[1], command[2:]
  module, args = command[2], command[3:]
  if module == 'vit_jax.explore':
    verb = args.pop(0) if args and not args[0].startswith('-') else 'pictures'
    module = explore._VERBS[verb]
  path = tiny.ROOT / module.replace('.', '/')
  is_package = path.is_dir()
  return (path / '__main__.py' if is_package else path.with_suffix('.py')), args
