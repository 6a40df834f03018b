"""The keys of an entry of `config.evals`."""

import ml_collections


def evaluation(
  split: str = '',
  every: str = '',
  kind: str = 'accuracy',
  train_split: str = '',
  k: int = 20,
  shots: tuple[int, ...] = (1, 5, 10, 25),
) -> ml_collections.ConfigDict:
  """Returns one entry of `config.evals`.

  Args:
    split: The split to evaluate, as `data.split`; '' turns the evaluation off.
    every: Time between evaluations, as `train.duration`; '': only at the end.
    kind: 'accuracy' computes the objective's metrics. 'knn' (nearest
      neighbours), 'few_shot' (least squares on a few images of each class) and
      'linear' (logistic regression) fit a classifier on the features of
      `train_split`. Or an evaluator of your own, 'my_module:MyEvaluator'.
    train_split: The split that the classifier is fitted on, disjoint from
      `split`; only for kinds that fit one.
    k: Number of neighbours that vote, for 'knn'.
    shots: Numbers of images of each class, for 'few_shot'.
  """
  return ml_collections.ConfigDict(
    {
      'split': split,
      'every': every,
      'kind': kind,
      'train_split': train_split,
      'k': k,
      'shots': shots,
    }
  )
