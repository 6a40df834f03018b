"""All pictures, of every kind of model; the command that draws them."""

import dataclasses
import json
import os
import sys

import commands
import jax
import jax.numpy as jnp
import numpy as np
import planted
import pytest
import stand_in

import vit_jax
from vit_jax import cli
from vit_jax import data
from vit_jax import explore
from vit_jax.config import UserError
from vit_jax.explore import __main__ as explore_main
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import kinds
from vit_jax.explore import pictures
from vit_jax.explore import subject as subject_lib
from vit_jax.weights import features

LABELLED = {
  'decodability',
  'mistakes',
  'confusion',
  'reliability',
  'embedding',
}
OF_ATTENTION = {
  'attention',
  'segments',
  'rollout',
  'relevance',
  'query',
  'distance',
}
OF_METHODS = {'objective', 'samples', 'completions', 'overlays', 'errors'}
HYBRID = {'patches': 'hybrid(width=32)', 'patch_size': (1, 2)}


def make_subject(vit, count=5, **overrides):
  inputs = planted.images(count)
  names = tuple(f'{i}.png' for i in range(count))
  sources = list(np.zeros((count, 8, 16, 3), np.uint8))
  images = examples_lib.Images(names, ('',) * count, inputs, sources, count)
  depth = getattr(vit.model, 'depth', 0)
  options = {
    'query': (1, 1),
    'layers': tuple(range(depth)),
    'classes': (),
    'position_size': None,
    'same_order': False,
  }
  options = subject_lib.Options(**(options | overrides))
  return subject_lib.Subject(vit, 'it', images, None, options)


def draw(subject, folder, names=tuple(kinds.KINDS)):
  contents = kinds.draw(subject, names, folder, lambda _: None)
  sections = {section.name: section for section in contents.sections}
  reasons = {kind.name: kind.reason for kind in contents.missing}
  assert sections.keys() | reasons.keys() == set(names)
  return sections, reasons, contents.numbers


@pytest.mark.slow
@pytest.mark.parametrize(
  'model, missing',
  [
    (planted.tiny(registers=2, scan=True, dtype=jnp.bfloat16), {'stem'}),
    (planted.tiny(pool='mean', **HYBRID), {'filters', 'segments'}),
    (planted.tiny_mixer(), {'stem', 'positions', *OF_ATTENTION}),
    (
      planted.tiny_bit(),
      set(kinds.KINDS) - LABELLED - {'predictions', 'stem', 'neighbors'},
    ),
  ],
)
def test_what_each_model_can_show(model, missing, tmp_path):
  vit = planted.loaded(model.clone(scan=False) if _scans(model) else model)
  if _scans(model):
    vit = planted.scanned(vit)
  sections, reasons, numbers = draw(make_subject(vit, 4), tmp_path)
  assert set(reasons) == missing | LABELLED | OF_METHODS
  for name in LABELLED:
    assert '--data' in reasons[name]
  for section in sections.values():
    assert section.caption.endswith('.')
    for picture in section.pictures:
      assert picture.file.stat().st_size > 500
  json.dumps(numbers, allow_nan=False)


def _scans(model):
  return getattr(model, 'scan', False)


