"""Two towers: CLIP, SigLIP, LiT and big_vision."""

import jax
import jax.numpy as jnp
import numpy as np
import tower_files

import golden_cases
import vit_jax
from vit_jax.data import naflex as naflex_lib
from vit_jax.models import embedding
from vit_jax.objectives import contrastive_losses as losses
from vit_jax.weights import two_towers as weights
from vit_jax.weights.files import containers
from vit_jax.weights.formats import google_towers
from vit_jax.weights.formats import huggingface_clip


def _file(case):
  """Returns the file of a case's weights."""
  path = case.weights
  return path / 'model.safetensors' if path.is_dir() else path


def _load(case):
  """Loads the towers; written back, they have the file's bits."""
  path = _file(case)
  heads = case.dims.get('bert', {}).get('num_attention_heads')
  vit = weights.load(case.weights, heads)
  with containers.open_arrays(path) as arrays:
    stored = {name: arrays.read(name) for name in arrays.shapes}
  params = jax.device_get(vit.params)
  if google_towers.recognises(stored):
    written = tower_files.google_arrays(
      vit.model,
      params,
      google_towers.style(stored),
      any('encoderblock/' in name for name in stored),
    )
  else:
    written = tower_files.transformers_arrays(vit.model, params)
  wrong = [name for name in written.keys() ^ stored.keys()]
  wrong += [
    name
    for name in written.keys() & stored.keys()
    if written[name].shape != stored[name].shape
    or not np.array_equal(written[name], stored[name])
  ]
  if wrong:
    raise ValueError(f'written back, these differ: {sorted(wrong)}')
  return vit


def _apply(vit, method, *args, **options):
  return vit.model.apply(
    {'params': vit.params}, *args, method=method, **options
  )


def _loss(vit, images, texts):
  bound = vit.model.bind({'params': vit.params})
  if vit.model.has_bias:
    return losses.sigmoid_loss(images, texts, bound.scale(), bound.logit_bias)
  return losses.softmax_loss(images, texts, bound.scale())


def google(case):
  """Embeddings, norms and logits of LiT and big_vision."""
  vit = _load(case)
  images = _apply(vit, 'embed_images', case.inputs['images'])
  texts = _apply(vit, 'embed_texts', case.inputs['tokens'])
  bound = vit.model.bind({'params': vit.params})
  answers = {
    'image_embeds': images['embedding'],
    'text_embeds': texts['embedding'],
    'image_norm': jnp.linalg.norm(images['features'], axis=1, keepdims=True),
    'text_norm': jnp.linalg.norm(texts['features'], axis=1, keepdims=True),
    'temperature': bound.scale()[None],
    'text_features': texts['features'],
    'logits': bound.logits(images['embedding'], texts['embedding']),
  }
  if 'loss' in case.expected:
    answers['loss'] = _loss(vit, images['embedding'], texts['embedding'])
  trunk = vit_jax.load(
    case.weights, image_size=golden_cases.pair(case.dims['image_size'])
  )
  alone = trunk.model.apply({'params': trunk.params}, case.inputs['images'])
  if not np.array_equal(alone, images['features']):
    raise ValueError('the image tower alone gives other features')
  if vit.model.has_bias:
    answers['bias'] = bound.logit_bias[None]
  return answers


def huggingface(case):
  """Embeddings, hidden states, logits and loss of CLIP and SigLIP."""
  vit = _load(case)
  tokens = case.inputs['input_ids']
  masked = case.inputs['attention_mask'].astype(bool)
  is_clip = huggingface_clip.model_type(vit.model) == huggingface_clip.CLIP
  pixels = case.inputs['images']
  images = _apply(vit, 'embed_images', pixels)
  # Without a mask SigLIP's were trained; CLIP's get the one of the padding.
  plain = _apply(vit, 'embed_texts', tokens)
  under = _apply(vit, 'embed_texts', tokens, masked)
  texts = under if is_clip else plain
  trunk, state = vit.model.image.apply(
    {'params': vit.params['image']},
    pixels,
    method='trunk',
    mutable=['intermediates'],
  )
  hidden = trunk['tokens']
  if is_clip:  # the last norm is not applied
    hidden = state['intermediates']['tokens'][-1]
  embedded = images['embedding'], texts['embedding']
  return {
    'image_embeds': embedded[0],
    'text_embeds': embedded[1],
    'logits_per_image': _apply(vit, 'logits', *embedded),
    'loss': _loss(vit, *embedded),
    'image_pooled': images['features'],
    'text_pooled': texts['features'],
    'text_hidden': texts['tokens'],
    'vision_hidden': hidden,
    'text_embeds_no_mask': plain['embedding'],
    'masked_text_embeds': under['embedding'],
  }


def naflex(case):
  """SigLIP 2 on images of different shapes: patches, positions, embeddings."""
  vit, inputs = _load(case), case.inputs
  grids = jnp.asarray(inputs['spatial_shapes'])
  patches = jnp.asarray(inputs['pixel_values'])
  patch, count = vit.model.image.patches.patch_size, patches.shape[1]
  for i in range(len(grids)):
    cut, size = naflex_lib.padded(inputs[f'image_{i}'], patch, count)
    if size != tuple(inputs['spatial_shapes'][i]):
      raise ValueError(f'image {i} has a grid of {size}')
    np.testing.assert_allclose(cut, inputs['pixel_values'][i], atol=1e-6)
  images = _apply(vit, 'embed_images', patches, grids=grids)
  tokens = inputs['input_ids']
  texts = _apply(vit, 'embed_texts', tokens)
  under = _apply(vit, 'embed_texts', tokens, inputs['attention_mask'] == 1)
  variables = {'params': vit.params['image']}
  trunk = vit.model.image.apply(variables, patches, grids=grids, method='trunk')
  hidden = np.asarray(trunk['tokens'])
  expected = case.expected['vision_hidden']
  is_real = inputs['pixel_attention_mask'] == 1
  difference = abs(hidden - expected)[is_real].max()
  embedded = images['embedding'], texts['embedding']
  return {
    'image_embeds': embedded[0],
    'text_embeds': embedded[1],
    'logits_per_image': _apply(vit, 'logits', *embedded),
    'loss': _loss(vit, *embedded),
    'image_pooled': images['features'],
    'text_pooled': texts['features'],
    'text_hidden': texts['tokens'],
    'vision_hidden': golden_cases.Judged(
      float(difference), case.fields['tolerance']['atol']
    ),
    'masked_text_embeds': under['embedding'],
    'target_sizes': [
      naflex_lib.size(
        tuple(x),
        case.dims['patch_published'],
        case.dims['max_patches_published'],
      )
      for x in inputs['sizes'].tolist()
    ],
    'position_embeddings': embedding.positions_of_grids(
      vit.params['image']['position_embedding'][0], grids, count
    ),
  }


CHECKS = {
  'bv_two_towers_siglip': google,
  'bv_two_towers_siglip_scan': google,
  'hf_clip': huggingface,
  'hf_clip_gelu_legacy_eos': huggingface,
  'hf_siglip': huggingface,
  'hf_siglip2_naflex': naflex,
  'lit_bert': google,
  'lit_text_transformer': google,
}
