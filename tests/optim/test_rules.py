"""What trains and how: freezing, learning rates and decay by pattern."""

import dataclasses
import functools
import re
import shutil
import sys

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import vit_jax
from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.config import resuming
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.models import layouts
from vit_jax.objectives import Purpose
from vit_jax.optim import parameter_tables
from vit_jax.optim import rules as rules_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import flops
from vit_jax.train import loop
from vit_jax.train import state as state_lib

UserError = config_lib.UserError

# How it is asked for, whether that can be asked of a scanned stack, and what
# trains then.
BELOW = ('patch_embedding', 'position_embedding', 'blocks_0', 'blocks_1')
FREEZING = {
  'head': ({'trainable': '^head/'}, True, lambda path: path[0] == 'head'),
  'upper layer': (
    {'freeze': '^(patch_|position_|blocks_[01]/)'},
    False,
    lambda path: path[0] not in BELOW,
  ),
  'norms': (
    {'trainable': 'norm'},
    True,
    lambda path: not {'norm', 'norm1', 'norm2'}.isdisjoint(path),
  ),
  'not one mlp': (
    {'freeze': 'blocks_1/mlp'},
    False,
    lambda path: path[:2] != ('blocks_1', 'mlp'),
  ),
}
SETTINGS = {
  'model__depth': 3,
  'optim__name': 'sgd',
  'optim__warmup': '0 steps',
  'optim__schedule': 'constant',
  'optim__learning_rate': 0.1,
  'optim__clip_norm': 0.5,
  'optim__weight_decay': 0.0,
  'train__ema_decay': 0.5,
}
HOWS = ({}, {'model__scan': True, 'train__accumulation': 2})


@functools.cache
def build(**overrides):
  config = tiny.config(**SETTINGS | overrides)
  experiment_lib.check(config)
  return experiment_lib.build(config)


def frozen_run(name, settings):
  """The experiment of one way to freeze."""
  keys = {f'optim__{key}': value for key, value in FREEZING[name][0].items()}
  return build(**keys, **settings)


def unrolled(params):
  """Parameters of any layout, as the unrolled model has them, by path."""
  params = layouts.unstack_layers(jax.device_get(params))
  leaves = jax.tree_util.tree_leaves_with_path(params)
  names = [
    jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in leaves
  ]
  return {
    tuple(name.split('/')): x
    for name, (_, x) in zip(names, leaves, strict=True)
  }


@functools.cache
def masked_step():
  """A step of the unrolled model with the whole gradient, masked."""
  e = build()
  objective = e.program.objective
  augment = views.train_transform(e.config, e.source.features)
  _, key = state_lib.seed_keys(e.config.seed)
  optimizer = optax.chain(
    optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9)
  )

  @jax.jit
  def step_fn(params, average, opt_state, mask, batch, step):
    rows = jnp.arange(len(batch['image']), dtype=jnp.int32)
    rng = Rng(jax.random.fold_in(key, step), rows)
    batch = augment(batch, rng.fold(Purpose.AUGMENTATION))

    def loss_fn(params):
      return objective.loss(params, {}, batch, rng)[0]

    grads = jax.jit(jax.grad(loss_fn))(params)
    grads = jax.tree.map(jnp.multiply, grads, mask)
    updates, opt_state = optimizer.update(grads, opt_state)
    params = optax.apply_updates(params, updates)
    average = jax.tree.map(lambda a, p: (a + p) / 2, average, params)
    return params, average, opt_state

  return step_fn, optimizer


