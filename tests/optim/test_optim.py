"""Optimizers: against formulas written out in NumPy, in every layout."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.config import parts
from vit_jax.models import layouts
from vit_jax.models import stack
from vit_jax.optim import optimizers
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.runs import checkpoint
from vit_jax.train import experiment as experiment_lib

UserError = config_lib.UserError

RATE, DECAY, STEPS = 0.1, 0.3, 3
B1, B2, EPS, MOMENTUM, TRUST = 0.8, 0.95, 1e-3, 0.9, 0.02
# What formulas are compared for: here each is at its default, or 0.
SETTINGS = {'learning_rate': RATE, 'weight_decay': DECAY, 'clip_norm': 0.0}
OPTIONS = {
  'b1': B1,
  'b2': B2,
  'eps': EPS,
  'momentum': MOMENTUM,
  'trust_coefficient': TRUST,
}
NAMES = tuple(optimizers.OPTIMIZERS)


def make_config(name, options=None, **settings):
  """A config; an optimizer takes the options that it has."""
  config = config_lib.default()
  signature = inspect.signature(config_lib.wing(optimizers.OPTIMIZERS[name]))
  options = OPTIONS | (options or {})
  options = {k: x for k, x in options.items() if k in signature.parameters}
  text = str(parts.Part(name, (), options))
  tiny.change(config, SETTINGS | {'name': text} | settings, 'optim.')
  optim.check(config)
  return config


# Each formula maps a parameter, its gradients and its decay to the parameter
# after all steps: p and g are arrays of one layer in float64.


def adam(gradients):
  m = v = 0.0
  for t, g in enumerate(gradients, 1):
    m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
    yield m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


def adamw(name, p, gradients, decay):
  for u in adam(gradients):
    p = p - RATE * (u + decay * p)
  return p


def adam_big_vision(name, p, gradients, decay):
  for u in adam(gradients):  # the schedule is 1
    p = p - RATE * u - decay * p
  return p


def sgd(name, p, gradients, decay):
  m = 0.0
  for g in gradients:
    m = MOMENTUM * m + g + decay * p
    p = p - RATE * m
  return p


def lamb(name, p, gradients, decay):
  for u in adam(gradients):
    u = u + decay * p
    if name.endswith('kernel'):
      u = u * np.linalg.norm(p) / np.linalg.norm(u)
    p = p - RATE * u
  return p


def lars(name, p, gradients, decay):
  m = 0.0
  for g in gradients:
    if name.endswith('kernel'):
      g = g + decay * p
      g = g * TRUST * np.linalg.norm(p) / np.linalg.norm(g)
    m = MOMENTUM * m + g
    p = p - RATE * m
  return p


def lion(name, p, gradients, decay):
  m = 0.0
  for g in gradients:
    p = p - RATE * (np.sign(B1 * m + (1 - B1) * g) + decay * p)
    m = B2 * m + (1 - B2) * g
  return p


def adafactor(name, p, gradients, decay):
  factored = name.endswith(('up/kernel', 'down/kernel'))  # [D, M], [M, D]
  m = v = rows = columns = 0.0
  for t, g in enumerate(gradients, 1):
    b2 = min(B2, 1 - t**-0.8)
    square = g**2 + 1e-30
    rows = b2 * rows + (1 - b2) * square.mean(-1)
    columns = b2 * columns + (1 - b2) * square.mean(0)
    v = b2 * v + (1 - b2) * square
    estimate = np.multiply.outer(rows, columns) / rows.mean() if factored else v
    u = g / np.sqrt(estimate)
    u = u / max(1, np.sqrt(np.mean(u**2)))
    m = B1 * m + (1 - B1) * u
    p = p - RATE * (m + decay * p)
  return p


def orthogonal(x):
  """Five Newton-Schulz steps on a matrix, as Keller Jordan has them."""
  x = x / np.linalg.norm(x)
  for _ in range(5):
    gram = x @ x.T
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
  return x


def muon_update(x):
  return 0.2 * np.sqrt(max(x.shape)) * orthogonal(x)


def muon(name, p, gradients, decay):
  if not re.match(r'blocks_\d+/.*kernel', name):
    return adamw(name, p, gradients, decay)
  m = 0.0
  for t, g in enumerate(gradients, 1):
    m = MOMENTUM * m + (1 - MOMENTUM) * g
    u = MOMENTUM * m / (1 - MOMENTUM ** (t + 1))  # Nesterov's
    u = u + (1 - MOMENTUM) * g / (1 - MOMENTUM**t)
    if 'qkv' in name:  # [D, 3, H, K]
      u = [muon_update(u[:, i].reshape(len(u), -1)) for i in range(3)]
      u = np.stack(u, axis=1).reshape(p.shape)
    else:  # [H, K, D], [D, M]
      u = muon_update(u.reshape(-1, u.shape[-1])).reshape(p.shape)
    p = p - RATE * (u + decay * p)
  return p


FORMULAS = {
  formula.__name__: formula
  for formula in (
    adamw,
    adam_big_vision,
    sgd,
    lamb,
    lars,
    lion,
    adafactor,
    muon,
  )
}


# Of which an update depends on more than its own element's gradients.
BY_ARRAY = ('adafactor', 'lamb', 'lars', 'muon')


def test_there_is_a_formula_for_each():
  assert set(FORMULAS) == set(NAMES)


@functools.cache
def shapes(scan=False):
  model = models.create_model(
    'ViT-Ti/4',
    5,
    hidden_size=32,
    mlp_dim=40,
    num_heads=2,
    depth=2,
    scan=scan,
  )
  params = models.abstract_params(model, (8, 8, 3))
  # One of a kind is enough.
  del params['norm'], params['class_token'], params['patch_embedding']['bias']
  for block in (x for name, x in params.items() if name.startswith('blocks')):
    del (
      block['norm1']['bias'],
      block['norm2'],
      block['attention']['out']['bias'],
    )
    del block['mlp']['up']['bias'], block['mlp']['down']['bias']
  return params


@functools.cache
def draws():
  """Parameters of the unrolled model, and the gradients of each step."""
  rng = np.random.default_rng(0)
  trees = [
    jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(np.float32), shapes()
    )
    for _ in range(1 + STEPS)
  ]
  return trees[0], trees[1:]


def by_name(tree):
  """A tree of any layout as the unrolled model has it, by path."""
  result = {}
  for path, x in jax.tree_util.tree_leaves_with_path(jax.device_get(tree)):
    names, is_stacked = stack.layer_names(path, x)
    result |= zip(names, x if is_stacked else [x], strict=True)
  return result


def laid_out(layout):
  """The same numbers scanned, or scanned where a part does not train."""
  trees = [draws()[0], *draws()[1]]
  if layout != 'unrolled':
    like = shapes(scan=True)
    trees = [layouts.relayout(tree, like) for tree in trees]
  if layout == 'frozen':
    config = make_config('adamw', freeze='^(position|blocks_./mlp)')
    rules = rules_lib.make(config.optim, like)
    trees = [rules.trained(tree) for tree in trees]
  return trees[0], trees[1:]


@functools.cache  # compiled functions are shared
def make(name):
  """Returns an optimizer, and a step of it."""
  optimizer = optim.make_optimizer(make_config(name).optim)

  @jax.jit
  def step(params, state, gradients):
    direction, state = optimizer.update(gradients, state, params)
    return jax.tree.map(lambda p, d: p - RATE * d, params, direction), state

  return optimizer, step


@functools.cache
def trained(name, layout):
  """Parameters and state after each step, the start included."""
  optimizer, step = make(name)
  params, gradients = laid_out(layout)
  state = optimizer.init(params)
  history = [(params, state)]
  for g in gradients:
    params, state = step(params, state, g)
    history.append((params, state))
  return history


@pytest.mark.parametrize('name', NAMES)
def test_equals_the_formula(name):
  params, gradients = draws()
  gradients = [by_name(g) for g in gradients]
  actual = by_name(trained(name, 'unrolled')[-1][0])
  for path, p in by_name(params).items():
    path_gradients = [g[path].astype(np.float64) for g in gradients]
    decay = DECAY * path.endswith('kernel')
    expected = FORMULAS[name](path, p.astype(np.float64), path_gradients, decay)
    np.testing.assert_allclose(
      actual[path], expected, rtol=1e-3, atol=1e-4, err_msg=path
    )


@pytest.mark.parametrize(
  ('name', 'layout'),
  [*((name, 'scanned') for name in NAMES)]
  + [(name, 'frozen') for name in BY_ARRAY],
)
def test_the_same_in_every_layout(name, layout):
  """Scanned, and where a part does not train."""
  expected = by_name(trained(name, 'unrolled')[-1][0])
  actual = by_name(trained(name, layout)[-1][0])
  frozen = {x for x in expected if x.startswith('position') or '/mlp/' in x}
  assert actual.keys() == expected.keys() - (
    frozen if layout == 'frozen' else {}
  )
  for path, x in actual.items():
    np.testing.assert_allclose(
      x, expected[path], rtol=1e-4, atol=1e-5, err_msg=path
    )


@pytest.mark.parametrize('name', NAMES)
def test_a_state_changes_its_layout(name):
  """Two steps scanned, the third unrolled, and the other way round."""
  for first, then in (('scanned', 'unrolled'), ('unrolled', 'scanned')):
    half, like = trained(name, first)[-2], trained(name, then)[-2]
    params, state = layouts.relayout(half, like)
    assert jax.tree.structure(state) == jax.tree.structure(like[1])
    params, _ = make(name)[1](params, state, laid_out(then)[1][-1])
    expected = by_name(trained(name, then)[-1][0])
    for path, x in by_name(params).items():
      np.testing.assert_allclose(x, expected[path], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', BY_ARRAY)
def test_the_same_on_a_mesh(name):
  config = tiny.config(mesh__data=1, mesh__fsdp=2, mesh__tensor=2)
  mesh = mesh_lib.make_mesh(config.mesh)
  shardings = sharding.shard_params(config.mesh, mesh.shape, shapes(scan=True))
  state = trained(name, 'scanned')[0], laid_out('scanned')[1]
  (params, state), gradients = jax.device_put(
    state, sharding.tree_shardings(mesh, shardings, state)
  )
  step = make(name)[1]
  for g in gradients:
    params, state = step(params, state, g)
  expected = by_name(trained(name, 'scanned')[-1][0])
  for path, x in by_name(params).items():
    np.testing.assert_allclose(x, expected[path], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['adafactor', 'muon'])
def test_a_checkpoint_changes_its_layout(name, tmp_path):
  """From a scanned stack on two devices to an unrolled one, on one."""
  settings = {
    'model__depth': 2,
    'model__hidden_size': 32,
    'optim__name': name,
    'mesh__min_size': 0,
  }
  scanned, plain = (
    experiment_lib.build(tiny.config(**settings | changes)).program
    for changes in ({'model__scan': True, 'mesh__fsdp': 2}, {})
  )
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda x: jax.device_put(
      rng.integers(100, size=x.shape).astype(x.dtype), x.sharding
    ),
    scanned.abstract_state(),
  )
  section = plain.config.checkpoint
  with checkpoint.Checkpointer(tmp_path, section) as checkpoints:
    checkpoints.save(3, state)
  with checkpoint.Checkpointer(tmp_path, section) as checkpoints:
    restored, _, _ = checkpoints.restore(plain.state_to_read)
  restored = plain.adopt(restored)
  abstract = plain.abstract_state()
  assert jax.tree.structure(restored) == jax.tree.structure(abstract)
  jax.tree.map(
    np.testing.assert_array_equal,
    restored,
    layouts.relayout(jax.device_get(state), abstract),
  )
  # What is as large as its parameter is laid out as that is.
  path, moments = 'blocks/mlp/up/kernel', 0
  sharded = scanned.param_shardings[path]
  for keys, x in jax.tree_util.tree_leaves_with_path(state.opt_state):
    if sharding.path_name(keys).endswith(path):
      is_moment = x.shape == sharded.shape
      spec = sharded.spec if is_moment else ()
      assert x.sharding.spec == jax.sharding.PartitionSpec(*spec)
      moments += is_moment
  assert moments == 1 and 'fsdp' in sharded.spec


def test_adamw_equals_that_of_optax():
  """Our direction times the rate is the update, also when clipped."""
  config = make_config('adamw', clip_norm=0.5, decay_pattern='').optim
  rng = np.random.default_rng(0)
  params, grads = jnp.asarray(rng.normal(size=(2, 10)))
  optimizer = optim.make_optimizer(config)
  reference = optax.chain(
    optax.clip_by_global_norm(0.5),
    optax.adamw(RATE, B1, B2, EPS, weight_decay=DECAY),
  )
  direction, _ = optimizer.update(grads, optimizer.init(params), params)
  update, _ = reference.update(grads, reference.init(params), params)
  np.testing.assert_allclose(-RATE * direction, update, rtol=1e-5)


@pytest.mark.parametrize('name', NAMES)
def test_momentum_in_half_the_memory(name):
  """The first moment alone; what it loses is bfloat16's rounding."""
  size, rng = 100, np.random.default_rng(0)
  kernel = {'kernel': jnp.asarray(rng.normal(size=(10, 10)))}
  params = {'blocks_0': {'mlp': {'up': kernel}}}
  results = []
  for dtype in ('float32', 'bfloat16'):
    config = make_config(name, {'momentum_dtype': dtype}).optim
    optimizer = optim.make_optimizer(config)
    state = optimizer.init(params)
    for scale in (1.0, 0.7):
      grads = jax.tree.map(lambda x, s=scale: s * x**3, params)
      direction, state = jax.jit(optimizer.update)(grads, state, params)
    results.append(jax.tree.leaves(direction)[0])
    actual = [x.dtype.name for x in jax.tree.leaves(state) if x.size == size]
    has_second = name in ('adamw', 'adam_big_vision', 'lamb', 'adafactor')
    assert sorted(actual) == sorted([dtype] + ['float32'] * has_second)
  np.testing.assert_allclose(*results, rtol=5e-2, atol=2e-2)


