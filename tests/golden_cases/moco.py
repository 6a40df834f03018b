"""MoCo v3: loss, heads, a whole step, positions and schedules."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data import features
from vit_jax.data.device.rng import Rng
from vit_jax.models import embedding
from vit_jax.models import projection
from vit_jax.models import values
from vit_jax.objectives import mocov3
from vit_jax.weights import initial
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit


def loss(case):
  """The losses, and their gradients with respect to the queries."""
  q1, q2, k1, k2 = (jnp.asarray(case.inputs[k]) for k in 'q1 q2 k1 k2'.split())
  t = case.fields['temperature']

  def total(q1, q2):
    return mocov3.contrast(q1, k2, t) + mocov3.contrast(q2, k1, t)

  value, grads = jax.value_and_grad(total, (0, 1))(q1, q2)
  return {
    'loss_12': mocov3.contrast(q1, k2, t),
    'loss_21': mocov3.contrast(q2, k1, t),
    'loss': value,
    'grad_q1': grads[0],
    'grad_q2': grads[1],
  }


@contextlib.contextmanager
def _opened(case, prefix=''):
  """Yields the arrays of a case's weights whose names have a prefix."""
  with containers.open_arrays(case.weights) as arrays:
    named = base.Renamed(arrays, lambda name: name.removeprefix(prefix))
    yield named


def _statistics(arrays, name, layers):
  """Returns the running statistics of a head in a file."""
  return {
    f'norm_{i}': {
      'mean': arrays.read(f'{name}.{3 * i + 1}.running_mean'),
      'var': arrays.read(f'{name}.{3 * i + 1}.running_var'),
    }
    for i in range(layers)
  }


def _layers(arrays, name):
  """Returns the number of dense layers of a head in a file."""
  names = [x.split('.') for x in arrays.shapes if x.startswith(f'{name}.')]
  return 1 + max(int(x[1]) for x in names) // 3


def _head(arrays, part, prefix):
  """Returns a head of a file: module, parameters and statistics."""
  layers = _layers(arrays, prefix)
  widths = [arrays.shapes[f'{prefix}.{3 * i}.weight'][0] for i in range(layers)]
  module = projection.BatchNormMlp(tuple(widths))
  inputs = arrays.shapes[f'{prefix}.0.weight'][1]
  abstract = jax.eval_shape(
    lambda: {part: module.init(jax.random.key(0), jnp.zeros((1, inputs)))}
  )
  abstract = {part: abstract[part]['params']}
  rules = moco.mlp_rules(part, prefix)
  params = tables.read(arrays, rules, abstract, '.*')[part]
  return module, params, _statistics(arrays, prefix, layers)


def heads(case):
  """Projector and predictor in training, then in evaluation."""
  with _opened(case) as arrays:
    projector, predictor = (
      _head(arrays, name, name) for name in ('projector', 'predictor')
    )
  x, y = jnp.asarray(case.inputs['x']), jnp.asarray(case.inputs['x'])
  answers, moved = {}, {}
  for name, (module, params, before) in (
    ('projected', projector),
    ('predicted', predictor),
  ):
    x, moved[name] = mocov3.apply_head(module, params, before, x)
    variables = {'params': params, 'statistics': moved[name]}
    y = module.apply(variables, y)
    answers |= {name: x, f'{name}_eval': y}
  last = moved['projected'][f'norm_{len(moved["projected"]) - 1}']
  return answers | {
    'projector_last_mean': last['mean'],
    'projector_last_var': last['var'],
  }


def _objective(case):
  """Returns the objective with the dimensions of a case, and its config."""
  config, fields = config_lib.default(), case.fields
  config.data.image_size = fields['image_size']
  config.data.channels = case.inputs['x1'].shape[-1]
  config.train.batch_size = fields['batch']
  config.model.name = 'ViT-B/16'
  config.model.num_classes = 0
  config.model.patch_size = fields['patch_size']
  config.model.hidden_size = fields['hidden']
  config.model.depth = fields['layers']
  config.model.num_heads = fields['heads']
  config.model.mlp_dim = fields['mlp']
  config.model.layer_norm_epsilon = fields['layer_norm_eps']
  config.model.mlp = "mlp(gelu='exact')"
  config.model.positions = "sincos2d(kind='sincos2d_moco')"
  config.objective.name = 'mocov3'
  config.init_from.path = str(case.weights)
  with _opened(case, 'base_encoder.') as arrays:
    layers = _layers(arrays, 'head'), _layers(arrays, 'predictor')
  config.objective.options = {
    'temperature': fields['temperature'],
    'momentum': fields['momentum'],
    'width': fields['mlp_dim'],
    'dim': fields['dim'],
    'projector_layers': layers[0],
    'predictor_layers': layers[1],
  }
  objectives.fill_options(config)
  objective = objectives.create(
    config, {'image': features.Image()}, optim.Lengths(total=10**9)
  )
  return objective, config


