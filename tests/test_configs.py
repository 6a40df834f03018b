"""Every file in configs/ trains one step and evaluates once."""

import functools
import re

import commands
from foreign import logits
import jax
import numpy as np
import pytest
import stand_in
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data import sources
from vit_jax.data import splits
from vit_jax.data import target_kinds
from vit_jax.data import text_kind
from vit_jax.evaluation import accuracy
from vit_jax.models import describing
from vit_jax.models import values
from vit_jax.models import vit
from vit_jax.train import experiment as experiment_lib
from vit_jax.weights.files import containers as weights_files
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import google
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm

CONFIGS = sorted(path.name for path in (tiny.ROOT / 'configs').glob('*.py'))
# Of several tasks: tests/train/test_tasks.py trains these.
TASKS = {name for name in CONFIGS if name.startswith('polyvit_')}
# The recipes on ImageNet differ in what other tests compile, part by part. The
# methods on CIFAR-10 do what those on the digits do. The pages' are trained.
TRACED = {
  name
  for name in CONFIGS
  if re.search(
    r'_i(1|21)k\.py$|^(clip|siglip|lit|setr|unetr|trans2seg)_'
    r'|^cifar10_(?!tutorial|clip|lit|mae)|^(b16|mixer_b16)_cifar10'
    r'|^fashion_mnist',
    name,
  )
}


class StandIn(base.Source):
  """As many examples as MNIST has, made when they are read."""

  def __init__(self, config, split):
    sizes = {'train': 60_000, 'val': 10_000, 'test': 10_000}
    sizes['validation'] = 10_000
    self._selection = splits.Selection(split, sizes, 'the stand-in')
    self.features = {
      'image': features.Image(config.data.source_size),
      'label': features.Label(stand_in.CLASSES),
      'text': text_kind.Text(),
    }
    self._size = self.image_shape or (40, 48)
    self._is_volume = len(config_lib.sides(config.data.image_size)) == 3
    if self._is_volume:
      self.features['image'] = input_kinds.Volume((40, 48, 44), fixed=False)
    if config.objective.name == 'segmentation':
      self.features['map'] = target_kinds.SegmentationMap(stand_in.CLASSES)

  def __len__(self):
    return len(self._selection)

  def read(self, position):
    index = self._selection.locate(position)[2]
    image = stand_in.png(stand_in.pixels(index, *self._size))
    values = {'image': image, 'label': index % 3, 'text': ['a caption']}
    if 'map' in self.features:
      values['map'] = np.full(self._size, index % 3)
    if self._is_volume:
      values['image'] = np.full((36, 48, 44, 1), index % 256, np.uint8)
      values['map'] = np.full((36, 48, 44), index % 3)
    return base.Example(values, index, f'example {index}')

  def captions(self, position):
    del position  # no image is made for it
    return ['a caption']

  def fingerprint(self):
    return ''


@pytest.fixture(autouse=True)
def index_of_augreg(tmp_path, monkeypatch):
  """What configs/augreg.py looks its checkpoint up in, as if downloaded."""
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path))
  path = tmp_path / 'downloads/storage.googleapis.com/vit_models/augreg'
  path.mkdir(parents=True)
  rows = [
    'name,ds,final_val,filename',
    'B/16,i21k,0.4,B_16-i21k-bad',
    'B/16,i21k,0.5,B_16-i21k-good',
    'B/16,i1k,0.9,B_16-i1k-other',
    'L/16,i21k,0.9,L_16-i21k',
  ]
  (path / 'index.csv').write_text('\n'.join(rows))