def test_decay_follows_the_pattern():
  params = {'norm': {'scale': jnp.ones(3)}, 'head': {'kernel': jnp.ones(3)}}
  zeros = optax.tree.zeros_like(params)
  optimizer = optim.make_optimizer(make_config('adamw', weight_decay=0.5).optim)
  direction, _ = optimizer.update(zeros, optimizer.init(params), params)
  np.testing.assert_allclose(direction['head']['kernel'], 0.5)
  np.testing.assert_allclose(direction['norm']['scale'], 0)


def test_a_factor_scales_all_decays():
  params = {'norm': {'scale': jnp.ones(3)}, 'head': {'kernel': jnp.ones(3)}}
  zeros = optax.tree.zeros_like(params)
  for name in ('adamw', 'sgd', 'muon'):
    config = make_config(
      name, {'momentum': 0.0, 'b1': 0.0}, weight_decay=0.5
    ).optim
    config.rules = (('norm', 1.0, 0.1),)
    if name == 'muon':
      params['blocks_0'] = {'mlp': {'up': {'kernel': jnp.ones((2, 2))}}}
      zeros = optax.tree.zeros_like(params)
    optimizer = optim.make_optimizer(config)
    actual, _ = optimizer.update(zeros, optimizer.init(params), params, decay=3)
    np.testing.assert_allclose(actual['head']['kernel'], 1.5, rtol=1e-6)
    np.testing.assert_allclose(actual['norm']['scale'], 0.3, rtol=1e-6)


