"""Mixtures of experts: what they learn, and that nothing else changes it."""

import compiled
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax.models import embedding
from vit_jax.models.parts import experts
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}
ROUTINGS = {
  'top_experts': 'loss=0.01, per_token=2',
  'top_tokens': '',
  'soft': 'slots=3',
}


def test_layers_with_experts():
  for text, expected in (
    ("experts(4, routing='soft')", (3, 4, 5)),
    ('experts(4, layers=(1, 6))', (0, 5)),
    ('experts(4)', (1, 3, 5)),
  ):
    model = models.create_model('ViT-Ti/4', 0, depth=6, mlp=text)
    assert model.block.mlp.routed_layers(6) == expected
  params = models.abstract_params(model, (8, 8, 3))
  assert 'moe' in params['blocks_1'] and 'mlp' in params['blocks_0']


@pytest.mark.parametrize(
  ('fields', 'expected'),
  [
    ({'mlp': 'experts(4)'}, True),
    ({'mlp': 'experts(4, loss=0)'}, False),
    ({'mlp': "experts(4, routing='soft')"}, False),
    ({}, False),
  ],
)
def test_which_models_have_a_balancing_loss(fields, expected):
  model = models.create_model('ViT-Ti/4', 0, depth=2, **fields)
  assert objectives.adds_loss(model) == expected


@pytest.mark.slow
@pytest.mark.parametrize('routing', ROUTINGS)
def test_images_and_padding_do_not_change_others(routing):
  """An image's tokens are routed among themselves, and padding nowhere."""
  # Buffers hold as many tokens, whatever the padding.
  options = f"3, routing='{routing}', capacity=3.0, {ROUTINGS[routing]}"
  fields = TINY | {'pool': 'mean', 'mlp': f'experts({options})'}
  model = models.create_model('ViT-Ti/2', 0, **fields)
  images = jax.random.normal(jax.random.key(0), (3, 6, 6, 3))
  params = compiled.init(model, jax.random.key(1), images)['params']
  expected = compiled.apply(model, {'params': params}, images)
  for i in range(3):
    alone = compiled.apply(model, {'params': params}, images[i : i + 1])
    np.testing.assert_allclose(alone, expected[i : i + 1], atol=1e-5)
  if routing == 'top_tokens':
    return  # experts take a share of all places
  cut = embedding.patches(images, (2, 2))
  grids = jnp.full((3, 2), 3)
  for count in (0, 5):
    padded = jnp.pad(cut, ((0, 0), (0, count), (0, 0)), constant_values=7.0)
    actual = compiled.apply(model, {'params': params}, padded, grids=grids)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_some_patches_share_the_slots_of_an_image():
  """As in MAE's encoder, and in DINO's local crops."""
  fields = TINY | {'mlp': "experts(2, routing='soft')"}
  model = models.create_model(
    'ViT-Ti/2', 0, pool='mean', positions='none', **fields
  )
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  variables = compiled.init(model, jax.random.key(1), images)
  positions = jnp.broadcast_to(jnp.arange(8), (2, 8))
  partial = compiled.apply(
    model, variables, images, kept=positions, method='trunk'
  )
  upper = compiled.apply(model, variables, images[:, :4])
  np.testing.assert_allclose(partial['features'], upper, atol=1e-5)


def test_full_buffers_drop_the_tokens_with_the_least_gates():
  gates = jnp.array([[[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]]])
  plain = experts.top_experts(gates, 1, 2)
  first = experts.top_experts(gates, 1, 2, by_gate=True)
  served = [np.asarray(x.dispatch.any((2, 3))[0]) for x in (plain, first)]
  assert served[0].tolist() == [True, True, False]
  assert served[1].tolist() == [False, True, True]


def config(mesh=(1, 1, 1), **overrides):
  axes = zip(('data', 'fsdp', 'tensor'), mesh, strict=True)
  fields = {
    'model__depth': 2,
    'model__mlp': 'experts(8)',
    'model__dropout_rate': 0.1,
    'mesh__min_size': 0,
    'optim__name': 'sgd',
    'optim__warmup': '0 steps',
  } | {f'mesh__{axis}': n for axis, n in axes}
  return tiny.config(**fields | overrides)


def trained(c, steps=4):
  experiment_lib.check(c)
  e = experiment_lib.build(c)
  state, losses = e.init(), []
  with e.train_batches(0) as batches:
    for step in range(steps):
      state, metrics = e.program.train_step(
        state, next(batches), np.int32(step)
      )
      losses.append(float(metrics['loss']))
  return state, losses, metrics


@pytest.mark.slow
@pytest.mark.parametrize(
  ('routing', 'mesh'), [('top_experts', (2, 2, 2)), ('soft', (2, 4, 1))]
)
def test_eight_devices_equal_one(routing, mesh):
  fields = {'model__mlp': f"experts(8, routing='{routing}')"}
  single, losses, metrics = trained(config(**fields))
  assert ('balance_loss' in metrics) == (routing == 'top_experts')
  many, other_losses, _ = trained(config(mesh, **fields))
  kernel = many.params['blocks_1']['moe']['experts']['up']['kernel']
  assert kernel.sharding.spec[0] == 'fsdp'
  np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    *jax.device_get((single.params, many.params)),
  )


@pytest.mark.slow
def test_trains_resumes_and_loads(tmp_path):
  c = config(
    train__duration='4 steps',
    checkpoint__every='2 steps',
    model__mlp='experts(8, loss=1.0)',
  )
  path = tmp_path / 'run'
  assert loop.run(c, str(path)).status == 0
  methods.assert_resumes_to_the_bit(c, path, tmp_path / 'copy')
  assert vit_jax.load(path).model.block.mlp.count == 8
  assert all(x['train/balance_loss'] > 0 for x in tiny.metrics(path)[:1])


def test_an_objective_that_cannot_balance_says_so():
  positions = "sincos2d(kind='sincos2d_mae')"
  c = config(objective__name='mae', model__positions=positions)
  with pytest.raises(config_lib.UserError, match='cannot balance experts'):
    trained(c, 1)


MAPPED = """
import jax

from vit_jax.data.device.rng import Rng
from vit_jax.objectives import classification


class Mapped(classification.Classification):
  options = classification.Classification.options | {'adds': False}

  def loss(self, params, extra, batch, rng):
    adds = self.config.objective.options.adds
    how = {'mutable': ['losses']} if adds else {}

    def loss_of(example):
      image, row = example
      outputs = self.apply_train(
        params, image[None], Rng(rng.key, row[None]), **how
      )
      if not adds:
        return outputs.sum()
      logits, state = outputs
      return logits.sum() + state['losses']['balance'].sum()

    losses = jax.lax.map(loss_of, (batch['image'], rng.rows))
    return losses.mean(), {}, extra
"""


def test_a_loss_that_maps_over_images_adds_their_losses(tmp_path, monkeypatch):
  """Within a transformation they leave by the result, or the run says so."""
  (tmp_path / 'mapped.py').write_text(MAPPED)
  monkeypatch.syspath_prepend(tmp_path)
  fields = {'objective__name': 'mapped:Mapped', 'train__accumulation': 1}
  with pytest.raises(config_lib.UserError, match='add them to the loss'):
    trained(config(**fields), 1)
  adding = config(**fields)
  adding.objective.options.update({'adds': True})
  _, losses, _ = trained(adding, 1)
  assert losses[0] > 0
