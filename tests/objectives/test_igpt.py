"""Prediction of the next pixel: training, features, samples, and files."""

import functools
import json

import commands
import compiled
import cv2
import jax
import jax.numpy as jnp
import methods
import numpy as np
import other_libraries
import pytest
import tiny

import vit_jax
from vit_jax import convert
from vit_jax import evaluate
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.data import digits
from vit_jax.models import describing
from vit_jax.models import pixel_cache
from vit_jax.objectives import igpt
from vit_jax.predict import __main__ as predict
from vit_jax.train import flops
from vit_jax.train import loop
from vit_jax.weights import sampling

FIELDS = {
  'hidden_size': 16,
  'mlp_dim': 32,
  'num_heads': 2,
  'depth': 3,
  'initializers': 'lecun',
}


make_config = functools.partial(methods.config, 'igpt')
finished = methods.finished('igpt')


def named(**options):
  return {'model__name': describing.renamed('iGPT-S(colours=4)', **options)}


@pytest.fixture(scope='module')
def images():
  return list(digits.DigitsSource('train[80%:]', 1).arrays['image'][:6])


def make_model(size=(4, 4), **fields):
  name = 'iGPT-S(colours=8)'
  model = models.create_model(name, 0, **FIELDS | fields)
  return model, models.init_params(model, jax.random.key(0), (*size, 3))


def test_colours_stay(finished):
  palette = vit_jax.load(finished).trained_with.objective.options.palette
  words = palette.split()
  assert len(words) == 4 and words == sorted(words)
  expected = [[int(x, 16) / 65535 * 2 - 1] for x in words]
  clusters = vit_jax.load(finished).params['clusters']
  np.testing.assert_allclose(clusters, expected, atol=1e-6)


def test_clusters_are_those_of_the_pixels():
  centres = np.array([[0.1, 0.2, 0.9], [0.5, 0.5, 0.5], [0.9, 0.1, 0.3]])
  rng = np.random.default_rng(0)
  pixels = centres[rng.integers(3, size=900)] + rng.normal(0, 0.01, (900, 3))
  actual = igpt.find_clusters(pixels, 3, seed=0)
  np.testing.assert_allclose(actual, centres, atol=0.003)
  again = igpt.find_clusters(pixels[::-1], 3, seed=0)
  np.testing.assert_array_equal(actual, again)


def test_loaded_and_looked_into(finished, images, capsys):
  vit = vit_jax.load(finished)
  tokens = vit_jax.features(vit, images)
  assert tokens.shape == (2, 6, 64, 16)
  args = f'--from={finished}', '--data=digits', '--split=train[80%:]'
  probe = '--probe=knn', '--train_split=train[:80%]', '--format=json'
  assert commands.run(evaluate, *args, *probe) == 0
  assert json.loads(capsys.readouterr().out)
  assert commands.run(evaluate, *args, '--step=newest', '--format=json') == 0
  actual = json.loads(capsys.readouterr().out)
  trained = [x for x in tiny.metrics(finished) if 'val/loss' in x][-1]
  assert actual['loss'] == pytest.approx(trained['val/loss'], abs=1e-5)


def test_a_classifier_starts_from_it(finished, tmp_path):
  config = tiny.config(
    **named(feature_layer=2),
    model__pool=None,
    model__depth=2,
    init_from__path=str(finished),
    train__duration='3 steps',
  )
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  old, new = vit_jax.load(finished), vit_jax.load(tmp_path / 'run')
  np.testing.assert_array_equal(old.params['clusters'], new.params['clusters'])
  assert new.model.num_classes == 10 and new.model.read == 2


def test_a_pixel_depends_on_those_before_it():
  model, params = make_model()
  ids = jnp.arange(16)[None] % 8
  changed = ids.at[0, 9].add(1)
  logits = [
    compiled.apply(model, {'params': params}, x, method='trunk')[
      'colour_logits'
    ][0]
    for x in (ids, changed)
  ]
  np.testing.assert_allclose(logits[0][:10], logits[1][:10], atol=1e-6)
  assert (abs(logits[0] - logits[1])[10:].max(axis=1) > 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'scan': True, 'remat': 'full'},
    {
      'attention': 'attention(qk_norm=True)',
      'block': 'block(layer_scale=0.5)',
      'mlp': 'swiglu',
      'norm': 'layer_norm',
    },
    {'attention': 'attention(out_bias=False)', 'mlp': 'geglu(bias=False)'},
  ],
  ids=['plain', 'scanned', 'other layers', 'another gate'],
)
def test_the_cache_gives_the_same_logits(fields):
  model, params = make_model(**fields)
  given_ids = jnp.full((3, 16), -1).at[1, :8].set(jnp.arange(8))
  ids, logits = pixel_cache.draw(
    model, params, jax.random.key(1), given_ids, jnp.arange(3), 1.0
  )
  np.testing.assert_array_equal(ids[1, :8], np.arange(8))
  assert len(np.unique(ids)) > 3
  full = compiled.apply(model, {'params': params}, ids, method='trunk')
  np.testing.assert_allclose(logits, full['colour_logits'], atol=2e-5)


