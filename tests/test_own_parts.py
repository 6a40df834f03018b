"""The parts of docs/own_parts.md: a user's own attention and all else."""

import dataclasses
import json
import pathlib
import re

import commands
import documented
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluate
from vit_jax import main
from vit_jax import models
from vit_jax.explore import attention
from vit_jax.models import layouts
from vit_jax.models import registry
from vit_jax.parallel import sharding
from vit_jax.train import experiment as experiment_lib

BLOCKS = documented.blocks('docs/own_parts.md', 'python')
CLASSES = [x for x in BLOCKS if 'class ' in x]
ATTENTION = 'my_parts:WindowAttention(window=2)'
PARTS = {
  'model__block': 'my_parts:Sandwich',
  'model__attention': ATTENTION,
  'model__mlp': 'my_parts:Gated',
  'model__positions': 'learned + my_parts:Radial',
  'model__pool': 'my_parts:PowerMean',
}
SETTINGS = PARTS | {
  'model__name': 'ViT-Ti/2',
  'model__depth': 2,
  'model__dropout_rate': 0.1,
  'train__duration': '4 steps',
  'optim__schedule': 'constant',
  'optim__warmup': '0 steps',
  'evals__val__every': '4 steps',
}
CLASSES_OF_TESTS = """
from flax import linen as nn
import jax.numpy as jnp


class Constructor(nn.Module):
  def __post_init__(self):
    super().__post_init__()
    raise KeyError('made')


class Call(nn.Module):
  @nn.compact
  def __call__(self, x, context):
    raise KeyError('called')


class Training(nn.Module):
  @nn.compact
  def __call__(self, x, context):
    if context.train:
      raise KeyError('trained')
    return x


class Narrow(nn.Module):
  @nn.compact
  def __call__(self, x, context):
    return nn.Dense(3)(x)


class Widening(nn.Module):
  width: int = 4

  def at_layer(self, layer, depth):
    return self.clone(width=4 + layer)

  @nn.compact
  def __call__(self, x, context):
    return nn.Dense(x.shape[-1])(nn.Dense(self.width)(x))


class First(nn.Module):
  reads_class_token = True
  num_read = 1

  def __call__(self, x, context):
    return x[:, 0]


class Hidden(nn.Module):
  captures: bool

  @nn.compact
  def __call__(self, x, context):
    weights = jnp.ones((len(x), 2, x.shape[1], x.shape[1])) / x.shape[1]
    if self.captures:
      context.capture('attention', weights)
    return nn.Dense(x.shape[-1])(weights[:, 0] @ x)


class Cosine(nn.Module):
  num_classes: int

  @nn.compact
  def __call__(self, x, context):
    shape = x.shape[-1], self.num_classes
    kernel = self.param('kernel', nn.initializers.normal(), shape)
    unit = lambda x, axis: x / jnp.linalg.norm(x, axis=axis, keepdims=True)
    return unit(x, -1) @ unit(kernel, 0)
"""


