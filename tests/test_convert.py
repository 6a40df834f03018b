"""`vit_jax.convert`: there and back to the bit, and nothing lost on the way."""

import dataclasses
import errno
import functools
import json
import os

import commands
from foreign import assert_same
from foreign import GOLDEN
from foreign import logits
from foreign import random_model
from foreign import read
import numpy as np
import pytest

import vit_jax
from vit_jax import convert
from vit_jax import models
from vit_jax.data import target_kinds
from vit_jax.models import layouts
from vit_jax.models import patches
from vit_jax.models import values as values_lib
from vit_jax.weights.formats import base as base_lib
from vit_jax.weights.formats import export
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import timm
from vit_jax.weights.formats import timm_mixer
from vit_jax.weights.formats import timm_vit

HEADS = '--model.num_heads=3'
# A file, and which other formats can hold it.
FILES = {
  'google/vit_token_prelogits.npz': ['timm', 'vit_jax'],
  'google/vit_gap.npz': ['timm', 'huggingface'],
  'google/hybrid_resnet.npz': ['timm'],
  'google/mixer.npz': ['timm', 'vit_jax'],
  'torch/deit_distilled.safetensors': ['huggingface'],
  'torch/vit_registers_layerscale.safetensors': ['vit_jax'],
  'torch/mixer.safetensors': ['google'],
  'torch/bit_tiny.safetensors': ['google', 'vit_jax'],
  'torch/hf_vit': ['google', 'timm'],
}


def weights_in(path):
  """Returns the arrays of a file, or of the one in a directory."""
  if path.is_dir():
    (path,) = (p for p in path.iterdir() if p.stem == 'model')
  return read(path)


def run(source, path, form, *flags):
  assert commands.run(convert, source, path, f'--to={form}', *flags) == 0
  return path


@pytest.mark.slow
@pytest.mark.parametrize(
  'name,form', [(name, form) for name in FILES for form in FILES[name]]
)
def test_there_and_back(tmp_path, name, form):
  source = GOLDEN / name
  fused = name.startswith(('torch/vit', 'torch/deit'))
  converted = run(source, tmp_path / 'there', form, *[HEADS] * fused)
  home = vit_jax.load(source, **({'num_heads': 3} if fused else {}))
  back = run(converted, tmp_path / 'back', home.format)
  expected, actual = weights_in(source), weights_in(back)
  assert expected.keys() == actual.keys()
  for key, array in expected.items():
    assert array.dtype == actual[key].dtype
    np.testing.assert_array_equal(array, actual[key], key)
  # Heads, GELU and epsilon too, which nobody gives any more.
  assert_same(vit_jax.load(back), home)
  assert not list(tmp_path.glob('.*'))


@pytest.fixture
def scanned(tmp_path):
  """A work directory that all formats can hold, whose layers are scanned."""
  random = random_model(
    size=(8, 8),
    patch_size=4,
    channels=1,
    classes=tuple('abcde'),
    mlp="mlp(gelu='exact')",
  )
  params = layouts.stack_layers(random.params)
  scanned = dataclasses.replace(
    random, model=random.model.clone(scan=True), params=params
  )
  convert.write_workdir(scanned, tmp_path / 'scanned', 'here')
  return tmp_path / 'scanned'


@pytest.mark.parametrize('form', ['google', 'timm', 'huggingface'])
def test_scanned_layers_there_and_back(scanned, tmp_path, form):
  loaded = vit_jax.load(scanned)
  assert loaded.model.scan and 'blocks' in loaded.params
  converted = vit_jax.load(run(scanned, tmp_path / form, form))
  assert converted.format == form and not converted.model.scan
  path = run(tmp_path / form, tmp_path / 'back', 'vit_jax', '--model.scan=True')
  back = vit_jax.load(path)
  assert_same(back, loaded)
  expected = loaded.preprocess
  if form == 'huggingface':  # whose files mean what transformers does
    expected = dataclasses.replace(expected, resize_like='transformers')
  assert back.preprocess == expected
  assert back.classes == tuple('abcde')