def test_one_pass_shows_what_the_functions_say(tmp_path, monkeypatch):
  vit = planted.loaded(planted.tiny())
  subject = make_subject(vit)
  passes = []
  reduced = features.reduced

  def count(vit, images, names, *args, **kwargs):
    passes.append(names)
    return reduced(vit, images, names, *args, **kwargs)

  monkeypatch.setattr(features, 'reduced', count)
  _, _, numbers = draw(subject, tmp_path)
  assert passes == [('logits', 'tokens', 'attention')]
  seen, images = subject.captured, planted.images()
  for actual, expected in [
    (seen.maps, explore.attention_maps(vit, images)),
    (
      seen.query,
      explore.attention_maps(vit, images, query=(1, 1)).mean(axis=2),
    ),
    (numbers['rollout']['rollout'], explore.attention_rollout(vit, images)),
    (
      numbers['distance']['distance_pixels'],
      explore.attention_distance(vit, images),
    ),
    (
      numbers['distance']['entropy_nats'],
      explore.attention_entropy(vit, images),
    ),
    (seen.norms, explore.token_norms(vit, images)),
    (seen.similarity[1], explore.patch_similarity(vit, images, (1, 1), 1)),
    (seen.tokens, vit_jax.features(vit, images)),
    (numbers['cka']['layers'], explore.layer_cka(vit, images)),
    (
      np.asarray(numbers['relevance']['relevance'])[:, 0],
      explore.class_relevance(vit, images),
    ),
  ]:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_what_is_kept_of_tokens(tmp_path, monkeypatch):
  """Where all are too many, CKA takes a pass of its own."""
  vit = planted.loaded(planted.tiny())
  names = ('cka', 'pca')
  _, _, expected = draw(make_subject(vit), tmp_path, names)
  monkeypatch.setattr(subject_lib, '_MOST_BYTES', 0)
  subject = make_subject(vit, layers=(0, 2))
  _, _, actual = draw(subject, tmp_path, names)
  assert subject.captured.layers == (0, 2)
  np.testing.assert_allclose(
    actual['cka']['layers'], expected['cka']['layers'], atol=1e-4
  )
  _, reasons, _ = draw(make_subject(vit, 3), tmp_path, names)
  assert 'at least 4' in reasons['cka']


def test_a_model_that_diverged(tmp_path):
  vit = planted.loaded(planted.tiny())
  vit.params['head']['bias'][0] = np.nan
  vit.params['norm']['bias'][0] = np.nan
  names = 'patches', 'rollout', 'predictions', 'foreground', 'neighbors'
  sections, reasons, _ = draw(make_subject(vit), tmp_path, names)
  assert set(sections) == {'patches'}
  assert all('not finite' in reason for reason in reasons.values())
  vit = planted.loaded(planted.tiny_bit())
  vit.params['head']['bias'][0] = np.nan
  _, reasons, _ = draw(make_subject(vit), tmp_path, ('predictions',))
  assert 'not finite' in reasons['predictions']


def test_labelled_examples_of_a_model_that_diverged(
  digits_run, tmp_path, monkeypatch, capsys
):
  full_model = vit_jax.load(digits_run)
  broken = dataclasses.replace(
    full_model, params=jax.tree.map(lambda x: x * np.nan, full_model.params)
  )
  monkeypatch.setattr(cli, 'load', lambda _: broken)
  names = 'filters', 'positions', *LABELLED
  args = f'--from={digits_run}', *DIGITS, '--max_examples=20'
  only = ','.join(names)
  out = run(capsys, *args, f'--only=patches,{only}', f'--out={tmp_path}')
  page = (tmp_path / 'report.html').read_text()
  assert page.count('not finite') == len(names) and out == str(tmp_path)


def test_names_of_examples_are_paths_below_their_folder(tmp_path):
  config = stand_in.config(stand_in.write_folder(tmp_path, train=1))
  source = data.open_source(config, 'train')

  def names(most):
    return examples_lib.load(source, config, most).names

  assert set(names(9)) == {f'{name}/0.png' for name in stand_in.CLASSES}
  assert names(1) == ('0.png',)


def test_chosen_classes_layers_and_size(tmp_path):
  vit = planted.finder()
  subject = make_subject(
    vit, classes=(1, 0), layers=(1,), position_size=(16, 16)
  )
  sections, reasons, numbers = draw(
    subject, tmp_path, ('relevance', 'attention', 'positions', 'pca')
  )
  assert numbers['relevance']['classes'] == ['b', 'a']
  assert subject.options.some_layers == (1,)
  assert len(sections['attention'].pictures) == 5
  assert 'no position' in reasons['positions']
  learned = make_subject(planted.loaded(planted.tiny()), position_size=(16, 16))
  sections, _, _ = draw(learned, tmp_path, ('positions',))
  labels = [picture.label for picture in sections['positions'].pictures]
  assert labels == [
    '2 × 4 patches: images of 8 × 16 pixels',
    '4 × 4 patches: images of 16 × 16 pixels, resized',
  ]


