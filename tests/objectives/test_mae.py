"""Masked autoencoders."""

import json

import commands
import jax
import jax.numpy as jnp
import methods
import numpy as np
import other_libraries
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax import evaluate
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data.device.rng import Rng
from vit_jax.models import embedding
from vit_jax.objectives import mae
from vit_jax.train import cost
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

OPTIONS = {
  'decoder_width': 16,
  'decoder_depth': 2,
  'decoder_heads': 2,
  'normalize_targets': False,
}
MODEL = {
  'model__name': 'ViT-Ti/2',
  'model__positions': "sincos2d(kind='sincos2d_mae')",
  'model__mlp': "mlp(gelu='exact')",
  'model__pool': 'token',
}
RUN = {
  'objective__name': 'mae',
  'train__duration': '8 steps',
  'checkpoint__best': 'val/loss',
}


def config_of(options=(), **overrides):
  return tiny.config(OPTIONS | dict(options), **MODEL | RUN | overrides)


def objective_of(config):
  config = config.copy_and_resolve_references()
  config.model.num_classes = 0
  objectives.fill_options(config)
  return objectives.create(config, {'image': features.Image()})


finished = methods.finished(config_of)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(finished, tmp_path):
  methods.assert_resumes_to_the_bit(config_of(), finished, tmp_path / 'run')


@pytest.mark.slow
@pytest.mark.parametrize('how', methods.LAYOUTS.values(), ids=methods.LAYOUTS)
def test_one_result_however_it_is_computed(finished, how):
  methods.assert_same_result(config_of(**how), finished)


@pytest.mark.slow
def test_the_loss_falls():
  config = config_of(train__duration='60 steps', optim__learning_rate=1e-2)
  losses = methods.training_losses(config)
  assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:2])


@pytest.mark.slow
def test_its_trunk_is_loaded_probed_and_fine_tuned(finished, capsys):
  vit = vit_jax.load(finished)
  assert vit.model.num_classes == 0
  images = np.zeros((2, 8, 8), np.uint8)
  assert vit.outputs(list(images))['features'].shape == (2, 16)
  args = f'--from={finished}', '--data=digits', '--split=train[80%:]'
  probe = '--probe=knn', '--train_split=train[:80%]', '--format=json'
  assert commands.run(evaluate, *args, *probe) == 0
  assert json.loads(capsys.readouterr().out)['examples'] == 359
  e = experiment_lib.build(tiny.config(**MODEL, init_from__path=str(finished)))
  tuned = e.init().params
  assert tuned['head']['kernel'].shape == (16, 10)
  jax.tree.map(
    np.testing.assert_array_equal,
    {k: x for k, x in tuned.items() if k != 'head'},
    vit.params,
  )


def start(config):
  """Returns the initial parameters of a run, on the host."""
  experiment_lib.check(config)
  return jax.device_get(experiment_lib.build(config).init().params)


@pytest.mark.slow
def test_a_run_continues_with_its_decoder(finished):
  before = vit_jax.load(finished)
  scanned = start(config_of(init_from__path=str(finished), model__scan=True))
  blocks = before.objective_params['decoder']['blocks_1']
  jax.tree.map(
    lambda found, wanted: np.testing.assert_array_equal(found[1], wanted),
    scanned['decoder']['blocks'],
    blocks,
  )
  fresh = start(
    config_of(init_from__path=str(finished), seed=1, init_from__trunk_only=True)
  )
  kernels = [x['decoder']['prediction']['kernel'] for x in (fresh, scanned)]
  assert not np.array_equal(*kernels)
  kernels = [x['trunk']['patch_embedding']['kernel'] for x in (fresh, scanned)]
  np.testing.assert_array_equal(*kernels)
  config = config_of({'decoder_width': 8}, init_from__path=str(finished))
  with pytest.raises(UserError, match=r'decoder/norm/scale.*trunk_only=True'):
    experiment_lib.build(config)


