"""Draws a terminal in which a command runs, as SVG.

  python scripts/record_terminal.py

writes docs/pictures/terminal.svg, the end of the run on the digits. The command
runs in a pseudo-terminal, so that it writes what a person would see; the
picture has the command and the last lines of its screen. It takes about a
minute, and needs the extra [docs].
"""

import importlib.util
import io
import os
import pathlib
import pty
import shutil
import subprocess
import tempfile
import termios
from typing import TYPE_CHECKING

from absl import flags
import rich.console
import rich.text

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import pyte

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = flags.FlagValues()
_COMMAND = flags.DEFINE_string(
  'command',
  'vit-jax train --config=digits --workdir=runs/digits',
  'What runs, in an empty folder.',
  flag_values=FLAGS,
)
_COLUMNS = flags.DEFINE_integer(
  'columns', 100, 'Width of the terminal.', lower_bound=20, flag_values=FLAGS
)
_ROWS = flags.DEFINE_integer(
  'rows', 24, 'Lines of the picture.', lower_bound=3, flag_values=FLAGS
)
_OUT = flags.DEFINE_string(
  'out',
  str(ROOT / 'docs' / 'pictures' / 'terminal.svg'),
  'File of the picture.',
  flag_values=FLAGS,
)
PROMPT = '$ '
# Where the command runs: its name is in the picture, and always the same.
_FOLDER = pathlib.Path(tempfile.gettempdir()) / 'demo'
_HISTORY = 10_000  # lines that are kept above the screen
_COLOURS = {'brown': 'yellow'}  # pyte's names that differ from rich's


def record(command: str, columns: int, rows: int) -> 'pyte.HistoryScreen':
  """Runs a command in a terminal of a size, and returns its last screen.

  Raises:
    UserError: The command fails, or its folder is there already.
  """
  import pyte

  screen = pyte.HistoryScreen(columns, rows, history=_HISTORY)
  stream = pyte.ByteStream(screen)
  # As a person's terminal would show it: with its line feeds.
  stream.feed(f'{PROMPT}{command}\r\n'.encode())
  if _FOLDER.exists():
    raise UserError(f'{_FOLDER} is there already: move it away')
  _FOLDER.mkdir()
  master, terminal = pty.openpty()
  termios.tcsetwinsize(terminal, (rows, columns))
  env = {'TERM': 'xterm-256color', 'JAX_PLATFORMS': 'cpu'}
  try:
    process = subprocess.Popen(
      command,
      shell=True,
      cwd=_FOLDER,
      env=os.environ | env,
      stdin=terminal,
      stdout=terminal,
      stderr=terminal,
    )
    os.close(terminal)
    while written := _read(master):
      stream.feed(written)
    status = process.wait()
  finally:
    os.close(master)
    shutil.rmtree(_FOLDER)
  if status:
    lines = [line.strip() for line in screen.display if line.strip()]
    raise UserError(f'{command} failed: {lines[-1]}')
  return screen


def _read(master: int) -> bytes:
  """Returns what was written to a terminal; b'' once its programs ended."""
  try:
    return os.read(master, 2**16)
  except OSError:  # of Linux, once the last writer has closed the terminal
    return b''


def as_text(screen: 'pyte.HistoryScreen', rows: int) -> rich.text.Text:
  """Returns the first and the last lines of a screen, with their style."""
  lines = [*screen.history.top]
  lines += [screen.buffer[row] for row in range(screen.lines)]
  styled = [_styled(line, screen.columns) for line in lines]
  while styled and not styled[-1].plain.strip():
    styled.pop()
  if len(styled) > rows:
    styled = [styled[0], rich.text.Text('...', 'dim'), *styled[2 - rows :]]
  return rich.text.Text('\n').join(styled)


def _styled(
  line: 'dict[int, pyte.screens.Char]', columns: int
) -> rich.text.Text:
  text = rich.text.Text()
  for column in range(columns):
    char = line[column]
    words = ['bold'] * char.bold + ['italic'] * char.italics
    words += ['reverse'] * char.reverse
    words += [_color(char.fg)] if char.fg != 'default' else []
    words += ['on', _color(char.bg)] if char.bg != 'default' else []
    text.append(char.data, ' '.join(words))
  text.rstrip()
  return text


def _color(name: str) -> str:
  if len(name) == 6 and set(name) <= set('0123456789abcdef'):
    return f'#{name}'
  name = _COLOURS.get(name, name)
  return name.replace('bright', 'bright_')


def main(argv: list[str]) -> None:
  """Records the command, and writes the picture."""
  cli.refuse_arguments(argv)
  if importlib.util.find_spec('pyte') is None:
    raise UserError("a terminal needs pyte: run pip install -e '.[docs]'")
  screen = record(_COMMAND.value, _COLUMNS.value, _ROWS.value)
  console = rich.console.Console(
    record=True, width=_COLUMNS.value, file=io.StringIO()
  )
  console.print(as_text(screen, _ROWS.value), soft_wrap=True)
  console.save_svg(_OUT.value, title='vit_jax')


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