def write_checkpoint(config, path):
  """Writes what a config starts from: its model, with another head."""
  model = models.from_config(config.model, 21).clone(num_classes=21)
  if config.model.head and 'norm' in config.model.head:  # the run's own
    model = describing.with_keys(model, head='linear')
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  if 'key_bias=False' in (config.model.attention or ''):
    model = describing.with_keys(model, positions='relative_bias')
  if 'lora' in (config.model.block or ''):
    model = describing.with_keys(model, block='block')
  if config.model.pool == 'token_and_mean':  # of methods without a head
    model = describing.with_keys(model, num_classes=0, pool='token')
  if 'layer_scale' in (config.model.block or '') or not model.num_classes:
    kind = format_lib.storing(timm.KINDS, model, size)
    rules = kind.rules(values.model_values(model))
    path = path.with_suffix('.safetensors')
  else:
    kind = next(x for x in google.KINDS if x.family is type(model))
    rules = kind.rules(values.model_values(model))
  params = models.init_params(model, jax.random.key(1), (*size, 3))
  arrays = tables.write(rules, params)
  if path.suffix == '.npz':
    weights_files.write_npz(path, arrays)
  else:
    weights_files.write_safetensors(path, dict(arrays), {})
  config.init_from.path = str(path)


def write_run(config, path):
  """Writes a work directory that a config starts from."""
  model = models.from_config(config.model, 0)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  params = models.init_params(model, jax.random.key(1), (*size, 3))
  preprocess = data.Preprocess((), size, 3, (0.5,), (0.5,))
  loaded = weights.Loaded(model, params, preprocess, size, 'corner')
  convert.write_workdir(loaded, path, 'here')
  config.init_from.path = str(path)


def shrink(config):
  """Makes batch, image, depth and width small, and nothing else."""
  config.optim.sam = config.optim.sam.replace('groups=64', 'groups=2')
  config.train.batch_size = 8 * config_lib.num_microbatches(config)
  if config.model.name.startswith('BiT'):
    config.data.image_size = 32
    config.model.name = describing.renamed(
      config.model.name,
      **{'stages': (1, 1), 'channels': (32, 64), 'stem_width': 8},
      num_groups=4,
    )
    if config.objective.options.get('head') == 'trans2seg':
      config.objective.options.update({'width': 16, 'depth': 2, 'heads': 2})
    return
  if config.model.name.startswith('iGPT'):
    config.data.image_size = 4
    config.model.name = describing.renamed(
      config.model.name, colours=3, feature_layer=None
    )
    config.model.depth, config.model.num_heads = 2, 2
    config.model.hidden_size, config.model.mlp_dim = 16, 32
    return
  patch = int(re.search(r'/(\d+)$', config.model.name)[1])
  patch = max(config_lib.sides(config.model.patch_size or patch, 'patch_size'))
  is_made = config.data.name in ('moving_digits', 'tones')  # of one size
  if config.data.source_size is None and not is_made:
    is_volume = len(config_lib.sides(config.data.image_size)) == 3
    config.data.image_size = (2 * patch,) * 3 if is_volume else 2 * patch
  if isinstance(config.data.eval_resize, int):
    config.data.eval_resize = 2 * patch + 2
  if config.init_from.path:
    config.data.image_size = 2 * patch
  options = {'tokens': 8, 'masked': 2, 'block_least': 1}
  options |= {'text_width': 16, 'text_depth': 2, 'text_heads': 2}
  is_unetr = config.objective.options.get('head') == 'unetr'
  options |= {'layers': (0, 0, 1) if is_unetr else ()}
  config.objective.options.update(
    {key: x for key, x in options.items() if key in config.objective.options}
  )
  config.model.depth = 2 if is_unetr else 1  # compiles sooner
  config.model.hidden_size = 16
  config.model.mlp_dim = 32
  if config.model.name.startswith('Mixer'):
    config.model.name = describing.renamed(config.model.name, tokens_mlp_dim=8)
  else:
    config.model.num_heads = 2


