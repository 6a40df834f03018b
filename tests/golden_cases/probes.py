"""Probes of features: the votes of nearest neighbours."""

import numpy as np

import golden_cases
from vit_jax.evaluation import knn

_VOTES = 1e-4  # relative; classes and their ranking are exact


def dino_knn(case):
  """Votes, ranking, predictions and accuracies of nearest neighbours.

  Our weights are relative to that of the nearest neighbour. Classes of a
  ranking are defined where they have a vote, and the first 5 at most.
  """
  fields, inputs, wanted = case.fields, case.inputs, case.expected
  train, test = inputs['train_features'], inputs['test_features']
  labels, t = inputs['train_labels'], fields['temperature']
  predicted = knn.predict(train, labels, test, fields['k'], t)
  similarity, neighbors = knn.nearest(train, test, fields['k'])
  votes = knn.vote(similarity, labels[neighbors], fields['classes'], t)
  votes = votes * np.exp(similarity[:, :1].astype(np.float64) / t)
  ranking = np.argsort(-votes, axis=1, kind='stable')
  is_defined = (np.take_along_axis(votes, ranking, axis=1) > 0)[:, :5]
  wrong = (ranking[:, :5] != wanted['ranking'][:, :5]) & is_defined
  is_right = (ranking[:, :5] == inputs['test_labels'][:, None]) & is_defined
  errors = abs(votes - wanted['votes']) / np.maximum(wanted['votes'], 1e-9)
  # Classes without a vote come in any order, but may be counted, too.
  is_open = ~is_defined.all(axis=1) & ~is_right.any(axis=1)
  rates = {
    'top1': (100 * (predicted == inputs['test_labels']).mean(), 0.0),
    'top5': (100 * is_right.any(axis=1).mean(), 100 * is_open.mean()),
  }
  judged = {
    name: golden_cases.Judged(abs(rate - float(wanted[name])), 1e-4 + unsure)
    for name, (rate, unsure) in rates.items()
  }
  count = float((predicted != wanted['predictions']).sum())
  return judged | {
    'votes': golden_cases.Judged(float(errors.max()), _VOTES),
    'ranking': golden_cases.Judged(float(wrong.sum()), 0.0),
    'predictions': golden_cases.Judged(count, 0.0),
  }


CHECKS = {'dino_knn': dino_knn}