def test_captions_are_true(tmp_path):
  def caption(kind, **fields):
    vit = planted.loaded(planted.tiny(**fields))
    return draw(make_subject(vit), tmp_path, (kind,))[0][kind].caption

  assert 'have been resized' in caption('positions')
  fixed = caption('positions', positions='sincos2d')
  assert 'computed anew' in fixed and 'have been resized' not in fixed
  assert 'attention pooling' not in caption('rollout')
  assert 'attention pooling' in caption('rollout', pool='map')
  assert 'Attention of the class token' in caption('attention')
  assert 'the mean patch' in caption('attention', pool='mean')


def test_numbers_are_plain():
  value = {1: np.float32(1 / 3), 'x': (np.nan, np.int64(2), None, 'a', True)}
  assert kinds.plain(value) == {
    '1': 0.333333,
    'x': [None, 2, None, 'a', True],
  }


def run(capsys, *args, status=0):
  """Runs the command; returns the folder that it wrote."""
  assert commands.run(pictures, *args) == status
  out = capsys.readouterr().out
  assert out.endswith('/report.html\n') and out.count('\n') == 1
  return out.removesuffix('/report.html\n')


DIGITS = '--data=digits', '--split=train[80%:]'


@pytest.mark.slow
def test_a_run_on_its_data(digits_run, tmp_path, capsys):
  """The images come from the data; two models are compared."""
  out = run(
    capsys,
    f'--from={digits_run}',
    *DIGITS,
    '--max_examples=60',
    '--max_images=4',
    f'--other={digits_run}',
    f'--out={tmp_path}/a/b',
  )
  assert out == f'{tmp_path}/a/b'
  page = (tmp_path / 'a/b/report.html').read_text()
  assert '4 of 60' in page and 'first 60 of 359 examples' in page
  numbers = json.loads((tmp_path / 'a/b/numbers.json').read_text())
  actual = {name for name in kinds.KINDS if f'id="{name}"' in page}
  assert actual == set(kinds.KINDS) - {'stem', 'segments'} - OF_METHODS
  counts = np.array(numbers['confusion']['counts'])
  assert counts.sum() == 60 and counts.shape == (10, 10)
  accuracy = numbers['confusion']['accuracy']
  assert accuracy == pytest.approx(counts.trace() / 60, rel=1e-5)
  assert f'<dd class="value">{accuracy:.1%}</dd>' in page
  ascending = [x for _, x in numbers['confusion']['classes_by_accuracy']]
  assert ascending == sorted(ascending) and len(ascending) <= 10
  answered = sum(x['examples'] for x in numbers['reliability']['bins'])
  assert answered == 60
  assert len(numbers['embedding']['t-SNE']) == 60
  assert len(numbers['decodability']['accuracy']) == 1
  wrong = 60 - counts.trace()
  assert len(numbers['mistakes']['mistakes']) == min(wrong, 24)
  vit = vit_jax.load(digits_run)
  predictions = numbers['predictions']
  names = predictions['images']
  assert len(names) == 4 and all(name.startswith('example ') for name in names)
  assert set(predictions['labels']) <= set(vit.classes)
  assert page.count('count the whole split from 0') >= 3
  for row in predictions['probabilities']:
    assert len(row) == 5 and sum(row) <= 1 + 1e-5
  assert all(set(row) <= set(vit.classes) for row in predictions['classes'])


def test_images_of_files(digits_run, tmp_path, capsys):
  for i, name in enumerate(['a/1.png', 'b/1.png', 'c.png']):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(stand_in.png(stand_in.pixels(i, 9, 12)))
  (tmp_path / 'd.png').write_bytes(b'damaged')
  out = run(
    capsys,
    f'--from={digits_run}',
    f'--images={tmp_path}/a',
    f'--images={tmp_path}/[bd]*',
    f'{tmp_path}/c.png',
    '--only=rollout,predictions,stem,mistakes',
    f'--out={tmp_path}/out',
    status=1,
  )
  numbers = json.loads((tmp_path / 'out/numbers.json').read_text())
  assert numbers['predictions']['images'] == ['a/1.png', 'b/1.png', 'c.png']
  page = (tmp_path / 'out/report.html').read_text()
  assert 'd.png is damaged' in page and f'{out}/report.html'
  assert sorted(x.name for x in (tmp_path / 'out').iterdir()) == [
    'numbers.json',
    'predictions.png',
    'report.html',
    'rollout.png',
  ]


