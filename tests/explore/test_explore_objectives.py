"""Pictures of what methods make of images, from runs of a few steps."""

import dataclasses
import json
import pathlib

import commands
import jax
import jax.numpy as jnp
import methods
import numpy as np
import planted
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data import kinds as kinds_lib
from vit_jax.data.device.rng import Rng
from vit_jax.explore import attention
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import kinds
from vit_jax.explore import pictures
from vit_jax.explore import subject as subject_lib
from vit_jax.models import embedding
from vit_jax.models import subtrees
from vit_jax.plots import tiles
from vit_jax.runs import restoring
from vit_jax.train import loop


@pytest.fixture(params=['mae', 'beit', 'dinov2', 'tokenizer'])
def finished(request, method_run):
  """A method, and the work directory of its run."""
  return request.param, method_run(request.param)


def digits(vit, count=3):
  """Returns the first digits as a model takes them."""
  from sklearn import datasets

  pixels = datasets.load_digits().images[:count] * (255 / 16)
  return vit.preprocess(list(pixels.astype(np.uint8)))


def drawn_columns(path):
  """Returns the images, and what the objective shows of them, by name."""
  vit = vit_jax.load(path)
  kinds = vit.preprocess.features.items()
  objective = objectives.create(
    vit.trained_with, {k: kinds_lib.from_dict(x) for k, x in kinds}
  )
  params = subtrees.joined(
    vit.params, vit.preprocess.trunk, vit.objective_params
  )
  images = digits(vit)
  extra = jax.tree.map(jnp.asarray, restoring.restore_extra(vit.origin.path))
  actual = objective.pictures(params, extra, images, rng())
  return objective, params, extra, images, {x.name: x for x in actual}


def rng():
  return Rng(jax.random.key(0), jnp.arange(3, dtype=jnp.int32))


def patches(images):
  return embedding.patches(np.asarray(images), (2, 2))


def check_mae(objective, params, extra, images, actual):
  mask = np.asarray(actual['masked'].hidden)
  assert (mask.sum(axis=1) == 12).all()  # of 16 patches
  drawn, originals = patches(actual['reconstruction'].images), patches(images)
  np.testing.assert_array_equal(drawn[~mask], originals[~mask])
  # As in training, and predictions in the scale of the patch.
  masks = objective._masks(rng().fold(objectives.Purpose.OBJECTIVE).per_row())
  np.testing.assert_array_equal(masks.removed > 0, mask)
  predicted = np.asarray(objective.predict(params, images, masks))
  spread = np.sqrt(originals.var(axis=-1, ddof=1, keepdims=True) + 1e-6)
  predicted = predicted * spread + originals.mean(axis=-1, keepdims=True)
  np.testing.assert_allclose(drawn[mask], predicted[mask], atol=1e-5)


def check_beit(objective, params, extra, images, actual):
  mask = np.asarray(actual['masked'].hidden)
  codes = np.asarray(extra['tokenizer']['codes'])
  assert 2 <= mask.sum(axis=1).min() <= mask.sum(axis=1).max() <= 6
  distance = ((patches(images)[:, :, None] - codes) ** 2).sum(axis=-1)
  tokens = patches(actual['tokens'].images)
  np.testing.assert_array_equal(tokens, codes[distance.argmin(axis=-1)])
  predicted = patches(actual['predicted'].images)
  np.testing.assert_array_equal(predicted[~mask], tokens[~mask])
  kinds = {code.tobytes() for code in codes}
  assert {x.tobytes() for x in predicted[mask]} <= kinds


def check_dinov2(objective, params, extra, images, actual):
  masks = np.asarray(objective.draw_masks(rng()))
  assert masks.any() and not masks.all()
  for i, name in enumerate(('first crop', 'second crop')):
    np.testing.assert_array_equal(actual[name].hidden, masks[:, i])
    np.testing.assert_array_equal(actual[name].images, images)


def check_tokenizer(objective, params, extra, images, actual):
  error = objective.outputs(params, {'image': images})['loss']
  drawn = actual['from tokens'].images
  mean = ((drawn - images) ** 2).mean(axis=(1, 2, 3))
  np.testing.assert_allclose(mean, error, rtol=1e-4)


CHECKS = {
  'mae': check_mae,
  'beit': check_beit,
  'dinov2': check_dinov2,
  'tokenizer': check_tokenizer,
}


@pytest.mark.slow
def test_what_a_method_shows(finished):
  method, path = finished
  objective, params, extra, images, actual = drawn_columns(path)
  assert objective.pictures_caption.endswith('.')
  np.testing.assert_array_equal(actual['original'].images, images)
  for column in actual.values():
    assert column.images.shape == images.shape
    assert np.isfinite(column.images).all()
  CHECKS[method](objective, params, extra, images, actual)


