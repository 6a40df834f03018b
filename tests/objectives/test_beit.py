"""BEiT: masks, tokens of patches, and its runs."""

import commands
import dvae_file
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import convert
from vit_jax.config import UserError
from vit_jax.data import sources
from vit_jax.models import embedding
from vit_jax.objectives import beit
from vit_jax.objectives import block_masks
from vit_jax.objectives import codebook
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.weights.files import containers

TRUNK = {
  'model__name': 'ViT-Ti/2',
  'model__positions': 'relative_bias',
  'model__block': 'block(layer_scale=0.1)',
  'model__attention': 'attention(key_bias=False)',
  'model__mlp': "mlp(gelu='exact')",
  'model__pool': 'token',
}
BEIT = TRUNK | {
  'objective__name': 'beit',
  'objective__options__tokens': 24,
  'objective__options__masked': 6,
  'objective__options__block_least': 2,
  'model__mask_token': True,
  'train__duration': '8 steps',
  'evals__val__split': '',
}
TOKENIZER = {
  'model__name': 'ViT-Ti/2',
  'objective__name': 'tokenizer',
  'objective__options__tokens': 24,
  'objective__options__decoder_depth': 1,
  'train__duration': '8 steps',
}


def config_of(settings, **overrides):
  """Returns the tiny config with options of the objective, too."""
  settings = settings | overrides
  option = 'objective__options__'
  options = {
    k.removeprefix(option): settings[k] for k in settings if option in k
  }
  others = {k: x for k, x in settings.items() if option not in k}
  return tiny.config(options, **others)


finished = methods.finished(lambda: config_of(BEIT))
tokenizer_run = methods.finished(lambda: config_of(TOKENIZER))


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
  whole = masks.draw(keys).mask
  np.testing.assert_array_equal(masks.draw(keys[3:7]).mask, whole[3:7])
  assert len(np.unique(whole.reshape(16, -1), axis=0)) > 10


# Tokens of patches.


def test_k_means_finds_separate_groups():
  rng = np.random.default_rng(0)
  centres = 10 * rng.standard_normal((6, 4)).astype(np.float32)
  points = np.repeat(centres, 50, axis=0)
  points += 0.1 * rng.standard_normal(points.shape).astype(np.float32)
  found = codebook.k_means(points, 6, rng)
  distance = abs(found[:, None] - centres).max(axis=-1).min(axis=0)
  assert distance.max() < 0.1
  nearest = np.asarray(codebook.nearest(jnp.asarray(found), points))
  assert (nearest.reshape(6, 50) == nearest[::50, None]).all()


def test_patches_are_cut_row_by_row():
  image = np.arange(24).reshape(1, 4, 6, 1)
  found = embedding.patches(image, (2, 3))
  np.testing.assert_array_equal(found[0, 1], [3, 4, 5, 9, 10, 11])
  np.testing.assert_array_equal(found[0, 2, 0], 12)
  assert embedding.patches(image[:0], (2, 3)).shape == (0, 4, 6)


# Runs.


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(finished, tmp_path):
  config = config_of(BEIT)
  methods.assert_resumes_to_the_bit(config, finished, tmp_path / 'run')
  assert 'extra/tokenizer/codes' in methods.final_state(finished)


@pytest.mark.slow
@pytest.mark.parametrize('how', methods.LAYOUTS.values(), ids=methods.LAYOUTS)
def test_one_result_however_it_is_computed(finished, how):
  """Accumulated: masks of images differ in size, and weigh as in one batch."""
  config = config_of(BEIT, **how)
  methods.assert_same_result(config, finished)


@pytest.mark.slow
def test_the_loss_falls():
  config = config_of(
    BEIT, train__duration='120 steps', optim__learning_rate=1e-2
  )
  losses = methods.training_losses(config)
  assert np.mean(losses[:10]) == pytest.approx(np.log(24), rel=0.3)
  assert np.mean(losses[-30:]) < np.mean(losses[:10]) - 0.4


