"""`vit_jax.export`: what is written answers as the model does, elsewhere."""

import ast
import dataclasses
import functools
import importlib.util
import json
import logging
import pathlib

import case_files
import commands
import documented
import jax
from jax import export as jax_export
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.export import __main__ as export
from vit_jax.models import describing


def needs(*packages):
  missing = [x for x in packages if importlib.util.find_spec(x) is None]
  return pytest.mark.skipif(
    bool(missing), reason=f'needs {", ".join(missing)}: vit_jax[export]'
  )


needs_flatbuffers = needs('flatbuffers')
needs_onnx = needs('jax2onnx', 'onnxruntime')
FORMATS = [
  pytest.param('stablehlo', marks=needs_flatbuffers),
  pytest.param('onnx', marks=needs_onnx),
]

VIT = {
  'name': 'ViT-B/8',
  'hidden_size': 24,
  'mlp_dim': 48,
  'num_heads': 3,
  'depth': 2,
}


def read_model(text):
  """Returns the keys of a model of models.txt."""
  keys = {}
  for setting in filter(None, text.split('; ')):
    key, _, value = setting.partition('=')
    try:
      keys[key] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
      keys[key] = value
  return keys if 'name' in keys else VIT | keys


MODELS = {
  name: read_model(text)
  for _, name, text in case_files.read(
    pathlib.Path(__file__).with_name('models.txt')
  )
}


@functools.cache
def loaded(name, scan=False):
  """Returns a small model with random parameters, for 16 x 32 pixels."""
  model = models.create_model(**{'num_classes': 5} | MODELS[name])
  if scan:
    model = model.clone(scan=True)
  size, channels, rng = (16, 32), 3, np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.standard_normal(x.shape, np.float32) * np.float32(0.3),
    models.abstract_params(model, (*size, channels)),
  )
  classes = tuple('abcde'[: model.num_classes])
  preprocess = data.Preprocess(classes, size, channels, (0.4,), (0.3,))
  return weights.Loaded(model, params, preprocess, size, 'corner')


