"""`convert --push`: to a stand-in for the Hub, and back to the bit."""

import json

import commands
from foreign import assert_same
import hub_server
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import convert
from vit_jax.config import UserError
from vit_jax.train import loop


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
  assert commands.run(convert, digits_run, tmp_path / 'digits.v1', *to) == 0
  listed = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
  assert listed == sorted(x.name for x in (tmp_path / 'digits.v1').iterdir())
  assert {'README.md', 'config.json', 'metrics.json'} <= set(listed)
  accuracy = json.loads((tmp_path / 'digits.v1/metrics.json').read_text())
  assert 0 <= accuracy['val/accuracy'] <= 1
  assert not hub.tokens


def test_metrics_are_those_of_the_weights(tmp_path, hub):
  """Also where the run went on, and became another model."""
  run = tmp_path / 'run'
  config = tiny.config(train__duration='6 steps', checkpoint__every='2 steps')
  config.evals.val.every = '2 steps'
  assert loop.run(config, str(run)).status == 0
  lines = [x for x in tiny.metrics(run) if 'val/loss' in x]
  assert [x['step'] for x in lines] == [2, 4, 6]
  to = '--step=4', '--to=timm', '--push=hf:me/digits', '--dry_run'
  assert commands.run(convert, run, tmp_path / 'there', *to) == 0
  actual = json.loads((tmp_path / 'there' / 'metrics.json').read_text())
  assert actual['val/loss'] == lines[1]['val/loss'] != lines[2]['val/loss']
  assert 'step 4' in (tmp_path / 'there' / 'README.md').read_text()


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
