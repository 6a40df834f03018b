"""The README's Python, and what `load` refuses."""

import re
import shutil

import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import train
from vit_jax.config import UserError


def test_the_python_of_the_readme(tmp_path, monkeypatch):
  """Runs as it stands, on a run of configs/digits.py, shortened."""
  (tmp_path / 'runs').mkdir()
  assert train.run(tiny.config(), str(tmp_path / 'runs' / 'digits')) == 0
  monkeypatch.chdir(tmp_path)
  text = (tiny.ROOT / 'README.md').read_text()
  (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  scope = {}
  exec(code, scope)
  assert len(scope['names']) == 1
  assert scope['logits'].shape == (2, 10)
  shapes = [x.shape for x in scope['state']['intermediates'].values()]
  assert shapes == [(12, 2, 6, 197, 197), (12, 2, 197, 384)]
  assert len(repr(scope['vit'])) < 2000


def test_mistakes_are_named(tmp_path):
  (tmp_path / 'file').write_text('')
  for path in (tmp_path, tmp_path / 'file', tmp_path / 'missing'):
    with pytest.raises(UserError, match=str(path)):
      vit_jax.load(path)


VIT_GAP = tiny.ROOT / 'tests' / 'data' / 'golden' / 'google' / 'vit_gap.npz'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_heads': 'a'}, "num_heads is 'a': it must be of the type int"),
    ({'num_classes': 2.5}, 'num_classes is 2.5'),
    ({'scan': 'yes'}, 'type bool'),
    ({'depth': 1}, 'depth is 3 in the checkpoint, 1 in the model'),
    ({'dtype': 'int32'}, "dtype is 'int32': choose float32"),
    ({'image_size': 'q'}, "image_size is 'q': write one positive number"),
    ({'image_size': 10**9}, 'too large'),
    ({'image_size': 18}, 'do not divide into patches of 4 x 4'),
    ({'resize': 'cubic'}, 'choose one of corner'),
    ({'registrs': 2}, "did you mean 'registers'"),
  ],
)
def test_wrong_arguments_are_named(arguments, message):
  with pytest.raises(UserError, match=message) as error:
    vit_jax.load(VIT_GAP, **arguments)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('preprocess.json', '[1]'),
    ('preprocess.json', '{}'),
    ('preprocess.json', '{"classes": 5}'),
    ('config.json', '"x"'),
    ('config.json', '{"train": {"dtype": 5}}'),
    ('config.json', '{"model": {"depth": 9}}'),
  ],
)
def test_a_damaged_work_directory_is_named(digits_run, tmp_path, name, content):
  shutil.copytree(digits_run, tmp_path / 'run')
  (tmp_path / 'run' / name).write_text(content)
  with pytest.raises(UserError, match=str(tmp_path)) as error:
    vit_jax.load(tmp_path / 'run')
  assert '\n' not in str(error.value)


def test_no_images(tmp_path):
  from vit_jax import data

  preprocess = data.Preprocess(('a',), (8, 8), 1, (0.5,), (0.5,))
  with pytest.raises(UserError, match='there are no images'):
    preprocess([])
  with pytest.raises(UserError, match=r'\[h, w, 1 to 4\]'):
    preprocess(np.zeros((3, 80, 90), np.uint8))
