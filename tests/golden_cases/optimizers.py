"""LARS and LAMB, for steps with different learning rates."""

import re

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.config import parts


def _settings(name, case):
  """Returns the keys of `config.optim` for a case."""
  fields = case.fields
  matrices = [name for name, x in fields['shapes'].items() if len(x) > 1]
  changes = {
    'weight_decay': fields['weight_decay'],
    'decay_pattern': f'^({"|".join(map(re.escape, matrices))})$',
  }
  option_names = ('b1', 'b2', 'eps', 'momentum', 'trust_coefficient')
  options = {key: fields[key] for key in option_names if key in fields}
  options['adapt_all'] = fields.get('always_adapt', False)
  changes['name'] = str(parts.Part(name, (), options))
  changes['clip_norm'] = fields.get('max_grad_norm') or 0.0
  return changes


def _answers(name, case):
  config = config_lib.default()
  for key, value in _settings(name, case).items():
    config_lib.set_value(config, f'optim.{key}', value)
  optim.check(config)
  optimizer = optim.make_optimizer(config.optim)
  names, arrays = list(case.fields['shapes']), case.inputs
  params = {name: jnp.asarray(arrays[f'param_{name}']) for name in names}
  state, answers = optimizer.init(params), {}
  for i, rate in enumerate(case.fields['lr']):
    grads = {name: jnp.asarray(arrays[f'grad_{name}_{i}']) for name in names}
    direction, state = optimizer.update(grads, state, params)
    params = jax.tree.map(lambda p, d, lr=rate: p - lr * d, params, direction)
    answers |= {f'param_{name}_{i}': x for name, x in params.items()}
  trace = optax.tree.get(state, 'trace', {})
  return answers | {f'momentum_{name}': x for name, x in trace.items()}


def lars(case):
  """Answers a case of LARS."""
  return _answers('lars', case)


def lamb(case):
  """Answers a case of LAMB."""
  return _answers('lamb', case)


CHECKS = {'lars': lars, 'lamb': lamb, 'lamb_plain': lamb}
