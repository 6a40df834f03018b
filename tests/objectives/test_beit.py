"""BEiT: masks, tokens of patches, and its runs."""

import functools

import commands
import dvae_file
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax.config import UserError
from vit_jax.models import embedding
from vit_jax.objectives import beit
from vit_jax.objectives import block_masks
from vit_jax.objectives import codebook
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.weights.files import containers

make_config = functools.partial(methods.config, 'beit')
finished = methods.finished('beit')
tokenizer_run = methods.finished('tokenizer')


# Masks.


def test_blocks_keep_the_rules():
  """Fewer than all may be masked, but never more; blocks are what they say."""
  masks = block_masks.BlockMasks((5, 9), 20, 4, most=8)
  drawn = jax.jit(masks.draw)(jax.random.split(jax.random.key(0), 200))
  mask, blocks, count = map(np.asarray, drawn)
  masked = mask.sum(axis=(1, 2))
  assert masked.max() == 20
  assert masked.min() < 20
  for i in range(200):
    again = np.zeros((5, 9), bool)
    for top, left, height, width, new in blocks[i, : count[i]]:
      assert height < 5
      assert width < 9
      part = again[top : top + height, left : left + width]
      assert part.shape == (height, width)
      assert 1 <= new == (~part).sum() <= 8
      part[:] = True
    np.testing.assert_array_equal(again, mask[i])
    assert not blocks[i, count[i] :].any()


def test_a_mask_depends_on_its_key_alone():
  masks = block_masks.BlockMasks((4, 4), 7, 2)
  keys = jax.random.split(jax.random.key(0), 16)
  all_masks = masks.draw(keys).mask
  np.testing.assert_array_equal(masks.draw(keys[3:7]).mask, all_masks[3:7])
  assert len(np.unique(all_masks.reshape(16, -1), axis=0)) > 10


# Tokens of patches.


def test_k_means_finds_separate_groups():
  rng = np.random.default_rng(0)
  centres = 10 * rng.standard_normal((6, 4)).astype(np.float32)
  points = np.repeat(centres, 50, axis=0)
  points += 0.1 * rng.standard_normal(points.shape).astype(np.float32)
  actual = codebook.k_means(points, 6, rng)
  distance = abs(actual[:, None] - centres).max(axis=-1).min(axis=0)
  assert distance.max() < 0.1
  nearest = np.asarray(codebook.nearest(jnp.asarray(actual), points))
  assert (nearest.reshape(6, 50) == nearest[::50, None]).all()


def test_patches_are_cut_row_by_row():
  image = np.arange(24).reshape(1, 4, 6, 1)
  actual = embedding.patches(image, (2, 3))
  np.testing.assert_array_equal(actual[0, 1], [3, 4, 5, 9, 10, 11])
  np.testing.assert_array_equal(actual[0, 2, 0], 12)
  assert embedding.patches(image[:0], (2, 3)).shape == (0, 4, 6)


# Runs.


def test_the_trunk_continues(finished, tmp_path):
  config = tiny.config(
    **methods.trunk('beit')
    | {
      'model.positions': 'relative_bias(shared=False)',
      'model.pool': 'mean(norm_after=True)',
      'model.class_token': True,
      'train.duration': '3 steps',
    }
  )
  config.init_from.path = str(finished)
  assert loop.run(config, str(tmp_path)).status == 0
  tuned = vit_jax.load(tmp_path)
  assert not tuned.model.positions[0].shared
  assert tuned.params['blocks_0']['attention']['relative_position_bias'].any()


@pytest.mark.parametrize('to', ['huggingface', 'timm'])
def test_written_whole_and_continued(finished, tmp_path, to):
  """The layer that predicts tokens comes from a file in its authors' names."""
  path = tmp_path / 'x'
  args = finished, path, f'--to={to}', '--whole'
  assert commands.run(convert, *args) == 0
  with containers.open_arrays(path / 'model.safetensors') as arrays:
    assert arrays.shapes['lm_head.weight'] == (24, 16)
    mask = {'huggingface': 'beit.embeddings.mask_token', 'timm': 'mask_token'}
    assert arrays.shapes[mask[to]] == (1, 1, 16)
  config = make_config()
  config.init_from.path = str(path)
  config.model.num_heads = 2
  started = experiment_lib.build(config).init().params
  again = vit_jax.load(finished)
  jax.tree.map(np.testing.assert_array_equal, started['trunk'], again.params)
  jax.tree.map(
    np.testing.assert_array_equal,
    started['head'],
    again.objective_params['head'],
  )


# A trained tokenizer.


