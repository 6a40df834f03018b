"""Files of other programs, read: they answer as those programs do."""

import dataclasses
import json
import logging
import re
import shutil

from foreign import assert_same
from foreign import flat
from foreign import GOLDEN
from foreign import GOOGLE
from foreign import IMAGENET
from foreign import logits
from foreign import random_model
from foreign import read
from foreign import TORCH
import numpy as np
import pytest
import torch_format

import vit_jax
from vit_jax.config import UserError
from vit_jax.models import describing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import export
from vit_jax.weights.formats import timm_names

# A file, and what is not in it.
CASES = {
  'google/vit_token_prelogits.npz': {},
  'google/vit_gap.npz': {},
  'google/hybrid_resnet.npz': {},
  'google/mixer.npz': {},
  'torch/vit_avg_fcnorm.safetensors': {'num_heads': 3},
  'torch/deit_distilled.safetensors': {'num_heads': 3},
  'torch/vit_registers_layerscale.safetensors': {},  # q_norm's width says it
  'torch/mixer.safetensors': {},
  'torch/hf_vit': {},
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_golden(name):
  """The logits of the programs that made the files, also for other sizes."""
  path, given = GOLDEN / name, CASES[name]
  expected = np.load(path.with_name(f'{path.stem}_expected.npz'))
  tolerance = 5e-4 if 'hybrid' in name else 1e-4
  loaded = vit_jax.load(path, **given)
  assert loaded.position_size == expected['image'].shape[1:3]
  actual = logits(loaded, expected['image'])
  np.testing.assert_allclose(actual, expected['logits'], atol=tolerance, rtol=0)
  if 'image_resized' in expected:
    size = expected['image_resized'].shape[1:3]
    loaded = vit_jax.load(path, image_size=size, **given)
    np.testing.assert_allclose(
      logits(loaded, expected['image_resized']),
      expected['logits_resized'],
      atol=tolerance,
      rtol=0,
    )


@pytest.mark.parametrize('pads', [True, False])
def test_golden_bit(pads):
  """Its arrays do not say which of the two poolings is meant."""
  expected = np.load(TORCH / 'bit_tiny_expected.npz')
  loaded = vit_jax.load(TORCH / 'bit_tiny.safetensors', zero_padded_pool=pads)
  np.testing.assert_allclose(
    logits(loaded, expected['image']),
    expected['logits' if pads else 'logits_unpadded'],
    atol=5e-4,
    rtol=0,
  )


@pytest.fixture(autouse=True)
def warnings_alone(caplog):
  """Whatever level commands that ran before have given to the logger."""
  caplog.set_level(logging.WARNING)


@pytest.mark.parametrize(
  'name,mean,resized',
  [
    ('google/vit_gap.npz', (0.5,), '(bilinear) to 16 x 16'),
    ('torch/vit_avg_fcnorm', IMAGENET, '(bicubic) to a short side of 36'),
    ('torch/deit_distilled', IMAGENET, '(bicubic) to a short side of'),
    ('torch/mixer', (0.5,), '(bicubic) to a short side of'),
    ('torch/bit_tiny', (0.5,), '(bicubic) to a short side of'),
  ],
)
def test_what_is_assumed_of_a_bare_file(name, mean, resized, tmp_path, caplog):
  """The same whatever kind of file has the arrays, and it is said."""
  given = {'num_heads': 3} if 'vit_avg' in name or 'deit' in name else {}
  paths = [GOLDEN / name]
  if 'torch' in name:
    paths = [paths[0].with_suffix('.safetensors'), tmp_path / 'x.pth']
    torch_format.save(paths[1], torch_format.state_dict(read(paths[0])))
  for path in paths:
    caplog.clear()
    preprocess = vit_jax.load(path, **given).preprocess
    assert preprocess.mean == mean
    (line,) = [x for x in caplog.messages if 'assumed: ' in x]
    for part in (str(path), ', '.join(map(str, mean)), resized, 'config.json'):
      assert part in line, line
    assert '\n' not in line


def test_the_epsilons_of_timms_hybrids_are_said(tmp_path, caplog):
  random = random_model(
    name='R+ViT-Ti/16', patches='hybrid(width=32)', size=(64, 64)
  )
  export.write(random, tmp_path / 'x', 'timm', 'here')
  vit_jax.load(tmp_path / 'x')  # ours
  assert 'logits differ' not in caplog.text
  (tmp_path / 'x' / 'config.json').unlink()
  vit_jax.load(tmp_path / 'x', num_heads=random.model.block.attention.num_heads)
  assert 'logits differ from those of timm' in caplog.text


@pytest.mark.parametrize('name', ['google/vit_gap.npz', 'torch/mixer'])
def test_what_is_assumed_can_be_said_otherwise(name, tmp_path, caplog):
  """By the line that says what was assumed."""
  source = GOLDEN / name
  source = source if source.suffix else source.with_suffix('.safetensors')
  shutil.copy(source, tmp_path)
  vit_jax.load(tmp_path / source.name)
  example = json.loads(caplog.messages[-1].split('beside it: ')[1])
  example['pretrained_cfg']['mean'] = [0.1, 0.2, 0.3]
  (tmp_path / 'config.json').write_text(json.dumps(example))
  caplog.clear()
  preprocess = vit_jax.load(tmp_path / source.name).preprocess
  assert preprocess.mean == (0.1, 0.2, 0.3)
  assert preprocess.interpolation == 'bicubic'
  assert not caplog.messages


def test_a_model_of_ours_assumes_nothing(tmp_path, caplog):
  for form in ('google', 'timm', 'huggingface'):
    export.write(
      random_model(mlp="mlp(gelu='exact')"), tmp_path / form, form, 'here'
    )
    vit_jax.load(tmp_path / form)
  assert not caplog.messages


# Google's variants.


def newer(name):
  """Numbers the parts of a layer as Linen does."""
  if 'encoderblock' not in name:
    return name
  name = name.replace('LayerNorm_2', 'LayerNorm_1')
  name = name.replace('Attention_1', 'Attention_0')
  return name.replace('MlpBlock_3', 'MlpBlock_0')


def stacked(arrays):
  """Stacks the layers, as big_vision's scan does."""
  result = {k: v for k, v in arrays.items() if 'encoderblock' not in k}
  layers = [k for k in arrays if 'encoderblock_0' in k]
  for name in layers:
    names = [name.replace('_0/', f'_{i}/', 1) for i in range(3)]
    result[name.replace('encoderblock_0', 'encoderblock')] = np.stack(
      [arrays[n] for n in names]
    )
  return result


@pytest.mark.parametrize('prefix', ['', 'params/'])
def test_newer_numbers_prefix_and_stacked_layers(tmp_path, prefix):
  path = GOOGLE / 'vit_gap.npz'
  arrays = {prefix + newer(k): v for k, v in read(path).items()}
  assert arrays.keys() != read(path).keys()
  # What big_vision's trainings keep besides.
  moment = {'opt/mu/Transformer/encoderblock_0/x': np.ones((3, 2))}
  training = stacked(arrays) | moment | {'extra/seconds': np.ones(())}
  contents = [arrays, stacked(arrays), *[training] * bool(prefix)]
  for i, content in enumerate(contents):
    np.savez(tmp_path / f'{i}.npz', **content)
    assert_same(vit_jax.load(tmp_path / f'{i}.npz'), vit_jax.load(path))


def test_errors_name_arrays_as_the_file_does(tmp_path):
  arrays = {
    'params/' + newer(k): v for k, v in read(GOOGLE / 'vit_gap.npz').items()
  }
  arrays = stacked(arrays)
  layer = 'params/Transformer/encoderblock/MlpBlock_0/Dense_1'
  arrays[f'{layer}/kernel'][2, 0, 0] = np.nan
  del arrays[f'{layer}/bias'], arrays['params/head/bias']
  np.savez(tmp_path / 'x.npz', **arrays)
  with pytest.raises(UserError) as e:
    vit_jax.load(tmp_path / 'x.npz')
  biases = ', '.join(f'{layer}/bias[{i}] (32,)' for i in range(3))
  for fault in (biases, 'params/head/bias (7,)', f'finite: {layer}/kernel[2]'):
    assert fault in str(e.value)
  arrays = {k: v for k, v in arrays.items() if 'kernel' not in k}
  np.savez(tmp_path / 'x.npz', **arrays)
  with pytest.raises(UserError, match='holds no array params/embedding/kern'):
    vit_jax.load(tmp_path / 'x.npz')


def test_attention_pooling_as_big_vision_stores_it(tmp_path):
  """Its names, and queries, keys and values apart."""
  actual = random_model(pool='map')
  export.write(actual, tmp_path / 'x.npz', 'google', 'here')
  arrays = read(tmp_path / 'x.npz')
  pool, head = actual.params['map_head'], 'params/MAPHead_0'
  attention = f'{head}/MultiHeadDotProductAttention_0'
  layer = actual.params['blocks_1']
  block = 'params/Transformer/encoderblock_1'
  for name, array in {
    'params/embedding/bias': actual.params['patch_embedding']['bias'],
    'params/pos_embedding': actual.params['position_embedding'],
    'params/Transformer/encoder_norm/scale': actual.params['norm']['scale'],
    f'{head}/probe': pool['probe'],
    f'{attention}/query/kernel': pool['query']['kernel'],
    f'{attention}/key/kernel': pool['key_value']['kernel'][:, 0],
    f'{attention}/value/bias': pool['key_value']['bias'][1],
    f'{attention}/out/kernel': pool['out']['kernel'],
    f'{head}/LayerNorm_0/scale': pool['norm']['scale'],
    f'{head}/MlpBlock_0/Dense_0/kernel': pool['mlp']['up']['kernel'],
    f'{head}/MlpBlock_0/Dense_1/bias': pool['mlp']['down']['bias'],
    f'{block}/LayerNorm_0/scale': layer['norm1']['scale'],
    f'{block}/LayerNorm_1/bias': layer['norm2']['bias'],
    f'{block}/MultiHeadDotProductAttention_0/key/kernel': (
      layer['attention']['qkv']['kernel'][:, 1]
    ),
    f'{block}/MlpBlock_0/Dense_1/kernel': layer['mlp']['down']['kernel'],
    'params/head/kernel': actual.params['head']['kernel'],
  }.items():
    np.testing.assert_array_equal(arrays[name], array, name)
  assert all(name.startswith('params/') for name in arrays)
  assert_same(vit_jax.load(tmp_path / 'x.npz'), actual)


# timm's and other state dicts.


def test_state_dicts_of_torch(tmp_path):
  """As DeiT publishes them: nested, and without a word on normalisation."""
  path = TORCH / 'vit_avg_fcnorm.safetensors'
  value = {'model': torch_format.state_dict(read(path)), 'epoch': 300}
  torch_format.save(tmp_path / 'x.pth', value)
  loaded = vit_jax.load(tmp_path / 'x.pth', num_heads=3)
  assert_same(loaded, vit_jax.load(path, num_heads=3))
  assert loaded.preprocess.mean == IMAGENET


def test_a_directory_of_timms_hub(tmp_path):
  """Its config.json says what the arrays do not."""
  random = random_model(
    block='block(layer_scale=0.1)', pool='mean', class_token=True, registers=4
  )
  export.write(random, tmp_path / 'timm', 'timm', 'here')
  path = tmp_path / 'timm' / 'config.json'
  config = json.loads(path.read_text())
  del config['vit_jax']  # timm does not write this
  config['pretrained_cfg'] |= {
    'label_names': ['n1', 'n2', 'n3', 'n4', 'n5'],
    'crop_pct': 0.8,
    'std': [0.1, 0.2, 0.3],
  }
  config['label_descriptions'] = {'n2': 'a tench'}
  path.write_text(json.dumps(config))
  loaded = vit_jax.load(tmp_path / 'timm')
  assert loaded.classes == ('n1', 'a tench', 'n3', 'n4', 'n5')
  assert loaded.preprocess.mean == pytest.approx((0.4,) * 3)
  assert loaded.preprocess.std == (0.1, 0.2, 0.3)
  assert loaded.preprocess.resize == 40
  block = describing.key_values(random.model)['block']
  actual = describing.with_keys(loaded.model, block=block)
  assert describing.key_values(actual) == describing.key_values(random.model)


def test_heads_by_architecture_and_by_published_size(tmp_path):
  """A width that two divisions fit, and the name of timm's that settles it."""
  random = random_model(hidden_size=256, num_heads=4, mlp_dim=96, depth=1)
  export.write(random, tmp_path / 'timm', 'timm', 'here')
  (tmp_path / 'timm' / 'config.json').write_text(
    json.dumps({'architecture': 'vit_little_patch16_reg4_gap_256'})
  )
  loaded = vit_jax.load(tmp_path / 'timm')
  assert loaded.model.block.attention.num_heads == 4
  (tmp_path / 'timm' / 'config.json').unlink()
  with pytest.raises(UserError, match=r'num_heads= .*--model\.num_heads='):
    vit_jax.load(tmp_path / 'timm')
  loaded = vit_jax.load(tmp_path / 'timm', num_heads=8)
  assert loaded.model.block.attention.num_heads == 8


@pytest.mark.parametrize(
  'architecture,heads,gelu',
  [
    ('vit_base_patch16_siglip_224', 12, 'exact'),
    ('vit_base_patch32_siglip_gap_256', 12, 'tanh'),
    ('vit_large_patch16_siglip_384', 12, 'exact'),
    ('vit_large_patch16_siglip_gap_512', 12, 'tanh'),
    ('vit_so400m_patch14_siglip_384', 12, 'exact'),
    ('vit_so400m_patch16_siglip_384', 12, 'tanh'),
    ('vit_giantopt_patch16_siglip_256', 16, 'tanh'),
    ('vit_base_patch16_gap_224', 16, 'exact'),
  ],
)
def test_names_of_timms_architectures(architecture, heads, gelu):
  config = typed.Json('config.json', {'architecture': architecture})
  assert timm_names.heads(config, 768) == heads
  assert timm_names.gelu(architecture) == gelu


# Hugging Face.


@pytest.fixture
def dinov2(tmp_path):
  """A directory whose images are smaller than its positions, as Meta's are."""
  random = random_model(
    size=(40, 40),
    positions="learned(tokens='class')",
    mlp="mlp(gelu='exact')",
    block='block(layer_scale=1.0)',
    pool='token_and_mean',
  )
  random = dataclasses.replace(
    random,
    preprocess=dataclasses.replace(random.preprocess, image_size=(24, 24)),
  )
  export.write(random, tmp_path / 'dinov2', 'huggingface', 'here')
  return tmp_path / 'dinov2', random


def test_images_of_another_size_than_the_positions(dinov2):
  path, random = dinov2
  stored = vit_jax.load(path, as_stored=True)
  assert_same(stored, random)
  assert stored.position_size == (40, 40)
  assert stored.preprocess.image_size == (24, 24)
  loaded = vit_jax.load(path)
  assert loaded.position_size == loaded.preprocess.image_size == (24, 24)
  assert flat(loaded)['position_embedding'].shape == (1, 1 + 9, 24)
  assert vit_jax.load(path, image_size=40).preprocess.image_size == (40, 40)


def test_a_size_with_as_many_patches(dinov2):
  """It is no reason to take the 5 x 5 positions for 1 x 25."""
  path, random = dinov2
  loaded = vit_jax.load(path, image_size=(8, 200))
  actual = random.params['position_embedding'][:, 1:]
  assert not np.array_equal(flat(loaded)['position_embedding'][:, 1:], actual)


def test_a_directory_of_hugging_face_needs_its_config(tmp_path, dinov2):
  shutil.copy(dinov2[0] / 'model.safetensors', tmp_path / 'x.safetensors')
  with pytest.raises(
    UserError, match=r'x\.safetensors: there is no config\.json'
  ):
    vit_jax.load(tmp_path / 'x.safetensors')
  config = dinov2[0] / 'config.json'
  changed = json.loads(config.read_text())
  config.write_text(json.dumps(changed | {'hidden_act': 'relu'}))
  with pytest.raises(UserError, match=r"hidden_act 'relu'.*gelu_pytorch_tanh"):
    vit_jax.load(dinov2[0])
  config.write_text(json.dumps(changed | {'model_type': 'swin'}))
  with pytest.raises(UserError, match=r"model_type 'swin'.* vit, deit, vit"):
    vit_jax.load(dinov2[0])


# What does not fit.


def test_one_error_lists_all_differences(tmp_path):
  arrays = read(GOOGLE / 'vit_gap.npz')
  del arrays['head/bias'], arrays['Transformer/encoder_norm/scale']
  kernel = 'Transformer/encoderblock_1/MlpBlock_3/Dense_1/kernel'
  arrays[kernel] = arrays[kernel][:5]
  arrays['surplus'] = np.zeros(3)
  np.savez(tmp_path / 'x.npz', **arrays)
  with pytest.raises(UserError) as e:
    vit_jax.load(tmp_path / 'x.npz')
  assert str(e.value) == (
    f'{tmp_path}/x.npz: it does not fit: missing: head/bias (7,),'
    ' Transformer/encoder_norm/scale (32,); misshapen:'
    f' {kernel} (5, 32) instead of (64, 32); unknown: surplus'
  )


def test_positions_of_other_axes_are_misshapen(tmp_path):
  arrays = read(TORCH / 'vit_avg_fcnorm.safetensors')
  arrays['pos_embed'] = np.zeros((1, 2, 3, 4), np.float32)
  path = tmp_path / 'x.safetensors'
  containers.write_safetensors(path, arrays, {})
  with pytest.raises(
    UserError, match=r'misshapen: pos_embed \(1, 2, 3, 4\) instead of'
  ):
    vit_jax.load(path, num_heads=3)


LAST = 'stages.1.blocks.0.conv3.weight'


@pytest.mark.parametrize(
  'name,wanted',
  [
    (None, f'its architecture cannot be read: it holds no array {LAST}'),
    ('stages.01.blocks.0.conv3.weight', 'unknown: stages.01.blocks.0.conv3'),
  ],
)
def test_a_stage_of_a_bit_that_is_damaged(tmp_path, name, wanted):
  """Its last kernel is not there, or is there under two names."""
  arrays = read(TORCH / 'bit_tiny.safetensors')
  kernel = arrays.pop(LAST) if name is None else arrays[LAST]
  if name:
    arrays[name] = kernel
  path = tmp_path / 'x.safetensors'
  containers.write_safetensors(path, arrays, {})
  with pytest.raises(UserError, match=re.escape(wanted)):
    vit_jax.load(path)


def test_errors_name_arrays_with_hugging_faces_prefix(tmp_path):
  source = TORCH / 'hf_vit'
  arrays = read(source / 'model.safetensors')
  del arrays['vit.layernorm.weight'], arrays['classifier.bias']
  containers.write_safetensors(tmp_path / 'model.safetensors', arrays, {})
  shutil.copy(source / 'config.json', tmp_path)
  with pytest.raises(UserError) as e:
    vit_jax.load(tmp_path)
  assert 'vit.layernorm.weight (48,)' in str(e.value)
  assert ' classifier.bias (7,)' in str(e.value)


def test_numbers_that_are_not_finite(tmp_path):
  arrays = read(GOOGLE / 'vit_gap.npz')
  arrays['head/bias'][1] = np.nan
  arrays['embedding/bias'][0] = np.inf
  np.savez(tmp_path / 'x.npz', **arrays)
  with pytest.raises(
    UserError, match=r'fit: not finite: head/bias, embedding/bias$'
  ):
    vit_jax.load(tmp_path / 'x.npz')
  del arrays['Transformer/encoder_norm/scale']
  np.savez(tmp_path / 'x.npz', **arrays)
  with pytest.raises(
    UserError,
    match=r'scale \(32,\); not finite: head/bias, embedding/bias$',
  ):
    vit_jax.load(tmp_path / 'x.npz')


def test_a_file_that_is_cut_short(tmp_path):
  for path in (GOOGLE / 'vit_gap.npz', TORCH / 'mixer.safetensors'):
    whole = path.read_bytes()
    cut = tmp_path / path.name
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(UserError, match='damaged') as e:
      vit_jax.load(cut)
    assert '\n' not in str(e.value)


def test_arrays_of_no_known_format(tmp_path):
  np.savez(tmp_path / 'x.npz', one=np.zeros(1), two=np.zeros(2))
  with pytest.raises(UserError, match='2 arrays of no known format'):
    vit_jax.load(tmp_path / 'x.npz')


def test_a_field_that_is_unknown():
  with pytest.raises(UserError, match=r"no field 'sheep': it has .*num_heads"):
    vit_jax.load(GOOGLE / 'vit_gap.npz', sheep=3)


@pytest.mark.parametrize(
  'path', [GOOGLE / 'mixer.npz', TORCH / 'bit_tiny.safetensors']
)
def test_a_field_that_the_family_has_not(path):
  with pytest.raises(
    UserError, match=r"a (Mixer|BiT), which has no field 'num_heads': leave it"
  ):
    vit_jax.load(path, num_heads=3)


# JSON that others wrote.


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """A directory of each format, without what we add to config.json."""
  path = tmp_path_factory.mktemp('exported')
  for form in ('timm', 'huggingface'):
    export.write(random_model(classes=tuple('abcde')), path / form, form, '')
    config = json.loads((path / form / 'config.json').read_text())
    (path / form / 'ours.json').write_text(json.dumps(config))
    config.pop('vit_jax', None)
    (path / form / 'config.json').write_text(json.dumps(config))
  return path


def test_the_gate_of_a_file_must_be_a_silu(tmp_path):
  export.write(random_model(mlp='swiglu'), tmp_path / 'x', 'timm', 'here')
  path = changed(
    tmp_path / 'x', tmp_path / 'y', 'model_args.act_layer', 'gelu_tanh'
  )
  with pytest.raises(UserError, match="'gelu_tanh': it must be 'silu'"):
    vit_jax.load(path)


def changed(source, path, key, value, file='config.json', base=None):
  """Copies a directory, with another value in one of its JSON files."""
  shutil.copytree(source, path)
  content = json.loads((source / (base or file)).read_text())
  *parents, last = key.split('.')
  place = content
  for name in parents:
    place = place[name]
  place[last] = value
  (path / file).write_text(json.dumps(content))
  return path


JSON = {
  ('timm', 'config.json'): [
    ('architecture', 7, 'text'),
    ('global_pool', 'avgmax', "'token', 'avg', 'map'"),
    ('global_pool', '', "'token', 'avg', 'map'"),
    ('label_names', {'a': 'x'}, 'names in a list'),
    ('label_names', [None], 'names in a list'),
    ('label_descriptions', ['x'], 'an object'),
    ('model_args', [1], 'an object'),
    ('model_args.act_layer', 'relu', "'gelu', 'gelu_tanh', 'quick_gelu'"),
    ('model_args.act_layer', 'silu', 'in a gated MLP, and only there'),
    ('model_args.num_heads', 3.0, 'a whole number'),
    ('model_args.num_kv_heads', 1, 'not known here'),
    ('model_args.pre_norm', 1, 'true or false'),
    ('model_args.block_fn', 'ParallelThingsBlock', 'not known here'),
    ('model_args.norm_layer', 'batchnorm', "'layernorm'"),
    ('model_args.attn_layer', 'linear', "'attn'"),
    ('model_args.rope_type', 'axial', 'not known here'),
    ('pretrained_cfg', [], 'an object'),
    ('pretrained_cfg.crop_pct', 0, 'a finite number above 0'),
    ('pretrained_cfg.crop_pct', float('nan'), 'a finite number above 0'),
    ('pretrained_cfg.crop_pct', 1.2, 'not be above 1'),
    ('pretrained_cfg.crop_mode', 1, "'center', 'squash'"),
    ('pretrained_cfg.crop_mode', 'none', "'center', 'squash', 'border'"),
    ('pretrained_cfg.interpolation', 'lanczos', "'bilinear', 'bicubic'"),
    ('pretrained_cfg.input_size', 32, 'three whole numbers'),
    ('pretrained_cfg.mean', [0.5, 0.5], 'one for each of 3 channels'),
    ('pretrained_cfg.mean', ['0.5'], 'one finite number, or'),
    ('pretrained_cfg.std', [0.5, 0, 0.5], 'one finite number above 0, or'),
  ],
  ('huggingface', 'config.json'): [
    ('model_type', ['vit'], 'text'),
    ('hidden_act', None, None),
    ('hidden_act', 3, 'one of'),
    ('pruned_heads', {'0': [1]}, 'not known here'),
    ('is_decoder', True, 'not known here'),
    ('quantization_config', {'bits': 4}, 'not known here'),
    ('use_cache', True, None),
    ('num_attention_heads', True, 'a whole number'),
    ('num_attention_heads', -3, 'a whole number'),
    ('layer_norm_eps', '1e-6', 'a finite number above 0'),
    ('layer_norm_eps', float('inf'), 'a finite number above 0'),
    ('image_size', [32], 'one or two whole numbers'),
    ('image_size', 2**40, 'one or two whole numbers'),
    ('id2label', {'first': 'a'}, 'names'),
    ('id2label', {'0': ['a']}, 'names'),
    ('id2label', None, None),
  ],
  ('huggingface', 'preprocessor_config.json'): [
    ('size', {'width': 32}, 'it must'),
    ('size', '32', 'it must'),
    ('crop_size', {'height': 0, 'width': 32}, 'it must'),
    ('image_mean', {}, 'it must'),
    ('image_std', [0.5, 0.5, -0.5], 'it must'),
    ('do_normalize', 'yes', 'it must'),
    ('resample', 1, 'it must'),
    ('resample', 'bicubic', 'it must'),
    ('size', {'shortest_edge': 40, 'longest_edge': 80}, 'it must'),
    ('do_resize', False, 'always resized'),
    ('do_pad', True, 'not known here'),
    ('crop_pct', 0.9, 'not known here'),
    ('image_processor_type', 'ConvNextImageProcessor', 'ViTImageProcessor'),
    ('crop_size', {'height': 300, 'width': 300}, 'not padded'),
    ('do_center_crop', False, 'keep their ratio'),
  ],
  # Ours, beside timm's.
  ('timm', 'ours.json'): [
    ('vit_jax', [1], '(must|no field)'),
    ('vit_jax.model', 'ViT', '(must|no field)'),
    ('vit_jax.model', {'depths': 2}, '(must|no field)'),
    ('vit_jax.model', {'num_heads': [3]}, '(must|no field)'),
    ('vit_jax.model', {'layer_norm_epsilon': 2147483648}, '(must|no field)'),
    ('vit_jax.model', {'num_classes': 2**63}, '(must|no field)'),
    ('vit_jax.preprocess.mean', [2**63, 0.5, 10**400], '(must|no field)'),
    ('vit_jax.image_size', 32, '(must|no field)'),
    ('vit_jax.resize', 'nearest', '(must|no field)'),
    ('vit_jax.preprocess', [], '(must|no field)'),
    ('vit_jax.preprocess.classes', [1, 2, 3, 4, 5], '(must|no field)'),
    ('vit_jax.preprocess.image_size', [32, 0], '(must|no field)'),
    ('vit_jax.preprocess.image_size', [32, 32, 32], '(must|no field)'),
    ('vit_jax.preprocess.crop_pct', 3, '(must|no field)'),
    ('vit_jax.preprocess.mean', None, None),
    ('vit_jax.preprocess.std', [0], '(must|no field)'),
    ('vit_jax.preprocess.resize', 'no', '(must|no field)'),
    ('vit_jax.preprocess.antialias', 1, '(must|no field)'),
    ('vit_jax.preprocess.interpolation', 'nearest', '(must|no field)'),
    ('vit_jax.preprocess.resize_like', 'torch', '(must|no field)'),
  ],
}


@pytest.mark.parametrize(
  ('form', 'file', 'key', 'value', 'wanted'),
  [(*place, *row) for place, rows in JSON.items() for row in rows],
)
def test_json_that_others_wrote(
  tmp_path, exported, form, file, key, value, wanted
):
  is_ours = file == 'ours.json'
  name = 'config.json' if is_ours else file
  path = changed(
    exported / form, tmp_path / 'x', key, value, name, file if is_ours else None
  )
  if wanted is None:  # as if it were not there
    assert {*vit_jax.load(path).preprocess.std} == {0.3}
    return
  with pytest.raises(UserError, match=f'x: .*{wanted}') as e:
    vit_jax.load(path)
  assert '\n' not in str(e.value)
  named = 'size' if key == 'do_center_crop' else key  # which does not fit it
  assert is_ours or f'its {file} says {named} ' in str(e.value)


@pytest.mark.parametrize('key,value', [('std', 0.3), ('later', [1])])
def test_preprocessing_of_ours_otherwise_written(
  tmp_path, exported, key, value
):
  """One number stands for all channels, and unknown keys are left out."""
  path = changed(
    exported / 'timm',
    tmp_path / 'x',
    f'vit_jax.preprocess.{key}',
    value,
    base='ours.json',
  )
  assert vit_jax.load(path).preprocess.std == (0.3,)


@pytest.mark.parametrize('content', ['[' * 100_000, '[1]', '{', '\x00'])
def test_json_that_is_none(tmp_path, exported, content):
  path = tmp_path / 'x'
  shutil.copytree(exported / 'timm', path)
  (path / 'config.json').write_text(content)
  with pytest.raises(UserError, match=r'x/config\.json.*repair it, or remove'):
    vit_jax.load(path)


@pytest.mark.parametrize(
  'form,key', [('timm', 'label_names'), ('huggingface', 'id2label')]
)
def test_names_of_other_classes(tmp_path, exported, form, key, caplog):
  """They do not have as many names as the head has outputs."""
  assert vit_jax.load(exported / form).classes == tuple('abcde')
  names = {str(i): f'class {i}' for i in range(4)}
  path = changed(exported / form, tmp_path / 'x', key, names)
  if form == 'timm':  # else these come next
    path = changed(path, tmp_path / 'y', 'pretrained_cfg.label_names', None)
  with caplog.at_level('WARNING', 'absl'):
    assert vit_jax.load(path).classes == ()
  assert f'{key} of config.json names 4 classes, the head has 5' in caplog.text


@pytest.mark.parametrize(
  'added,field',
  [
    ('patch_embed.backbone.conv1.weight', 'another backbone'),
    ('blocks.0.attn.rel_pos_h', 'windows of attention'),
    ('blocks.1.attn.lambda_a', 'another attn_layer'),
    ('blocks.0.attns.0.attn.proj.weight', 'block_fn'),
    ('norm.num_batches_tracked', 'BatchNorm'),
  ],
)
def test_arrays_that_timms_other_fields_have(tmp_path, added, field):
  """A bare file's, which nothing else explains."""
  export.write(random_model(), tmp_path / 'ours.safetensors', 'timm', 'here')
  arrays = read(tmp_path / 'ours.safetensors')
  arrays[added] = np.ones(24, np.float32)
  containers.write_safetensors(tmp_path / 'x.safetensors', arrays, {})
  with pytest.raises(UserError, match=f'in timm with .*{field}.* not computed'):
    vit_jax.load(tmp_path / 'x.safetensors')


@pytest.mark.parametrize('name', ['in_proj', 'out_proj'])
def test_joint_projections_of_another_layer_are_unknown(tmp_path, name):
  """They say nothing of an MLP that has arrays of its own."""
  export.write(random_model(), tmp_path / 'ours.safetensors', 'timm', 'here')
  arrays = read(tmp_path / 'ours.safetensors')
  arrays[f'blocks.0.{name}.weight'] = np.ones((24, 30), np.float32)
  containers.write_safetensors(tmp_path / 'x.safetensors', arrays, {})
  with pytest.raises(UserError, match=rf'unknown: blocks\.0\.{name}\.weight$'):
    vit_jax.load(tmp_path / 'x.safetensors', num_heads=3)


def test_absurd_numbers_in_names_are_refused(tmp_path):
  arrays = {
    'patch_embed.proj.weight': np.zeros((8, 3, 4, 4), np.float32),
    'blocks.999999999.mlp.fc1.weight': np.zeros((16, 8), np.float32),
    'blocks.999999999.mlp.fc2.weight': np.zeros((8, 16), np.float32),
  }
  containers.write_safetensors(tmp_path / 'x.safetensors', arrays, {})
  with pytest.raises(
    UserError, match='there are 1000000000 layers, but only 3'
  ):
    vit_jax.load(tmp_path / 'x.safetensors', num_heads=2)
