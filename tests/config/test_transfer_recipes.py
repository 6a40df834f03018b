"""Fine-tuning and probes of pre-trained models, against their authors' code."""

import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.train import experiment as experiment_lib

TABLE = (tiny.TESTS / 'config' / 'recipes_transfer.txt').read_text()
ROWS = [x.split() for x in TABLE.splitlines() if not x.startswith('#')]


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
