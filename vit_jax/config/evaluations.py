"""The keys of an entry of `config.evals`."""

import ml_collections
from ml_collections import config_dict


def evaluation(
  split: str = '',
  every: str = '',
  kind: str = 'accuracy',
  train_split: str = '',
  k: int = 20,
  shots: tuple[int, ...] = (1, 5, 10, 25),
  templates: str = 'a photo of a {}.',
  class_names: str = '',
  patch_size: int | tuple[int, int] | None = None,
  features: str = 'head',
) -> ml_collections.ConfigDict:
  """Returns one entry of `config.evals`.

  Args:
    split: The split to evaluate, as `data.split`; '' turns the evaluation off.
    every: Time between evaluations, as `train.duration`; '': only at the end.
    kind: 'accuracy' computes the objective's metrics. 'knn' (nearest
      neighbours), 'few_shot' (least squares on a few images of each class) and
      'linear' (logistic regression) fit a classifier on the features of
      `train_split`. 'zero_shot' classifies images by the captions of classes,
      and 'retrieval' finds images by captions and captions by images. Or an
      evaluator of your own, 'my_module:MyEvaluator'.
    train_split: The split that the classifier is fitted on, disjoint from
      `split`; only for kinds that fit one.
    k: Number of neighbours that vote, for 'knn'.
    shots: Numbers of images of each class, for 'few_shot'.
    templates: Captions of a class, with {} for its name, for 'zero_shot':
      'A {}.|B {}.', a list of vit_jax/data/templates, as 'imagenet', or a file
      with one on each line.
    class_names: Names of the classes, for 'zero_shot': as
      `config.data.class_names`.
    patch_size: Size of the patches, an int or (height, width), to which the
      model is resized as in `train.patch_sizes`; None: the model's own.
    features: What 'knn', 'few_shot' and 'linear' read: the input of the
      'head', or all 'tokens' after the last norm, side by side, or the means
      of the patches after each of the 'layers', side by side.
  """
  result = ml_collections.ConfigDict(
    {
      'split': split,
      'every': every,
      'kind': kind,
      'train_split': train_split,
      'k': k,
      'shots': shots,
      'templates': templates,
      'class_names': class_names,
      'features': features,
      'patch_size': config_dict.placeholder(object),
    }
  )
  result.patch_size = patch_size
  return result
