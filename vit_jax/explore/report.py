"""A page of pictures with captions, whole in one file."""

import base64
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import html
import pathlib
import re

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
  body = [
    f'<h1>{_text(title)}</h1>',
    _table(facts),
    _contents(sections, missing),
    *map(_section, sections),
  ]
  if missing:
    body.append(_missing(missing))
  text = _PAGE.format(title=_text(title), style=_STYLE, body='\n'.join(body))
  with safe_io.replacing(path) as file:
    file.write(text)


def _text(text: str) -> str:
  """Returns a text as HTML; papers are links, and flags do not break."""
  # A file's name may be no proper UTF-8.
  safe = html.escape(text.encode('utf-8', 'replace').decode())
  safe = re.sub(r'--\w+(=[A-Z]+(,[A-Z]+)*)?', r'<code>\g<0></code>', safe)
  return re.sub(
    r'arXiv:(\d{4}\.\d{4,5})',
    r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>',
    safe,
  )


def _table(facts: Mapping[str, str]) -> str:
  rows = [
    f'<tr><th scope="row">{_text(key)}</th><td>{_text(value)}</td></tr>'
    for key, value in facts.items()
  ]
  return f'<table>{"".join(rows)}</table>'


def _contents(sections: Sequence[Section], missing: Sequence[Missing]) -> str:
  links = [f'<a href="#{s.name}">{_text(s.title)}</a>' for s in sections]
  if missing:
    links.append('<a href="#missing">Not shown</a>')
  return f'<nav aria-label="Pictures">{" ".join(links)}</nav>'


def _section(section: Section) -> str:
  shown, others = section.pictures[:_SHOWN], section.pictures[_SHOWN:]
  parts = [
    f'<section id="{section.name}">',
    f'<h2>{_text(section.title)}</h2>',
    '<div class="content">',
    '<div class="pictures">',
    *(_picture(section, picture) for picture in shown),
    '</div>',
    f'<p>{_text(section.caption)}</p>',
    '</div>',
    *(
      f'<details><summary>{_text(other.label)}</summary>'
      f'{_picture(section, other, labelled=False)}</details>'
      for other in others
    ),
    '</section>',
  ]
  return '\n'.join(parts)


def _picture(section: Section, picture: Picture, labelled: bool = True) -> str:
  """Returns a picture; one that is wide can be scrolled where there is no room.

  It shrinks to two thirds at most, so that its text stays readable. Of a long
  one only the upper part is there until it is unfolded; one with a label that
  is in the summary of a fold is whole.
  """
  data = base64.b64encode(picture.file.read_bytes()).decode()
  width, height = picture.size
  names = [section.title, picture.label] if picture.label else [section.title]
  least = min(width, max(320, round(width * 0.66)))
  image = (
    f'<img src="data:image/png;base64,{data}" alt="{_text(": ".join(names))}"'
    f' width="{width}" height="{height}" style="min-width:{least}px">'
  )
  label = ''
  if labelled and picture.label:
    label = f'<figcaption>{_text(picture.label)}</figcaption>'
  fold = ''
  if labelled and height > _LONG:
    fold = '<details class="more"><summary>Show all of it</summary></details>'
  return f'<figure>{label}{fold}<div class="paper">{image}</div></figure>'


def _missing(missing: Sequence[Missing]) -> str:
  items = [
    f'<dt>{_text(x.title)}</dt><dd>{_text(_sentence(x.reason))}</dd>'
    for x in missing
  ]
  return (
    '<section id="missing">\n<h2>Not shown</h2>\n'
    f'<dl>{"".join(items)}</dl>\n</section>'
  )


def _sentence(text: str) -> str:
  return text[:1].upper() + text[1:] + '.'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { --page: #ffffff; --ink: #1f2328; --pale: #59636e; --line: #d1d9e0;
  --link: #0959b3; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --ink: #e6e8eb; --pale: #9aa4af; --line: #363c43;
    --link: #7ab7ff; --box: #1d2127; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1600px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 8px 0 16px; }
h2 { font-size: 1.2rem; margin: 0 0 8px; }
a { color: var(--link); }
p { max-width: 75ch; margin: 8px 0; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: 2px 16px 2px 0; }
th { white-space: nowrap; }
th, figcaption, summary { color: var(--pale); font-weight: normal; }
code { white-space: nowrap; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 16px 0;
  padding: 12px; background: var(--box); border-radius: 6px; }
section { border-top: 1px solid var(--line); padding: 20px 0; }
.pictures { display: flex; flex-wrap: wrap; align-items: flex-start;
  gap: 8px 16px; min-width: 0; }
@media (min-width: 1180px) {
  .content { display: grid; grid-template-columns: minmax(0, 1fr) 18rem;
    gap: 8px 24px; align-items: start; }
}
figure { margin: 8px 0; max-width: 100%; }
.paper { overflow-x: auto; background: #ffffff; border-radius: 6px;
  padding: 8px; border: 1px solid var(--line); width: fit-content;
  max-width: 100%; }
@media screen {
  .more:not([open]) + .paper { max-height: 420px; overflow-y: hidden;
    border-bottom: 3px dashed var(--pale); border-radius: 6px 6px 0 0; }
}
img { display: block; max-width: 100%; height: auto; }
summary { cursor: pointer; padding: 4px 0; }
dt { font-weight: 600; }
dd { margin: 0 0 8px; color: var(--pale); }
"""