@functools.cache
def masked_by_hand(name):
  """After two steps: parameters and average."""
  e, (step_fn, optimizer) = build(), masked_step()
  params = jax.device_get(e.init().params)
  mask = jax.tree_util.tree_map_with_path(
    lambda path, _: float(FREEZING[name][2](tuple(key.key for key in path))),
    params,
  )
  state = params, params, optimizer.init(params)
  for step in range(2):
    state = step_fn(*state, mask, next(e.train_batches(step)), step)
  return unrolled(state[0]), unrolled(state[1])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'scan'),
  [
    ('head', True),
    ('norms', True),
    ('upper layer', False),
    ('not one mlp', False),
  ],
)
def test_equals_a_gradient_masked_by_hand(name, scan):
  """That of an unrolled model."""
  e = frozen_run(name, HOWS[scan])
  state = e.init()
  start = unrolled(state.params)
  for step in range(2):
    batch = next(e.train_batches(step))
    state, metrics = e.program.train_step(state, batch, np.int32(step))
    assert metrics['ok']
  expected, average = masked_by_hand(name)
  for path, x in unrolled(state.params).items():
    np.testing.assert_allclose(x, expected[path], rtol=1e-4, atol=1e-6)
    if not FREEZING[name][2](path):
      np.testing.assert_array_equal(x, start[path])
  for path, x in unrolled(state.eval_params).items():
    np.testing.assert_allclose(x, average[path], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('name', FREEZING)
def test_frozen_parameters_cost_nothing(name):
  """Neither memory of optimizer and average, nor products; scanned or not."""
  trains, counts = FREEZING[name][2], []
  for settings in HOWS[: 1 + FREEZING[name][1]]:
    e = frozen_run(name, settings)
    state = e.program.abstract_state()
    sizes = {path: p.size for path, p in e.program.rules.parameters.items()}
    trained = sum(
      sizes[path] for path in sizes if trains(tuple(path.split('/')))
    )
    for tree in (state.opt_state, state.ema_params):
      assert sum(x.size for x in jax.tree.leaves(tree)) == trained
    batch = next(e.train_batches(0))
    traced = e.program.train_step.trace(state, batch, np.int32(0))
    assert flops.count_jaxpr(traced.jaxpr) == e.program.flops.step
    counts.append(e.program.flops)
  assert counts[0] == counts[-1]
  forward, step, everything = dataclasses.astuple(counts[0])
  assert forward < step < everything


def test_products_of_the_head_and_of_one_layer():
  """Counted by hand: B = 16, T = 4, D = 16, M = 32, 10 classes."""
  whole = build().program.flops
  head = frozen_run('head', HOWS[0]).program.flops
  layer = frozen_run('upper layer', HOWS[0]).program.flops
  assert whole.step == whole.everything
  assert {x.forward for x in (whole, head, layer)} == {whole.forward}
  head_product = 2 * 16 * 16 * 10
  assert head.step == whole.forward + head_product  # of its weights
  products = 2 * 16 * 4 * (4 * 16 * 16 + 2 * 4 * 16 + 2 * 16 * 32)
  # Of weights and inputs; but no input below norm1 of the lowest layer.
  expected = whole.forward + 2 * products + 2 * head_product
  assert layer.step == expected


@pytest.mark.slow
def test_resumes_to_the_bit_and_loads_whole(tmp_path):
  config = tiny.config(
    model__depth=4,
    model__scan=True,
    train__accumulation=2,
    optim__freeze='^(patch_|blocks_./mlp)',
    optim__weight_decay=0.1,
  )
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  assert loop.run(config, str(whole)).status == 0
  shutil.copytree(whole, resumed)
  (resumed / 'DONE').unlink()
  shutil.rmtree(resumed / 'checkpoints' / '12')
  assert loop.run(config, str(resumed)).status == 0
  params = [vit_jax.load(path).params for path in (whole, resumed)]
  jax.tree.map(np.testing.assert_array_equal, *params)
  kernel = params[0]['blocks']['mlp']['up']['kernel']
  assert kernel.shape == (4, 16, 32)
  images = np.zeros((1, 8, 8, 1), np.uint8)
  assert vit_jax.load(whole).predict(images).shape == (1, 10)


def abstract(scan=False, depth=3):
  model = models.create_model(
    'ViT-Ti/4',
    5,
    hidden_size=16,
    mlp_dim=32,
    num_heads=2,
    depth=depth,
    scan=scan,
  )
  return models.abstract_params(model, (8, 8, 3))


def make(params=None, **settings):
  config = tiny.config(**{f'optim__{k}': v for k, v in settings.items()})
  rules_lib.check(config)
  return rules_lib.make(config.optim, abstract() if params is None else params)


def test_layer_decay_is_that_of_beit():
  """The embedding is layer 0 and the head L + 1 of get_num_layer_for_vit."""
  parameters = make(layer_decay=0.75).parameters
  ids = {'patch_embedding': 0, 'class_token': 0, 'position_embedding': 0}
  ids |= {'blocks_0': 1, 'blocks_1': 2, 'blocks_2': 3, 'norm': 4, 'head': 4}
  actual = {name.split('/')[0] for name in parameters}
  assert actual == ids.keys()
  for name, parameter in parameters.items():
    assert parameter.factor == 0.75 ** (4 - ids[name.split('/')[0]])
  # One that all layers share is L + 1, too.
  model = models.create_model(
    'ViT-Ti/4', 0, positions='learned + relative_bias'
  )
  params = models.abstract_params(model, (8, 8, 3))
  parameters = make(params, layer_decay=0.75).parameters
  assert parameters['relative_position_bias'].factor == 1


@pytest.mark.parametrize('scan', [False, True])
def test_factors_and_decay_of_each_array(scan):
  """Of ones, after the learning rate's factor and the weight decay."""
  settings = {
    'layer_decay': 0.5,
    'rules': (('^head/', 10.0, 0.0), ('blocks_1/mlp', 2.0, 0.3)),
    'weight_decay': 0.1,
    'clip_norm': 0.0,
  }
  params = abstract(scan)
  params = jax.tree.map(lambda x: jnp.ones(x.shape), params)
  actual = make(params, **settings).scale(params, 0)
  actual = {
    '/'.join(path): float(x.max()) for path, x in unrolled(actual).items()
  }
  assert actual['head/kernel'] == actual['head/bias'] == 10
  assert actual['blocks_1/mlp/up/bias'] == 2 * 0.25
  assert actual['blocks_1/norm1/scale'] == 0.25
  assert actual['blocks_2/norm1/scale'] == 0.5
  assert actual['patch_embedding/kernel'] == 0.5**4
  config = tiny.config(**{f'optim__{k}': v for k, v in settings.items()})
  optimizer = optim.make_optimizer(config.optim)
  zeros = jax.tree.map(jnp.zeros_like, params)
  decayed, _ = optimizer.update(zeros, optimizer.init(params), params)
  decayed = unrolled(decayed)
  expected = {
    ('head', 'kernel'): 0.0,
    ('blocks_1', 'mlp', 'up', 'bias'): 0.3,
    ('blocks_1', 'attention', 'out', 'kernel'): 0.1,
    ('blocks_0', 'mlp', 'up', 'kernel'): 0.1,
    ('blocks_0', 'mlp', 'up', 'bias'): 0.0,
  }
  for path, decay in expected.items():
    np.testing.assert_allclose(decayed[path], decay, rtol=1e-6)


@pytest.mark.parametrize('scan', [False, True])
def test_held_parameters_begin_late(scan):
  params = jax.tree.map(lambda x: jnp.ones(x.shape), abstract(scan))
  config = tiny.config()
  rules = rules_lib.make(config.optim, params, held=('blocks_1/mlp', 5))
  for step, factor in ((0, 0.0), (4, 0.0), (5, 1.0)):
    for path, x in unrolled(rules.scale(params, step)).items():
      is_held = path[:2] == ('blocks_1', 'mlp')
      np.testing.assert_array_equal(x, factor if is_held else 1.0)


def test_ten_times_the_rate_of_the_head():
  """After one step, against a step without rules."""
  e = build(optim__rules=(('^head/', 10.0, None),))
  batch, start = next(e.train_batches(0)), jax.device_get(e.init().params)
  step_fn, optimizer = masked_step()
  ones = jax.tree.map(lambda _: 1.0, start)
  plain = step_fn(start, start, optimizer.init(start), ones, batch, 0)[0]
  state, _ = e.program.train_step(e.init(), batch, np.int32(0))
  before, plain, ruled = map(unrolled, (start, plain, state.params))
  for path, x in before.items():
    factor = 10 if path[0] == 'head' else 1
    np.testing.assert_allclose(
      ruled[path] - x, factor * (plain[path] - x), rtol=1e-4, atol=1e-6
    )


def test_a_scanned_stack_trains_in_all_layers_alike():
  for name, (keys, is_alike, _) in FREEZING.items():
    config = tiny.config(**{f'optim__{key}': x for key, x in keys.items()})
    rules = rules_lib.make(config.optim, abstract())
    assert rules.trains_layers_alike == is_alike, name
    if is_alike:
      assert rules_lib.make(config.optim, abstract(scan=True)) == rules
    else:
      with pytest.raises(UserError, match=r'set config\.model\.scan=False$'):
        rules_lib.make(config.optim, abstract(scan=True))


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'trainable': 'haed'}, "trainable 'haed' matches no parameter; there are"),
    ({'freeze': 'blocks_9/'}, "freeze 'blocks_9/' matches no parameter"),
    ({'freeze': '.'}, 'leave nothing to train'),
    ({'freeze': 'a(b'}, "freeze 'a(b' is no regular expression"),
    ({'trainable': '*'}, "trainable '*' is no regular expression"),
    ({'rules': (('x+', 1.0, None),)}, "rules[0] 'x+' matches no parameter"),
    ({'rules': (('(', 1.0, None),)}, "rules[0] '(' is no regular"),
    ({'rules': (('', 2.0, None), ('head', 1.0, None))}, 'rules[1]'),
    ({'rules': (('head', 0.0, None),)}, 'config.optim.freeze'),
    ({'rules': ('head', 1.0, 0.0)}, "rules[0] is 'head'"),
    ({'rules': (('head', 1.0, -1.0),)}, 'rules[0] is'),
    ({'layer_decay': 0.0}, 'layer_decay is 0.0'),
  ],
)
def test_mistakes_are_named(settings, message):
  with pytest.raises(UserError, match=r'^[^\n]*$') as error:
    make(**settings)
  assert message in str(error.value)
  assert 'config.optim.' in str(error.value)
  if 'matches no parameter' in message:
    assert 'blocks_0/' in str(error.value)