@pytest.mark.parametrize('form', ['google', 'timm'])
def test_a_run_there_and_back(digits_run, tmp_path, form):
  converted = run(digits_run, tmp_path / form, form)
  back = run(converted, tmp_path / 'back', 'vit_jax')
  first, second = vit_jax.load(digits_run), vit_jax.load(back)
  assert_same(first, second)
  assert first.preprocess == second.preprocess
  assert json.loads((back / 'DONE').read_text()) == {}


@pytest.mark.parametrize('form', ['google', 'timm', 'vit_jax'])
def test_what_the_outputs_mean(tmp_path, form, caplog):
  """Numbers stay numbers, in the units of the data."""
  random = random_model(size=(8, 8), patch_size=4, num_classes=2)
  preprocess = dataclasses.replace(
    random.preprocess,
    classes=(),
    features={'y': target_kinds.Number(('width', 'height')).to_dict()},
    outputs={
      'logits': {'feature': 'y', 'mean': [5.0, 6.0], 'std': [2.0, 3.0]},
      'segments': {'feature': 'y'},  # of an objective, which is left behind
    },
    trunk='backbone',
  )
  random = dataclasses.replace(random, preprocess=preprocess)
  if form == 'vit_jax':
    convert.write_workdir(random, tmp_path / form, 'here')
  else:
    (note,) = export.write(random, tmp_path / form, form, 'here')
    assert 'predicts numbers, width, height' in note
  back = vit_jax.load(tmp_path / form)
  assert back.preprocess.target.names == ('width', 'height')
  assert set(back.preprocess.outputs) == {'logits'}
  images = [np.zeros((8, 8, 3), np.uint8)]
  expected = random.outputs(images)['numbers']
  np.testing.assert_allclose(
    back.outputs(images)['numbers'], expected, rtol=1e-4
  )


def test_a_work_directory_of_a_hybrid(tmp_path):
  random = random_model(
    name='R+ViT-Ti/16', patches='hybrid(width=32)', pool='map'
  )
  convert.write_workdir(random, tmp_path / 'x', 'here')
  assert_same(vit_jax.load(tmp_path / 'x'), random)


def test_a_factor_of_all_widths_is_part_of_them(tmp_path):
  random = random_model(
    name='BiT-R50x1(width_factor=2, stages=(1,), channels=(64,))',
    stem_width=32,
    num_classes=3,
  )
  assert not export.write(random, tmp_path / 'x', 'google', 'here')
  assert_same(vit_jax.load(tmp_path / 'x'), random)


# What goes with the weights.


def test_positions_are_not_resized_unless_asked(tmp_path):
  """As for DINOv2, whose images are smaller than its positions."""
  random = random_model(
    size=(40, 40),
    positions="learned(tokens='class')",
    block='block(layer_scale=1.0)',
    pool='token_and_mean',
  )
  random = dataclasses.replace(
    random,
    preprocess=dataclasses.replace(random.preprocess, image_size=(24, 24)),
  )
  export.write(random, tmp_path / 'hf', 'huggingface', 'here')
  loaded = run(tmp_path / 'hf', tmp_path / 'ours', 'vit_jax')
  back = run(loaded, tmp_path / 'back', 'huggingface')
  actual = vit_jax.load(back, as_stored=True)
  assert_same(actual, random)
  assert actual.position_size == (40, 40)
  assert actual.preprocess.image_size == (24, 24)
  first, second = (vit_jax.load(tmp_path / name) for name in ('hf', 'ours'))
  assert_same(first, second)  # resized by the same method
  assert first.position_size == second.position_size == (24, 24)
  smaller = run(loaded, tmp_path / 'small', 'huggingface', '--image_size=16')
  assert vit_jax.load(smaller, as_stored=True).position_size == (16, 16)


@pytest.mark.parametrize('form', ['timm', 'huggingface'])
def test_fixed_positions_become_learned_ones(tmp_path, form):
  random = random_model(positions='sincos2d', pool='mean')
  notes = export.write(random, tmp_path / form, form, 'here')
  assert any('fixed positions are stored as learned' in x for x in notes)
  assert notes[0] in (tmp_path / form / 'README.md').read_text()
  actual = vit_jax.load(tmp_path / form)
  (positions,) = actual.model.positions
  assert isinstance(positions, patches.Learned)
  images = np.random.default_rng(1).normal(size=(2, 32, 32, 3))
  images = images.astype(np.float32)
  np.testing.assert_array_equal(logits(actual, images), logits(random, images))
  # Google's own code has fixed positions: nothing is changed there.
  assert export.write(random, tmp_path / 'x', 'google', 'here') == []
  assert_same(vit_jax.load(tmp_path / 'x'), random)