def random_images(model, count):
  shape = (count, *model.preprocess.image_size, model.preprocess.channels)
  return np.random.default_rng(count).standard_normal(shape, np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _apply(model, params, images):
  return model.apply({'params': params}, images)


def logits(model, images):
  return np.asarray(_apply(model.model, model.params, images))


def session(content):
  import onnxruntime

  return onnxruntime.InferenceSession(
    content, providers=['CPUExecutionProvider']
  )


def assert_close(actual, expected, tolerance=1e-4):
  assert actual.shape == expected.shape
  scale = np.abs(expected).max()
  np.testing.assert_allclose(actual / scale, expected / scale, atol=tolerance)


CASES = [(name, False) for name in MODELS]
CASES += [('token', True), ('Mixer', True)]


@pytest.mark.slow
@needs_flatbuffers
@pytest.mark.parametrize('name,scan', CASES)
def test_stablehlo(name, scan):
  """For any batch and all platforms, by jax.export alone."""
  model = loaded(name, scan)
  exported = jax_export.deserialize(bytearray(export.stablehlo(model)))
  assert exported.platforms == ('cpu', 'cuda', 'tpu')
  (images,) = exported.in_avals
  assert str(images.shape[0]) == 'batch'
  for count in (1, 4):
    images = random_images(model, count)
    assert_close(np.asarray(exported.call(images)), logits(model, images))


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize('name,scan', CASES)
def test_onnx(name, scan):
  """For any batch, by onnxruntime alone."""
  model = loaded(name, scan)
  reader = session(export.onnx(model))
  (inputs,), (outputs,) = reader.get_inputs(), reader.get_outputs()
  assert inputs.name == 'images'
  assert outputs.name == ('features' if name == 'features' else 'logits')
  assert inputs.shape == ['batch', 16, 32, 3]
  for count in (1, 4):
    images = random_images(model, count)
    (actual,) = reader.run(None, {'images': images})
    assert_close(actual, logits(model, images))


@pytest.mark.parametrize('form', FORMATS)
def test_a_batch_of_one_size(form, tmp_path):
  model, path = loaded('token'), tmp_path / 'model'
  assert export.write(model, path, form, batch_size=2) == []
  images = random_images(model, 3)
  expected = logits(model, images[:2])
  if form == 'onnx':
    reader = session(path.read_bytes())
    assert reader.get_inputs()[0].shape[0] == 2
    (actual,) = reader.run(None, {'images': images[:2]})
  else:
    exported = jax_export.deserialize(bytearray(path.read_bytes()))
    assert exported.in_avals[0].shape[0] == 2
    actual = np.asarray(exported.call(images[:2]))
  assert_close(actual, expected)


def facts(path, form):
  if form == 'stablehlo':
    return json.loads((path.parent / f'{path.name}.json').read_text())
  metadata = session(path.read_bytes()).get_modelmeta().custom_metadata_map
  return json.loads(metadata['preprocess'])


@pytest.mark.parametrize('form', FORMATS)
def test_the_command(form, digits_run, tmp_path, caplog, monkeypatch):
  """A file of digits is named as the run does, from the file alone."""
  caplog.set_level(logging.INFO)
  monkeypatch.chdir(tmp_path)
  path = tmp_path / f'digits.{form}'  # where --out is not given
  path.write_text('an earlier one')
  assert commands.run(export, f'--from={digits_run}', f'--to={form}') == 0
  beside = [f'{path.name}.json'] if form == 'stablehlo' else []
  named = ' and '.join([path.name, *beside])
  messages = [record.getMessage() for record in caplog.records]
  assert [text.split(', ')[0] for text in messages] == [
    f'loaded {digits_run}/checkpoints/3: step 3',
    f'wrote {named}',
  ]
  assert sorted(x.name for x in tmp_path.iterdir()) == [path.name, *beside]
  run = vit_jax.load(digits_run)
  process = facts(path, form)
  assert data.Preprocess.from_dict(process) == run.preprocess
  pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
  images = (pixels / 255 - process['mean']) / process['std']  # as documented
  images = images.astype(np.float32)
  if form == 'onnx':
    (answers,) = session(path.read_bytes()).run(None, {'images': images})
  else:
    exported = jax_export.deserialize(path.read_bytes())
    answers = np.asarray(exported.call(images))
  assert_close(answers, run.predict(pixels))


@pytest.mark.slow
@needs_flatbuffers
@needs_onnx
def test_the_example_of_the_page(digits_run, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'runs').mkdir()
  for form in export.FORMATS:
    out = f'--out=runs/digits.{form}'
    assert (
      commands.run(export, f'--from={digits_run}', f'--to={form}', out) == 0
    )
  *_, code = documented.blocks('docs/look_inside.md', 'python')
  exec(code, {})  # compares both
  names = ast.literal_eval(capsys.readouterr().out)
  assert len(names) == 5 and set(names) <= set('0123456789')


@pytest.mark.parametrize('form', FORMATS)
def test_half_precision(form, tmp_path):
  """ONNX computes in float32, and says so."""
  model = loaded('token')
  half = dataclasses.replace(
    model,
    model=describing.with_keys(model.model, dtype=jnp.bfloat16, remat='full'),
  )
  path = tmp_path / 'half'
  notes = export.write(half, path, form)
  images = random_images(model, 2)
  if form == 'onnx':
    (note,) = notes
    assert note.startswith('bfloat16, since') and 'in float32' in note
    (actual,) = session(path.read_bytes()).run(None, {'images': images})
    assert_close(actual, logits(model, images))
  else:
    assert notes == []
    exported = jax_export.deserialize(path.read_bytes())
    assert_close(np.asarray(exported.call(images)), logits(half, images), 3e-2)


# What does not work.


@needs_flatbuffers
def test_what_cannot_be_exported_is_said(tmp_path, monkeypatch):
  """The next best is written."""
  original = export.stablehlo

  def only_fixed(model, batch_size=None, platforms=export.PLATFORMS):
    if batch_size is None:
      raise NotImplementedError('sizes must\nbe known')
    return original(model, batch_size, platforms)

  monkeypatch.setitem(export._CONVERT, 'stablehlo', only_fixed)
  path = tmp_path / 'x'
  (note,) = export.write(loaded('token'), path, 'stablehlo')
  assert note == (
    'batches of other sizes than 1, since NotImplementedError: sizes must be'
    ' known'
  )
  exported = jax_export.deserialize(path.read_bytes())
  assert exported.in_avals[0].shape[0] == 1

  def only_here(model, batch_size=None, platforms=export.PLATFORMS):
    if len(platforms) > 1:
      raise ValueError('not on a TPU')
    return original(model, batch_size, platforms)

  monkeypatch.setitem(export._CONVERT, 'stablehlo', only_here)
  (note,) = export.write(loaded('token'), path, 'stablehlo')
  here = jax.default_backend()
  assert note == f'other platforms than {here}, since ValueError: not on a TPU'
  exported = jax_export.deserialize(path.read_bytes())
  assert exported.platforms == (here,)
  assert str(exported.in_avals[0].shape[0]) == 'batch'


@pytest.mark.parametrize('form', FORMATS)
def test_wrong_logits_are_never_written(form, tmp_path, monkeypatch):
  """Nor what cannot be loaded again; the file that was there stays."""
  path = tmp_path / 'x'
  path.write_text('an earlier one')
  convert = export._CONVERT[form]

  def another(model, **options):
    params = jax.tree.map(lambda x: x * 1.1, model.params)
    return convert(dataclasses.replace(model, params=params), **options)

  for broken, why in (
    (another, 'differ from the model'),
    (lambda model, **_: b'no program', ': '),
  ):
    monkeypatch.setitem(export._CONVERT, form, broken)
    with pytest.raises(UserError, match=why) as e:
      export.write(loaded('token'), path, form)
    assert '\n' not in str(e.value)
    assert f'cannot be written as {form}' in str(e.value)
    assert [x.name for x in tmp_path.iterdir()] == ['x']
    assert path.read_text() == 'an earlier one'


@needs_flatbuffers
@pytest.mark.parametrize(
  ('model', 'name'),
  [('ViT-B/16', 'ViT-B-16'), ('runs/digits.v2', 'digits.v2'), ('.', 'here')],
)
def test_files_are_named_after_the_model(model, name, tmp_path, monkeypatch):
  folder = tmp_path / 'here'
  (folder / 'runs/digits.v2').mkdir(parents=True)
  (folder / f'{name}.stablehlo').mkdir()  # refused before anything is loaded
  monkeypatch.chdir(folder)
  with pytest.raises(UserError, match=f'^{name}.stablehlo is a folder'):
    commands.run(export, f'--from={model}', '--to=stablehlo')


@needs_flatbuffers
def test_a_model_that_has_no_answer_is_not_written(tmp_path):
  model = loaded('token')
  params = jax.tree.map(lambda x: x * np.nan, model.params)
  broken = dataclasses.replace(model, params=params)
  with pytest.raises(UserError, match="the model's own logits are not finite"):
    export.write(broken, tmp_path / 'x', 'stablehlo', batch_size=1)
  assert not list(tmp_path.iterdir())


@needs_flatbuffers
def test_a_full_disk(tmp_path, monkeypatch):
  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(export, '_write', full)
  with pytest.raises(UserError, match=r'cannot write .*/x: No space'):
    export.write(loaded('token'), tmp_path / 'x', 'stablehlo')
  assert not list(tmp_path.iterdir())


@needs_flatbuffers
def test_what_is_found_before_anything_is_converted(tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setitem(export._CONVERT, 'stablehlo', None)
    path = pathlib.Path('/proc/self/x')
    with pytest.raises(UserError, match='cannot write /proc/self/x: '):
      export.write(loaded('token'), path, 'stablehlo')
  monkeypatch.setattr(export, '_MOST_BYTES', 1000)
  with pytest.raises(UserError, match='holds less than 2 GiB'):
    export.write(loaded('token'), tmp_path / 'x', 'stablehlo')


@pytest.mark.parametrize('missing', ['jax2onnx', 'onnx', 'onnxruntime'])
def test_missing_packages(tmp_path, monkeypatch, missing):
  there = importlib.util.find_spec('vit_jax')
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda x: None if x == missing else there
  )
  with pytest.raises(UserError) as e:
    export.write(loaded('token'), tmp_path / 'x', 'onnx')
  assert str(e.value) == (
    f"--to=onnx needs {missing}: run pip install 'vit_jax[export]'"
  )


message = functools.partial(commands.mistake, export)


@needs_flatbuffers
def test_mistakes_get_one_line(digits_run, tmp_path):
  source, to, out = (
    f'--from={digits_run}',
    '--to=stablehlo',
    f'--out={tmp_path}/x',
  )
  assert '--from is missing' in message(to, out)
  assert '--to is missing: choose one of stablehlo, onnx' in message(
    source, out
  )
  assert "unexpected argument 'y'" in message(source, to, out, 'y')
  assert 'stablehlo|onnx' in message(source, '--to=tflite', out)
  wrong = message(source, to, '--outt=x')
  assert 'no flag --outt: did you mean --out?' in wrong
  assert 'batch_size' in message(source, to, out, '--batch_size=0')
  assert 'image_size=9by9' in message(source, to, out, '--image_size=9by9')
  assert 'is a folder' in message(source, to, f'--out={tmp_path}')
  assert 'or a device' in message(source, to, '--out=/dev/null')
  assert 'there is no folder' in message(source, to, f'--out={tmp_path}/a/x')
  assert 'there is no folder' in message(source, to, f'--out={__file__}/x')
  assert not list(tmp_path.iterdir())


@needs_flatbuffers
def test_a_damaged_model(tmp_path):
  damaged = tmp_path / 'damaged.npz'
  damaged.write_bytes(b'PK\x03\x04 and no more')
  text = message(f'--from={damaged}', '--to=stablehlo', f'--out={tmp_path}/x')
  assert str(damaged) in text
  assert [x.name for x in tmp_path.iterdir()] == ['damaged.npz']
