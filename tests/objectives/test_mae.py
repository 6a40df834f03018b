"""Masked autoencoders."""

import functools
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
from vit_jax.models import layouts
from vit_jax.objectives import mae
from vit_jax.train import cost
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

make_config = functools.partial(methods.config, 'mae')
finished = methods.finished('mae')


def make_objective(config):
  config = config.copy_and_resolve_references()
  config.model.num_classes = 0
  objectives.fill_options(config)
  return objectives.create(config, {'image': features.Image()})


@pytest.mark.slow
def test_its_trunk_is_loaded_probed_and_fine_tuned(finished, capsys):
  vit = vit_jax.load(finished)
  assert vit.model.num_classes == 0
  args = f'--from={finished}', '--data=digits', '--split=train[80%:]'
  probe = '--probe=knn', '--train_split=train[:80%]', '--format=json'
  assert commands.run(evaluate, *args, *probe) == 0
  assert json.loads(capsys.readouterr().out)['examples'] == 359
  e = experiment_lib.build(
    tiny.config(**methods.trunk('mae'), init_from__path=str(finished))
  )
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
  scanned = start(make_config(init_from__path=str(finished), model__scan=True))
  blocks = before.objective_params['decoder']['blocks_1']
  jax.tree.map(
    lambda actual, expected: np.testing.assert_array_equal(actual[1], expected),
    scanned['decoder']['blocks'],
    blocks,
  )
  fresh = start(
    make_config(
      init_from__path=str(finished), seed=1, init_from__trunk_only=True
    )
  )
  kernels = [x['decoder']['prediction']['kernel'] for x in (fresh, scanned)]
  assert not np.array_equal(*kernels)
  kernels = [x['trunk']['patch_embedding']['kernel'] for x in (fresh, scanned)]
  np.testing.assert_array_equal(*kernels)
  config = make_config({'decoder_width': 8}, init_from__path=str(finished))
  with pytest.raises(UserError, match=r'decoder/norm/scale.*trunk_only=True'):
    experiment_lib.build(config)


@pytest.mark.slow
def test_a_classifier_gives_the_trunk_alone(tmp_path):
  config = tiny.config(**methods.trunk('mae'), train__duration='3 steps')
  assert loop.run(config, str(tmp_path)).status == 0
  params = start(make_config(init_from__path=str(tmp_path)))
  np.testing.assert_array_equal(
    params['trunk']['norm']['scale'],
    vit_jax.load(tmp_path).params['norm']['scale'],
  )


@pytest.mark.parametrize('name', ['timm', 'huggingface'])
def test_files_of_others_hold_all_of_it_to_the_bit(finished, name, tmp_path):
  folder = tmp_path / 'there'
  args = str(finished), str(folder), f'--to={name}'
  assert commands.run(convert, *args, '--whole') == 0
  params = start(make_config(init_from__path=str(folder)))
  expected = vit_jax.load(finished)
  expected = {'trunk': expected.params, **expected.objective_params}
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  alone = tmp_path / 'alone'
  assert commands.run(convert, *args[:1], str(alone), *args[2:]) == 0
  config = make_config(init_from__path=str(alone), seed=1)
  actual = start(config)['decoder']['mask_token']
  assert not np.array_equal(actual, expected['decoder']['mask_token'])


def test_transformers_computes_the_same_loss(finished, tmp_path):
  torch = pytest.importorskip('torch')
  transformers = other_libraries.imported('transformers')
  args = f'{finished} {tmp_path}/there --to=huggingface --whole'.split()
  assert commands.run(convert, *args) == 0
  reference, report = transformers.ViTMAEForPreTraining.from_pretrained(
    tmp_path / 'there', output_loading_info=True
  )
  assert not any(report.values())
  objective = make_objective(make_config())
  params = start(make_config(init_from__path=str(finished)))
  rng = np.random.default_rng(0)
  image = rng.standard_normal((3, 8, 8, 1), np.float32)
  noise = rng.random((3, 16), np.float32)
  drawn = mae.masks(jnp.asarray(noise), reference.config.mask_ratio)
  errors = mae.reconstruction_errors(
    objective.predict(params, image, drawn),
    objective.targets(image),
    drawn.removed,
  )
  pixels = torch.tensor(image.transpose(0, 3, 1, 2))
  with torch.no_grad():
    expected = reference.eval()(pixels, noise=torch.tensor(noise)).loss
  assert errors.mean() == pytest.approx(float(expected), rel=1e-5)


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
  losses, grads = [], []
  for scan, remat in ((False, 'none'), (True, 'full')):
    objective = make_objective(
      make_config(model__scan=scan, model__remat=remat)
    )
    params = jax.jit(objective.init)(jax.random.key(2))

    def loss_fn(params, objective=objective):
      return objective.loss(params, {}, {'image': image}, rng)[0]

    loss, grad = jax.jit(jax.value_and_grad(loss_fn))(params)
    losses.append(float(loss))
    grads.append(grad)
  assert losses[0] == pytest.approx(losses[1], rel=1e-6)
  assert 'blocks' in grads[1]['decoder'] and 'blocks' in grads[1]['trunk']
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    layouts.relayout(grads[1], grads[0]),
    grads[0],
  )


def test_a_step_takes_three_fifths_of_a_supervised_one():
  """ViT-B/16 with the paper's decoder, which removes 75%."""
  config = config_lib.load(tiny.ROOT / 'configs' / 'mae_i1k.py')
  config.train.batch_size = 8
  supervised = config.copy_and_resolve_references()
  supervised.objective.name = 'classification'
  supervised.objective.options = {}
  supervised.model.num_classes = 1000
  image_kind = {'image': features.Image()}
  label = features.Label(tuple(map(str, range(1000))))
  counts = []
  for recipe, kinds in (
    (config, image_kind),
    (supervised, image_kind | {'label': label}),
  ):
    if recipe is config:
      recipe.model.num_classes = 0
      objectives.fill_options(recipe)
    objective = objectives.create(recipe, kinds)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    counts.append(cost.step_flops(recipe, kinds, params).step)
  assert 0.3 < counts[0] / counts[1] < 0.6
