"""Kernels in int8: what a model then computes, and what it takes."""

import importlib.util

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.weights import quantized

pytest.importorskip('qwix', reason='needs qwix: vit_jax[quantize]')

SIZE = (32, 32, 3)
SMALL = {'hidden_size': 128, 'mlp_dim': 256, 'num_heads': 4, 'depth': 2}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('ViT-Ti/4', {}),
    ('ViT-Ti/4', {'scan': True}),
    ('ViT-Ti/4', {'pool': 'map', 'dtype': 'bfloat16'}),
    ('ViT-Ti/4', {'mlp': 'experts(4)'}),
    ('R+ViT-Ti/16', {}),
  ],
)
def test_the_logits_are_close_and_the_bytes_few(name, fields):
  model = models.create_model(name, num_classes=10, **SMALL | fields)
  params = models.init_params(model, jax.random.key(0), SIZE)
  # The head, which begins with zeros, and all biases have values here.
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noise = [
    0.02 * jax.random.normal(key, x.shape)
    for x, key in zip(leaves, keys, strict=True)
  ]
  params = jax.tree.map(jax.numpy.add, params, jax.tree.unflatten(tree, noise))
  small = quantized.quantize(params)
  images = jax.random.normal(jax.random.key(2), (4, *SIZE))
  apply = jax.jit(lambda x: model.apply({'params': x}, images))
  expected, logits = (np.asarray(apply(x), np.float32) for x in (params, small))
  assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()
  share = quantized.num_bytes(small) / quantized.num_bytes(params)
  assert 0.25 < share < 0.32
  sizes = [sum(x.size for x in quantized.leaves(p)) for p in (params, small)]
  assert sizes[0] == sizes[1]


def test_values_are_within_half_a_step_of_their_scale():
  kernel = np.random.default_rng(0).standard_normal((3, 64, 2, 8))  # scanned
  params = quantized.quantize({'qkv': {'kernel': kernel, 'bias': kernel}})
  stored = params['qkv']['kernel']
  assert stored.stored.qvalue.dtype == np.int8
  assert stored.stored.scale.shape == (3, 1, 2, 8)  # of all inputs of an output
  step = np.abs(kernel).max(1, keepdims=True) / 127
  error = np.abs(stored.astype('float32') - kernel) / step
  assert error.max() < 0.51
  assert params['qkv']['bias'] is kernel


@pytest.mark.parametrize('scan', [False, True, None])
def test_a_run_is_loaded_to_predict(digits_run, scan):
  """Its layers are scanned unless the caller says otherwise."""
  images = [
    *np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)
  ]
  plain = vit_jax.load(digits_run, quantize='none')
  choice = {} if scan is None else {'scan': scan}
  model = vit_jax.load(digits_run, quantize='int8', **choice)
  assert model.model.scan == (scan is not False) and not plain.model.scan
  assert model.describe() == plain.describe()
  expected = plain.predict(images)
  np.testing.assert_allclose(
    model.predict(images), expected, atol=0.05 * np.abs(expected).max()
  )
  np.testing.assert_allclose(
    model.outputs(images)['logits'], model.predict(images), 1e-4, 1e-5
  )


def test_what_is_refused(digits_run, monkeypatch):
  with pytest.raises(UserError, match="'int4': choose none or int8"):
    vit_jax.load(digits_run, quantize='int4')
  model = vit_jax.load(digits_run, quantize='int8')
  with pytest.raises(UserError, match='the model is quantized'):
    model.adapted(image_size=8)
  merged = vit_jax.load(digits_run, quantize='int8', block='merging(1)')
  assert not merged.model.scan  # its layers are not equal
  monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[quantize\]'"):
    vit_jax.load(digits_run, quantize='int8')
