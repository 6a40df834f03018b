"""Cases of iGPT: weights of transformers' ImageGPT, and colour clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import vit_jax
from vit_jax import data
from vit_jax.models import igpt as model_lib
from vit_jax.objectives import igpt
from vit_jax.plots import tiles


def _model(case):
  size = tuple(case.fields['grid'])
  vit = vit_jax.load(case.weights, image_size=size)
  model, ids = vit.model, case.inputs['pixels']

  def loss(params):
    out = model.apply({'params': params}, ids, method='trunk')
    return igpt.gen_loss(out).mean(), out

  (gen_loss, out), grads = jax.value_and_grad(loss, has_aux=True)(vit.params)
  shifted = optax.softmax_cross_entropy_with_integer_labels(
    out['colour_logits'][:, :-1], ids[:, :-1]
  )
  _, state = model.apply({'params': vit.params}, ids, mutable=['intermediates'])
  tokens = state['intermediates']['tokens']
  hidden = [out['embedded'], *tokens[:-1], out['tokens']]
  layers = [model.clone(feature_layer=i) for i in range(model.depth)]
  return {
    'input_ids': model_lib.shifted(ids, model.colours),
    'logits': out['colour_logits'],
    'gen_loss': gen_loss,
    'hf_loss': shifted.mean(),
    'grad_norm': optax.global_norm(grads),
    'hidden_mean': jnp.stack(hidden).mean(axis=2),
    'normed_mean': jnp.stack(
      [x.apply({'params': vit.params}, ids) for x in layers]
    ),
  }


def _quantize(case):
  clusters, images = case.inputs['clusters'], case.inputs['image_uint8']
  _, height, width, channels = images.shape
  preprocess = data.Preprocess((), (height, width), channels, (0.5,), (0.5,))
  pixels = preprocess(images)
  ids = model_lib.nearest(jnp.asarray(pixels), jnp.asarray(clusters))
  colours = clusters[np.asarray(ids)]
  return {
    'pixels': pixels,
    'ids': ids.reshape(len(images), -1),
    'dequantized': tiles.pixels(preprocess, colours),
  }


CHECKS = {'igpt': _model, 'igpt_biases': _model, 'igpt_quantize': _quantize}