@pytest.fixture
def shrunk(monkeypatch, tmp_path):
  """Returns a function that makes a small experiment of a file in configs/."""

  def build(name):
    config = config_lib.load(str(tiny.ROOT / 'configs' / name))
    shrink(config)
    made = 'digits', 'scenes', 'volumes', 'moving_digits', 'tones', 'configs.'
    is_here = config.data.name.startswith(made)
    if not is_here:
      monkeypatch.setattr(sources, 'find', lambda name: StandIn)
      config.data.name = 'cifar10'
      if config.data.tokenizer:  # not that of a published file
        config.data.tokenizer = 'words'
    if config.init_from.path:
      is_igpt = config.model.name.startswith('iGPT')
      write = write_run if is_igpt else write_checkpoint
      write(config, tmp_path / 'start.npz')
    experiment_lib.check(config)
    e = experiment_lib.build(config)
    assert e.eval_sources, 'a config without an evaluation shows no result'
    return e

  return build


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(set(CONFIGS) - TRACED - TASKS))
def test_config_trains_and_evaluates(name, shrunk):
  e = shrunk(name)
  state = e.init()
  with_batches = e.train_batches(0)
  state, metrics = e.program.train_step(state, next(with_batches), np.int32(0))
  with_batches.close()
  assert metrics['ok'] and int(state.step) == 1
  evals = e.eval_batches(next(iter(e.eval_sources)))
  step = e.program.eval_step(accuracy.measure)
  total, _ = step(state.eval_params, next(evals))
  evals.close()
  actual = total.compute()
  objective = e.program.objective
  named = {x for x in objective.metrics if not x.endswith('/')}
  assert named <= actual.keys()
  if objective.target and 'loss' in objective.metrics:
    assert not {'accuracy', 'map', 'r2'}.isdisjoint(actual)
    assert np.isfinite(actual['loss'])


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(TRACED))
def test_recipe_is_traced(name, shrunk):
  """All of the steps but their compilation, which takes six times as long."""
  e = shrunk(name)
  program = e.program
  state, batch = program.abstract_state(), program.abstract_batch()
  step = program.train_step.lower(state, batch, np.int32(0))
  assert jax.tree.leaves(step.out_info)
  with e.eval_batches(next(iter(e.eval_sources))) as batches:
    batch = next(batches)
  step = program.eval_step(accuracy.measure)
  assert jax.tree.leaves(step.lower(state.eval_params, batch).out_info)


# Arguments that lead to other kinds of models than the default ones.
VARIANTS = [
  'deit_i1k.py:S,distilled',
  'finetune.py:Mixer-B/16,digits',
  'finetune.py:R50+ViT-B/16,digits',
  'gsam_i1k.py:Mixer-B/16',
  'vit_i1k.py:R26+S/32,medium1',
]


def least_formats(model):
  """Returns how many formats of others can store a model at least."""
  if not isinstance(model, vit.ViT):
    return 2
  values = describing.key_values(model)
  if 'rope' in values['positions']:
    return 0  # as EVA-02's and DINOv3's alone
  # Only transformers' DINOv2 reads class token and mean; it has LayerScale.
  if values['pool'] == 'token_and_mean':
    has_place = model.block.layer_scale and values['positions'] == 'learned'
    return 1 if has_place else 0
  # transformers has these towers without a classifier alone.
  if values['pool'].startswith('map') or model.pre_norm:
    return 1
  # Only timm, and transformers' BEiT, have a norm after the mean.
  return 1 if 'norm_after' in values['pool'] or model.head.norm != 'none' else 2


@pytest.fixture(scope='module')
def formats_written(tmp_path_factory):
  """Returns a function: the formats of others that a model goes to.

  Each must answer as the run. Configs share models: each is written once.
  """

  @functools.cache
  def write(model, size, channels):
    folder = tmp_path_factory.mktemp('converted')
    rng = np.random.default_rng(0)
    params = jax.tree.map(
      lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32),
      models.abstract_params(model, (*size, channels)),
    )
    preprocess = data.Preprocess((), size, channels, (0.5,), (0.5,))
    loaded = weights.Loaded(model, params, preprocess, size, 'corner')
    convert.write_workdir(loaded, folder / 'run', 'here')
    images = rng.normal(size=(2, *size, channels)).astype(np.float32)
    expected, written = logits(vit_jax.load(folder / 'run'), images), []
    for form in ('google', 'timm', 'huggingface'):
      flags = folder / 'run', folder / form, f'--to={form}'
      try:
        assert commands.run(convert, *flags) == 0
      except UserError as e:
        assert 'has no place for' in str(e)
        continue
      answer = logits(vit_jax.load(folder / form), images)
      np.testing.assert_allclose(answer, expected, atol=2e-5, rtol=2e-5)
      written.append(form)
    return written

  return write