@pytest.fixture(scope='module', autouse=True)
def folder(tmp_path_factory):
  """A folder of modules that Python finds."""
  path = tmp_path_factory.mktemp('own')
  (path / 'my_parts.py').write_text('\n\n'.join(CLASSES))
  (path / 'short_parts.py').write_text(CLASSES_OF_TESTS)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(path)
    yield path


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A run with all parts of its own, and its metrics."""
  path = tmp_path_factory.mktemp('run')
  return path, vit_jax.train(tiny.config(**SETTINGS), str(path)).metrics


def losses(path: pathlib.Path, **settings: object) -> list[float]:
  """Returns the losses of the steps of a run with other settings."""
  vit_jax.train(tiny.config(**SETTINGS, **settings), str(path))
  return [x['train/loss'] for x in tiny.metrics(path) if 'train/loss' in x]


def test_the_attention_is_complete_and_short():
  assert len(CLASSES[0].splitlines()) < 40
  lines = '\n'.join(documented.commands('docs/own_parts.md'))
  assert ATTENTION in lines


@pytest.mark.slow
def test_it_resumes_to_the_bit(trained, tmp_path):
  straight = tiny.metrics(trained[0])
  part = SETTINGS | {'train__duration': '2 steps'}
  vit_jax.train(tiny.config(**part), str(tmp_path))
  vit_jax.train(tiny.config(**SETTINGS), str(tmp_path))
  resumed = tiny.metrics(tmp_path)
  for name in ('train/loss', 'val/loss', 'val/accuracy'):
    expected = [x[name] for x in straight if name in x]
    actual = [x[name] for x in resumed if name in x]
    assert actual[-1] == expected[-1]


def test_the_loaded_model_is_the_trained_one(trained, capsys):
  path, expected = trained
  args = f'--from={path}', '--data=digits', '--split=train[80%:]'
  assert commands.run(evaluate, *args, '--format=json') == 0
  actual = json.loads(capsys.readouterr().out)
  assert actual['accuracy'] == pytest.approx(expected['val/accuracy'], abs=1e-6)
  assert actual['loss'] == pytest.approx(expected['val/loss'], rel=1e-5)
  vit = vit_jax.load(path)
  larger = vit_jax.load(path, image_size=16)
  assert larger.params['position_embedding'].shape == (1, 64, 16)
  assert np.isfinite(larger.predict([np.zeros((16, 16), np.uint8)])).all()
  names = {*flax.traverse_util.flatten_dict(vit.params, sep='/')}
  assert {'radial/kernel', 'pool/power', 'blocks_1/mlp/gate/kernel'} <= names


def test_attention_is_captured_within_windows(trained):
  vit = vit_jax.load(trained[0])
  source = data.open_source(tiny.config(), 'train[80%:]')
  images = list(source.arrays['image'][:3])
  x = vit.preprocess(images)
  _, state = vit.model.apply(
    {'params': vit.params}, x, mutable=['intermediates']
  )
  weights = np.asarray(state['intermediates']['attention'])
  assert weights.shape == (2, 3, 2, 16, 16)  # [L, B, H, T, T]
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
  rows, columns = np.divmod(np.arange(16), 4)
  place = rows // 2 * 2 + columns // 2
  assert (weights[..., place[:, None] != place] == 0).all()
  assert (weights[..., place[:, None] == place] > 0).all()
  maps = attention.class_relevance(vit, images)
  assert np.isfinite(maps).all() and np.ptp(maps) > 0


@pytest.mark.parametrize(
  ('captures', 'message'),
  [(False, r'context\.capture'), (True, r'context\.perturbation')],
)
def test_attention_that_cannot_be_looked_into_says_so(
  captures, message, digits_run
):
  text = f'short_parts:Hidden(captures={captures})'
  model = models.from_config(tiny.config(model__attention=text).model, 10)
  params = models.init_params(model, jax.random.key(0), (8, 8, 1))
  params['head']['kernel'] += 1
  vit = dataclasses.replace(
    vit_jax.load(digits_run), model=model, params=params
  )
  images = [np.zeros((8, 8), np.uint8)]
  look = attention.class_relevance if captures else attention.attention_maps
  with pytest.raises(config_lib.UserError, match=message):
    look(vit, images)


def test_a_pool_may_read_the_class_token():
  config = tiny.config(model__pool='short_parts:First')
  model = models.from_config(config.model, 10)
  params = models.abstract_params(model, (8, 8, 1))
  assert model.prefix == ('class_token',) and 'class_token' in params


def test_a_block_with_experts_computes_all_tokens(trained):
  """Also in the last layer, of which the pool reads the class token alone."""
  model = models.create_model(
    'ViT-Ti/4',
    5,
    hidden_size=16,
    mlp_dim=16,
    num_heads=2,
    depth=2,
    block='my_parts:Sandwich',
    mlp="experts(4, routing='top_tokens')",
  )
  x = jax.random.normal(jax.random.key(1), (3, 8, 8, 1))
  variables = {'params': model.init(jax.random.key(0), x)['params']}
  captured, _ = model.apply(variables, x, mutable=['levels'])
  np.testing.assert_allclose(model.apply(variables, x), captured, atol=1e-6)


def test_a_head_gets_features_and_returns_logits():
  text = 'short_parts:Cosine'
  head = registry.build('head', text, {'num_classes': 5}, 'model.head')
  sizes = {'hidden_size': 16, 'mlp_dim': 16, 'num_heads': 2, 'depth': 1}
  model = models.create_model('ViT-Ti/4', 5, **sizes).clone(head=head)
  x = jax.random.normal(jax.random.key(1), (2, 8, 8, 1))
  params = model.init(jax.random.key(0), x)['params']
  assert {name: x.shape for name, x in params['head'].items()} == {
    'kernel': (16, 5)
  }
  features = model.apply({'params': params}, x, method='trunk')['features']
  kernel = params['head']['kernel']
  np.testing.assert_allclose(
    model.apply({'params': params}, x),
    features
    @ kernel
    / jnp.linalg.norm(features, axis=1)[:, None]
    / jnp.linalg.norm(kernel, axis=0),
    atol=1e-5,
  )


def test_scanned_layers_are_the_same(trained):
  vit = vit_jax.load(trained[0])
  x = jnp.asarray(
    np.random.default_rng(0).standard_normal((3, 8, 8, 1)), jnp.float32
  )
  scanned = vit.model.clone(scan=True)
  params = layouts.stack_layers(vit.params)

  def logits(model, params, **kwargs):
    return model.apply({'params': params}, x, **kwargs)

  training = {'train': True, 'rngs': {'dropout': jax.random.key(0)}}
  for settings in ({}, training):
    np.testing.assert_allclose(
      logits(vit.model, vit.params, **settings),
      logits(scanned, params, **settings),
      atol=1e-5,
    )


@pytest.mark.slow
def test_a_mesh_splits_its_arrays_by_shape(trained, tmp_path):
  mesh = {'mesh__fsdp': 2, 'mesh__tensor': 2, 'mesh__min_size': 0}
  expected = [
    x['train/loss'] for x in tiny.metrics(trained[0]) if 'train/loss' in x
  ]
  np.testing.assert_allclose(losses(tmp_path, **mesh), expected, rtol=1e-4)
  config = tiny.config(**SETTINGS, **mesh)
  model = models.from_config(config.model, 10)
  params = models.abstract_params(model, (8, 8, 1))
  sizes = {'data': 1, 'fsdp': 2, 'tensor': 2}
  shardings = sharding.shard_params(config.mesh, sizes, params)
  for name, x in shardings.items():
    is_split = any(x.spec)
    assert is_split == (len(x.shape) > 1 or name.endswith('mlp/up/bias')), name
  assert shardings['blocks_0/mlp/gate/kernel'].spec == (None, 'fsdp')
  out = shardings['blocks_0/attention/out/kernel']  # as ours
  assert out.spec == ('tensor', None, 'fsdp')


def test_an_array_with_another_shape_than_ours_is_split_by_shape():
  config = tiny.config(mesh__min_size=0)
  params = {
    'blocks_0': {
      'attention': {'out': {'kernel': jax.ShapeDtypeStruct((8, 4), 'float32')}}
    }
  }
  sizes = {'data': 1, 'fsdp': 2, 'tensor': 2}
  (actual,) = sharding.shard_params(config.mesh, sizes, params).values()
  assert actual.spec == ('fsdp', None)


@pytest.mark.slow
@pytest.mark.parametrize('name', PARTS)
def test_each_part_goes_with_parts_of_ours(name):
  """In bfloat16, and where the pool reads one token of the last layer."""
  parts = dict.fromkeys(PARTS) | {'model__pool': 'token', name: PARTS[name]}
  config = tiny.config(**SETTINGS | parts | {'train__dtype': 'bfloat16'})
  model = models.from_config(config.model, 10, 'bfloat16')
  params = models.init_params(model, jax.random.key(0), (8, 8, 1))
  x = jax.random.normal(jax.random.key(1), (3, 8, 8, 1))
  unrolled = jax.jit(model.apply)({'params': params}, x)
  scanned = {'params': layouts.stack_layers(params)}
  assert np.isfinite(unrolled).all()
  np.testing.assert_allclose(
    jax.jit(model.clone(scan=True).apply)(scanned, x), unrolled, atol=0.02
  )


def test_exported_it_runs_without_its_file(trained, tmp_path):
  pytest.importorskip('flatbuffers')
  from vit_jax.export import __main__ as export

  path = tmp_path / 'own.stablehlo'
  args = '--to=stablehlo', f'--out={path}'
  assert commands.run(export, f'--from={trained[0]}', *args) == 0
  exported = jax.export.deserialize(bytearray(path.read_bytes()))
  x = np.random.default_rng(0).standard_normal((3, 8, 8, 1)).astype(np.float32)
  vit = vit_jax.load(trained[0])
  np.testing.assert_allclose(
    np.asarray(exported.call(x)),
    vit.model.apply({'params': vit.params}, x),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('key', 'text', 'said'),
  [
    ('mlp', 'gated', r"there is no mlp 'gated'"),
    ('mlp', 'my_parts:Gatd', r"my_parts has no class 'Gatd'.*Gated"),
    ('mlp', 'my_part:Gated', r"Python finds no module 'my_part'"),
    ('mlp', 'my_parts:Gated(width=3)', r"no option 'width'.* mlp_dim"),
    ('mlp', 'my_parts:Gated(mlp_dim=3', r"'\(' was never closed"),
    ('mlp', 'my_parts:Gated(mlp_dim=int(3))', r'int\(3\): it must be of the'),
    ('mlp', "my_parts:Gated(mlp_dim='a')", r"'a': it must be of the type int"),
    ('mlp', '__import__("os").system("ls")', r'is no name'),
    ('name', 'my_parts:Gated', r'a class of your own: .* config\.model\.block'),
    (
      'attention',
      'short_parts:Constructor',
      r"short_parts:Constructor raises KeyError: 'made' \(.*s\.py, line 9\)",
    ),
    (
      'mlp',
      'short_parts:Call',
      r"short_parts:Call raises KeyError: 'called' \(.*_parts\.py, line 15\)",
    ),
    (
      'mlp',
      'short_parts:Narrow',
      r'a model with short_parts:Narrow raises TypeError: .*own_parts\.md',
    ),
  ],
)
def test_a_wrong_text_is_one_line(key, text, said):
  config = tiny.config(**{f'model__{key}': text})
  with pytest.raises(config_lib.UserError) as error:
    experiment_lib.check(config)
  message = str(error.value)
  assert re.match(r'config\.model\b', message)
  assert message.count('config.model:') <= 1 and '\n' not in message
  assert re.search(said, message), message


def test_layers_that_differ_are_not_scanned():
  settings = {'model__mlp': 'short_parts:Widening', 'model__depth': 2}
  config = tiny.config(**settings)
  experiment_lib.check(config)
  params = models.abstract_params(
    models.from_config(config.model, 10), (8, 8, 1)
  )
  widths = [
    params[f'blocks_{i}']['mlp']['Dense_1']['bias'].size for i in (0, 1)
  ]
  assert widths == [4, 5]
  with pytest.raises(config_lib.UserError, match=r'set config\.model\.scan'):
    experiment_lib.check(tiny.config(**settings, model__scan=True))


def test_a_model_of_colours_refuses_a_layer_of_the_users():
  """It has none of the fields that are read of ours."""
  message = 'a First with a NoneType: the layers of an iGPT are of the kind'
  with pytest.raises(ValueError, match=f'^{message}'):
    models.create_model('iGPT-S', 0, block='short_parts:First')


def test_what_is_raised_in_training_alone_is_one_line(tmp_path):
  flags = tiny.flags(model__mlp='short_parts:Training')
  text = commands.mistake(main, *flags, f'--workdir={tmp_path}')
  assert re.search(
    r"short_parts:Training raises KeyError: 'trained' \(.*, line 22\)", text
  )


@pytest.mark.slow
def test_the_command_ends_with_status_1(folder, tmp_path):
  flags = tiny.flags(model__mlp='short_parts:Call')
  env = commands.CPU_ENV | {'PYTHONPATH': f'{tiny.ROOT}:{folder}'}
  done = commands.python(
    *('-m', 'vit_jax.main', *flags, f'--workdir={tmp_path}'), env=env
  )
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  (line,) = [x for x in done.stderr.splitlines() if x.startswith('error: ')]
  assert line.endswith(f'({folder}/short_parts.py, line 15)')