def explored(capsys, *args):
  """Runs the command; returns the page."""
  assert commands.run(pictures, *args) == 0
  return pathlib.Path(capsys.readouterr().out.strip()).read_text()


DATA = '--data=digits', '--split=train[80%:]', '--max_examples=20'


@pytest.mark.slow
def test_the_report_of_a_run(finished, tmp_path, capsys):
  """More images than a batch has are drawn, too."""
  method, path = finished
  page = explored(
    capsys,
    f'--from={path}',
    *DATA,
    '--max_images=18',
    '--only=objective,samples,segments',
    '--mass=0.3',
    f'--out={tmp_path}/out',
  )
  assert 'id="objective"' in page and 'id="segments"' in page
  assert 'a ViT, which predicts no pixels' in page
  assert '30% of the attention' in page
  assert ('Masks are those' in page) == (method != 'tokenizer')
  assert (tmp_path / 'out/objective.png').stat().st_size > 2000
  numbers = json.loads((tmp_path / 'out/numbers.json').read_text())
  assert numbers['segments']['mass'] == 0.3
  assert np.shape(numbers['segments']['patches']) == (18, 2)


@pytest.mark.slow
def test_beit_of_a_trained_tokenizer(method_run, tmp_path):
  tokenizer = method_run('tokenizer')
  config = methods.config(
    'beit',
    {'tokenizer': str(tokenizer)},
    data__mean=(0.1,),
    data__std=(0.3,),
    train__duration='1 steps',
    optim__warmup='0 steps',
  )
  assert loop.run(config, str(tmp_path)).status == 0
  _, _, _, images, actual = drawn_columns(tmp_path)
  its = drawn_columns(tokenizer)
  # Both see the same pixels, and so draw the same, each in its own scale.
  pixels = images * 0.3 + 0.1
  stored = vit_jax.load(tokenizer).preprocess
  mean, std = stored.mean, stored.std
  np.testing.assert_allclose(its[3] * std + mean, pixels, atol=1e-6)
  np.testing.assert_allclose(
    np.asarray(actual['tokens'].images) * 0.3 + 0.1,
    np.asarray(its[4]['from tokens'].images) * std + mean,
    atol=1e-5,
  )


def test_why_there_is_no_picture_of_a_method(digits_run, method_run):
  def reason(vit):
    images = examples_lib.Images(('a',), ('',), digits(vit, 1), [None], 1)
    options = subject_lib.Options((0, 0), (0,), (), None, same_order=False)
    subject = subject_lib.Subject(vit, 'it', images, None, options)
    with pytest.raises(UserError) as e:
      kinds.KINDS['objective'][1](subject)
    return str(e.value)

  vit = vit_jax.load(digits_run)
  assert 'classification, has no pictures' in reason(vit)
  assert 'is of a file' in reason(dataclasses.replace(vit, trained_with=None))
  # Learned positions, which are resized, and fixed ones, which are computed.
  for method in ('tokenizer', 'mae'):
    larger = vit_jax.load(method_run(method), image_size=12)
    assert bool(larger.changes) == (method == 'tokenizer')
    assert 'leave --image_size' in reason(larger)


@pytest.mark.slow
def test_an_igpt_draws_and_completes(method_run, tmp_path, capsys):
  path = method_run('igpt')
  names = 'attention,segments,relevance,neighbors,objective,samples,completions'
  page = explored(
    capsys,
    f'--from={path}',
    *DATA,
    '--max_images=9',
    f'--only={names}',
    f'--out={tmp_path}/out',
  )
  for name in ('samples', 'completions', 'neighbors'):
    assert f'id="{name}"' in page
  assert 'Lower halves of 8 images' in page
  assert 'igpt, has no pictures' in page
  assert page.count('is an IGPT, whose pixels attend') == 3


def test_covered_patches():
  image = np.full((4, 6, 3), 200, np.uint8)
  hidden = np.array([[True, False, False]])
  actual = tiles.cover(image, hidden)
  assert (actual[:, 2:] == 200).all()
  assert len(np.unique(actual[:, :2].reshape(-1, 3), axis=0)) == 1
  assert np.ptp(actual[0, 0].astype(int)) > 20  # no grey
  half = tiles.cover(image, hidden, 0.5)
  np.testing.assert_allclose(half[0, 0], actual[0, 0] / 2 + 100, atol=1)


def test_the_demo_of_dino_has_a_class_token():
  """Its attention is DINO's own picture."""
  config = config_lib.load(f'{tiny.ROOT}/configs/digits_dino.py')
  vit = planted.loaded(models.from_config(config.model, 0), size=(8, 8))
  attention.check_class_token(vit)
