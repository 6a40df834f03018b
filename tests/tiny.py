"""A small experiment that the tests share."""

from collections.abc import Mapping
import io
import json
import math
import pathlib
from typing import Any

import jax
import ml_collections
import pytest

from vit_jax import config as config_lib

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent

# Of configs/digits.py.
TINY = {
  'model.name': 'ViT-Ti/4',
  'model.hidden_size': 16,
  'model.mlp_dim': 32,
  'model.num_heads': 2,
  'model.depth': 1,
  'model.scan': False,
  'train.duration': '12 steps',
  'train.batch_size': 16,
  'train.log_every': '1 steps',
  'train.steps_per_call': 1,
  'data.cache': 'none',
  'objective.label_smoothing': 0.0,
  'optim.warmup': '2 steps',
  'evals.val.every': '5 steps',
  'checkpoint.every': '4 steps',
  'reporting': '',
  'mesh.data': 1,
}

# All that is random; it takes longer to compile.
RANDOM = {
  'model__depth': 2,
  'model__dropout_rate': 0.1,
  'model__stochastic_depth': 0.1,
}


class Terminal(io.StringIO):
  """What stderr is in a terminal."""

  def isatty(self) -> bool:
    return True


def config(
  options: Mapping[str, Any] | None = None, **overrides: Any
) -> ml_collections.ConfigDict:
  """Returns the tiny config; `optim__name='sgd'` sets `optim.name`.

  Args:
    options: Sets keys of `objective.options`.
    **overrides: Set other keys.
  """
  result = config_lib.load(str(ROOT / 'configs' / 'digits.py'), TINY)
  change(result, overrides)
  result.objective.options.update(options or {})
  skip_without_devices(result)
  return result


def change(
  config: ml_collections.ConfigDict, values: Mapping[str, Any], start: str = ''
) -> None:
  """Sets keys of a config: `optim__name`, or `name` with the start 'optim.'."""
  for key, value in values.items():
    config_lib.set_value(config, start + key.replace('__', '.'), value)


def skip_without_devices(config: ml_collections.ConfigDict) -> None:
  """Skips the test where the platform has too few devices for its mesh."""
  axes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
  num_needed, num_devices = (
    math.prod(max(n, 1) for n in axes),
    jax.device_count(),
  )
  if num_devices < min(num_needed, 8):  # a mesh for more is meant to be refused
    pytest.skip(f'{num_needed} devices are needed, and {num_devices} are there')


def flags(**overrides: Any) -> list[str]:
  """Returns the command line that gives the same config."""
  overrides = {k.replace('__', '.'): v for k, v in overrides.items()}
  keys = (TINY | overrides).items()
  return [f'--config={ROOT}/configs/digits.py'] + [
    f'--config.{key}={value}' for key, value in keys
  ]


def metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines of metrics.jsonl, but one that is being written."""
  text = (workdir / 'metrics.jsonl').read_text()
  lines = text[: text.rfind('\n') + 1]
  return [json.loads(line) for line in lines.splitlines()]