@pytest.mark.slow
def test_a_classifier_gives_the_trunk_alone(tmp_path):
  config = tiny.config(**MODEL, train__duration='3 steps')
  assert loop.run(config, str(tmp_path)).status == 0
  params = start(config_of(init_from__path=str(tmp_path)))
  np.testing.assert_array_equal(
    params['trunk']['norm']['scale'],
    vit_jax.load(tmp_path).params['norm']['scale'],
  )


@pytest.mark.parametrize('name', ['timm', 'huggingface'])
def test_files_of_others_hold_all_of_it_to_the_bit(finished, name, tmp_path):
  there = tmp_path / 'there'
  args = str(finished), str(there), f'--to={name}'
  assert commands.run(convert, *args, '--whole') == 0
  params = start(config_of(init_from__path=str(there)))
  wanted = vit_jax.load(finished)
  wanted = {'trunk': wanted.params, **wanted.objective_params}
  jax.tree.map(np.testing.assert_array_equal, params, wanted)
  alone = tmp_path / 'alone'
  assert commands.run(convert, *args[:1], str(alone), *args[2:]) == 0
  config = config_of(init_from__path=str(alone), seed=1)
  found = start(config)['decoder']['mask_token']
  assert not np.array_equal(found, wanted['decoder']['mask_token'])


