"""The report is one file, proper HTML, and shows names as they are."""

import base64
from html import parser
import re

import pytest
import stand_in

from vit_jax.config import UserError
from vit_jax.explore import report

FLAG = report.Missing('query', 'Query', 'give --query=ROW,COLUMN, say')
NO_CARD = report.Summary()
VOID = {'meta', 'img', 'link', 'br'}


class Page(parser.HTMLParser):
  """Reads a page; fails where an element is not closed."""

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.text = [], [], []
    self.feed(text)
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text.append(data)

  def of(self, tag):
    return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def write(tmp_path):
  def write_page(title='Inside', missing=(), card=NO_CARD):
    pictures = []
    for i in range(3):
      file = tmp_path / f'{i}.png'
      file.write_bytes(stand_in.png(stand_in.pixels(i, 4, 6)))
      pictures.append(report.Picture(file, f'image <{i}>', (900, 300)))
    section = report.Section(
      'maps', 'Attention & maps', 'As arXiv:2010.11929 has it.', (*pictures,)
    )
    path = tmp_path / 'report.html'
    facts = {'Model': 'caf\udce9 <script>'}
    report.write(path, title, card, facts, [section], missing)
    return path.read_text()

  return write_page


def test_all_is_in_the_page(write, tmp_path):
  text = write(missing=[report.Missing('stem', 'Stem', 'it has none'), FLAG])
  page = Page(text)
  images = page.of('img')
  for i, image in enumerate(images):
    kind, data = image['src'].split(',')
    assert kind == 'data:image/png;base64'
    assert base64.b64decode(data) == (tmp_path / f'{i}.png').read_bytes()
    assert image['alt'] == f'Attention & maps: image <{i}>'
  assert len(images) == 3 and len(page.of('details')) == 1
  links = [x['href'] for x in page.of('a')]
  assert links == ['#maps', '#missing', 'https://arxiv.org/abs/2010.11929']
  assert {x['id'] for x in page.of('section')} == {'maps', 'missing'}
  # Nothing is loaded from elsewhere.
  assert not page.of('script') and not page.of('link')
  assert not re.search(r'url\(|@import', text)
  assert [*page.text].count('--query=ROW,COLUMN') == 1
  assert 'It has none.' in page.text and 'caf? <script>' in page.text


def test_results_come_first(write):
  """With the numbers of the pictures; without them there is no card."""
  results = report.Result('Accuracy', '96.0%', ('95% interval: 94% to 97%',))
  thumbnail = report.Thumbnail('AAAA', (8, 8), ('no. 3', '4, 89%'))
  text = write(card=report.Summary((results,), (thumbnail,)))
  page = Page(text)
  assert page.text.index('96.0%') < page.text.index('Attention & maps')
  assert {'95% interval: 94% to 97%', 'no. 3', '4, 89%'} < {*page.text}
  assert page.of('img')[0]['src'] == 'data:image/png;base64,AAAA'
  assert 'class="card"' in text and 'class="card"' not in write()


def test_captions_follow_their_figures_and_names_stand_once(write):
  text = write()
  assert text.index('data:image/png') < text.index('>arXiv:2010.11929')
  page = Page(text)
  assert not page.of('figcaption') and 'image <0>' not in page.text
  assert len(page.of('details')) == 1 and '1 more' in page.text


def test_it_is_the_same_each_time_and_fits_all_screens(write):
  text = write()
  assert text == write() and 'Not shown' not in text
  assert 'prefers-color-scheme: dark' in text
  assert 'width=device-width' in text


def test_what_cannot_be_written(tmp_path):
  path = tmp_path / 'none' / 'report.html'
  with pytest.raises(UserError, match='cannot write'):
    report.write(path, 'x', NO_CARD, {}, [], [])
