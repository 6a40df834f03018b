"""Images and captions: two towers, on any mesh, accumulated, one locked."""

import functools
import json
import shutil

import commands
import cv2
import jax
import methods
import numpy as np
import other_libraries
import pytest
import tiny

import vit_jax
from vit_jax import convert
from vit_jax import embed
from vit_jax import evaluate
from vit_jax import search
from vit_jax.config import UserError
from vit_jax.data import tokenizers
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import contrastive
from vit_jax.predict import __main__ as predict
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

make_config = functools.partial(methods.config, 'contrastive')
finished = methods.finished('contrastive')


def _gradient(options=(), **overrides):
  config = make_config(options, **overrides)
  objective = experiment_lib.build(config).program.objective
  params = jax.jit(objective.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  shape = (16, *objective.image_shape)
  batch = {
    'image': rng.normal(size=shape).astype(np.float32),
    'text': rng.integers(1, 20, (16, 12)).astype(np.int32),
  }
  rows = Rng(jax.random.key(1), np.arange(16, dtype=np.int32))

  def loss(params):
    return objective.loss(params, {}, batch, rows)[0]

  return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.slow
@pytest.mark.parametrize('loss', contrastive.Contrastive.limits['loss'])
def test_cached_gradients_are_those_of_the_whole_batch(loss):
  """With dropout, whose masks belong to the global batch."""
  options, dropout = {'loss': loss}, {'model__dropout_rate': 0.2}
  expected = _gradient(options, **dropout)
  cached = _gradient(options | {'parts': 2}, **dropout, train__accumulation=4)
  assert np.isfinite(expected[0])
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-4),
    cached,
    expected,
  )


def test_a_limited_temperature():
  """Beyond the limit, the gradient only lowers the temperature."""

  def grad(x, sign):
    return jax.grad(lambda x: sign * contrastive.limited(x, 100.0))(x)

  assert float(contrastive.limited(np.float32(9.0), 100.0)) == pytest.approx(
    np.log(100), rel=1e-6
  )
  assert [float(grad(9.0, sign)) for sign in (1, -1)] == [1, 0]
  assert [float(grad(4.0, sign)) for sign in (1, -1)] == [1, -1]
  assert float(contrastive.limited(np.float32(9.0), 0)) == 9


@pytest.mark.slow
def test_evaluations_of_a_run(finished):
  last = [x for x in tiny.metrics(finished) if 'zero/accuracy' in x][-1]
  assert 0 <= last['zero/accuracy'] <= last['zero/top5_accuracy'] <= 1
  assert last['zero/examples'] == last['pairs/examples'] == 30
  recalls = [last[f'pairs/image_to_text@{k}'] for k in (1, 5, 10)]
  assert sorted(recalls) == recalls
  assert recalls[-1] == 1  # there are ten captions


def test_the_image_tower_is_a_trunk(finished):
  """Other methods start from it."""
  config = tiny.config(
    init_from__path=str(finished),
    model__name='init_from',
    train__duration='4 steps',
  )
  experiment = experiment_lib.build(config)
  np.testing.assert_array_equal(
    experiment.start.take()['patch_embedding']['kernel'],
    vit_jax.load(finished).params['patch_embedding']['kernel'],
  )


@pytest.mark.slow
@pytest.mark.parametrize('locked', ['image', 'text'])
def test_a_locked_tower(locked, finished, tmp_path):
  """It keeps its parameters, and the optimizer has no state for it."""
  config = make_config({'locked': locked}, init_from__path=str(finished))
  before = experiment_lib.build(config).init()
  assert locked in before.params
  names = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(before.opt_state)
  ]
  assert names and not any(f"['{locked}']" in name for name in names)
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  folder = workdir_lib.newest_first(tmp_path / 'run' / 'checkpoints')[0]
  params, _ = restoring.read_params(folder)
  jax.tree.map(
    np.testing.assert_array_equal, params[locked], before.params[locked]
  )
  assert params['log_scale'] != before.params['log_scale']


@pytest.mark.slow
def test_the_backward_pass_of_a_locked_tower_is_left_out(finished):
  """As the FLOP of the compiled step say."""

  def flops(locked):
    config = make_config(
      {'locked': locked}, init_from__path=str(finished), model__depth=8
    )
    program = experiment_lib.build(config, resumes=True).program
    return program.compile().cost_analysis()['flops']

  assert flops('image') < 0.6 * flops('')


