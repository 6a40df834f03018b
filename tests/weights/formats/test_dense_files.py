"""Segmentation in the names of mmsegmentation and MONAI, by the command."""

import commands
from foreign import torch_outputs
import jax
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import convert
from vit_jax import data
from vit_jax import objectives
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data import target_kinds
from vit_jax.objectives import trained
from vit_jax.weights.files import containers

CLASSES = ('background', 'one', 'two')
SETR = {
  'data__image_size': 32,
  'data__channels': 3,
  'model__name': 'ViT-Ti/16',
  'model__pool': 'token',
  'model__depth': 4,
}
UNETR = {
  'data__image_size': (32, 32, 16),
  'data__channels': 1,
  'model__patch_size': (16, 16, 16),
  'model__attention': 'attention(qkv_bias=False)',
  'model__mlp': "mlp(gelu='exact')",
  'model__pool': 'mean',
  'model__depth': 12,
  'model__layer_norm_epsilon': 1e-5,
}


def write_run(path, seed=0, **settings):
  """Writes a run of random parameters; returns them."""
  options = {'head': 'unetr' if settings['data__channels'] == 1 else 'pup'}
  config = tiny.config(
    objective__name='segmentation',
    checkpoint__best='',
    model__positions='learned',
    **settings,
  )
  config.objective.options.update(options | {'channels': 4})
  objectives.fill_options(config)
  image = features.Image()
  if options['head'] == 'unetr':
    image = input_kinds.Volume((32, 32, 16))
  there = {'image': image, 'map': target_kinds.SegmentationMap(CLASSES)}
  config.model.num_classes = 0
  objective = objectives.create(config, there)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: rng.normal(0.5, 0.1, x.shape).astype(np.float32),
    jax.eval_shape(objective.init, jax.random.key(0)),
  )
  facts = objective.output_facts()
  preprocess = data.Preprocess.from_config(config, there, facts, 'trunk')
  size = preprocess.image_size
  loaded = weights.Loaded(
    objective.model,
    params['trunk'],
    preprocess,
    size,
    'corner',
    trained_with=config,
    objective_params={'decoder': params['decoder']},
  )
  convert.write_workdir(loaded, path, 'here', params)
  return params


@pytest.mark.slow
@pytest.mark.parametrize(
  ('form', 'settings'), [('mmseg', SETR), ('monai', UNETR)]
)
def test_both_ways_to_the_bit(form, settings, tmp_path):
  params = write_run(tmp_path / 'run', **settings)
  write_run(tmp_path / 'other', seed=1, **settings)
  file = tmp_path / 'model.safetensors'
  assert commands.run(convert, tmp_path / 'run', file, f'--to={form}') == 0
  again = tmp_path / 'again'
  args = file, again, '--to=vit_jax', f'--like={tmp_path}/other'
  assert commands.run(convert, *args) == 0
  _, actual = trained.restored(vit_jax.load(again))
  jax.tree.map(np.testing.assert_array_equal, actual, params)
  second = tmp_path / 'second.safetensors'
  assert commands.run(convert, again, second, f'--to={form}') == 0
  assert second.read_bytes() == file.read_bytes()


def test_monai_reads_the_file_and_answers_as_the_run(tmp_path):
  pytest.importorskip('torch')
  nets = pytest.importorskip('monai.networks.nets')
  from safetensors.torch import load_file

  write_run(tmp_path / 'run', **UNETR)
  file = tmp_path / 'model.safetensors'
  assert commands.run(convert, tmp_path / 'run', file, '--to=monai') == 0
  made, params = trained.restored(vit_jax.load(tmp_path / 'run'))
  net = nets.UNETR(
    in_channels=1,
    out_channels=3,
    img_size=(32, 32, 16),
    feature_size=4,
    hidden_size=16,
    mlp_dim=32,
    num_heads=2,
    proj_type='conv',
    norm_name='instance',
  ).eval()
  net.load_state_dict(load_file(file))
  x = np.random.default_rng(0).normal(size=(1, 32, 32, 16, 1))
  x = x.astype(np.float32)
  expected = made.outputs(params, {'image': x})['logits']
  actual = torch_outputs(net, x)
  np.testing.assert_allclose(
    np.moveaxis(actual.numpy(), 1, -1), expected, atol=2e-4, rtol=1e-3
  )


def test_names_of_mmsegmentation(tmp_path):
  """Also without the last norm, which SETR does not use."""
  write_run(tmp_path / 'run', **SETR)
  file, without = tmp_path / 'a.safetensors', tmp_path / 'b.safetensors'
  assert commands.run(convert, tmp_path / 'run', file, '--to=mmseg') == 0
  with containers.open_arrays(file) as opened:
    arrays = {name: opened.read(name) for name in opened.shapes}
  for name, shape in {
    'backbone.patch_embed.projection.weight': (16, 3, 16, 16),
    'backbone.pos_embed': (1, 5, 16),
    'backbone.layers.3.attn.attn.in_proj_weight': (48, 16),
    'backbone.layers.0.ffn.layers.0.0.weight': (32, 16),
    'decode_head.conv_seg.weight': (3, 4, 1, 1),
    'decode_head.up_convs.3.0.bn.running_mean': (4,),
    'auxiliary_head.2.norm.weight': (16,),
  }.items():
    assert arrays[name].shape == shape
  kept = {k: x for k, x in arrays.items() if not k.startswith('backbone.ln1')}
  containers.write_safetensors(without, kept, {})
  args = without, tmp_path / 'again', '--to=vit_jax', f'--like={tmp_path}/run'
  assert commands.run(convert, *args) == 0
  norm = vit_jax.load(tmp_path / 'again').params['norm']
  assert (np.asarray(norm['scale']) == 1).all()


@pytest.mark.parametrize(
  ('settings', 'args', 'message'),
  [
    (UNETR, ('out', '--to=timm'), 'no place for volumes: use .*--to=monai'),
    (
      SETR | {'model__mlp': 'swiglu'},
      ('x', '--to=mmseg'),
      "no place for mlp='swiglu' of the trunk",
    ),
  ],
)
def test_what_has_no_place(tmp_path, monkeypatch, settings, args, message):
  monkeypatch.chdir(tmp_path)
  write_run(tmp_path / 'run', **settings)
  with pytest.raises(UserError, match=message):
    commands.run(convert, 'run', *args)


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (
      ('run', 'x.safetensors', '--to=monai'),
      'MONAI has no place for decoder/aux',
    ),
    (('run', 'x', '--to=mmseg'), 'writes a new .safetensors file'),
    (
      ('other.safetensors', 'x', '--to=vit_jax', '--like=run'),
      'is no segmentation of mmsegmentation or MONAI',
    ),
    (('a.safetensors', 'x', '--to=timm', '--like=run'), '--like is for --to='),
    (
      ('wrong.safetensors', 'x', '--to=vit_jax', '--like=run'),
      r'missing: .* backbone.cls_token .*unknown: backbone.other',
    ),
  ],
)
def test_mistakes_get_one_line(args, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_run(tmp_path / 'run', **SETR)
  for name, array in (('other', 'x'), ('wrong', 'backbone.other')):
    containers.write_safetensors(
      tmp_path / f'{name}.safetensors', {array: np.ones(3, np.float32)}, {}
    )
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    commands.run(convert, *args)
