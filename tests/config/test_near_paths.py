"""Suggestions for paths that do not exist, as errors end with them."""

import os
import pathlib

import case_files
import pytest

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.weights import download


@pytest.fixture
def working_directory(tmp_path, monkeypatch):
  """The current directory, with a few files in folders."""
  names = 'images/train/cat/1.jpg', 'runs/digits_20/x', 'runs/a/x', 'images.csv'
  for name in (*names, 'b/.x'):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('')
  monkeypatch.chdir(tmp_path)
  return tmp_path


CASES = [
  *case_files.read(pathlib.Path(__file__).with_name('near_paths.txt')),
  *(('path', path, '') for path in ('a\0', 'x' * 5000, '')),
]


@pytest.mark.parametrize(('kind', 'path', 'near'), CASES)
def test_a_similar_path(working_directory, kind, path, near):
  if kind == 'path':
    hint = f': did you mean {near!r}?'
    assert nearby(path) == (
      hint if near else f' in {working_directory}' if path else ''
    )
    if not near:
      assert nearby(path, otherwise='; go on') == '; go on'
      assert nearby(f'/none/{path}') == ''
    return
  (working_directory / 'photo.py').write_text('')
  config = config_lib.default()
  start = {'data': 'there is no', 'config': 'such file:'}[kind]
  with pytest.raises(UserError, match=f"{start} .*did you mean '{near}'"):
    if kind == 'config':
      config_lib.load(path)
    config.data.name = path
    data.check(config)


def test_only_what_would_do_is_suggested(working_directory):
  assert nearby('imags', os.path.isdir) == ": did you mean 'images'?"
  assert nearby('imagess', os.path.isfile).startswith(": did you mean 'images.")
  assert (
    nearby(f'{working_directory}/run')
    == f": did you mean '{working_directory}/runs'?"
  )


def test_checkpoints(working_directory):
  with pytest.raises(UserError, match=r": did you mean 'runs/digits_20'\?$"):
    download.fetch('runs/digit_20')
  with pytest.raises(UserError, match=r"directory; .* write 'hf:timm/vit'$"):
    download.fetch('timm/vit')