@pytest.mark.parametrize('layout', ['unrolled', 'scanned'])
def test_clipping_of_each_parameter(layout):
  settings = {'clip': 'each(1.0)', 'weight_decay': 0.0}
  config = make_config('sgd', {'momentum': 0.0}, **settings).optim
  params, (grads, *_) = laid_out(layout)
  optimizer = optim.make_optimizer(config)
  update = jax.jit(optimizer.update)
  actual = by_name(update(grads, optimizer.init(params), params)[0])
  for path, g in by_name(grads).items():
    scale = min(1, 1 / (np.linalg.norm(g) + 1e-6))
    np.testing.assert_allclose(actual[path], scale * g, rtol=1e-4, atol=1e-7)
  assert any(np.linalg.norm(g) > 1 for g in by_name(grads).values())


def test_decay_as_big_vision_has_it_does_not_know_the_rate():
  params = {'head': {'kernel': jnp.full((2, 2), 8.0)}}
  zeros = optax.tree.zeros_like(params)
  for rate, schedule in ((1e-3, 1.0), (1e-2, 0.25)):
    config = make_config(
      'adam_big_vision', learning_rate=rate, weight_decay=1e-2
    )
    optimizer = optim.make_optimizer(config.optim)
    direction, _ = optimizer.update(zeros, optimizer.init(params), params)
    step = rate * schedule * direction['head']['kernel']
    np.testing.assert_allclose(step, schedule * 1e-2 * 8, rtol=1e-5)
  config = make_config('adam_big_vision', learning_rate=0.0)
  optimizer = optim.make_optimizer(config.optim)
  direction, _ = optimizer.update(zeros, optimizer.init(params), params)
  np.testing.assert_array_equal(direction['head']['kernel'], 0)


