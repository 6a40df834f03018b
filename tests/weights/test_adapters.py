"""Runs of low-rank factors and adapters, and files of these alone."""

import json
import pathlib
import shutil
import sys

import commands
from flax import traverse_util
import jax
import numpy as np
import pytest
import safetensors
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.weights import adapters
from vit_jax.weights import download
from vit_jax.weights.files import containers

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)
KEY = 'vit_jax_adapters'
LORA = {
  'model__block': 'lora(rank=2)',
  'model__depth': 2,
  'optim__trainable': r'/lora_|^head/',
  'optim__learning_rate': 0.01,
}


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  """A run whose model has what a config's defaults do not have."""
  path = tmp_path_factory.mktemp('base') / 'run'
  block = 'block(layer_scale=0.1)'
  loop.run(tiny.config(model__depth=2, model__block=block), str(path))
  return path


@pytest.fixture(scope='module')
def tuned(base, tmp_path_factory):
  path = tmp_path_factory.mktemp('tuned') / 'run'
  loop.run(config(base), str(path))
  return path


def rewrite(file, facts=(), arrays=()):
  """Changes metadata and arrays of a file of adapters."""
  with safetensors.safe_open(file, framework='np') as stored:
    metadata = stored.metadata()
    old = {name: stored.get_tensor(name) for name in stored.keys()}
  for key, value in dict(facts).items():
    changed = json.loads(metadata[KEY])
    is_model = key == 'model' and isinstance(value, dict)
    changed[key] = changed[key] | value if is_model else value
    metadata[KEY] = json.dumps(changed)
  file.unlink()
  containers.write_safetensors(file, old | dict(arrays), {KEY: metadata[KEY]})


def config(base, **overrides):
  result = tiny.config(init_from__path=str(base), **LORA | overrides)
  block = result.model.block
  left = [x for x in result.model if x not in ('name', 'scan', 'remat')]
  tiny.change(result, dict.fromkeys(left), 'model.')
  result.model.name, result.model.block = 'init_from', block
  return result


def test_factors_and_head_alone_move(base, tuned):
  before, after = (vit_jax.load(x) for x in (base, tuned))
  assert after.model.block.layer_scale == 0.1
  old, new = (
    traverse_util.flatten_dict(x.params, sep='/') for x in (before, after)
  )
  moved = {x for x in new if x not in old or (new[x] != old[x]).any()}
  assert moved == {x for x in new if 'lora' in x or x.startswith('head/')}
  assert all(new[x].any() for x in moved)


def test_the_config_trains_factors_and_head(base, tmp_path):
  small = {
    'data.image_size': 8,
    'data.channels': 1,
    'train.batch_size': 8,
    'train.duration': '3 steps',
    'optim.warmup': '1 steps',
    'reporting': '',
    'mesh.data': 1,
  }
  file = f'{tiny.ROOT}/configs/lora.py:{base},digits'
  vit_jax.train(config_lib.load(file, small), tmp_path / 'run')
  before, after = (vit_jax.load(x) for x in (base, tmp_path / 'run'))
  block = after.model.block
  assert (block.rank, block.alpha, block.layer_scale) == (8, 16.0, 0.1)
  old, new = (
    traverse_util.flatten_dict(x.params, sep='/') for x in (before, after)
  )
  for path, x in old.items():
    assert (x == new[path]).all() != path.startswith('head/'), path


def test_the_optimizer_has_no_state_of_what_is_frozen(base):
  """Both moments of Adam, and its count of steps."""
  program = experiment_lib.create(config(base)).program
  state = program.abstract_state()
  flat = traverse_util.flatten_dict(state.params, sep='/')
  sizes = {x: a.size for x, a in flat.items()}
  trained = sum(n for x, n in sizes.items() if 'lora' in x or 'head/' in x)
  held = sum(x.size for x in jax.tree.leaves(state.opt_state))
  assert held == 2 * trained + 1
  assert trained < 0.2 * sum(sizes.values())


def test_a_resumed_run_goes_on_to_the_bit(base, tuned, tmp_path):
  run = tmp_path / 'run'
  shutil.copytree(tuned, run)
  (run / 'DONE').unlink()
  shutil.rmtree(run / 'checkpoints/12')
  assert vit_jax.load(run).origin.step == 8
  with pytest.raises(UserError, match=r'model\.block: .* -> '):
    loop.run(config(base, model__block='lora'), str(run))
  loop.run(config(base), str(run))
  whole, resumed = (vit_jax.load(x).params for x in (tuned, run))
  jax.tree.map(np.testing.assert_array_equal, whole, resumed)


