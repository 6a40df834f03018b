"""Fine-tuning and probes of pre-trained models, against their authors' code."""

import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.train import experiment as experiment_lib

# Epochs (e) or steps (s), batch, optimizer, its learning rate, warm-up in
# epochs, weight decay, layer decay (1: none), stochastic depth, features.
TABLE = """
mae_finetune_i1k.py:B/16,x    100e  1024 adamw 2e-3  5 0.05 0.65 0.1 mean
mae_finetune_i1k.py:L/16,x     50e  1024 adamw 4e-3  5 0.05 0.75 0.2 mean
mae_finetune_i1k.py:H/14,x     50e  1024 adamw 4e-3  5 0.05 0.75 0.3 mean
beit_finetune_i1k.py:B/16,x   100e  1024 adamw 4e-3 20 0.05 0.65 0.1 mean
beit_finetune_i1k.py:L/16,x    50e  1024 adamw 1e-3  5 0.05 0.75 0.2 mean
mocov3_finetune_i1k.py:S,x    300e  1024 adamw 1e-3  5 0.05 1    0.1 token
mocov3_finetune_i1k.py:B,x    150e  1024 adamw 1e-3  5 0.05 1    0.1 token
dino_finetune_i1k.py:S,x      300e  1024 adamw 1e-3  5 0.05 1    0.1 token
mae_probe_i1k.py:B/16,x        90e 16384 lars  6.4  10 0    1    0   token
mae_probe_i1k.py:H/14,x        50e 16384 lars  6.4  10 0    1    0   token
mocov3_probe_i1k.py:S/16,x     90e  1024 sgd   12    0 0    1    0   token
dino_probe_i1k.py:S/16,x      100e  1024 sgd   4e-3  0 0    1    0   token
dino_probe_i1k.py:B/8,x       100e  1024 sgd   4e-3  0 0    1 0 token_and_mean
dinov2_probe_i1k.py:L/14,x  12500s  1024 sgd   2e-2  0 0    1 0 token_and_mean
beit_probe_i1k.py:B/16,x      100e  1024 adamw 4e-3  0 1e-4 1 0 token_and_mean
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize('row', ROWS, ids=[row[0] for row in ROWS])
def test_settings_are_the_authors(row):
  name, duration, batch, optimizer, *numbers, pool = row
  rate, warmup, decay, layers, depth = (float(x) for x in numbers)
  config = config_lib.load(f'{tiny.ROOT}/configs/{name}')
  experiment_lib.check(config)
  amount, unit = config.train.duration.replace('_', '').split()
  assert f'{amount}{unit[0]}' == duration
  assert config.train.batch_size == int(batch)
  kind = parts.parse(config.optim.name, 'optim.name').name
  assert kind == optimizer
  assert config.optim.learning_rate == pytest.approx(rate)
  assert float(config.optim.warmup.split()[0]) == warmup
  assert config.optim.weight_decay == decay
  assert config.optim.layer_decay == layers
  assert (config.model.stochastic_depth or 0.0) == depth
  text = config.model.pool or 'token'
  assert parts.parse(text, 'model.pool').name == pool
  assert config.optim.trainable == ('^head/' if '_probe' in name else '')
  assert config.init_from.path == 'x'
