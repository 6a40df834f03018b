"""`convert --push`: to a stand-in for the Hub, and back to the bit."""

import json

import commands
from foreign import assert_same
import hub_server
import numpy as np
import pytest

import vit_jax
from vit_jax import convert
from vit_jax.config import UserError


@pytest.fixture
def hub(tmp_path, monkeypatch):
  server = hub_server.Hub()
  monkeypatch.setenv('HF_ENDPOINT', server.url)
  monkeypatch.setenv('HF_TOKEN', 'secret')
  monkeypatch.setenv('NO_PROXY', '*')
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'cache'))
  yield server
  server.stop()


def test_what_was_pushed_is_loaded_to_the_bit(digits_run, hub, tmp_path):
  to = '--to=timm', '--push=hf:me/digits', '--license=apache-2.0'
  assert commands.run(convert, digits_run, tmp_path / 'digits', *to) == 0
  assert set(hub.tokens) == {'Bearer secret'}
  there, here = vit_jax.load('hf:me/digits'), vit_jax.load(digits_run)
  assert_same(there, here)
  assert_same(there, vit_jax.load(tmp_path / 'digits'))
  image = np.arange(64, dtype=np.uint8).reshape(8, 8)
  np.testing.assert_allclose(
    there.predict([image]), here.predict([image]), atol=1e-5
  )
  assert there.classes == here.classes
  card = hub.replies['/me/digits/resolve/main/README.md'].body.decode()
  assert card.startswith('---\nlicense: apache-2.0\n')
  assert 'val/accuracy' in card
  names = {path.rsplit('/')[-1] for path in hub.replies}
  assert {'metrics.json', 'run_config.json', 'model.safetensors'} <= names


def test_a_dry_run_lists_the_files(digits_run, hub, tmp_path, capsys):
  to = '--to=timm', '--push=hf:me/digits', '--dry_run'
  assert commands.run(convert, digits_run, tmp_path / 'digits', *to) == 0
  listed = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
  assert listed == sorted(x.name for x in (tmp_path / 'digits').iterdir())
  assert {'README.md', 'config.json', 'metrics.json'} <= set(listed)
  accuracy = json.loads((tmp_path / 'digits/metrics.json').read_text())
  assert 0 <= accuracy['val/accuracy'] <= 1
  assert not hub.tokens


def test_refused(digits_run, hub, tmp_path):
  hub.denied = True
  with pytest.raises(UserError, match=r'cannot upload to hf:me/.*HF_TOKEN'):
    args = digits_run, tmp_path / 'a', '--to=timm', '--push=hf:me/digits'
    commands.run(convert, *args)
  with pytest.raises(UserError, match='must read hf:OWNER/NAME'):
    commands.run(convert, digits_run, tmp_path / 'b', '--to=timm', '--push=me')
  with pytest.raises(UserError, match='--push uploads a directory'):
    args = digits_run, tmp_path / 'c', '--to=google', '--push=hf:me/digits'
    commands.run(convert, *args)
  with pytest.raises(UserError, match='need --push'):
    commands.run(convert, digits_run, tmp_path / 'd', '--to=timm', '--dry_run')