@pytest.mark.parametrize('form', ['google', 'timm'])
def test_a_grid_that_is_not_square(tmp_path, form):
  random = random_model(size=(16, 64), channels=1, classes=('a', 'b'))
  export.write(random, tmp_path / form, form, 'here')
  actual = vit_jax.load(tmp_path / form)
  assert_same(actual, random)
  assert actual.preprocess == random.preprocess
  assert actual.position_size == (16, 64)


def test_class_names_and_normalisation_for_transformers(tmp_path):
  random = random_model(classes=('ant', 'bee', 'cow'))
  export.write(random, tmp_path / 'hf', 'huggingface', 'here')
  config = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  names = list(config['id2label'].values())
  assert names == ['ant', 'bee', 'cow', 'LABEL_3', 'LABEL_4']
  assert config['label2id']['bee'] == 1
  assert config['hidden_act'] == 'gelu_pytorch_tanh'
  images = json.loads(
    (tmp_path / 'hf' / 'preprocessor_config.json').read_text()
  )
  assert images['image_processor_type'] == 'BitImageProcessor'
  assert images['size'] == {'shortest_edge': 40}
  assert images['crop_size'] == {'height': 32, 'width': 32}
  assert images['image_mean'] == [0.4] * 3 and images['image_std'] == [0.3] * 3
  actual = vit_jax.load(tmp_path / 'hf')
  assert actual.classes == ('ant', 'bee', 'cow')
  assert actual.preprocess.resize == 40


def timms_config(model, preprocess, size):
  """Returns the config.json of a model in timm's format."""
  kind = format_lib.storing(timm.KINDS, model, size)
  values = values_lib.model_values(model)
  values |= {'image_size': size, 'image_channels': preprocess.channels}
  return timm.companions(kind, values, preprocess, {})['config.json']


def test_timms_names():
  """Those of the sizes that timm knows; others are changed by model_args."""

  def name(loaded, **fields):
    model = models.create_model(loaded, **fields)
    preprocess = random_model().preprocess
    return timms_config(model, preprocess, (224, 224))['architecture']

  assert name('ViT-Ti/16') == 'vit_tiny_patch16_224'
  assert name('ViT-S/32') == 'vit_small_patch32_224'
  assert name('ViT-H/14') == 'vit_huge_patch14_224'
  assert name('ViT-B/16', depth=3) == 'vit_base_patch16_224'
  assert name('ViT-S/16', distillation_token=True) == (
    'deit_small_distilled_patch16_224'
  )
  assert name('ViT-g/14', mlp='swiglu') == 'vit_giant_patch14_dinov2'
  assert name('R+ViT-Ti/16') == 'vit_tiny_r_s16_p8_224'
  assert name('R50+ViT-L/32') == 'vit_large_r50_s32_224'
  assert name('Mixer-B/16') == 'mixer_b16_224'
  assert name('BiT-R152x2') == 'resnetv2_152x2_bit'


def test_timms_arguments():
  random = random_model(
    mlp_dim=101,
    registers=2,
    positions="learned(tokens='patches')",
    attention='attention(qk_norm=True)',
    block='block(layer_scale=0.1)',
    pool='mean(norm_after=True)',
  )
  config = timms_config(random.model, random.preprocess, (32, 48))
  assert config['pretrained_cfg']['input_size'] == [3, 32, 48]
  assert config['pretrained_cfg']['crop_pct'] == pytest.approx(0.8)
  arguments = config['model_args']
  assert int(24 * arguments.pop('mlp_ratio')) == 101
  expected = {
    'img_size': [32, 48],
    'in_chans': 3,
    'patch_size': 8,
    'embed_dim': 24,
    'depth': 2,
    'num_heads': 3,
    'qkv_bias': True,
    'qk_norm': True,
    'init_values': 0.1,
    'class_token': False,
    'reg_tokens': 2,
    'no_embed_class': True,
    'global_pool': 'avg',
    'fc_norm': True,
    'act_layer': 'gelu_tanh',
  }
  assert expected.items() <= arguments.items()
  # What else is said is off.
  assert not any(x for key, x in arguments.items() if key not in expected)