def test_only_attention_grows_with_the_pixels():
  model, params = make_model()
  counts = {}
  for n in (16, 32):
    table = jnp.zeros((1, n, 16))
    given_ids, rows = jnp.full((2, n), -1), jnp.arange(2)
    counts[n] = flops.count(
      lambda params, given_ids, rows: pixel_cache.draw(
        model, params, jax.random.key(0), given_ids, rows, 1.0
      ),
      params | {'position_embedding': table},
      given_ids,
      rows,
    )
  # A multiply-add is 2 operations; each token has a score and a value.
  attention = 2 * 2 * 2 * model.depth * model.hidden_size
  assert counts[32] / 32 - counts[16] / 16 == attention * (32 - 16)


def test_samples_do_not_depend_on_their_number(finished):
  vit = vit_jax.load(finished)
  few, many = (sampling.sample(vit, n, seed=3) for n in (2, 5))
  np.testing.assert_array_equal(few, many[:2])
  assert few.shape == (2, 8, 8, 1)
  assert not np.array_equal(few, sampling.sample(vit, 2, seed=4))
  greedy = sampling.sample(vit, 2, temperature=0.0)
  np.testing.assert_array_equal(greedy[0], greedy[1])


def test_pictures_are_drawn(finished, images, tmp_path, capsys):
  out, file = tmp_path / 'out.png', tmp_path / 'x.png'
  assert cv2.imwrite(str(file), images[0])
  args = f'--from={finished}', f'--output={out}'
  assert commands.run(predict, *args, '--sample=9', '--temperature=0.5') == 0
  assert capsys.readouterr().out == f'{out}\n'
  sheet = cv2.imread(str(out))
  assert sheet.shape[1] > 8 * 96 and len(np.unique(sheet)) > 4
  assert commands.run(predict, *args, '--complete', '--sample=2', file) == 0
  assert cv2.imread(str(out)).shape[1] < sheet.shape[1]
  vit = vit_jax.load(finished)
  quantized, drawn = sampling.complete(vit, images, 2)
  assert drawn.shape == (6, 2, 8, 8, 1)
  np.testing.assert_array_equal(drawn[:, 0, :4], quantized[:, :4])


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--sample=2', 'x.png'], 'with --complete it draws'),
    (['--complete'], 'there are no images'),
  ],
)
def test_pictures_need_the_right_input(finished, arguments, message):
  with pytest.raises(UserError, match=message):
    commands.run(predict, f'--from={finished}', *arguments)


def test_files_of_transformers_are_the_same_model(finished, images, tmp_path):
  transformers = other_libraries.imported('transformers')
  assert (
    commands.run(convert, finished, tmp_path / 'hf', '--to=huggingface') == 0
  )
  loaded, converted = vit_jax.load(finished), vit_jax.load(tmp_path / 'hf')
  assert converted.model.has_clusters and converted.preprocess.channels == 1
  jax.tree.map(np.testing.assert_array_equal, loaded.params, converted.params)
  out = loaded.model.apply(
    {'params': loaded.params}, loaded.preprocess(images), method='trunk'
  )
  model = transformers.ImageGPTForCausalImageModeling.from_pretrained(
    tmp_path / 'hf'
  ).eval()
  import torch

  start = np.pad(out['ids'][:, :-1], ((0, 0), (1, 0)), constant_values=4)
  with torch.no_grad():
    logits = model(torch.tensor(start)).logits.numpy()
  np.testing.assert_allclose(out['colour_logits'], logits, atol=1e-4)
  again = tmp_path / 'again'
  assert commands.run(convert, tmp_path / 'hf', again, '--to=huggingface') == 0
  for name in ('model.safetensors', 'preprocessor_config.json'):
    old, new = (tmp_path / x / name for x in ('hf', 'again'))
    assert old.read_bytes() == new.read_bytes()