def test_updates_of_muon_are_nearly_orthogonal():
  """Of query, key and value each, and as large as Adam's would be."""
  before, after = (by_name(x) for x, _ in trained('muon', 'unrolled')[:2])
  actual = {
    path: (p - after[path]) / RATE - DECAY * p for path, p in before.items()
  }
  qkv = actual['blocks_1/attention/qkv/kernel'].transpose(1, 0, 2, 3)
  matrices = [x.reshape(32, 32) for x in qkv]
  matrices += [actual['blocks_0/attention/out/kernel'].reshape(32, 32)]
  matrices += [actual['blocks_1/mlp/down/kernel']]
  for x in matrices:
    singular = np.linalg.svd(x, compute_uv=False)
    singular /= 0.2 * np.sqrt(max(x.shape))
    assert np.median(singular) > 0.6 and singular.max() < 1.3
    assert 0.13 < np.sqrt(np.mean(x**2)) < 0.23


def test_muon_needs_a_hidden_matrix():
  head = {'head': {'kernel': jnp.ones((2, 3))}}
  with pytest.raises(UserError, match=r'no kernel of a block[^\n]*$'):
    optim.make_optimizer(make_config('muon').optim).init(head)


def test_adaptive_clipping_of_patches_of_volumes():
  config = make_config(
    'sgd', {'momentum': 0.0}, clip='adaptive(0.5)', weight_decay=0.0
  ).optim
  rng = np.random.default_rng(0)
  p, g = rng.standard_normal((2, 4, 2, 2, 1, 3)).astype(np.float32)
  g[0] *= 10  # the first slice of the patches
  params, grads = ({'patch_embedding': {'kernel': x}} for x in (p, g))
  optimizer = optim.make_optimizer(config)
  actual = optimizer.update(grads, optimizer.init(params), params)[0]
  norm, size = (np.sqrt((x**2).sum((0, 1, 2, 3))) for x in (g, p))
  expected = g * np.minimum(1, 0.5 * size / norm)
  np.testing.assert_allclose(
    actual['patch_embedding']['kernel'], expected, rtol=1e-5
  )


