"""All tables beside those of trunks: what they name is written and read.

Options of methods and of models of segmentation are random. What a method has
no options for, its test of the objective checks.
"""

import dataclasses

from flax import traverse_util
from foreign import flat
from foreign import random_model
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
from test_every_field import drawn
from test_every_field import random_tree

import vit_jax
from vit_jax import models
from vit_jax import objectives
from vit_jax.data import features
from vit_jax.models import dvae
from vit_jax.models import layouts
from vit_jax.models import setr
from vit_jax.models import unetr
from vit_jax.models import values as values_lib
from vit_jax.weights.files import containers
from vit_jax.weights.formats import dense
from vit_jax.weights.formats import dvae as dvae_files
from vit_jax.weights.formats import export
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables

_HEADS = {
  'head_layers': (1, 2, 3, 4),
  'head_hidden': (8, 12),
  'bottleneck': (4, 6),
  'prototypes': (16, 24),
  'batch_norm': (False, True),
  'trains_scale': (False, True),
}
# A method and the formats that have its files; and values of its options.
METHODS = {
  ('dino', 'timm'): _HEADS,
  ('dinov2', 'timm'): _HEADS,
  ('mocov3', 'timm'): {
    'width': (8, 12),
    'dim': (4, 6),
    'projector_layers': (1, 2, 3, 4),
    'predictor_layers': (1, 2, 3),
  },
  ('mae', 'timm huggingface'): {
    'decoder_width': (16, 24),
    'decoder_depth': (1, 2, 3),
    'decoder_heads': (1, 2),
    'decoder_mlp_dim': (0, 20),
    'normalize_targets': (False, True),
  },
  ('beit', 'timm huggingface'): {'tokens': (24, 30)},
}


def choices(rng, options):
  return {k: x[rng.integers(len(x))] for k, x in options.items()}


@pytest.mark.parametrize(
  ('method', 'options', 'form'),
  [
    pytest.param(method, options, form, id=f'{method}-{form}')
    for (method, forms), options in METHODS.items()
    for form in (x.NAME for x in foreign.FORMATS)
  ],
)
def test_what_a_method_has_beside_its_trunk(method, options, form, tmp_path):
  """To the bit, and the trunk, too; or no file of the format has it."""
  forms = next(y for (x, y), _ in METHODS.items() if x == method).split()
  rng = np.random.default_rng(0)
  for seed in range(4):
    config = methods.config(method, choices(rng, options), model__depth=2)
    config.model.num_classes = 0
    objectives.fill_options(config)
    objective = objectives.create(config, {'image': features.Image()})
    table = objective_tables.table(objective, form)
    assert (table is not None) == (form in forms)
    if table is None:
      return
    params = layouts.unstack_all(
      random_tree(jax.eval_shape(objective.init, jax.random.key(0)), seed)
    )
    trunk = params.pop('trunk')
    size = (config.data.image_size,) * 2
    channels = config.data.channels
    loaded = dataclasses.replace(
      random_model(size, channels),
      model=objective.model.clone(scan=False),
      params=trunk,
      objective_params=params,
      position_size=size,
    )
    path = tmp_path / str(seed)
    export.write(loaded, path, form, 'here', table)
    reread = foreign.read_beside(
      path, table, jax.eval_shape(lambda x=params: x)
    )
    jax.tree.map(np.testing.assert_array_equal, reread, params)
    arrays = flat(vit_jax.load(path, as_stored=True))
    expected = traverse_util.flatten_dict(trunk, sep='/')
    # Fixed positions are stored, and timm has no token of masked patches.
    changed = arrays.keys() ^ expected.keys()
    assert changed <= {'position_embedding', 'mask_token'}
    for name in arrays.keys() & expected.keys():
      np.testing.assert_array_equal(arrays[name], expected[name], name)


# Of the trunk, and of the decoder.
DENSE = {
  'mmseg': (
    {'num_classes': 0, 'class_token': True, 'mlp': "mlp(gelu='exact')"},
    {
      'kind': ('naive', 'pup', 'mla'),
      'channels': (4, 6),
      'convs': (0, 1, 3),
      'auxiliary_convs': (1, 2),
      'auxiliary': (False, True),
    },
  ),
  'monai': (
    {
      'num_classes': 0,
      'patch_size': (16, 16, 16),
      'attention': 'attention(qkv_bias=False)',
      'pool': 'mean',
      'mlp': "mlp(gelu='exact')",
    },
    {'features': (2, 4)},
  ),
}


@pytest.mark.parametrize('name', DENSE)
def test_a_model_of_segmentation(name, tmp_path):
  """Both ways to the bit; values of the trunk without a place are refused."""
  program, (trunk_fields, options) = dense.PROGRAMS[name], DENSE[name]
  size = (32, 32) if name == 'mmseg' else (32, 32, 16)
  rng = np.random.default_rng(0)
  stored = {}
  for seed in range(4):
    trunk = drawn(program.trunk, trunk_fields, seed, size)
    for path, value in values_lib.model_values(trunk).items():
      stored.setdefault(path, set()).add(str(value))
    params = {
      'trunk': models.abstract_params(trunk, (*size, 3)),
      'decoder': decoder(rng, trunk.hidden_size, size, options),
    }
    params = random_tree(params, seed)
    path = tmp_path / f'{seed}.safetensors'
    dense.write(trunk, size, params, path, name)
    reread = dense.read(path, jax.eval_shape(lambda x=params: x))
    jax.tree.map(np.testing.assert_array_equal, reread, params)
  varied = {path for path, texts in stored.items() if len(texts) > 1}
  assert {'hidden_size', 'depth', 'mlp_dim', 'num_heads'} <= varied


def decoder(rng, hidden, size, options):
  """Returns the shapes of a decoder with random options."""
  fields = choices(rng, options)
  if len(size) == 3:
    tokens = jnp.ones((1, 2, 2, 1, hidden))
    module = unetr.UNETR(3, **fields)
    inputs = jnp.ones((1, *size, 3)), [tokens] * 3, tokens
  else:
    module = setr.SETR(fields.pop('kind'), 5, **fields)
    inputs = ([jnp.ones((1, 2, 3, hidden))] * 4,)
  return jax.eval_shape(module.init, jax.random.key(0), *inputs)['params']


def test_encoders_of_dall_e(tmp_path):
  """Its sizes are those of the arrays."""
  rng = np.random.default_rng(0)
  for seed in range(3):
    sizes = {'tokens': (8, 12, 20), 'hidden': (8, 16), 'blocks': (1, 2, 3)}
    encoder = dvae.DalleEncoder(**choices(rng, sizes))
    images = jnp.ones((1, 8, 8, 3))
    shapes = jax.eval_shape(encoder.init, jax.random.key(0), images)
    params = random_tree(shapes['params'], seed)
    path = tmp_path / f'{seed}.safetensors'
    arrays = dict(tables.write(dvae_files.ARRAYS, params))
    containers.write_safetensors(path, arrays, {})
    module, reread = dvae_files.read(path)
    assert module == encoder
    jax.tree.map(np.testing.assert_array_equal, reread, params)
