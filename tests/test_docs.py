"""The examples of docs/ do what they say."""

import re

import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib

DOCS = tiny.ROOT / 'docs'


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


PAGES = ['README.md', *sorted(f'docs/{x.name}' for x in DOCS.glob('*.md'))]


@pytest.mark.parametrize('page', PAGES)
def test_pages_name_files_that_are_there(page):
  path = tiny.ROOT / page
  text = path.read_text()
  for name in re.findall(r'\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)', text):
    assert (path.parent / name).exists(), name
  for name in re.findall(r'--\w+=(configs/[\w/]+\.py)', text):
    assert (tiny.ROOT / name).exists(), name
  for name in re.findall(r'(?:python|bash) (scripts/[\w/]+\.\w+)', text):
    assert (tiny.ROOT / name).exists(), name
  for name in re.findall(r'-m (vit_jax\.\w+)', text):
    module = tiny.ROOT / name.replace('.', '/')
    is_command = (module / '__main__.py').exists()
    assert is_command or module.with_suffix('.py').exists(), name


def test_the_readme_is_short():
  assert len((tiny.ROOT / 'README.md').read_text().splitlines()) <= 250
