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
    split: The split that is evaluated, as in `data.split`. '': this evaluation
      is off.
    every: Time between two evaluations, as in `train.duration`. '': only at
      the end of the run.
    kind: The evaluator. 'accuracy' computes the metrics of the objective. 'knn'
      (nearest neighbours), 'few_shot' (least squares on a few images of each
      class) and 'linear' (logistic regression) fit a classifier on the features
      of `train_split`. 'zero_shot' classifies images by captions of the
      classes. 'retrieval' finds images by captions, and captions by images.
      Your own evaluator is 'my_module:MyEvaluator'.
    train_split: For 'knn', 'few_shot' and 'linear': the split that the
      classifier is fitted on. It shares no example with `split`.
    k: For 'knn': number of neighbours that vote.
    shots: For 'few_shot': numbers of images of each class.
    templates: For 'zero_shot': captions of a class, with {} for its name. They
      are written as 'A {}.|B {}.', or as a list of vit_jax/data/templates, such
      as 'imagenet', or as a file with one caption per line.
    class_names: For 'zero_shot': names of the classes, as in
      `data.class_names`.
    patch_size: Patch size, an int or (height, width), to which the model is
      resized as in `train.patch_sizes`. None: the model's own.
    features: The features that 'knn', 'few_shot' and 'linear' read. 'head': the
      input of the head. 'tokens': all tokens after the last norm, concatenated.
      'layers': the means of the patches after each layer, concatenated.
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