def test_a_file_of_adapters_gives_the_run_again(base, tuned, tmp_path):
  file = tmp_path / 'tuned.safetensors'
  assert commands.run(convert, tuned, file, '--to=adapters') == 0
  run, alone = vit_jax.load(tuned), vit_jax.load(file)
  assert file.stat().st_size < 0.5 * sum(
    x.nbytes for x in jax.tree.leaves(run.params)
  )
  assert alone.model == run.model and alone.classes == run.classes
  expected = run.predict(IMAGES)
  np.testing.assert_array_equal(alone.predict(IMAGES), expected)
  on_base = vit_jax.load(base, adapters=file)
  np.testing.assert_array_equal(on_base.predict(IMAGES), expected)
  with pytest.raises(UserError, match='leave --whole out'):
    commands.run(convert, tuned, tmp_path / 'x', '--to=adapters', '--whole')
  timm, flag = tmp_path / 'timm', f'--model.adapters={file}'
  assert commands.run(convert, base, timm, '--to=timm', flag) == 0
  merged = vit_jax.load(timm)
  np.testing.assert_allclose(merged.predict(IMAGES), expected, atol=1e-5)
  scanned = vit_jax.load(file, scan=True)
  np.testing.assert_allclose(scanned.predict(IMAGES), expected, atol=1e-5)


def test_another_base_is_refused(base, tuned, tmp_path):
  file = tmp_path / 'tuned.safetensors'
  adapters.save(vit_jax.load(tuned), file)
  other = tmp_path / 'other'
  model = {'model__depth': 2, 'model__block': 'block(layer_scale=0.1)'}
  loop.run(tiny.config(seed=1, **model), str(other))
  with pytest.raises(UserError) as e:
    vit_jax.load(other, adapters=file)
  assert 'another base than that of their training' in str(e.value)
  assert '\n' not in str(e.value) and str(file) in str(e.value)
  wide = tmp_path / 'wide'
  steps = {'train__duration': '3 steps', 'model__hidden_size': 32}
  loop.run(tiny.config(**model | steps), str(wide))
  with pytest.raises(UserError, match='hidden_size is 32 in the checkpoint'):
    vit_jax.load(wide, adapters=file)
  with pytest.raises(UserError, match='is no run that started from a'):
    adapters.save(vit_jax.load(base), tmp_path / 'base.safetensors')
  with pytest.raises(UserError, match='is no file of adapters'):
    vit_jax.load(base, adapters=other)
  with pytest.raises(UserError, match='there is no such file or directory'):
    vit_jax.load(base, adapters=tmp_path / 'none.safetensors')


def test_a_run_on_images_with_more_channels_is_loaded(base, tmp_path):
  file, run = tmp_path / 'tuned.safetensors', tmp_path / 'run'
  loop.run(config(base, data__channels=3), str(run))
  loaded = vit_jax.load(run)
  adapters.save(loaded, file)
  images = np.repeat(IMAGES, 3, axis=-1)
  expected = loaded.predict(images)
  for alone in (vit_jax.load(file), vit_jax.load(base, adapters=file)):
    assert alone.preprocess.channels == 3
    np.testing.assert_array_equal(alone.predict(images), expected)


def test_a_shape_that_differs_is_told_before_sums(tuned, tmp_path):
  file = tmp_path / 'tuned.safetensors'
  adapters.save(vit_jax.load(tuned), file)
  rewrite(file, arrays={'head/bias': np.zeros(3, np.float32)})
  with pytest.raises(UserError, match=r'head/bias: 3 in the file, 10 in the b'):
    vit_jax.load(file)


def test_addresses_and_published_names(base, tuned, tmp_path, monkeypatch):
  file = tmp_path / 'tuned.safetensors'
  adapters.save(vit_jax.load(tuned), file)
  tag, asked = 'augreg_in21k_ft_in1k', []
  places = {
    'https://host/tuned.safetensors': file,
    f'hf:timm/vit_base_patch16_224.{tag}': base,
  }

  def fetch(path, step=None):
    del step
    asked.append(path)
    return places.get(path, pathlib.Path(path))

  monkeypatch.setattr(download, 'fetch', fetch)
  loaded = vit_jax.load(
    'ViT-B/16', pretrained=tag, adapters='https://host/tuned.safetensors'
  )
  assert {*asked} == {*places}
  expected = vit_jax.load(tuned).predict(IMAGES)
  np.testing.assert_array_equal(loaded.predict(IMAGES), expected)