UNITS = {
  'blocks_1/attention/qkv/kernel': 0,  # [D, 3, H, K]
  'blocks_1/attention/out/kernel': (0, 1),  # [H, K, D]
  'blocks_1/mlp/up/kernel': 0,
  'patch_embedding/kernel': (0, 1, 2),
  'position_embedding': 2,  # [1, T, D]
  'blocks_0/attention/qkv/bias': (1, 2),  # [3, H, K]
  'blocks_0/norm1/scale': 0,
}


@pytest.mark.parametrize('layout', ['unrolled', 'scanned'])
def test_adaptive_clipping_of_each_unit(layout):
  config = make_config(
    'sgd', {'momentum': 0.0}, clip='adaptive(0.5)', weight_decay=0.0
  ).optim
  params, (grads, *_) = laid_out(layout)
  # Some units are clipped, and one is zero.
  grads = jax.tree.map(lambda g: 0.5 * g, grads)
  params['patch_embedding']['kernel'][..., 0] = 0
  optimizer = optim.make_optimizer(config)
  update = jax.jit(optimizer.update)
  actual = by_name(update(grads, optimizer.init(params), params)[0])
  params, grads = by_name(params), by_name(grads)
  for path, axes in UNITS.items():
    g, p = grads[path], params[path]
    norm, size = (np.sqrt((x**2).sum(axes, keepdims=True)) for x in (g, p))
    scale = 0.5 * np.maximum(size, 1e-3) / norm
    expected = np.where(scale < 1, scale * g, g)
    np.testing.assert_allclose(actual[path], expected, rtol=1e-5)
  head = actual['head/kernel']
  np.testing.assert_array_equal(head, grads['head/kernel'])
  unit = actual['patch_embedding/kernel'][..., 0]
  np.testing.assert_allclose(np.linalg.norm(unit), 0.5e-3, rtol=1e-5)


def test_accumulation_needs_groups_only_where_there_is_sam():
  config = make_config('adamw')
  config.train.accumulation = 4
  optim.check(config)
  config.optim.sam = 'sam(0.1)'
  with pytest.raises(UserError, match=r'a multiple of.*accumulation=4'):
    optim.check(config)


@pytest.mark.parametrize('name', ['lamb', 'lars'])
def test_all_parameters_may_be_adapted(name):
  """Each update then has the norm of its parameter; that of zeros stays."""
  params = {'bias': jnp.arange(1.0, 4.0), 'scale': jnp.zeros(3)}
  grads = {'bias': jnp.array([3.0, 0.0, 4.0]), 'scale': jnp.ones(3)}

  def update(adapt_all):
    options = {'adapt_all': adapt_all, 'trust_coefficient': 1.0}
    config = make_config(name, options)
    optimizer = optim.make_optimizer(config.optim)
    return optimizer.update(grads, optimizer.init(params), params)[0]

  plain, adapted = update(False), update(True)
  norm = np.linalg.norm(params['bias'])
  assert np.linalg.norm(adapted['bias']) == pytest.approx(norm, rel=1e-4)
  assert np.linalg.norm(plain['bias']) != pytest.approx(norm, rel=1e-2)
  np.testing.assert_array_equal(adapted['scale'], plain['scale'])
