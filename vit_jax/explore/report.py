"""The page of a report: pictures with captions in one HTML file."""

import base64
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib
import re
from typing import TYPE_CHECKING

from vit_jax.config import check_package
from vit_jax.explore import summaries
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  import jinja2

_UNFOLDED = 2  # pictures of a section that are not folded
_NARROW = 560  # pixels; a narrower section is widened for its caption
_GAP = 34  # pixels between two pictures, with their frames


@dataclasses.dataclass(frozen=True)
class Picture:
  """One picture of a section.

  Attributes:
    file: Path of the PNG.
    label: Label within the section; '' for a single picture.
    size: (width, height) on a wide page, in pixels.
  """

  file: pathlib.Path
  label: str
  size: tuple[int, int]

  @property
  def least(self) -> int:
    """Minimum width in pixels; in less space the picture scrolls."""
    width = self.size[0]
    return min(width, max(320, round(width * 0.66)))


@dataclasses.dataclass(frozen=True)
class Section:
  """Pictures of one kind.

  Attributes:
    name: Name of the kind, as in the names of the files.
    title: Heading.
    caption: Explains the pictures and how they were computed; papers are cited
      as arXiv:NUMBER.
    pictures: Pictures in order. All but the first two are folded.
  """

  name: str
  title: str
  caption: str
  pictures: tuple[Picture, ...]

  @property
  def width(self) -> int:
    """Width in pixels; narrow sections stand next to each other."""
    widths = [picture.size[0] + _GAP for picture in self.pictures[:_UNFOLDED]]
    return max(_NARROW, sum(widths))


@dataclasses.dataclass(frozen=True)
class Missing:
  """A kind without pictures.

  Attributes:
    name: Name of the kind.
    title: Heading.
    reason: Why there are none, and what to do about it; not a whole sentence.
  """

  name: str
  title: str
  reason: str

  @property
  def sentence(self) -> str:
    """The reason as a whole sentence."""
    return f'{self.reason[:1].upper()}{self.reason[1:]}.'


def check() -> None:
  """Raises a UserError if jinja2 is missing."""
  check_package('the report', 'jinja2', 'explore')


def write(
  path: pathlib.Path,
  title: str,
  summary: summaries.Summary,
  facts: Mapping[str, str],
  sections: Sequence[Section],
  missing: Sequence[Missing],
) -> None:
  """Writes the page, which needs no other file and no network.

  The summary is a card at the top, and the facts are a table below it.
  """
  text = _template().render(
    title=title,
    summary=summary,
    facts=facts,
    sections=sections,
    missing=missing,
    shown=_UNFOLDED,
  )
  with safe_io.replacing(path) as file:
    # The name of a file may be invalid UTF-8.
    file.write(text.encode('utf-8', 'replace').decode())


def _template() -> 'jinja2.Template':
  import jinja2
  import markupsafe

  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('vit_jax.explore'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
  )
  environment.filters['base64'] = _base64
  environment.filters['linked'] = lambda text: markupsafe.Markup(
    _linked(str(markupsafe.escape(text)))
  )
  return environment.get_template('report.html')


def _base64(file: pathlib.Path) -> str:
  return base64.b64encode(file.read_bytes()).decode()


def _linked(escaped: str) -> str:
  """Returns HTML with links to papers, and flags that do not wrap."""
  flags = r'--\w+(=[A-Z]+(,[A-Z]+)*)?'
  return re.sub(
    r'arXiv:(\d{4}\.\d{4,5})',
    r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>',
    re.sub(flags, r'<code>\g<0></code>', escaped),
  )
