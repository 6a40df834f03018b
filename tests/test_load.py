"""The README's Python, and what `load` refuses."""

import re

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


def test_no_images(tmp_path):
  from vit_jax import data

  preprocess = data.Preprocess(('a',), (8, 8), 1, (0.5,), (0.5,))
  with pytest.raises(UserError, match='there are no images'):
    preprocess([])
  with pytest.raises(UserError, match=r'\[h, w, 1 to 4\]'):
    preprocess(np.zeros((3, 80, 90), np.uint8))
