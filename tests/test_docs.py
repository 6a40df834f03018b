"""The examples of docs/ do what they say."""

import re

import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib


def blocks(page: str, language: str) -> list[str]:
  text = (tiny.ROOT / 'docs' / page).read_text()
  return re.findall(rf'^```{language}\n(.*?)^```$', text, re.DOTALL | re.M)


def test_a_method_of_ones_own(tmp_path, monkeypatch):
  method, config = blocks('methods.md', 'python')
  assert len(method.splitlines()) < 60
  (tmp_path / 'my_method.py').write_text(method)
  (tmp_path / 'my_config.py').write_text(config)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tiny.ROOT)
  config = config_lib.load(
    tmp_path / 'my_config.py',
    {'train.duration': '3 steps', 'optim.warmup': '1 steps'},
  )
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert 0 <= results.metrics['val/accuracy'] <= 1
  assert results.metrics['val/examples'] == 359
  vit = vit_jax.load(tmp_path / 'run')
  assert vit.model.num_classes == 4 and vit.classes == ()


@pytest.mark.parametrize('page', ['methods.md'])
def test_pages_name_files_that_are_there(page):
  text = (tiny.ROOT / 'docs' / page).read_text()
  for name in re.findall(r'\]\(\.\./([\w/.]+)\)', text):
    assert (tiny.ROOT / name).exists(), name
  for name in re.findall(r'--config=(configs/\w+\.py)', text):
    assert (tiny.ROOT / name).exists(), name