def test_the_end_of_a_text_is_read_also_where_it_is_cut():
  actual = []
  for pool in ('end', 'largest'):
    e = experiment_lib.build(
      make_config({'text_pool': pool}, data__text_length=4)
    )
    objective, params = e.program.objective, e.init().params
    tokens = objective.text.encode_all(['a 1', 'the number 1.'], 'texts')
    assert (tokens[:, -1] > 0).tolist() == [False, True]
    actual.append(objective.text_outputs(params, tokens)['text_features'])
  np.testing.assert_array_equal(*actual)


def test_the_command_measures_a_run(finished, capsys):
  """With prompts of its own, and as in training."""
  args = (f'--from={finished}', '--data=digits', '--split=train[200:230]')
  args += ('--format=json',)
  actual = []
  for probe in (
    ('--probe=zero_shot', '--templates=a {}.|one {}.'),
    ('--probe=retrieval',),
  ):
    assert commands.run(evaluate, *args, *probe) == 0
    actual.append(json.loads(capsys.readouterr().out))
  last = [x for x in tiny.metrics(finished) if 'zero/accuracy' in x][-1]
  assert actual[0]['accuracy'] == last['zero/accuracy']
  assert actual[1]['image_to_text@5'] == last['pairs/image_to_text@5']


def test_prompts_name_classes(finished, tmp_path, capsys):
  for i in range(3):
    image = np.full((8, 8), 80 * i, np.uint8)
    cv2.imwrite(str(tmp_path / f'{i}.png'), image)
  args = f'--from={finished}', tmp_path, '--format=json'
  prompts = ['a 0', 'the number 1', 'a 2']
  assert commands.run(predict, *args, f'--prompts={",".join(prompts)}') == 0
  actual = json.loads(capsys.readouterr().out)
  assert len(actual) == 3
  for answer in actual:
    assert {x['class'] for x in answer['predictions']} == set(prompts)
    total = sum(x['probability'] for x in answer['predictions'])
    assert total == pytest.approx(1, abs=1e-5)
  with pytest.raises(UserError, match='at least two texts'):
    commands.run(predict, *args, '--prompts=a 0')


def test_a_vocabulary_that_has_changed(finished, tmp_path):
  """Its hash is in preprocess.json."""
  copy = tmp_path / 'run'
  shutil.copytree(finished, copy)
  path = copy / 'preprocess.json'
  stored = json.loads(path.read_text())
  stored['features']['text']['words'][0] = 'other'
  path.write_text(json.dumps(stored))
  args = f'--from={copy}', '--data=digits', '--split=train[200:230]'
  with pytest.raises(UserError, match='is not the vocabulary of the model'):
    commands.run(evaluate, *args, '--probe=retrieval')


def test_images_are_found_by_texts_and_images(finished, tmp_path, capsys):
  """As the embeddings say; only changed files are read again."""
  folder = tmp_path / 'photos'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for i in range(5):
    image = rng.integers(0, 256, (8, 8), np.uint8)
    cv2.imwrite(str(folder / f'{i}.png'), image)

  def run(*args):
    status = commands.run(search, f'--from={finished}', folder, *args)
    return status, capsys.readouterr()

  def embed_all(name, *args):
    out = tmp_path / f'{name}.npz'
    assert commands.run(embed, f'--from={finished}', f'--out={out}', *args) == 0
    return np.load(out)

  args = '--text=a 3', '--text=the number 8', f'--image={folder}/2.png'
  status, captured = run(*args, '--format=json')
  assert status == 0
  images = embed_all('images', f'--images={folder}')
  texts = embed_all('texts', *args[:2])
  assert texts['text'].tolist() == ['a 3', 'the number 8']
  queries = [*texts['embedding'], images['embedding'][2]]
  for query, answer in zip(queries, json.loads(captured.out), strict=True):
    similarities = images['embedding'] @ query
    actual = {x['image']: x['similarity'] for x in answer['found']}
    expected = dict(zip(images['file'].tolist(), similarities, strict=True))
    assert actual == pytest.approx(expected, abs=1e-5)
    assert sorted(actual.values(), reverse=True) == list(actual.values())
  actual = vit_jax.load(finished).outputs(images['file'].tolist())
  np.testing.assert_allclose(actual['features'], images['embedding'], atol=1e-5)
  (cache,) = tmp_path.glob('photos.embeddings-*.npz')
  written = cache.stat().st_mtime_ns
  assert run(*args)[1].out.splitlines()[0] == 'a 3'
  assert cache.stat().st_mtime_ns == written

  (folder / '0.png').unlink()
  (folder / '1.png').write_bytes(b'no image')
  picture = tmp_path / 'found.png'
  status, captured = run(*args, '--format=csv', f'--picture={picture}')
  assert status == 1 and '1.png' in captured.err
  assert len(captured.out.splitlines()) == 1 + 3 * 3
  assert cv2.imread(str(picture)) is not None
  cache.write_bytes(b'damaged')
  assert run(*args, '--format=csv')[1].out == captured.out


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (('here',), 'no query'),
    (('--text=a 3',), 'one folder'),
    (('here', '--text='), 'empty'),
    (('here', '--text=a 3'), 'has no images'),
  ],
)
def test_a_search_that_cannot_be(args, message, finished, tmp_path):
  args = [tmp_path if x == 'here' else x for x in args]
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    commands.run(search, f'--from={finished}', *args)


