"""The page of a report: pictures with captions in one HTML file.

A card at its top has results, the worst classes and a few images. A new report
replaces an earlier one in its folder: `numbers.json` lists the pictures of the
report under `files`, so that these and no other files are removed.
"""

import base64
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import tempfile
from typing import Any

import cv2

from vit_jax.config import check_package
from vit_jax.config import UserError
from vit_jax.explore import subject as subject_lib
from vit_jax.runs import safe_io

NUMBERS = 'numbers.json'
FILES = 'files'  # a key in it

# Names of pictures. Files with other names or in other folders are not removed.
_PICTURE = re.compile(r'[a-z]+(-\d+)?\.(png|svg)')
_UNFOLDED = 2  # pictures of a section that are not folded
_NARROW = 560  # pixels; a narrower section is widened for its caption
_GAP = 34  # pixels between two pictures, with their frames
_IMAGES = 8  # maximum number of thumbnails
_SIDE = 96  # pixels of the longer side of a thumbnail on the page
_WORST = 3  # classes that are named


@dataclasses.dataclass(frozen=True)
class Picture:
  """One picture of a section."""

  file: pathlib.Path
  label: str  # label within the section; '' for a single picture
  size: tuple[int, int]  # (width, height) on a wide page, in pixels

  @property
  def least(self) -> int:
    """Minimum width in pixels; in less space the picture scrolls."""
    width = self.size[0]
    return min(width, max(320, round(width * 0.66)))


@dataclasses.dataclass(frozen=True)
class Section:
  """Pictures of one kind."""

  name: str  # name of the kind, as in the names of the files
  title: str
  # Explains the pictures and how they were computed; papers are cited as
  # arXiv:NUMBER.
  caption: str
  # Pictures in order. All but the first two are folded.
  pictures: tuple[Picture, ...]

  @property
  def width(self) -> int:
    """Width in pixels; narrow sections stand next to each other."""
    widths = [picture.size[0] + _GAP for picture in self.pictures[:_UNFOLDED]]
    return max(_NARROW, sum(widths))


@dataclasses.dataclass(frozen=True)
class Missing:
  """A kind without pictures."""

  name: str
  title: str
  # Why there are none, and what to do about it; not a whole sentence.
  reason: str

  @property
  def sentence(self) -> str:
    """The reason as a whole sentence."""
    return f'{self.reason[:1].upper()}{self.reason[1:]}.'


@dataclasses.dataclass(frozen=True)
class Result:
  """A number of the card."""

  name: str  # name of the number, in words
  value: str
  lines: tuple[str, ...] = ()  # its interval, or what it was measured on


@dataclasses.dataclass(frozen=True)
class Thumbnail:
  """A small image of the card."""

  png: str  # content of its file, in base64
  size: tuple[int, int]  # (width, height) in pixels
  lines: tuple[str, ...]  # name, prediction and label, as far as there are any


@dataclasses.dataclass(frozen=True)
class Summary:
  """The card of a report."""

  results: tuple[Result, ...] = ()
  thumbnails: tuple[Thumbnail, ...] = ()


def summarize(
  subject: subject_lib.Subject, numbers: Mapping[str, Any]
) -> Summary:
  """Returns the card of a report.

  `numbers` are the numbers behind the pictures, by the name of the kind. The
  card has results of 'confusion', 'reliability' and 'errors', as far as they
  were drawn.
  """
  results: list[Result] = []
  if accuracy := numbers.get('confusion'):
    low, high = accuracy['interval']
    lines = (
      f'95% interval: {low:.1%} to {high:.1%}',
      f'{accuracy["examples"]} examples',
    )
    results.append(Result('Accuracy', f'{accuracy["accuracy"]:.1%}', lines))
  if error := numbers.get('reliability'):
    value = f'{error["calibration_error"]:.3f}'
    results.append(Result('Calibration error', value, ('0 is perfect',)))
  if accuracy:
    results.append(_worst('accuracy', accuracy['classes_by_accuracy'], '.1%'))
  if overlap := numbers.get('errors'):
    examples = f'{overlap["examples"]} examples'
    results.append(Result('Mean IoU', f'{overlap["miou"]:.3f}', (examples,)))
    results.append(_worst('IoU', overlap['classes_by_iou'], '.2f'))
  return Summary(tuple(results), _thumbnails(subject))