def test_every_ratio_gives_its_size():
  for base in (24, 48, 192, 384, 768, 1280):
    for number in range(1, 3000):
      assert int(base * base_lib.ratio(number, base)) == number
  assert base_lib.ratio(96, 24) == 4


def test_the_model_card(tmp_path):
  random = random_model(classes=('ant', 'b|e'), mlp="mlp(gelu='exact')")
  notes = export.write(random, tmp_path / 'x', 'google', 'gs://there/x.npz')
  text = (tmp_path / 'x' / 'README.md').read_text()
  for part in (
    'converted from `gs://there/x.npz`',
    r'| classes | 5: ant, b\|e |',
    '| mean of pixels in [0, 1] | 0.4 |',
    '| input (height x width) | 32 x 32 pixels |',
    "vit_jax.load('x')",
    "np.load('x/model.npz')",
    '| num_heads | 3 |',
  ):
    assert part in text
  (note,) = notes
  assert "mlp(gelu='exact')" in note and f'**Mind:** {note}' in text
  mixer = models.create_model('Mixer-B/16', mlp="mlp(gelu='tanh')")
  (note,) = timm_mixer.MIXER.notes(mixer, (224, 224))
  assert "gelu='tanh'" in note and "gelu='exact'" in note
  assert not timm_vit.VIT.notes(random.model, (32, 32))


# What is refused.


message = functools.partial(commands.mistake, convert)


def test_formats_without_the_family_or_feature(tmp_path):
  def refused(name, form, *flags):
    text = message(GOLDEN / name, tmp_path / 'x', f'--to={form}', *flags)
    assert not list(tmp_path.iterdir())
    return text

  text = refused('google/mixer.npz', 'huggingface')
  assert 'no place for a Mixer: use --to=google or --to=timm or' in text
  text = refused('torch/bit_tiny.safetensors', 'huggingface')
  assert 'zero_padded_pool=False: use --to=google or' in text
  text = refused('google/vit_token_prelogits.npz', 'huggingface')
  assert (
    'linear(pre_logits=' in text and ': use --to=google or --to=timm' in text
  )
  text = refused('torch/vit_avg_fcnorm.safetensors', 'huggingface', HEADS)
  assert 'no place for mean(norm_after=True)' in text
  text = refused('google/hybrid_resnet.npz', 'huggingface')
  assert "no place for patches='hybrid': use --to=google or --to=timm" in text
  name = 'torch/vit_registers_layerscale.safetensors'
  assert 'no place for registers=4: use --to=timm' in refused(name, 'google')
  name = 'torch/deit_distilled.safetensors'
  text = refused(name, 'google', HEADS)
  assert 'distillation_token=True: use --to=huggingface or --to=timm' in text
  text = message(tmp_path / 'no.npz', tmp_path / 'x', '--to=timm')
  assert 'no.npz' in text


def test_nothing_is_overwritten(tmp_path):
  source = GOLDEN / 'google' / 'mixer.npz'
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'x').write_text('mine')
  (tmp_path / 'empty').mkdir()
  run(source, tmp_path / 'empty', 'timm')
  for form in ('google', 'timm', 'vit_jax'):
    for name in ('full', 'empty', 'full/x'):
      text = message(source, tmp_path / name, f'--to={form}')
      assert f'{tmp_path / name} is there already' in text
  assert (tmp_path / 'full' / 'x').read_text() == 'mine'
  file = run(source, tmp_path / 'files' / 'mine.safetensors', 'timm')
  assert sorted(os.listdir(file.parent)) == [
    'README.md',
    'config.json',
    'mine.safetensors',
  ]
  assert_same(vit_jax.load(file), vit_jax.load(source))
  text = message(source, file.with_name('other.npz'), '--to=google')
  assert 'config.json is there already' in text


@pytest.mark.parametrize('form', ['google', 'timm', 'vit_jax'])
def test_a_full_disk(tmp_path, monkeypatch, form):
  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  source = GOLDEN / 'google' / 'mixer.npz'
  text = message(source, tmp_path / 'x', f'--to={form}')
  assert 'No space left on device' in text
  assert not list(tmp_path.iterdir())
