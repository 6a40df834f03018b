"""Probes of features: the votes of nearest neighbours, and a linear layer."""

import jax
import jax.numpy as jnp
import numpy as np

import golden_cases
from vit_jax.evaluation import knn
from vit_jax.models import heads
from vit_jax.models import initializers
from vit_jax.models import projection
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit

_VOTES = 1e-4  # relative; classes and their ranking are exact


def dino_knn(case):
  """Votes, ranking, predictions and accuracies of nearest neighbours.

  Our weights are relative to that of the nearest neighbour. Classes of a
  ranking are defined where they have a vote, and the first 5 at most.
  """
  fields, inputs, expected = case.fields, case.inputs, case.expected
  train, test = inputs['train_features'], inputs['test_features']
  labels, t = inputs['train_labels'], fields['temperature']
  predicted = knn.predict(train, labels, test, fields['k'], t)
  similarity, neighbors = knn.nearest(train, test, fields['k'])
  votes = knn.vote(similarity, labels[neighbors], fields['classes'], t)
  votes = votes * np.exp(similarity[:, :1].astype(np.float64) / t)
  ranking = np.argsort(-votes, axis=1, kind='stable')
  is_defined = (np.take_along_axis(votes, ranking, axis=1) > 0)[:, :5]
  wrong = (ranking[:, :5] != expected['ranking'][:, :5]) & is_defined
  is_right = (ranking[:, :5] == inputs['test_labels'][:, None]) & is_defined
  errors = abs(votes - expected['votes']) / np.maximum(expected['votes'], 1e-9)
  # Classes without a vote come in any order, but may be counted, too.
  is_open = ~is_defined.all(axis=1) & ~is_right.any(axis=1)
  rates = {
    'top1': (100 * (predicted == inputs['test_labels']).mean(), 0.0),
    'top5': (100 * is_right.any(axis=1).mean(), 100 * is_open.mean()),
  }
  judged = {
    name: golden_cases.Judged(abs(rate - float(expected[name])), 1e-4 + unsure)
    for name, (rate, unsure) in rates.items()
  }
  count = float((predicted != expected['predictions']).sum())
  return judged | {
    'votes': golden_cases.Judged(float(errors.max()), _VOTES),
    'ranking': golden_cases.Judged(float(wrong.sum()), 0.0),
    'predictions': golden_cases.Judged(count, 0.0),
  }


def linear_probe(case):
  """Logits of two batches in training, then of the first in evaluation."""
  norm = projection.StoredBatchNorm(
    affine=False, epsilon=case.fields['batch_norm_eps']
  )
  start = initializers.INITIALIZERS['vit'].head
  head = heads.linear(case.fields['classes'], start, 0.0)
  x = {name: jnp.asarray(x) for name, x in case.inputs.items()}
  modules = {'head_norm': norm, 'head': head}
  abstract = {
    name: jax.eval_shape(module.init, jax.random.key(0), x['x_1'])['params']
    for name, module in modules.items()
  }
  with containers.open_arrays(case.weights) as arrays:
    renamed = base.Renamed(arrays, 'head.{}'.format)
    params = tables.read(renamed, timm_vit.ARRAYS, abstract, '.*')

  def logits(y):
    return head.apply({'params': params['head']}, y)

  answers, statistics = {}, params['head_norm']
  for i in (1, 2):
    y, moved = norm.apply(
      {'params': statistics}, x[f'x_{i}'], train=True, mutable=['statistics']
    )
    answers[f'train_{i}'], statistics = logits(y), moved['statistics']
  y = norm.apply({'params': statistics}, x['x_1'])
  return answers | {
    'eval_1': logits(y),
    'running_mean': statistics['mean'],
    'running_var': statistics['var'],
  }


CHECKS = {'dino_knn': dino_knn, 'linear_probe': linear_probe}