def test_layer_decay_needs_layers():
  with pytest.raises(UserError, match='has no stack of blocks'):
    make({'head': {'kernel': jnp.ones((2, 3))}}, layer_decay=0.5)


def test_rules_on_the_command_line(monkeypatch):
  """Nested tuples, there and back through config.json."""
  argv = ['main', *tiny.flags()]
  argv += ["--config.optim.rules=(('^head/', 10.0, 0.0), ('norm', 1, None))"]
  argv += ['--config.optim.trainable=^head/']
  monkeypatch.setattr(sys, 'argv', argv)
  flag_values = flags.FlagValues()
  holder = cli.define_config(flag_values)
  cli.parse_flags(argv, flag_values)
  optim_config = holder.value.optim
  rules = (('^head/', 10.0, 0.0), ('norm', 1, None))
  assert optim_config.rules == rules and optim_config.trainable == '^head/'
  stored = config_lib.to_dict(holder.value)
  assert stored['optim']['rules'][1] == ['norm', 1, None]
  assert config_lib.from_dict(stored).optim.rules == rules
  assert not resuming.differences(config_lib.from_dict(stored), holder.value)


def test_the_table_says_what_trains_and_how():
  rules = make(
    abstract(depth=12),
    freeze='blocks_([0-9]|10)/',
    rules=(('^head/', 10.0, 0.0),),
    weight_decay=0.1,
  )
  cells = [
    re.split('  +', line)
    for line in parameter_tables.rules_table(rules).text().splitlines()
  ]
  assert ['blocks_0 to blocks_10', '132', '24,464', 'no', '-', '-'] in cells
  assert ['blocks_11: kernel', '4', '2,048', 'yes', 'x 1', '0.1'] in cells
  assert ['head', '2', '85', 'yes', 'x 10', '0'] in cells