def _worst(
  measure: str, ascending: list[tuple[str, float]], form: str
) -> Result:
  """Returns the classes with the lowest values of a measure, in a format."""
  lowest, *more = [f'{name}: {x:{form}}' for name, x in ascending[:_WORST]]
  return Result(f'Lowest {measure} of a class', lowest, tuple(more))


def _thumbnails(subject: subject_lib.Subject) -> tuple[Thumbnail, ...]:
  """Returns small images, for dense screens; () without images."""
  try:
    pixels, captions = subject.pixels[:_IMAGES], subject.captions
  except UserError:
    return ()
  thumbnails = []
  for image, caption in zip(pixels, captions, strict=False):
    scale = min(1.0, 2 * _SIDE / max(image.shape[:2]))
    height, width = (max(1, round(n * scale)) for n in image.shape[:2])
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    _, png = cv2.imencode('.png', small[..., ::-1])
    text = base64.b64encode(png.tobytes()).decode()
    lines = tuple(caption.split('\n'))
    thumbnails.append(Thumbnail(text, (width, height), lines))
  return tuple(thumbnails)


def check() -> None:
  """Raises a UserError if jinja2 is missing."""
  check_package('the report', 'jinja2', 'explore')


def write(
  path: pathlib.Path,
  title: str,
  summary: Summary,
  facts: Mapping[str, str],
  sections: Sequence[Section],
  missing: Sequence[Missing],
) -> None:
  """Writes the page, which needs no other file and no network.

  The summary is a card at the top, and the facts are a table below it.
  """
  import jinja2
  import markupsafe

  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('vit_jax.explore'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
  )
  environment.filters['base64'] = lambda file: base64.b64encode(
    file.read_bytes()
  ).decode()
  environment.filters['linked'] = lambda text: markupsafe.Markup(
    _linked(str(markupsafe.escape(text)))
  )
  text = environment.get_template('report.html').render(
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


def _linked(escaped: str) -> str:
  """Returns HTML with links to papers, and flags that do not wrap."""
  flags = r'--\w+(=[A-Z]+(,[A-Z]+)*)?'
  return re.sub(
    r'arXiv:(\d{4}\.\d{4,5})',
    r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>',
    re.sub(flags, r'<code>\g<0></code>', escaped),
  )


def check_folder(folder: pathlib.Path) -> None:
  """Raises a UserError if nothing can be written to a folder."""
  path = folder.absolute()
  existing = next(p for p in (path, *path.parents) if os.path.exists(p))
  if not os.path.isdir(existing):
    raise UserError(f'--out={folder}: {existing} is a file; name a folder')
  if not os.access(existing, os.W_OK | os.X_OK):
    raise UserError(
      f'--out={folder}: nothing can be written in {existing}; name another'
      ' folder'
    )


@contextlib.contextmanager
def replacing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields an empty folder whose files are moved to `folder` at the end.

  The pictures of an earlier report are then removed; after a failure they stay.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise UserError(f'--out={folder} cannot be made: {e.strerror}') from None
  with tempfile.TemporaryDirectory(prefix='.new-', dir=folder) as name:
    new = pathlib.Path(name)
    yield new
    files = sorted(os.listdir(new))
    earlier: Any = {}
    with contextlib.suppress(UserError):  # an unreadable file is replaced
      earlier = safe_io.read_json(folder / NUMBERS)
    listed = earlier.get(FILES) if isinstance(earlier, dict) else None
    if not isinstance(listed, list):  # not written by us
      listed = []
    drawn = {x for x in listed if isinstance(x, str) and _PICTURE.fullmatch(x)}
    try:
      for file in drawn - set(files):
        (folder / file).unlink(missing_ok=True)
      for file in files:
        (new / file).replace(folder / file)
    except OSError as e:
      raise safe_io.cannot_write(folder / file, e) from e