def test_the_trunk_is_loaded_and_continues(finished, tmp_path):
  vit = vit_jax.load(finished)
  source = sources.open_source(config_of(BEIT), 'train[80%:]')
  images = list(source.arrays['image'][:4])
  assert vit.outputs(images)['features'].shape == (4, 16)
  config = tiny.config(
    **TRUNK
    | {
      'model__positions': 'relative_bias(shared=False)',
      'model__pool': 'mean(norm_after=True)',
      'model__class_token': True,
      'train__duration': '3 steps',
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
  config = config_of(BEIT)
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
def test_a_tokenizer_resumes_and_does_not_depend_on_devices(
  tokenizer_run, tmp_path
):
  config = config_of(TOKENIZER)
  methods.assert_resumes_to_the_bit(config, tokenizer_run, tmp_path / 'a')
  for how in methods.LAYOUTS.values():
    config = config_of(TOKENIZER, **how)
    methods.assert_same_result(config, tokenizer_run)


@pytest.mark.slow
def test_a_tokenizer_learns_to_draw(tmp_path):
  config = config_of(
    TOKENIZER,
    train__duration='200 steps',
    optim__learning_rate=1e-2,
    evals__val__every='50 steps',
    checkpoint__every='200 steps',
    objective__options__anneal='100 steps',
    objective__options__divergence_warmup='100 steps',
  )
  assert loop.run(config, str(tmp_path)).status == 0
  found = [x['val/loss'] for x in tiny.metrics(tmp_path) if 'val/loss' in x]
  assert found[-1] < 0.7 * found[0]
  outputs = vit_jax.load(tmp_path).outputs(np.zeros((8, 8), np.uint8))
  assert outputs['features'].shape == (1, 16)


@pytest.mark.slow
def test_beit_predicts_the_tokens_of_a_run(tokenizer_run, tmp_path):
  config = config_of(
    BEIT,
    objective__options__tokenizer=str(tokenizer_run),
    train__duration='3 steps',
  )
  assert loop.run(config, str(tmp_path)).status == 0
  experiment = experiment_lib.build(config)
  objective = experiment.program.objective
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
  arrays = objective.init_extra(None)['tokenizer']
  found = objective._tokenizer.tokens(arrays, images)
  assert found.shape == (2, 16)
  assert found.max() < 24
  params = vit_jax.load(tokenizer_run).params
  jax.tree.map(np.testing.assert_array_equal, arrays['trunk'], params)


@pytest.mark.slow
def test_beit_predicts_the_tokens_of_dalles_encoder(tmp_path):
  file = tmp_path / 'encoder.safetensors'
  dvae_file.write(file)
  colours = {
    'data__channels': 3,
    'objective__options__tokenizer': str(file),
    'objective__options__tokens': 16,
  }
  config = config_of(BEIT, train__duration='3 steps', **colours)
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  objective = experiment_lib.build(config).program.objective
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  arrays = objective.init_extra(None)['tokenizer']
  assert objective._tokenizer.tokens(arrays, images).shape == (2, 16)
  for overrides, message in (
    ({'objective__options__tokens': 24}, 'has tokens 16, and the run 24'),
    ({'data__channels': 1}, 'has channels 3, and the run 1'),
  ):
    with pytest.raises(UserError, match=message):
      experiment_lib.build(config_of(BEIT, **colours | overrides))


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ({'model__mask_token': False}, 'config.model.mask_token is False'),
    ({'objective__options__masked': 16}, 'masked is 16: it must be from 1 to'),
    (
      {'objective__options__block_least': 7},
      'block_least is 7: .* from 1 to 6',
    ),
    ({'objective__options__block_most': 17}, 'block_most is 17: .*patches'),
    ({'objective__options__block_aspect': 1.5}, 'block_aspect is 1.5'),
    ({'objective__options__tokens': 1}, 'tokens is 1: it must be at least 2'),
    ({'model__name': 'ViT-Ti/8'}, 'masked is 6: it must be from 1 to 0'),
    (
      {
        'model__pool': 'mean(norm_after=True)',
        'model__class_token': True,
      },
      'normalised patches: set it to',
    ),
    ({'model__block': 'merging(1)', 'model__positions': 'none'}, 'block is'),
    ({'model__patch_dropout': 0.5}, 'patch_dropout is 0.5.*each patch'),
    ({'objective__options__tokenizer': '/nowhere'}, '/nowhere is no work dir'),
    ({'objective__options__tokens': 100_000}, 'have .* different patches'),
  ],
)
def test_mistakes_get_one_line(overrides, message):
  config = config_of(BEIT, **overrides)
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    experiment_lib.check(config)
    experiment_lib.build(config).init()


def test_a_tokenizer_must_fit(tokenizer_run, finished):
  fits = {'objective__options__tokenizer': str(tokenizer_run)}
  for overrides, message in (
    (
      {'model__name': 'ViT-Ti/4'},
      r'has patches \(4, 4\), and the run \(2, 2\)',
    ),
    ({'objective__options__tokens': 25}, 'has tokens 24, and the run 25'),
    (
      {'objective__options__tokenizer': str(finished)},
      "its objective is 'beit'",
    ),
  ):
    config = config_of(BEIT, **fits | overrides)
    if 'model__name' in overrides:
      config.objective.options.masked = 2
    with pytest.raises(UserError, match=message):
      experiment_lib.build(config)


@pytest.mark.parametrize(
  ('option', 'value'),
  [
    ('temperature', 0.0),
    ('final_temperature', -1.0),
    ('divergence', -1.0),
    ('decoder_depth', 0),
  ],
)
def test_options_of_a_tokenizer_are_checked(option, value):
  config = config_of(TOKENIZER, **{f'objective__options__{option}': value})
  with pytest.raises(UserError, match=f'options.{option} is {value}'):
    experiment_lib.check(config)


def test_a_tokenizer_sees_all_patches():
  config = config_of(TOKENIZER, model__patch_dropout=0.5)
  with pytest.raises(UserError, match=r'patch_dropout is 0.5.*each patch'):
    experiment_lib.check(config)


def test_the_time_of_a_tokenizers_schedule_has_a_unit():
  config = config_of(TOKENIZER, objective__options__anneal='long')
  with pytest.raises(UserError, match=r"options.anneal.*'long'"):
    experiment_lib.check(config)


def test_the_first_layers_start_larger():
  """The last matrices of layer l are divided by the root of 2 l."""
  for scan in (False, True):
    config = config_of(BEIT, model__depth=2, model__scan=scan)
    objective = experiment_lib.build(config).program.objective
    trunk = jax.jit(objective.init)(jax.random.key(0))['trunk']
    plain = vit_jax.models.init_params(
      objective.model,
      jax.random.split(jax.random.key(0))[0],
      objective.image_shape,
    )
    for layer, factor in ((0, 2), (1, 4)):
      one, other = (
        x['blocks']['mlp']['down']['kernel'][layer]
        if scan
        else x[f'blocks_{layer}']['mlp']['down']['kernel']
        for x in (plain, trunk)
      )
      np.testing.assert_allclose(other * factor**0.5, one, rtol=1e-6)


def test_pick_puts_masked_patches_first():
  masked = np.array([[0, 1, 0, 1], [0, 0, 0, 1]], bool)
  places, is_masked = beit.pick(jnp.asarray(masked), 2)
  np.testing.assert_array_equal(places, [[1, 3], [3, 0]])
  np.testing.assert_array_equal(is_masked, [[True, True], [True, False]])
