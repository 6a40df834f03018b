"""Losses of image-text pairs, zero-shot classification, and retrieval."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.evaluation import embedded
from vit_jax.evaluation import knn
from vit_jax.evaluation import retrieval
from vit_jax.evaluation import zero_shot
from vit_jax.objectives import contrastive_losses as losses


def contrastive_losses(case):
  """Losses and gradients of one process, and of several that gather."""
  arrays = {k: jnp.asarray(x) for k, x in case.inputs.items()}
  image, text = arrays['image_features'], arrays['text_features']
  scale, bias = arrays['logit_scale'], arrays['logit_bias']
  parts = ('loss', 'grad_image', 'grad_text', 'grad_scale', 'grad_bias')
  softmax = jax.value_and_grad(losses.softmax_loss, argnums=(0, 1, 2))
  loss, grads = softmax(image, text, scale)
  answers = {
    f'clip_{k}': x for k, x in zip(parts, (loss, *grads), strict=False)
  }
  sigmoid = jax.value_and_grad(losses.sigmoid_loss, argnums=(0, 1, 2, 3))
  loss, grads = sigmoid(image, text, scale, bias)
  answers |= {
    f'siglip_{k}': x for k, x in zip(parts, (loss, *grads), strict=True)
  }
  for name in sorted({k.rpartition('.')[0] for k in case.expected} - {''}):
    world = int(name.partition('.')[0].removeprefix('ws'))
    rank_loss = _siglip_rank
    if '.clip_' in name:
      rank_loss = _clip_rank('localT' in name, 'gathergradT' in name)
    loss_and_grads = _loss_by_rank(rank_loss, world, image, text, scale, bias)
    answers |= {
      f'{name}.{k}': x for k, x in zip(parts, loss_and_grads, strict=True)
    }
  return answers


def _loss_by_rank(loss_fn, world, image, text, scale, bias):
  """Losses of all processes, and gradients that each has in the end."""

  def total(image, text, scale, bias):
    # Each process has a scale and a bias of its own.
    rank_losses = [
      loss_fn(i, len(image) // world, image, text, scale[i], bias[i])
      for i in range(world)
    ]
    return sum(rank_losses), jnp.stack(rank_losses)

  args = image, text, jnp.full(world, scale), jnp.full(world, bias)
  (_, rank_losses), grads = jax.value_and_grad(
    total, (0, 1, 2, 3), has_aux=True
  )(*args)
  return rank_losses, *grads


def _siglip_rank(i, count, image, text, scale, bias):
  local_rows = slice(i * count, (i + 1) * count)
  rows = image[local_rows], text[local_rows]
  labels = i * count + jnp.arange(count)
  return losses.sigmoid_rows(rows, (image, text), scale, bias, labels).mean()


def _clip_rank(is_local, has_grad):
  def loss_fn(i, count, image, text, scale, bias):
    del bias
    local_rows = slice(i * count, (i + 1) * count)
    rows, all_rows = (image[local_rows], text[local_rows]), (image, text)
    if not has_grad:
      all_rows = jax.lax.stop_gradient(all_rows)
    if is_local:
      labels = i * count + jnp.arange(count)
      return losses.softmax_rows(rows, all_rows, scale, labels).mean()
    # What a process puts in by itself keeps its gradient.
    images, texts = (
      x.at[local_rows].set(local)
      for x, local in zip(all_rows, rows, strict=True)
    )
    return losses.softmax_loss(images, texts, scale)

  return loss_fn


def zero_shot_prompts(case):
  """Weights of classes, and for contrast of two wrong orders."""
  x, scale = (
    case.inputs['prompt_embeddings'],
    case.fields['dims']['logit_scale'],
  )
  classes, prompts, _ = x.shape
  images = case.inputs['image_features']
  labels = np.repeat(np.arange(classes), prompts)
  weights = zero_shot.class_weights(
    x.reshape(classes * prompts, -1), labels, classes
  )
  raw = embedded.normalised(x.mean(axis=1))
  once = embedded.normalised(x).mean(axis=1)
  logits = zero_shot.logits(images, weights, scale)
  ragged = case.inputs['ragged_labels']
  return {
    'class_weights': weights,
    'logits': logits,
    'pred': logits.argmax(axis=1),
    'class_weights_raw_mean': raw,
    'pred_raw_mean': zero_shot.logits(images, raw, scale).argmax(axis=1),
    'mean_not_renormalised': once,
    'pred_mean_not_renormalised': zero_shot.logits(images, once, scale).argmax(
      axis=1
    ),
    'ragged_class_weights': zero_shot.class_weights(
      case.inputs['ragged_embeddings'], ragged, classes
    ),
  }


def retrieval_recall(case):
  """Recall both ways: of several texts an image, of one, and of ties."""
  at, inputs = case.fields['dims']['k'], case.inputs

  def recalls(name, image_of_text=None):
    x = inputs[name]
    if image_of_text is None:
      image_of_text = np.arange(len(x))
    texts = np.eye(x.shape[1])  # inner products with it are x
    pairs = np.stack([image_of_text, np.arange(len(texts))], axis=1)
    recall_by_name = retrieval.recalls(x, texts, pairs, at)
    return [
      [recall_by_name[f'{way}@{k}'] for k in at]
      for way in ('image_to_text', 'text_to_image')
    ]

  def ranks(x):
    order = knn.nearest(np.eye(len(x)), x, len(x), cosine=False)[1]
    return (order == np.arange(len(x))[:, None]).argmax(axis=1)

  square = inputs['square']
  several = recalls('similarity', inputs['text_to_image'])
  single = recalls('square')
  return {
    'image_to_text': several[0],
    'text_to_image_recall': several[1],
    'square_image_to_text': single[0],
    'square_text_to_image': single[1],
    'square_ranks_image': ranks(square),
    'square_ranks_text': ranks(square.T),
    'tied_image_to_text': recalls('tied')[0],
  }


CHECKS = {
  'contrastive_losses': contrastive_losses,
  'zero_shot_prompts': zero_shot_prompts,
  'retrieval_recall': retrieval_recall,
}