def _momentum_encoder(case, params):
  """Returns the momentum encoder of a file, with the shapes of the other."""
  model = _objective(case)[0].model
  trunk = timm_vit.VIT.rules(values.model_values(model))
  trunk = tables.below(trunk, 'trunk/', '')
  with _opened(case, 'momentum_encoder.') as arrays:
    rules = [*trunk, *moco.mlp_rules('projector', 'head')]
    abstract = {k: params[k] for k in ('trunk', 'projector')}
    return tables.read(arrays, rules, abstract, '.*')


def _extra(case, objective, params):
  """Returns the extra of a file."""
  extra = objective.init_extra(params)
  extra['momentum'] = _momentum_encoder(case, params)
  for part, prefix, name in (
    ('projector', 'base_encoder.', 'head'),
    ('predictor', '', 'predictor'),
    ('momentum_projector', 'momentum_encoder.', 'head'),
  ):
    with _opened(case, prefix) as arrays:
      statistics = _statistics(arrays, name, _layers(arrays, name))
      extra['statistics'][part] = statistics
  return extra


def step(case):
  """A whole forward pass, and its gradient."""
  objective, config = _objective(case)
  start = initial.Start(config, (), initial.load(config), objective)
  params = jax.tree.map(jnp.asarray, start.take())
  extra = _extra(case, objective, params)
  pair = jnp.stack([case.inputs['x1'], case.inputs['x2']], axis=1)
  rng = Rng(jax.random.key(0), jnp.arange(len(pair)))
  batch = {'pair': pair}

  def total(params):
    value, _, moved = objective.loss(params, extra, batch, rng)
    return value, moved

  (value, moved), grads = jax.value_and_grad(total, has_aux=True)(params)
  q, _ = objective.queries(params, extra, pair, rng)
  k, _ = objective.keys(params, extra, pair, case.fields['momentum'])
  frozen = grads['trunk'].pop('patch_embedding')
  assert jax.tree.leaves(frozen)
  momentum, statistics = moved['momentum'], moved['statistics']
  return {
    **{'q1': q[0], 'q2': q[1], 'k1': k[0], 'k2': k[1], 'loss': value},
    'grad_norm': optax.global_norm(grads),
    'grad_predictor_0': grads['predictor']['dense_0']['kernel'].T,
    'momentum_cls_token': momentum['trunk']['class_token'],
    'momentum_head_0': momentum['projector']['dense_0']['kernel'].T,
    'base_running_mean': statistics['projector']['norm_0']['mean'],
    'momentum_running_mean': (
      statistics['momentum_projector']['norm_0']['mean']
    ),
  }


def positions(case):
  """Fixed positions; the rectangle's come column after column."""
  answers = {}
  for name in ('square', 'rectangle'):
    h, w = case.fields[f'grid_{name}']
    d = case.fields['hidden']
    # Its code counts patches column after column, and the columns first. In a
    # square that is the same as rows first, row after row.
    grid = (w, h) if name == 'rectangle' else (h, w)
    table = embedding.sincos2d(grid, d, 'sincos2d_moco')
    answers[name] = np.pad(table, ((0, 0), (1, 0), (0, 0)))
  return answers


def schedules(case):
  """Learning rate and momentum of each step, in float64."""
  fields = case.fields
  steps, warmup = (
    fields['steps_per_epoch'] * fields[k] for k in ('epochs', 'warmup_epochs')
  )
  config = config_lib.default().optim
  config.learning_rate = fields['lr'] * fields['batch_size'] / 256
  with jax.enable_x64(True):
    schedule = optim.make_schedule(config, optim.Lengths(steps, warmup))
    count = np.arange(steps)
    rates = [np.asarray(schedule(step)) for step in count]
    momentum = optim.half_cosine(fields['momentum_base'], 1.0, steps)(
      count.astype(np.float64)
    )
  return {'learning_rate': np.array(rates), 'momentum': momentum}


CHECKS = {
  'moco_loss': loss,
  'moco_heads': heads,
  'moco_step': step,
  'moco_positions': positions,
  'moco_schedules': schedules,
}
