"""Suggestions for paths that do not exist, as errors end with them."""

import os

import pytest

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.weights import download


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The current directory, with a few files in folders."""
  names = 'images/train/cat/1.jpg', 'runs/digits_20/x', 'runs/a/x', 'images.csv'
  for name in (*names, 'b/.x'):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('')
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.parametrize(
  'path, wanted',
  [
    ('imagess', 'images'),
    ('Images/', 'images'),
    ('./imags', './images'),
    ('imagess/train/cat', 'images/train/cat'),
    ('images/train/cats/1.jpg', 'images/train/cat/1.jpg'),
    ('images/train/cat/1.jpeg', 'images/train/cat/1.jpg'),
    ('images.cvs', 'images.csv'),
    ('imagess/val', ''),  # both parts would be wrong
    ('runs/digits_10', ''),  # another number is another thing
    ('runs/b', ''),
    ('b/x', ''),
    ('photos', ''),
    ('a\0', ''),
    ('x' * 5000, ''),
    ('', ''),
  ],
)
def test_a_similar_path(here, path, wanted):
  hint = f': did you mean {wanted!r}?'
  assert nearby(path) == (hint if wanted else f' in {here}' if path else '')
  if not wanted:
    assert nearby(path, otherwise='; go on') == '; go on'
    assert nearby(f'/none/{path}') == ''


def test_only_what_would_do_is_suggested(here):
  assert nearby('imags', os.path.isdir) == ": did you mean 'images'?"
  assert nearby('imagess', os.path.isfile).startswith(": did you mean 'images.")
  assert nearby(f'{here}/run') == f": did you mean '{here}/runs'?"


@pytest.mark.parametrize(
  'name, wanted',
  [
    ('folder:imagess', 'images'),
    ('video:imags', 'images'),
    ('table:image.csv', 'images.csv'),
    ('hf:./imagess', './images'),
  ],
)
def test_data(here, name, wanted):
  config = config_lib.default()
  config.data.name = name
  with pytest.raises(
    UserError, match=f"there is no .* did you mean '{wanted}'"
  ):
    data.check(config)


def test_checkpoints(here):
  with pytest.raises(UserError, match=r": did you mean 'runs/digits_20'\?$"):
    download.fetch('runs/digit_20')
  with pytest.raises(UserError, match=r"directory; .* write 'hf:timm/vit'$"):
    download.fetch('timm/vit')


@pytest.mark.parametrize(
  'path, wanted',
  [
    ('digitz', 'digits'),
    ('configs/digitz.py', 'configs/digits.py'),
    ('config/digits.py', 'configs/digits.py'),
    ('photos.py', 'photo.py'),
  ],
)
def test_configs(here, path, wanted):
  (here / 'photo.py').write_text('')
  with pytest.raises(UserError, match=f"such file: did you mean '{wanted}'"):
    config_lib.load(path)