def test_a_damaged_file_is_named(tuned, tmp_path):
  file = tmp_path / 'tuned.safetensors'
  for text in ('{"base": "x"}', '[]', '{}', 'no JSON', '[' * 100_000):
    arrays = {'head/bias': np.zeros(10, np.float32)}
    metadata = {'vit_jax_adapters': text}
    containers.write_safetensors(file, arrays, metadata)
    with pytest.raises(UserError, match=r'metadata of .* are damaged'):
      vit_jax.load(file)
  with pytest.raises(UserError, match=r'writes a new \.safetensors file'):
    adapters.save(vit_jax.load(tuned), file)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'base': 5}, 'base is 5: it must be a valid string'),
    ({'base': ''}, "base is '': "),
    ({'model': ['x']}, r"model is \['x'\]: it must be a valid dictionary"),
    ({'model': {'path': 'x'}}, "model has 'path', no key of"),
    ({'model': {'block': 5}}, r'model\.block is 5: it must be a text'),
    ({'frozen': {'head/bias': 'x'}}, 'frozen is .*: it must be a valid list'),
    ({'frozen': [1]}, r'frozen is \[1\]: it must be a valid dictionary'),
    ({'image_size': [8]}, r'image_size is \[8\]: List should have at least 2'),
    ({'resize': 'x'}, "resize is 'x': it must be one of"),
    ({'preprocess': {}}, r'prediction needs .* cannot be used: classes: Field'),
  ],
)
def test_damaged_metadata_are_named(tuned, tmp_path, changes, message):
  file = tmp_path / 'tuned.safetensors'
  adapters.save(vit_jax.load(tuned), file)
  rewrite(file, changes)
  with pytest.raises(UserError, match=message) as e:
    vit_jax.load(file)
  assert str(file) in str(e.value) and '\n' not in str(e.value)


def test_bases_end(tuned, tmp_path):
  files = [tmp_path / f'{i}.safetensors' for i in range(6)]
  for file, following in zip(files, [*files[1:], files[-1]], strict=True):
    adapters.save(vit_jax.load(tuned), file)
    rewrite(file, {'base': str(following)})
  for file in files[0], files[-1]:
    with pytest.raises(UserError, match='4 times or without an end') as e:
      vit_jax.load(file)
    assert str(file) in str(e.value) and '\n' not in str(e.value)


def test_a_file_has_no_class_of_another_module_imported(
  base, tuned, tmp_path, monkeypatch
):
  monkeypatch.syspath_prepend(tmp_path)
  module = """from vit_jax.models.block import Block
from vit_jax.models.parts.adapters import LowRank


class Mine(LowRank, Block):
  pass
"""
  (tmp_path / 'lora_of_mine.py').write_text(module)
  file = tmp_path / 'tuned.safetensors'
  adapters.save(vit_jax.load(tuned), file)
  # The last one has a letter that a text may have for the colon.
  for text in ('lora_of_mine:Mine', 'block(mlp=lora_of_mine:Mine)', 'aːFoo'):
    rewrite(file, {'model': {'block': text}})
    with pytest.raises(UserError, match='if you trust') as e:
      vit_jax.load(file)
    assert str(file) in str(e.value) and '\n' not in str(e.value)
  assert 'lora_of_mine' not in sys.modules
  block = 'lora_of_mine:Mine(rank=2, layer_scale=0.1)'
  rewrite(file, {'model': {'block': block}})
  expected = vit_jax.load(tuned).predict(IMAGES)
  loaded = vit_jax.load(file, block=block)
  np.testing.assert_array_equal(loaded.predict(IMAGES), expected)


@pytest.mark.parametrize('form', ['timm', 'google', 'vit_jax'])
def test_other_formats_have_merged_kernels(tuned, tmp_path, form):
  flags = ['--model.block=block(layer_scale=0.1)'] * (form == 'vit_jax')
  path = tmp_path / 'merged'
  assert commands.run(convert, tuned, path, f'--to={form}', *flags) == 0
  merged, run = vit_jax.load(path), vit_jax.load(tuned)
  assert type(merged.model.block) is models.registry.part_class(
    'block', 'block'
  )
  expected = run.predict(IMAGES)
  np.testing.assert_allclose(merged.predict(IMAGES), expected, atol=1e-5)


def test_bottlenecks_are_stored_alone_and_not_merged(base, tmp_path):
  file, run = tmp_path / 'tuned.safetensors', tmp_path / 'run'
  other = {'model__block': 'adaptformer(width=4)'}
  loop.run(config(base, optim__trainable='/adapter/|^head/', **other), str(run))
  loaded = vit_jax.load(run)
  adapters.save(loaded, file)
  alone = vit_jax.load(file)
  expected = loaded.predict(IMAGES)
  np.testing.assert_array_equal(alone.predict(IMAGES), expected)
  assert adapters.merge(loaded) is loaded
  with pytest.raises(UserError, match='no place for adaptformer'):
    commands.run(convert, run, tmp_path / 'timm', '--to=timm')