def test_any_model_finds_images_like_one(digits_run, tmp_path, capsys):
  for i in range(3):
    cv2.imwrite(str(tmp_path / f'{i}.png'), np.full((8, 8), 80 * i, np.uint8))
  args = f'--from={digits_run}', tmp_path, '--top=1', '--format=json'
  cache = f'--cache={tmp_path}/cache.npz'
  assert commands.run(search, *args, cache, f'--image={tmp_path}/1.png') == 0
  (answer,) = json.loads(capsys.readouterr().out)
  (actual,) = answer['found']
  assert actual['image'] == str(tmp_path / '1.png')
  assert actual['similarity'] == pytest.approx(1, abs=1e-5)
  with pytest.raises(UserError, match='was trained for classification'):
    commands.run(search, *args, cache, '--text=a 3')


def test_a_search_keeps_the_embeddings_of_one_model(
  digits_run, tmp_path, capsys
):
  """One that merges tokens has the same parameters, and embeds otherwise."""
  folder = tmp_path / 'photos'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for i in range(3):
    image = rng.integers(0, 256, (8, 8), np.uint8)
    cv2.imwrite(str(folder / f'{i}.png'), image)
  args = f'--from={digits_run}', folder, f'--image={folder}/1.png'

  def run(*more):
    assert commands.run(search, *args, '--format=csv', *more) == 0
    return capsys.readouterr().out

  merging, cache = '--model.block=merging(1)', f'--cache={tmp_path}/cache.npz'
  plain, merged = run(), run(merging)
  assert merged != plain
  assert len([*tmp_path.glob('photos.embeddings-*.npz')]) == 2
  assert run(cache) == plain
  assert run(cache, merging) == merged
  archive = tmp_path / 'mine.npz'
  np.savez(archive, embedding=np.ones((3, 16)))
  with pytest.raises(UserError, match=r'other arrays .* not overwritten'):
    run(f'--cache={archive}')
  assert np.load(archive).files == ['embedding']
  with pytest.raises(UserError, match=r'must end in \.npz'):
    run(f'--cache={folder}/1.png')


CLIP = {'model__pre_norm': True, 'model__patches': 'patches(bias=False)'}
SIGLIP = {'loss': 'sigmoid', 'dim': 0, 'text_causal': False}
FILES = {
  'clip': (
    {},
    CLIP | {'model__mlp': "mlp(gelu='sigmoid')", 'model__pool': 'token'},
  ),
  'siglip': (SIGLIP | {'text_pool': 'last'}, {'model__pool': 'map'}),
}