@pytest.mark.slow
def test_a_tokenizer_learns_to_draw(tmp_path):
  config = methods.config(
    'tokenizer',
    {'anneal': '100 steps', 'divergence_warmup': '100 steps'},
    train__duration='200 steps',
    optim__learning_rate=1e-2,
    evals__val__every='50 steps',
    checkpoint__every='200 steps',
  )
  assert loop.run(config, str(tmp_path)).status == 0
  actual = [x['val/loss'] for x in tiny.metrics(tmp_path) if 'val/loss' in x]
  assert actual[-1] < 0.7 * actual[0]
  outputs = vit_jax.load(tmp_path).outputs(np.zeros((8, 8), np.uint8))
  assert outputs['features'].shape == (1, 16)


@pytest.mark.slow
def test_beit_predicts_the_tokens_of_a_run(tokenizer_run, tmp_path):
  config = make_config(
    {'tokenizer': str(tokenizer_run)}, train__duration='3 steps'
  )
  assert loop.run(config, str(tmp_path)).status == 0
  experiment = experiment_lib.build(config)
  objective = experiment.program.objective
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
  arrays = objective.init_extra(None)['tokenizer']
  actual = objective._tokenizer.tokens(arrays, images)
  assert actual.shape == (2, 16)
  assert actual.max() < 24
  params = vit_jax.load(tokenizer_run).params
  jax.tree.map(np.testing.assert_array_equal, arrays['trunk'], params)


@pytest.mark.slow
def test_beit_predicts_the_tokens_of_dalles_encoder(tmp_path):
  file = tmp_path / 'encoder.safetensors'
  dvae_file.write(file)
  changes = {
    'options.tokenizer': str(file),
    'options.tokens': 16,
    'data.channels': 3,
  }
  config = make_config(train__duration='3 steps', **changes)
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  objective = experiment_lib.build(config).program.objective
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  arrays = objective.init_extra(None)['tokenizer']
  assert objective._tokenizer.tokens(arrays, images).shape == (2, 16)
  for overrides, message in (
    ({'options.tokens': 24}, 'has tokens 16, and the run 24'),
    ({'data.channels': 1}, 'has channels 3, and the run 1'),
  ):
    with pytest.raises(UserError, match=message):
      experiment_lib.build(make_config(**changes | overrides))


def test_a_tokenizer_must_fit(tokenizer_run, finished):
  fits = {'options.tokenizer': str(tokenizer_run)}
  for overrides, message in (
    (
      {'model.name': 'ViT-Ti/4', 'options.masked': 2},
      r'has patches \(4, 4\), and the run \(2, 2\)',
    ),
    ({'options.tokens': 25}, 'has tokens 24, and the run 25'),
    (
      {'options.tokenizer': str(finished)},
      "its objective is 'beit'",
    ),
  ):
    with pytest.raises(UserError, match=message):
      experiment_lib.build(make_config(**fits | overrides))


def test_the_first_layers_start_larger():
  """The last matrices of layer l are divided by the root of 2 l."""
  for scan in (False, True):
    config = make_config(model__depth=2, model__scan=scan)
    objective = experiment_lib.build(config).program.objective
    trunk = jax.jit(objective.init)(jax.random.key(0))['trunk']
    plain = vit_jax.models.init_params(
      objective.model,
      jax.random.split(jax.random.key(0))[0],
      objective.image_shape,
    )
    for layer, factor in ((0, 2), (1, 4)):
      plain_kernel, kernel = (
        x['blocks']['mlp']['down']['kernel'][layer]
        if scan
        else x[f'blocks_{layer}']['mlp']['down']['kernel']
        for x in (plain, trunk)
      )
      np.testing.assert_allclose(kernel * factor**0.5, plain_kernel, rtol=1e-6)


def test_pick_puts_masked_patches_first():
  masked = np.array([[0, 1, 0, 1], [0, 0, 0, 1]], bool)
  places, is_masked = beit.pick(jnp.asarray(masked), 2)
  np.testing.assert_array_equal(places, [[1, 3], [3, 0]])
  np.testing.assert_array_equal(is_masked, [[True, True], [True, False]])


@pytest.mark.slow
def test_a_run_draws_masks_of_patches_that_are_not_square(tmp_path):
  small = {'model.hidden_size': 16, 'model.mlp_dim': 32, 'model.depth': 1}
  config = config_lib.load(
    tiny.ROOT / 'configs' / 'digits_beit.py',
    small
    | {
      'train.duration': '2 steps',
      'train.batch_size': 16,
      'optim.warmup': '0 steps',
      'mesh.data': 1,
    },
  )
  assert config.model.patch_size == (2, 4)
  assert config.reporting == 'tensorboard'
  assert loop.run(config, str(tmp_path / 'run')).status == 0
