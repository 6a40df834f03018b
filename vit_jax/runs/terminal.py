"""Draws on a terminal: a panel, bars, and the table of a run's evaluations.

Where stderr is not a terminal that can redraw lines (a pipe, a file, a
notebook, TERM=dumb), `logs.can_draw` is False and callers write plain lines.
rich is imported for drawing alone, since the import takes 50 ms.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import itertools
import logging as python_logging
import math
import sys
import time
from typing import Any
from typing import NamedTuple
from typing import Self
from typing import TYPE_CHECKING

from absl import logging

from vit_jax.config import number
from vit_jax.runs import logs
from vit_jax.runs import records
from vit_jax.runs import reporting

if TYPE_CHECKING:
  from rich import console as rich_console
  from rich import text as rich_text

_PERIOD_S = 0.2  # a bar is redrawn at most this often
_MOST_ROWS = 40  # evaluations in the table
_OTHER_LINES = 6  # of the screen: the table's head and notes, and the bar


def panel(title: str, facts: Iterable[tuple[str, str]]) -> None:
  """Draws named facts in a frame, below a title."""
  from rich import panel as rich_panel
  from rich import table
  from rich import text

  grid = table.Table.grid(padding=(0, 2))
  grid.add_column(style='bold', no_wrap=True)
  grid.add_column(overflow='fold')
  for name, value in facts:
    grid.add_row(name, text.Text(value))
  frame = rich_panel.Panel(grid, title=title, title_align='left', expand=False)
  _console().print(frame)


class Region:
  """Lines at the bottom of a terminal that are redrawn in place.

  Messages of the log appear above them. rich's Live would hide the cursor,
  which a second Ctrl-C leaves hidden, and it refreshes in a thread.
  """

  def __init__(self) -> None:
    self.console = _console()
    self._stream = sys.stderr
    self._lines = 0
    logging.get_absl_logger().addFilter(self.clear)

  def render(self, content: Any) -> str:
    """Returns a text, or what rich can render, as lines of the terminal."""
    with self.console.capture() as capture:
      self.console.print(content, no_wrap=True, overflow='crop', markup=False)
    return capture.get()

  def draw(self, drawn: str) -> None:
    """Replaces the lines by others, from `render`."""
    self._stream.write(self._erase() + drawn)
    self._stream.flush()
    self._lines = drawn.count('\n')

  def clear(self, record: python_logging.LogRecord | None = None) -> bool:
    """Removes the lines, for a message that follows; a filter of the log."""
    del record
    if self._lines:
      self._stream.write(self._erase())
      self._stream.flush()
      self._lines = 0
    return True

  def close(self) -> None:
    """Removes the lines for good."""
    self.clear()
    self.release()

  def release(self) -> None:
    """Leaves the lines where they are."""
    logging.get_absl_logger().removeFilter(self.clear)

  def _erase(self) -> str:
    return f'\x1b[{self._lines}A\x1b[J' if self._lines else ''


class ProgressBar:
  """Counts what is done: a bar on a terminal, nothing elsewhere."""

  def __init__(
    self,
    total: int | None,
    unit: str,
    name: str = '',
    done: int = 0,
    hidden: bool = False,
  ):
    """Draws nothing yet.

    Args:
      total: The number at the end; None: not known.
      unit: What is counted, such as 'images'; 'B': bytes.
      name: Before the bar.
      done: The number at the start.
      hidden: Whether a terminal shows nothing, either.
    """
    self._total, self._unit, self._name = total, unit, name
    self._done = done
    self._pace = reporting.Pace()
    self._drawn = 0.0  # when
    self._region = Region() if logs.can_draw() and not hidden else None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    if self._region is not None:
      self._region.close()

  def update(self, count: int) -> None:
    """Counts more."""
    self._done += count
    now = time.monotonic()
    ends = self._done == self._total
    if self._region is None or (now - self._drawn < _PERIOD_S and not ends):
      return
    from rich import filesize

    self._drawn = now
    total = self._total
    show = filesize.decimal if self._unit == 'B' else '{:,}'.format
    counts = [show(x) for x in (self._done, total) if x]
    state = f'{"/".join(counts)} {self._unit}'.removesuffix(' B')
    left = self._pace.left(self._done, total) if total else None
    line = _progress_line(self._name, self._done, total, state, left)
    self._region.draw(self._region.render(line))

  def write(self, text: str, file: Any = None) -> None:
    """Prints a line above the bar, as `print` does."""
    if self._region is not None:
      self._region.clear()
    print(text, file=file)


class _Evaluation(NamedTuple):
  """A row of the table of evaluations."""

  step: int  # completed updates
  epoch: float
  name: str  # of the evaluation, such as 'val'
  metrics: dict[str, float]  # by name, without single classes' metrics


class Screen:
  """The bar of a run, below the growing table of its evaluations."""

  def __init__(
    self,
    total_steps: int,
    directions: Mapping[str, str],
    earlier: Iterable[Mapping[str, Any]] = (),
  ):
    """Draws nothing yet.

    Args:
      total_steps: Number of steps of the whole run.
      directions: As of `records.is_better_low`.
      earlier: Entries of metrics.jsonl, from before the run was resumed.
    """
    self._region = Region()
    utf8 = self._region.console.encoding.startswith('utf')
    self._marks = ('▲', '▼') if utf8 else ('+', '-')
    self._total = total_steps
    self._directions = directions
    self._rows: list[_Evaluation] = []
    for entry in earlier:
      self._add(entry['step'], entry.get('epoch', 0.0), entry)
    self._pace = reporting.Pace()
    self._step = 0
    self._next_evaluation = total_steps
    self._line = ''  # below the bar
    self._drawn_table = self._draw_table()
    self._drawn = 0.0  # when

  def advance(self, step: int) -> None:
    """Moves the bar, unless it was drawn just now."""
    self._step = step
    if time.monotonic() - self._drawn >= _PERIOD_S:
      self._draw()

  def progress(self, step: int, text: str, next_evaluation: int) -> None:
    """Shows the text of a step's metrics; `next_evaluation` is a step, too."""
    self._step, self._line = step, text
    self._next_evaluation = next_evaluation
    self._draw()

  def evaluated(
    self, step: int, epoch: float, results: Mapping[str, float]
  ) -> None:
    """Adds the results of a step to the table."""
    self._add(step, epoch, results)
    self._drawn_table = self._draw_table()
    self._draw()

  def close(self) -> None:
    """Removes the bar; the table stays."""
    self._region.draw(self._drawn_table)
    self._region.release()

  def _add(
    self, step: int, epoch: float, results: Mapping[str, float | None]
  ) -> None:
    by_name: dict[str, dict[str, float]] = {}
    for key, value in results.items():
      name, _, metric = key.partition('/')
      is_shown = metric and '/' not in metric and metric != 'examples'
      if is_shown and records.is_evaluation(key):
        value = math.nan if value is None else value
        by_name.setdefault(name, {})[metric] = value
    for name, metrics in by_name.items():
      self._rows.append(_Evaluation(step, epoch, name, metrics))

  def _draw(self) -> None:
    from rich import console

    self._drawn = time.monotonic()
    state = f'step {self._step:,}/{self._total:,}'
    left = self._pace.left(self._step, self._total)
    until = self._pace.left(self._step, self._next_evaluation)
    line = self._line
    if until is not None and self._step < self._next_evaluation < self._total:
      line += f', evaluation in {reporting.duration(until)}'
    lines = console.Group(
      _progress_line('', self._step, self._total, state, left), line
    )
    self._region.draw(self._drawn_table + self._region.render(lines))

  def _draw_table(self) -> str:
    most = min(self._region.console.height - _OTHER_LINES, _MOST_ROWS)
    if not self._rows or most < 2:
      return ''
    return self._region.render(self._table(most))

  def _table(self, most: int) -> Any:
    """Returns the newest evaluations, and before them the best one."""
    from rich import table
    from rich import text

    best = self._best()
    rows = self._rows[-most:]
    older = [x for x in self._rows[:-most] if (x.name, x.step) in best.values()]
    signs = {
      metric: self._sign(f'{row.name}/{metric}')
      for row in rows
      for metric in row.metrics
    }
    names = sorted(signs, key=lambda name: not signs[name])
    room = self._region.console.width - len('1,000,000  100.0  evaluation  ')
    ends = itertools.accumulate(max(len(name), 8) + 4 for name in names)
    fit = max(sum(end <= room for end in ends), 1)
    grid = table.Table(box=None, padding=(0, 2, 0, 0), header_style='bold')
    for name in ('step', 'epoch', 'evaluation', *names[:fit]):
      justify: Any = 'left' if name == 'evaluation' else 'right'
      grid.add_column(name.replace('_', ' '), justify=justify, no_wrap=True)
    previous: dict[str, _Evaluation] = {}
    for row in self._rows:
      if row in rows or row in older[:1]:
        cells = [
          self._cell(row, name, previous.get(row.name), best)
          for name in names[:fit]
        ]
        epoch = f'{row.epoch:.1f}'
        grid.add_row(f'{row.step:,}', epoch, text.Text(row.name), *cells)
      previous[row.name] = row
    better, worse = self._marks
    notes = [f'{better} better, {worse} worse than before; bold: the best']
    if len(names) > fit:
      notes.append(f'{len(names) - fit} more metrics are in metrics.jsonl')
    grid.caption, grid.caption_justify = '\n'.join(notes), 'left'
    return grid

  def _cell(
    self,
    row: _Evaluation,
    metric: str,
    previous: _Evaluation | None,
    best: Mapping[tuple[str, str], tuple[str, int]],
  ) -> 'rich_text.Text':
    """Returns a value; bold if it is the best, with the change's direction."""
    from rich import text

    value = row.metrics.get(metric)
    if value is None:
      return text.Text('')
    is_best = best.get((row.name, metric)) == (row.name, row.step)
    value_text = number(value) if abs(value) >= 10 else f'{value:.4f}'
    cell = text.Text().append(value_text, style='bold' if is_best else '')
    before = previous.metrics.get(metric, value) if previous else math.nan
    sign = self._sign(f'{row.name}/{metric}')
    gain = sign * (value - before)
    better, worse = self._marks
    mark = better if gain > 0 else worse if gain < 0 else ' '
    style = {better: 'green', worse: 'red'}.get(mark, '')
    return cell.append(f' {mark}', style=style)

  def _best(self) -> dict[tuple[str, str], tuple[str, int]]:
    """Returns the evaluation, by its name and step, of each best metric."""
    best: dict[tuple[str, str], tuple[float, _Evaluation]] = {}
    for row in self._rows:
      for metric, value in row.metrics.items():
        key = row.name, metric
        sign = self._sign(f'{row.name}/{metric}')
        gain = sign * value if sign else math.nan
        is_first = key not in best and not math.isnan(gain)
        if is_first or (key in best and gain > best[key][0]):
          best[key] = gain, row
    return {key: (row.name, row.step) for key, (_, row) in best.items()}

  def _sign(self, name: str) -> int:
    """Returns 1 if more is better, -1 if less is, and 0 if neither."""
    if records.is_better_low(name, self._directions):
      return -1
    return int(name in self._directions)


def _console() -> 'rich_console.Console':
  from rich import console

  return console.Console(file=sys.stderr, force_terminal=True, highlight=False)


def _progress_line(
  name: str, done: int, total: int | None, state: str, left: float | None
) -> Any:
  """Returns a line: a name, how much is done, the bar, and its state."""
  from rich import progress_bar
  from rich import table

  grid = table.Table.grid(padding=(0, 1), expand=True)
  grid.add_column(no_wrap=True)
  grid.add_column(ratio=1)
  grid.add_column(no_wrap=True)
  if left is not None:
    state += f', {reporting.duration(left)} left'
  share = f'{done / total:4.0%}' if total else ''
  progress = progress_bar.ProgressBar(
    total=total, completed=done, complete_style='cyan', finished_style='cyan'
  )
  grid.add_row(f'{name} {share}'.strip(), progress, state)
  return grid