@pytest.mark.parametrize('kind', FILES)
def test_transformers_embeds_the_same(kind, tmp_path):
  """Both towers are written as theirs, and a run starts from them."""
  torch = pytest.importorskip('torch')
  transformers = other_libraries.imported('transformers')
  options, fields = FILES[kind]
  config = make_config(options, **fields, train__duration='3 steps')
  config.evals.zero.split = config.evals.pairs.split = ''
  config.checkpoint.best = ''
  run, folder = tmp_path / 'run', tmp_path / 'there'
  assert loop.run(config, str(run)).status == 0
  args = run, folder, '--to=huggingface', '--whole'
  assert commands.run(convert, *args) == 0
  reference, report = transformers.AutoModel.from_pretrained(
    folder, output_loading_info=True
  )
  assert reference.config.model_type == kind and not any(report.values())
  config.init_from.path = str(folder)
  experiment = experiment_lib.build(config)
  params, loaded = experiment.start.take(), vit_jax.load(run)
  expected = {'image': loaded.params, **loaded.objective_params}
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  objective, rng = experiment.program.objective, np.random.default_rng(0)
  images = rng.standard_normal((3, *objective.image_shape), np.float32)
  length = objective.text.length
  tokens = rng.integers(1, objective.text.vocabulary, (3, length))
  batch = {'image': images, 'text': tokens}
  actual = jax.jit(objective.outputs)(params, batch)
  with torch.no_grad():
    answer = reference.eval()(
      pixel_values=torch.tensor(images.transpose(0, 3, 1, 2).copy()),
      input_ids=torch.tensor(tokens),
    )
  for name, expected in (
    ('features', answer.image_embeds),
    ('text_features', answer.text_embeds),
  ):
    np.testing.assert_allclose(actual[name], expected.numpy(), atol=1e-5)


def test_towers_that_no_file_has(finished, tmp_path):
  """The pool of the image tower is neither CLIP's nor SigLIP's."""
  args = finished, tmp_path / 'x', '--to=huggingface', '--whole'
  with pytest.raises(UserError, match='no file of --to=huggingface has what'):
    commands.run(convert, *args)


def test_a_file_of_both_towers_compares_and_finds(tmp_path, capsys):
  """CLIP of transformers, with the vocabulary beside it."""
  torch = pytest.importorskip('torch')
  transformers = other_libraries.imported('transformers')
  pytest.importorskip('tokenizers')
  small = {
    'hidden_size': 16,
    'intermediate_size': 32,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
  }
  texts = {'vocab_size': 517, 'max_position_embeddings': 9, 'eos_token_id': 516}
  torch.manual_seed(0)
  reference = transformers.CLIPModel(
    transformers.CLIPConfig(
      vision_config=small | {'image_size': 16, 'patch_size': 8},
      text_config=small | texts,
      projection_dim=8,
    )
  ).eval()
  folder, photos = tmp_path / 'clip', tmp_path / 'photos'
  reference.save_pretrained(folder)
  photos.mkdir()
  rng = np.random.default_rng(0)
  for i in range(3):
    image = rng.integers(0, 256, (16, 16, 3), np.uint8)
    cv2.imwrite(str(photos / f'{i}.png'), image)
  args = f'--from={folder}', photos
  with pytest.raises(UserError, match=f'^{folder} has no vocabulary.*$'):
    commands.run(predict, *args, '--prompts=a cat,no')
  (folder / 'vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n')
  with pytest.raises(UserError, match='has 3 tokens, but the text tower'):
    commands.run(predict, *args, '--prompts=a cat,no')
  (folder / 'merges.txt').write_text('#version: 0.2\nc a\nca t</w>\no n\n')
  assert (
    commands.run(predict, *args, '--prompts=a cat,no', '--format=json') == 0
  )
  actual = json.loads(capsys.readouterr().out)
  prepared = vit_jax.load(folder).preprocess([x['image'] for x in actual])
  tokens = tokenizers.make(f'clip:{folder}/merges.txt', 9)(['a cat', 'no'])
  with torch.no_grad():
    expected = reference(
      pixel_values=torch.tensor(prepared.transpose(0, 3, 1, 2).copy()),
      input_ids=torch.tensor(tokens),
    ).logits_per_image.softmax(dim=-1)
  for each, row in zip(actual, expected.numpy(), strict=True):
    probabilities = {x['class']: x['probability'] for x in each['predictions']}
    assert [probabilities['a cat'], probabilities['no']] == pytest.approx(
      row, abs=1e-4
    )
  small = ('--quantize=int8', '--format=json')  # both towers
  assert commands.run(predict, *args, '--prompts=a cat,no', *small) == 0
  for each, row in zip(
    json.loads(capsys.readouterr().out), expected.numpy(), strict=True
  ):
    probabilities = {x['class']: x['probability'] for x in each['predictions']}
    assert [probabilities['a cat'], probabilities['no']] == pytest.approx(
      row, abs=0.02
    )
    assert [probabilities['a cat'], probabilities['no']] != pytest.approx(
      row, abs=1e-6
    )
  assert commands.run(search, *args, '--text=a cat', '--format=json') == 0
  (answer,) = json.loads(capsys.readouterr().out)
  assert len(answer['found']) == 3
