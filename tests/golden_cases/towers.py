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
  found = weights.load(case.weights, heads)
  with containers.open_arrays(path) as arrays:
    stored = {name: arrays.read(name) for name in arrays.shapes}
  params = jax.device_get(found.params)
  if google_towers.recognises(stored):
    written = tower_files.google_arrays(
      found.model,
      params,
      google_towers.style(stored),
      any('encoderblock/' in name for name in stored),
    )
  else:
    written = tower_files.transformers_arrays(found.model, params)
  wrong = [name for name in written.keys() ^ stored.keys()]
  wrong += [
    name
    for name in written.keys() & stored.keys()
    if written[name].shape != stored[name].shape
    or not np.array_equal(written[name], stored[name])
  ]
  if wrong:
    raise ValueError(f'written back, these differ: {sorted(wrong)}')
  return found


def _apply(found, method, *args, **how):
  return found.model.apply(
    {'params': found.params}, *args, method=method, **how
  )


def _loss(found, images, texts):
  bound = found.model.bind({'params': found.params})
  if found.model.has_bias:
    return losses.sigmoid_loss(images, texts, bound.scale(), bound.logit_bias)
  return losses.softmax_loss(images, texts, bound.scale())


def google(case):
  """Embeddings, norms and logits of LiT and big_vision."""
  found = _load(case)
  images = _apply(found, 'embed_images', case.inputs['images'])
  texts = _apply(found, 'embed_texts', case.inputs['tokens'])
  bound = found.model.bind({'params': found.params})
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
    answers['loss'] = _loss(found, images['embedding'], texts['embedding'])
  trunk = vit_jax.load(
    case.weights, image_size=golden_cases.pair(case.dims['image_size'])
  )
  alone = trunk.model.apply({'params': trunk.params}, case.inputs['images'])
  if not np.array_equal(alone, images['features']):
    raise ValueError('the image tower alone gives other features')
  if found.model.has_bias:
    answers['bias'] = bound.logit_bias[None]
  return answers


def huggingface(case):
  """Embeddings, hidden states, logits and loss of CLIP and SigLIP."""
  found = _load(case)
  tokens = case.inputs['input_ids']
  masked = case.inputs['attention_mask'].astype(bool)
  is_clip = huggingface_clip.model_type(found.model) == huggingface_clip.CLIP
  pixels = case.inputs['images']
  images = _apply(found, 'embed_images', pixels)
  # Without a mask SigLIP's were trained; CLIP's get the one of the padding.
  plain = _apply(found, 'embed_texts', tokens)
  under = _apply(found, 'embed_texts', tokens, masked)
  texts = under if is_clip else plain
  trunk, state = found.model.image.apply(
    {'params': found.params['image']},
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
    'logits_per_image': _apply(found, 'logits', *embedded),
    'loss': _loss(found, *embedded),
    'image_pooled': images['features'],
    'text_pooled': texts['features'],
    'text_hidden': texts['tokens'],
    'vision_hidden': hidden,
    'text_embeds_no_mask': plain['embedding'],
    'masked_text_embeds': under['embedding'],
  }


def naflex(case):
  """SigLIP 2 on images of different shapes: patches, positions, embeddings."""
  found, given = _load(case), case.inputs
  grids = jnp.asarray(given['spatial_shapes'])
  patches = jnp.asarray(given['pixel_values'])
  patch, count = found.model.image.patches.patch_size, patches.shape[1]
  for i in range(len(grids)):
    cut, size = naflex_lib.padded(given[f'image_{i}'], patch, count)
    if size != tuple(given['spatial_shapes'][i]):
      raise ValueError(f'image {i} has a grid of {size}')
    np.testing.assert_allclose(cut, given['pixel_values'][i], atol=1e-6)
  images = _apply(found, 'embed_images', patches, grids=grids)
  tokens = given['input_ids']
  texts = _apply(found, 'embed_texts', tokens)
  under = _apply(found, 'embed_texts', tokens, given['attention_mask'] == 1)
  own = {'params': found.params['image']}
  trunk = found.model.image.apply(own, patches, grids=grids, method='trunk')
  hidden = np.asarray(trunk['tokens'])
  wanted = case.expected['vision_hidden']
  inside = given['pixel_attention_mask'] == 1
  difference = abs(hidden - wanted)[inside].max()
  embedded = images['embedding'], texts['embedding']
  return {
    'image_embeds': embedded[0],
    'text_embeds': embedded[1],
    'logits_per_image': _apply(found, 'logits', *embedded),
    'loss': _loss(found, *embedded),
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
      for x in given['sizes'].tolist()
    ],
    'position_embeddings': embedding.positions_of_grids(
      found.params['image']['position_embedding'][0], grids, count
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
