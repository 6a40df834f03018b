"""Command lines that cannot work are refused in one line."""

import importlib.util
import pathlib
import re
import shlex

import case_files
import commands
import foreign
import pytest
import stand_in

from vit_jax import convert
from vit_jax import embed
from vit_jax import evaluate
from vit_jax.explore import pictures
from vit_jax.predict import __main__ as predict

VERBS = {
  'evaluate': evaluate,
  'embed': embed,
  'predict': predict,
  'convert': convert,
  'pictures': pictures,
}
NO_CONFIG = ('evaluate', 'embed')  # there is no key of a config to change


@pytest.fixture(scope='module')
def places(tmp_path_factory, digits_run, folder_run):
  """Where things are, by their names in the file."""
  folder = tmp_path_factory.mktemp('mistakes')
  (folder / 'a.png').write_bytes(stand_in.png(stand_in.pixels(0, 8, 8)))
  (folder / 'file').write_text('')
  (folder / 'empty').mkdir()
  (folder / 'b.npz').mkdir()
  return {
    'run': digits_run,
    'folder': folder_run,
    'golden': foreign.GOLDEN,
    'tmp': folder,
  }


@pytest.mark.parametrize(
  ('section', 'flags', 'pattern'),
  case_files.read(pathlib.Path(__file__).with_name('command_mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(section, flags, pattern, places):
  verb, *words = shlex.split(f'{section} {flags}')
  words = [word.format(**places) for word in words if word != '-']
  text = commands.mistake(VERBS[verb], *words, has_config=verb not in NO_CONFIG)
  assert re.search(pattern, text), text


@pytest.mark.parametrize(
  ('verb', 'flags', 'message'),
  [
    ('evaluate', '--predictions=a.parquet', 'pip install pyarrow'),
    ('embed', '--out={tmp}/a.parquet', 'pip install pyarrow'),
    ('pictures', '', r"pip install 'vit_jax\[explore\]'"),
  ],
)
def test_a_missing_package_is_asked_for(
  verb, flags, message, places, monkeypatch
):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
  data = '--from={run} --data=digits --split=train[80%:] '
  words = (data + flags).format(**places).split()
  assert re.search(message, commands.mistake(VERBS[verb], *words))
