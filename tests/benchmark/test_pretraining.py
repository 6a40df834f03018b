"""Steps of methods, in turns with PyTorch's; tiny models."""

import functools
import sys

import commands
import other_libraries
import pytest
import rates
import tiny

from benchmarks import methods
from benchmarks import pretraining
from benchmarks import report as report_lib
from benchmarks import setting as setting_lib
from vit_jax import config as config_lib
from vit_jax.ahead import plan

_OPTIONS = {
  'mae': {'decoder_width': 32, 'decoder_depth': 1, 'decoder_heads': 2},
  'beit': {'tokens': 64, 'masked': 6, 'block_least': 4},
  'igpt': {},
  'dino': {
    'prototypes': 4096,  # so that the loss hardly depends on the draw
    'head_hidden': 32,
    'bottleneck': 256,
    'local_crops': 2,
    'local_size': 32,
  },
  'mocov3': {'width': 32, 'dim': 256},
  'clip': {'text_width': 32, 'text_depth': 1, 'text_heads': 2},
  'setr': {'layers': (0, 1), 'channels': 8, 'convs': 2},
  'unetr': {'channels': 2},
}
_OPTIONS['dinov2'] = _OPTIONS['dino']


def method_config(name):
  """Returns the config of a method with a tiny model."""
  size = 8 if name == 'igpt' else 64
  batch_size = 16 if name == 'mocov3' else 4
  config = pretraining.config(
    name,
    setting_lib.Setting(
      batch_size=batch_size,
      image_size=None if name == 'unetr' else size,
    ),
  )
  if name == 'unetr':
    config.data.image_size = (16, 16, 32)
  config.objective.options.update(_OPTIONS[name])
  depth = {'setr': 2, 'unetr': 12}.get(name, 1)
  changes = {'hidden_size': 64, 'mlp_dim': 128, 'num_heads': 2, 'depth': depth}
  tiny.change(config, changes, 'model.')
  if name == 'igpt':
    config.model.name = 'iGPT-S(colours=32)'
  # MONAI's UNETR has 12 layers, as which scanned ones compile sooner.
  config.model.scan = name == 'unetr'
  return config


@pytest.fixture(scope='module')
def bench():
  """Returns a function: the benchmark of a method, made once."""
  return functools.cache(
    lambda name: pretraining.Bench(name, method_config(name), blocks=2)
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(set(_OPTIONS) - {'dinov2'}))
def test_a_method_in_turns_with_pytorch(name, bench):
  pytest.importorskip('torch', reason='needs torch and transformers')
  other_libraries.imported('transformers')
  if name == 'unetr':
    pytest.importorskip('monai', reason='needs monai')
  entry = bench(name).train()
  rates.check_rates(entry)
  assert entry['against'] in ('torch', 'transformers', 'monai')
  assert entry['parameters'] > 0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['setr', 'unetr'])
def test_sliding_windows_in_turns_with_pytorch(name, bench):
  pytest.importorskip('torch', reason='needs torch')
  if name == 'unetr':
    pytest.importorskip('monai', reason='needs monai')
  entry = bench(name).infer()
  rates.check_rates(entry)
  assert entry['against'] == {'setr': 'torch', 'unetr': 'monai'}[name]
  assert entry['windows_per_image'] == 2


@pytest.mark.parametrize('name', sorted(methods.METHODS))
def test_the_settings_of_each_method_fit_its_default_model(name):
  config = pretraining.config(name, setting_lib.Setting())
  assert plan.make_program(config).objective.image_shape


@pytest.mark.slow
def test_a_method_without_a_peer_has_our_figure_alone(monkeypatch):
  entry = pretraining.Bench('dinov2', method_config('dinov2'), blocks=1).train()
  assert entry['images_per_second'] > 0 and 'ratio' not in entry
  assert entry['against'] == 'no package has a training step of dinov2'
  assert 'no package has' in report_lib.table({'train': entry})
  for module in ('torch_library', 'torch_siamese'):
    monkeypatch.setitem(sys.modules, f'benchmarks.peers.{module}', None)
  entry = pretraining.Bench('mae', method_config('mae'), blocks=1).train()
  assert entry['against'] == 'nothing: pip install torch transformers'
  assert 'ratio' not in entry


def test_what_is_not_the_same_is_not_timed():
  bench = pretraining.Bench('mocov3', method_config('mocov3'), blocks=1)

  class Peer:
    parameters = bench._parameters

    def train(self, count):
      return 2.0 * count

  with pytest.raises(config_lib.UserError, match='loss is 2 in PyTorch, and'):
    bench._check(1.0, Peer())
  Peer.parameters += 1
  with pytest.raises(config_lib.UserError, match='PyTorch trains'):
    bench._check(2.0, Peer())


# Flags that cannot work, and what is told.
MISTAKES = {
  '--parts=train --objective=simclr': 'choose one of beit, clip, dino',
  '--parts=train --objective=': 'choose one of beit, clip, dino',
  '--parts=infer --objective=mae': 'mae needs --parts=train',
  '--parts=train --objective=mae --compare=timm': '--compare does not go with',
  '--parts=compile': '--parts=compile and --hardware=v5e:2x2 go',
  '--hardware=v5e:1x1': '--parts=compile and --hardware=v5e:2x2 go',
}


def test_flags_that_cannot_work():
  """In a process of their own: growth.py has flags of the same names."""
  code = (
    'import sys\n'
    'import commands\n'
    'from benchmarks import __main__ as command\n'
    'for flags in sys.argv[1:]:\n'
    '  print(commands.mistake(command, *flags.split()))\n'
  )
  path = f'{tiny.ROOT}:{tiny.TESTS}'
  env = commands.CPU_ENV | {'PYTHONPATH': path}
  result = commands.python('-c', code, *MISTAKES, env=env)
  lines = result.stdout.splitlines()
  assert len(lines) == len(MISTAKES), result.stderr
  for line, message in zip(lines, MISTAKES.values(), strict=True):
    assert message in line
