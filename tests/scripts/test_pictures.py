"""The scripts that draw the pictures of the pages."""

import importlib.util
import re

import pytest
import tiny

PICTURES = tiny.ROOT / 'docs' / 'pictures'


def _script(name):
  path = tiny.ROOT / 'scripts' / f'{name}.py'
  spec = importlib.util.spec_from_file_location(f'vit_jax_{name}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_pictures_are_few_bytes():
  assert sum(x.stat().st_size for x in PICTURES.rglob('*.*')) < 2e6


def test_each_picture_of_the_gallery_is_drawn_by_its_commands():
  """It is in what a command writes, and no other one is kept."""
  draw_pictures = _script('draw_pictures')
  page = (tiny.ROOT / 'docs' / 'gallery.md').read_text()
  commands = ' '.join(draw_pictures.commands(page))
  outputs = re.findall(r'--(?:out|workdir)=runs/(\S+)', commands)
  names = draw_pictures.pictures(page)
  for name in names:
    assert {name.parts[0], str(name)} & {*outputs}, name
  drawn = {x.relative_to(PICTURES) for x in PICTURES.rglob('*.*')}
  alone = {x for x in drawn if x.parent.name}
  assert alone == {x for x in names if x.parent.name}


def test_a_terminal_is_recorded(tmp_path):
  """With colours; of what is overwritten, the last text."""
  pytest.importorskip('pyte', reason='needs pyte: vit_jax[docs]')
  record_terminal = _script('record_terminal')
  path = tmp_path / 'terminal.svg'
  command = r"printf 'first\rsecond\n\033[1;32mgreen\033[0m\n'"
  record_terminal.FLAGS(
    ['record_terminal', f'--command={command}', f'--out={path}']
  )
  record_terminal.main(['record_terminal'])
  svg = path.read_text()
  assert 'second' in svg and 'green' in svg and 'first<' not in svg