def test_transformers_computes_the_same_loss(finished, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = other_libraries.imported('transformers')
  args = f'{finished} {tmp_path}/there --to=huggingface --whole'.split()
  assert commands.run(convert, *args) == 0
  theirs, report = transformers.ViTMAEForPreTraining.from_pretrained(
    tmp_path / 'there', output_loading_info=True
  )
  assert not any(report.values())
  objective = objective_of(config_of())
  params = start(config_of(init_from__path=str(finished)))
  rng = np.random.default_rng(0)
  image = rng.standard_normal((3, 8, 8, 1), np.float32)
  noise = rng.random((3, 16), np.float32)
  drawn = mae.masks(jnp.asarray(noise), theirs.config.mask_ratio)
  errors = mae.reconstruction_errors(
    objective.predict(params, image, drawn),
    objective.targets(image),
    drawn.removed,
  )
  pixels = torch.tensor(image.transpose(0, 3, 1, 2))
  with torch.no_grad():
    wanted = theirs.eval()(pixels, noise=torch.tensor(noise)).loss
  assert errors.mean() == pytest.approx(float(wanted), rel=1e-5)


def test_what_has_nothing_beside_it_is_not_written_whole(tmp_path):
  config = tiny.config(train__duration='3 steps')
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  args = f'{tmp_path}/run {tmp_path}/there --to=timm --whole'.split()
  with pytest.raises(UserError, match='has nothing beside its model'):
    commands.run(convert, *args)


def test_masks_keep_the_patches_with_the_least_noise():
  noise = jnp.asarray([[0.5, 0.1, 0.9, 0.3, 0.2, 0.8, 0.7, 0.6]])
  drawn = mae.masks(noise, 0.6)  # int(8 * 0.4) = 3
  np.testing.assert_array_equal(drawn.seen_patches, [[1, 4, 3]])
  np.testing.assert_array_equal(drawn.removed, [[1, 0, 1, 0, 0, 1, 1, 1]])
  np.testing.assert_array_equal(
    drawn.places[0, drawn.seen_patches[0]], [0, 1, 2]
  )
  assert sorted(drawn.places[0].tolist()) == list(range(8))


@pytest.mark.slow
def test_an_image_s_mask_depends_on_its_row_alone():
  objective = objective_of(config_of())
  image = jnp.ones((4, 8, 8, 1))
  params = jax.jit(objective.init)(jax.random.key(0))

  @jax.jit
  def loss(rows):
    batch = {'image': image[: len(rows)]}
    return objective.loss(params, {}, batch, Rng(jax.random.key(1), rows))[0]

  rows = jnp.arange(4)
  halves = [loss(rows[:2]), loss(rows[2:])]
  assert loss(rows) == pytest.approx(np.mean(halves), rel=1e-5)
  assert halves[0] != halves[1]


@pytest.mark.parametrize('patch', [(2, 2), (2, 3), (1, 6)])
def test_patches_of_rectangles_are_put_together_again(patch):
  image = jnp.arange(2 * 4 * 6 * 2.0).reshape(2, 4, 6, 2)
  patches = embedding.patches(image, patch)
  p, q = patch
  np.testing.assert_array_equal(patches[1, 0], image[1, :p, :q].ravel())
  grid = 4 // p, 6 // q
  np.testing.assert_array_equal(
    embedding.unpatchify(patches, grid, patch), image
  )
  scaled = np.asarray(mae.normalized(patches))
  np.testing.assert_allclose(scaled.std(axis=-1, ddof=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_scanned_and_recomputed_layers_are_the_same_function():
  image = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
  rng = Rng(jax.random.key(1), jnp.arange(2))
  found = []
  for scan, remat in ((False, 'none'), (True, 'full')):
    objective = objective_of(config_of(model__scan=scan, model__remat=remat))
    params = jax.jit(objective.init)(jax.random.key(2))

    def loss(params, objective=objective):
      return objective.loss(params, {}, {'image': image}, rng)[0]

    found.append(jax.jit(jax.value_and_grad(loss))(params))
  assert found[0][0] == pytest.approx(float(found[1][0]), rel=1e-6)
  for one, layer in ((0, 'blocks_0'), (1, 'blocks_1')):
    np.testing.assert_allclose(
      found[0][1]['decoder'][layer]['mlp']['up']['kernel'],
      found[1][1]['decoder']['blocks']['mlp']['up']['kernel'][one],
      atol=1e-6,
    )


def test_a_step_takes_three_fifths_of_a_supervised_one():
  """ViT-B/16 with the paper's decoder, which removes 75%."""
  config = config_lib.load(tiny.ROOT / 'configs' / 'mae_i1k.py')
  config.train.batch_size = 8
  supervised = config.copy_and_resolve_references()
  supervised.objective.name = 'classification'
  supervised.objective.options = {}
  supervised.model.num_classes = 1000
  known = {'image': features.Image()}
  label = features.Label(tuple(map(str, range(1000))))
  counts = []
  for each, kinds in ((config, known), (supervised, known | {'label': label})):
    if each is config:
      each.model.num_classes = 0
      objectives.fill_options(each)
    objective = objectives.create(each, kinds)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    counts.append(cost.step_flops(each, kinds, params).step)
  assert 0.3 < counts[0] / counts[1] < 0.6


@pytest.mark.parametrize(
  ('options', 'overrides', 'message'),
  [
    ({'mask_ratio': 1.0}, {}, 'mask_ratio is 1.0: it must be above 0 and b'),
    ({'mask_ratio': 0.99}, {}, 'of the 16 patches of 8 x 8 pixels it keeps 0'),
    ({'decoder_depth': 0}, {}, 'decoder_depth is 0: it must be at least 1'),
    ({'decoder_mlp_dim': -1}, {}, 'decoder_mlp_dim is -1'),
    ({'decoder_heads': 3}, {}, 'decoder_heads=3 does not divide it'),
    ({'decoder_width': 6}, {}, 'positions need a multiple of 4'),
    ({'decoder_widht': 6}, {}, 'no key .decoder_widht'),
    ({}, {'model__pool': 'map'}, "pool='map'.*change config.model"),
    ({}, {'model__name': 'Mixer-S/4'}, 'which a Mixer cannot: choose a ViT'),
    ({}, {'model__block': 'merging(1)'}, 'block is merging.*of each patch'),
    ({}, {'model__patch_dropout': 0.5}, 'patch_dropout is 0.5.*set it to 0'),
    (
      {'normalize_targets': True},
      {'model__name': 'ViT-Ti/1'},
      'a patch of a single number has no variance',
    ),
    (
      {},
      {'init_from__trunk_only': True},
      'trunk_only is True, but config.init_from.path is empty',
    ),
  ],
)
def test_mistakes_get_one_line(options, overrides, message):
  config = config_of(**overrides)
  if overrides.get('model__name', '').startswith('Mixer'):
    left = ('num_heads', 'pool', 'positions', 'mlp')
    tiny.change(config, dict.fromkeys(left), 'model.')
  config.objective.options.update(options)
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    experiment_lib.check(config)
    experiment_lib.build(config)