def test_a_new_report_takes_the_place_of_another(
  digits_run, tmp_path, capsys, caplog
):
  args = f'--from={digits_run}', *DIGITS, '--max_examples=20'
  args = *args, f'--out={tmp_path}'
  caplog.set_level('INFO', logger='absl')
  (tmp_path / 'filters.png').write_text('a picture of mine')

  def is_there(*names):
    assert {x.name for x in tmp_path.iterdir()} == {
      *(f'{name}.png' for name in names),
      'filters.png',
      'report.html',
      'numbers.json',
    }

  run(capsys, *args, '--only=confusion,positions')
  is_there('confusion', 'positions-1', 'positions-2')
  assert caplog.messages[-2:] == ['drawing confusion', 'drawing positions']
  # Nothing is lost where there is nothing new.
  page = (tmp_path / 'report.html').read_bytes()
  with pytest.raises(UserError) as e:
    commands.run(pictures, *args, '--only=stem,cka', '--max_images=1')
  assert str(e.value) == (
    'there is nothing to draw: stem: this ViT has no stem of convolutions: see'
    ' the filters of its patch embedding; cka: CKA of 1 image cannot be'
    ' estimated: give at least 4'
  )
  is_there('confusion', 'positions-1', 'positions-2')
  assert (tmp_path / 'report.html').read_bytes() == page
  caplog.clear()
  run(capsys, *args, '--only=stem,patches,confusion,overlays,errors')
  is_there('confusion', 'patches')
  assert caplog.messages[-3:] == [
    'drawing confusion',
    'drawing patches',
    'not in the report:\n'
    '  errors, overlays: the model does not predict the class of each pixel\n'
    '  stem: this ViT has no stem of convolutions: see the filters of its patch'
    ' embedding',
  ]


def test_a_model_alone(digits_run, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run(capsys, f'--from={digits_run}') == 'runs/explore-digits'
  page = (tmp_path / 'runs/explore-digits/report.html').read_text()
  assert 'id="filters"' in page and 'id="positions"' in page
  assert 'give some with <code>--images' in page and 'id="rollout"' not in page
  assert 'This ViT has no stem' in page and '<a href="#missing">' in page


def test_images_of_the_same_name():
  paths = ['x/a.png', 'y/a.png', 'y/b.png']
  assert examples_lib._file_names(paths) == ('x/a.png', 'y/a.png', 'b.png')
  paths = ['1/x/a.png', '2/x/a.png', 'a.png', '/x/b.png']
  assert examples_lib._file_names(paths) == (*paths[:3], 'b.png')


def test_a_folder_that_cannot_be_written(digits_run, tmp_path, monkeypatch):
  def message(out):
    return commands.mistake(pictures, f'--from={digits_run}', f'--out={out}')

  assert 'cannot be made' in message('x' * 300)
  monkeypatch.setattr(os, 'access', lambda *_: False)  # root may write anywhere
  assert 'nothing can be written in' in message(tmp_path)


@pytest.mark.parametrize(
  'args, status, text',
  [
    ([], 1, 'error: --from is missing'),
    (['--only=rollout'], 1, 'error: --from is missing'),
    (['pictures', '--only=rollout'], 1, 'error: --from is missing'),
    (['picture'], 1, "error: 'picture' is no verb: choose one of pictures"),
    (['pictures', '--help'], 0, 'ROW,COLUMN of the query patch'),
    (['--help'], 0, 'pictures   a report on a model'),
  ],
)
def test_pictures_are_the_default(monkeypatch, capsys, args, status, text):
  for name in pictures.FLAGS:  # what an earlier call has set
    pictures.FLAGS[name].unparse()
  # It would change the environment of the tests that follow.
  keep = 'vit_jax.cli.status._keep_compiled'
  monkeypatch.setattr(keep, lambda _: None)
  monkeypatch.setattr(sys, 'argv', ['explore', *args])
  with pytest.raises(SystemExit) as e:
    explore_main.run()
  assert e.value.code == status
  out, err = capsys.readouterr()
  assert text in (err if status else out)
