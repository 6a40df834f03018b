"""The trunks of DINO, DINOv2, DINOv3, EVA-02 and other rotary ViTs."""

import jax
import jax.numpy as jnp
import numpy as np

import golden_cases
from vit_jax import weights
from vit_jax.models import vit as vit_lib
from vit_jax.models.context import Context
from vit_jax.models.parts import mlp
from vit_jax.models.parts import rotary as rotary_lib
from vit_jax.weights import features
from vit_jax.weights.files import containers
from vit_jax.weights.formats import tables

# By whether there is an offset (0.1), and antialiasing.
_RESIZES = {
  (True, False): 'dino',
  (False, False): 'bicubic',
  (False, True): 'bicubic_antialias',
}


def _vit(vit):
  assert isinstance(vit.model, vit_lib.ViT)
  return vit.model


def _tokens(vit, images, **options):
  """Returns the tokens after the last norm, as training computes them."""
  variables = {'params': vit.params}
  return _vit(vit).apply(variables, images, method='trunk', **options)['tokens']


def _load(case, **fields):
  return golden_cases.load(
    case,
    case.fields['image_size'],
    num_heads=case.fields['heads'],
    layer_norm_epsilon=case.fields['layer_norm_eps'],
    **fields,
  )


def _at_sizes(case, vit):
  """Returns the model for each size of images in the case.

  A file does not show how DINOv2's code resizes positions, which has options.
  """
  resize = None
  if 'offset' in case.fields:
    method = bool(case.fields['offset']), case.fields['antialias']
    resize = _RESIZES[method]
  return [
    vit.adapted(image_size=tuple(x), resize=resize)
    for x in case.fields['sizes']
  ]


def _last_class_tokens(vit, images, count):
  """Returns class tokens of the last layers, each through the last norm."""
  class_tokens = features.features(vit, images, layers=range(-count, 0))[
    :, :, 0
  ]
  norm = _vit(vit).norm.apply
  normed = [norm({'params': vit.params['norm']}, x) for x in class_tokens]
  return np.concatenate(normed, axis=-1)


def dino(case):
  """DINO, with the features of its linear evaluation."""
  answers = {}
  for i, vit in enumerate(_at_sizes(case, _load(case))):
    images = case.inputs[f'image_{i}']
    answers |= {
      f'positions_{i}': vit.params['position_embedding'],
      f'tokens_{i}': _tokens(vit, images),
      f'output_{i}': features.embeddings(vit, images),
      f'linear_{i}': _last_class_tokens(
        vit, images, case.fields['last_blocks']
      ),
    }
  return answers


def dinov2(case):
  """DINOv2, with and without masked patches."""
  answers = _with_masked(case)
  for i, vit in enumerate(_at_sizes(case, _load(case))):
    answers[f'positions_{i}'] = vit.params['position_embedding']
  return answers


def _with_masked(case):
  """Returns tokens at all sizes, and with the mask token."""
  vits = _at_sizes(case, _load(case))
  answers = {
    f'tokens_{i}': _tokens(vit, case.inputs[f'image_{i}'])
    for i, vit in enumerate(vits)
  }
  masked, images = (case.inputs[k] for k in ('bool_masked_pos', 'image_0'))
  return answers | {'tokens_masked': _tokens(vits[0], images, masked=masked)}


def dinov2_swiglu(case):
  """DINOv2's gated MLP alone: [B, T, D] -> [B, T, D]."""
  hidden = case.fields['hidden']
  layer, context = mlp.SwiGLU(hidden), Context()
  x = jnp.asarray(case.inputs['x'])
  key = jax.random.key(0)
  abstract = jax.eval_shape(lambda x: layer.init(key, x, context), x)['params']
  rules = tables.arrays("""
up    w12  dense*
down  w3   dense*
""")
  assert case.weights is not None
  with containers.open_arrays(case.weights) as arrays:
    params = tables.read(arrays, rules, abstract, ignored='')
  return {'output': layer.apply({'params': params}, x, context)}


def dinov3(case):
  """DINOv3, with and without masked patches, and its rotations."""
  answers = _with_masked(case)
  for i, vit in enumerate(_at_sizes(case, _load(case))):
    cos, sin = _rotation(vit)
    answers |= {f'cos_{i}': cos, f'sin_{i}': sin}
  return answers


def _rotation(vit):
  model = _vit(vit)
  (part,) = (x for x in model.positions if isinstance(x, rotary_lib.Rope))
  return rotary_lib.table(
    part.kind,
    weights.grid(model, vit.position_size),
    model.hidden_size // part.num_heads,
    part.base,
    part.grid,
    part.offset,
  )


def rotary(case):
  """EVA-02 and other rotary ViTs of timm, with a classifier."""
  grid = tuple(case.fields['reference_grid'])
  answers = {}
  positions = golden_cases.with_rope(case, kind='eva02', base=1e4, grid=grid)
  for i, vit in enumerate(_at_sizes(case, _load(case, positions=positions))):
    images = case.inputs[f'image_{i}']
    cos, sin = _rotation(vit)
    answers |= {
      f'tokens_{i}': _tokens(vit, images),
      f'logits_{i}': vit.model.apply({'params': vit.params}, images),
      f'rope_{i}': np.concatenate([sin, cos], axis=-1),
    }
  return answers


CHECKS = {
  'dino_vit': dino,
  'dinov2_fb': dinov2,
  'dinov2_hf': dinov2,
  'dinov2_hf_swiglu': dinov2,
  'dinov2_swiglu': dinov2_swiglu,
  'dinov3_hf': dinov3,
  'dinov3_hf_gated': dinov3,
  'eva02': rotary,
  'vit_rope_registers': rotary,
}