@pytest.mark.slow
@pytest.mark.parametrize('name', [*sorted(set(CONFIGS) - TASKS), *VARIANTS])
def test_what_a_config_trains_converts(name, formats_written):
  """To formats of others, two at least of most, which answer as the run."""
  if 'igpt' in name:
    pytest.skip('test_igpt converts it, to the one format that has a place')
  if name in ('volumes_unetr.py', 'unetr_btcv.py', 'moving_digits.py'):
    pytest.skip('volumes and videos have no place in the formats of images')
  if name == 'augreg.py':
    name = 'augreg.py:B/16,digits'
  config = config_lib.load(str(tiny.ROOT / 'configs' / name))
  shrink(config)
  if not config.model.name.startswith('BiT'):
    config.model.depth = 1  # compiles sooner
  if '+' in config.model.name:
    config.model.patches = 'hybrid(stages=(1,), width=32)'
  model = models.from_config(config.model, 4, 'float32')
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  written = formats_written(model, size, config.data.channels)
  assert len(written) >= least_formats(model)
  if isinstance(model, vit.ViT) and not (
    model.head.pre_logits
    or 'stem' in models.abstract_params(model, (*size, config.data.channels))
    or least_formats(model) < 2
    or len(set(model.patches.patch_size)) > 1
  ):
    assert 'huggingface' in written


@pytest.mark.parametrize('name', CONFIGS)
def test_config_says_how_it_is_used(name):
  path = tiny.ROOT / 'configs' / name
  text = path.read_text()
  command = rf'vit-jax train .*--config=(configs/)?{path.stem}\b'
  assert re.search(command, text, re.DOTALL)
  config_lib.check(config_lib.load(str(path)))


def test_augreg_takes_the_recommended_checkpoint():
  config = config_lib.load(f'{tiny.ROOT}/configs/augreg.py:B/16,digits')
  root = 'gs://vit_models/augreg'
  assert config.init_from.path == f'{root}/B_16-i21k-good.npz'
  assert config.model.name == 'ViT-B/16' and config.data.name == 'digits'
  name = 'R26_S_32-i21k-300ep-lr_0.001--imagenet2012-steps_20k-lr_0.03-res_384'
  config = config_lib.load(f'{tiny.ROOT}/configs/augreg.py:{name}')
  assert config.init_from.path == f'{root}/{name}.npz'
  assert config.model.name == 'R26+ViT-S/32'


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('augreg.py:X/16', "'X/16' is no model of AugReg: write one as B/16"),
    ('augreg.py:S/16', "has no model 'S/16'"),
  ],
)
def test_wrong_names_of_checkpoints_are_told(name, message):
  with pytest.raises(config_lib.UserError, match=message):
    config_lib.load(f'{tiny.ROOT}/configs/{name}')


def test_a_damaged_index_is_named(tmp_path):
  (path,) = tmp_path.rglob('index.csv')
  path.write_text('<html>')
  with pytest.raises(config_lib.UserError, match='is not the table of AugReg'):
    config_lib.load(f'{tiny.ROOT}/configs/augreg.py:B/16')


def test_the_tutorial_has_its_exact_size():
  """3,195,146 parameters; Dense kernels as Flax starts them."""
  config = config_lib.load(str(tiny.ROOT / 'configs' / 'cifar10_tutorial.py'))
  model = models.from_config(config.model, 10)
  params = jax.eval_shape(
    lambda: models.init_params(model, jax.random.key(0), (32, 32, 3))
  )
  assert sum(x.size for x in jax.tree.leaves(params)) == 3_195_146
