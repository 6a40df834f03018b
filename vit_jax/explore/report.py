"""A page of pictures with captions, whole in one file."""

import base64
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib
import re

from vit_jax.config import UserError
from vit_jax.runs import safe_io

_SHOWN = 2  # pictures of a section that are not folded
_LONG = 640  # pixels: higher ones are folded to their upper part


@dataclasses.dataclass(frozen=True)
class Picture:
  """One picture of a section.

  Attributes:
    file: The PNG.
    label: What tells it from others of the section; '' where it is alone.
    size: (width, height) on the page, in pixels, where that has room.
  """

  file: pathlib.Path
  label: str
  size: tuple[int, int]

  @property
  def least(self) -> int:
    """Width in pixels below which it is scrolled instead of made smaller."""
    width = self.size[0]
    return min(width, max(320, round(width * 0.66)))


@dataclasses.dataclass(frozen=True)
class Section:
  """Pictures of one kind.

  Attributes:
    name: As in the names of the files.
    title: For people.
    caption: What is shown and how it was computed; papers as arXiv:NUMBER.
    pictures: In order; all but the first two are folded away, and of long ones
      the lower part.
  """

  name: str
  title: str
  caption: str
  pictures: tuple[Picture, ...]


@dataclasses.dataclass(frozen=True)
class Missing:
  """A kind of pictures that there is none of.

  Attributes:
    name: As `Section` has it.
    title: For people.
    reason: Why, and what brings it where something does; no whole sentence.
  """

  name: str
  title: str
  reason: str

  @property
  def sentence(self) -> str:
    """The reason as a whole sentence."""
    return f'{self.reason[:1].upper()}{self.reason[1:]}.'


def check() -> None:
  """Raises a UserError where jinja2 is missing."""
  if importlib.util.find_spec('jinja2') is None:
    raise UserError(
      "the report needs jinja2: run pip install 'vit_jax[explore]'"
    )


def write(
  path: pathlib.Path,
  title: str,
  facts: Mapping[str, str],
  sections: Sequence[Section],
  missing: Sequence[Missing],
) -> None:
  """Writes the page; it needs no other file and no network.

  Args:
    path: Of the .html file.
    title: Of the page.
    facts: What is looked at: a table at the top.
    sections: In order.
    missing: What there is no picture of.

  Raises:
    UserError: It cannot be written.
  """
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
  text = environment.get_template('report.html').render(
    title=title,
    facts=facts,
    sections=sections,
    missing=missing,
    shown=_SHOWN,
    long=_LONG,
  )
  with safe_io.replacing(path) as file:
    # A file's name may be no proper UTF-8.
    file.write(text.encode('utf-8', 'replace').decode())


def _base64(file: pathlib.Path) -> str:
  return base64.b64encode(file.read_bytes()).decode()


def _linked(escaped: str) -> str:
  """Returns HTML in which papers are links and flags do not break."""
  flags = r'--\w+(=[A-Z]+(,[A-Z]+)*)?'
  return re.sub(
    r'arXiv:(\d{4}\.\d{4,5})',
    r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>',
    re.sub(flags, r'<code>\g<0></code>', escaped),
  )
