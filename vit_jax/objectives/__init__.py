"""Objectives: training methods, selected by `config.objective.name`.

A method is a subclass of `Objective` in a file of this package, selected by the
name of the file; or a class of the user's, 'my_module:MyObjective'. Classes
need no registration.
"""

from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax import evaluation
from vit_jax import optim
from vit_jax import weights
from vit_jax.config import parts
from vit_jax.data import features as features_lib
from vit_jax.objectives.base import Batch
from vit_jax.objectives.base import Extra
from vit_jax.objectives.base import Objective
from vit_jax.objectives.base import Outputs
from vit_jax.objectives.base import Params
from vit_jax.objectives.base import Purpose
from vit_jax.objectives.base import Scalars
from vit_jax.weights.formats import whole
from vit_jax.weights.formats.whole import trunk_path

__all__ = [
  'Batch',
  'Extra',
  'Objective',
  'Outputs',
  'Params',
  'Purpose',
  'Scalars',
  'check',
  'class_of',
  'create',
  'fill_options',
  'lower_is_better',
  'of_loaded',
  'of_run',
  'trunk_path',
]


def class_of(config: ml_collections.ConfigDict) -> type[Objective]:
  """Returns the class that `config.objective.name` names.

  Raises:
    UserError: There is no such objective.
  """
  found: type[Objective] = config_lib.find_class(
    config.objective.name, 'objective.name', Objective, __name__
  )
  return found


def fill_options(config: ml_collections.ConfigDict) -> None:
  """Sets the objective's own keys that the config leaves out.

  These are the keys of `config.objective.options`; the objective's class lists
  them with their defaults.

  Args:
    config: The full config; is changed.

  Raises:
    UserError: The objective has no such key, or its value has another type.
  """
  known = class_of(config).options
  given = config.objective.options
  for key, value in given.items():
    if key not in known:
      raise config_lib.UserError(
        f'config.objective.options has no key {key!r} for the objective'
        f' {config.objective.name}, which has'
        f' {", ".join(known) or "none"}'
      )
    default = known[key]
    is_number = isinstance(default, float) and type(value) is int
    if not is_number and not isinstance(value, type(default)):
      raise config_lib.UserError(
        f'config.objective.options.{key} is {value!r}: it must be of type'
        f' {type(default).__name__}, as its default, {default!r}'
      )
    if is_number:
      with given.ignore_type():
        given[key] = float(value)
  with given.unlocked():
    for key, value in known.items():
      if key not in given:
        given[key] = value


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.objective`.

  Raises:
    UserError: A value cannot work.
  """
  cls = class_of(config)
  config = config.copy_and_resolve_references()
  fill_options(config)
  _check_keys(config)
  evaluation.check_directions(
    f'config.objective.name={config.objective.name}', cls.metrics
  )
  cls.check(config)
  parts = config_lib.num_microbatches(config)
  if cls.caches_gradients and config_lib.accumulation(config) == parts:
    parts = 1
  if cls.couples_examples and parts > 1:
    raise config_lib.UserError(
      f'config.train.accumulation is {config.train.accumulation}, but the loss'
      f' of config.objective.name={config.objective.name} needs the whole batch'
      ' at once: set it to 1'
    )
  _check_statistics(config, cls)
  _check_patches(config, cls)


def check_best(config: ml_collections.ConfigDict) -> None:
  """Checks `config.checkpoint.best`.

  Raises:
    UserError: There is no such metric.
  """
  best = config.checkpoint.best
  metrics = [x for x in directions(config) if not x.endswith('/')]
  if best and best not in metrics:
    name = best.partition('/')[0]
    known = [x for x in metrics if x.startswith(f'{name}/')] or metrics
    raise config_lib.UserError(
      f'config.checkpoint.best is {best!r}: choose one of {", ".join(known)}'
    )


def _check_statistics(
  config: ml_collections.ConfigDict, cls: type[Objective]
) -> None:
  """Checks that running statistics of the model are measured, and exactly."""
  head = config.model.head
  options = parts.parse(head, 'model.head').options if head else {}
  if options.get('norm') != 'batch':
    return
  where = f'config.model.head is {head!r}, but config.{{}}'
  if not cls.moves_statistics:
    raise config_lib.UserError(
      where.format(f'objective.name={config.objective.name}')
      + " does not measure its statistics: leave norm='batch' out"
    )
  if config_lib.num_microbatches(config) > 1:
    raise config_lib.UserError(
      where.format(f'train.accumulation is {config.train.accumulation}')
      + ', and its statistics are those of the whole batch: set it to 1'
    )
  if config.model.distillation_token:
    raise config_lib.UserError(
      where.format('model.distillation_token is True')
      + ": a model with two heads has none, leave norm='batch' out"
    )
  if config.train.batch_size < 2:
    raise config_lib.UserError(
      where.format('train.batch_size is 1')
      + ', which has no variance: make it at least 2'
    )


def _check_patches(
  config: ml_collections.ConfigDict, cls: type[Objective]
) -> None:
  """Checks that the model has a token in the place of each patch."""
  if not cls.reads_patches:
    return
  model = config.model
  block = parts.parse(model.block, 'model.block').name if model.block else ''
  removes = {
    'patch_dropout': bool(model.patch_dropout),
    'block': block == 'merging',
  }
  for key, is_set in removes.items():
    if is_set:
      advice = 'choose another' if key == 'block' else 'set it to 0'
      raise config_lib.UserError(
        f'config.model.{key} is {model[key]}, but'
        f' config.objective.name={config.objective.name} reads the token of'
        f' each patch in its place: {advice}'
      )


def _check_keys(config: ml_collections.ConfigDict) -> None:
  """Checks keys of `config.objective` that several objectives share."""
  objective = config.objective
  for key in ('label_smoothing', 'teacher_weight'):
    config_lib.within(config, f'objective.{key}', '[0, 1]')
  config_lib.within(config, 'objective.temperature', '(0, inf)')
  if objective.name != 'distillation' and objective.teacher:
    raise config_lib.UserError(
      f'config.objective.teacher is {objective.teacher!r}, which'
      f' config.objective.name={objective.name} does not use: set'
      " config.objective.name to 'distillation'"
    )
  if (
    objective.name == 'classification'
    and config.model.distillation_token
    and not config.init_from.path
  ):
    raise config_lib.UserError(
      'config.model.distillation_token is True, but there is no teacher: set'
      " config.objective.name to 'distillation', and its teacher"
    )


def directions(config: ml_collections.ConfigDict) -> dict[str, str]:
  """Returns the metrics of a config's evaluations and their better directions.

  Returns:
    'max' or 'min' for each metric, as {'val/accuracy': 'max'}; a name that ends
    with '/' stands for several metrics.
  """
  found: dict[str, str] = {}
  for task, own in config_lib.each_task(config).items():
    before = f'{task}_' if task else ''
    for name, spec in own.evals.items():
      if not spec.split:
        continue
      evaluator = evaluation.create(f'evals.{name}', spec)
      metrics = evaluator.metrics
      if metrics is None:
        metrics = class_of(own).metrics
      found |= {f'{before}{name}/{metric}': x for metric, x in metrics.items()}
  return found


def of_loaded(
  loaded: weights.Loaded,
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
) -> tuple[Objective, Params]:
  """Returns the objective that measures a loaded model, and its parameters.

  A classifier is measured by `config.objective`, with softmax cross-entropy
  whatever loss it was trained with; another model by the objective of its run,
  and so is a classifier whose objective computes outputs of its own.

  Args:
    loaded: The model.
    config: Says how images are prepared for the model.
    features: Features of the examples on which the model is measured.

  Raises:
    UserError: The objective is not known, the model was changed after training,
      or the examples are of another kind.
  """
  stored, trained = loaded.trained_with, loaded.preprocess
  config = config.copy_and_resolve_references()
  if _is_classifier(loaded):
    config.model.num_classes = loaded.model.num_classes
    made = create(config, features)
    made.model = loaded.model
    return made, loaded.params
  if stored is None or (trained.trunk and class_of(stored).target is None):
    raise config_lib.UserError(
      f'no metric is stored for the outputs of {loaded.origin.path}: measure'
      ' its features instead, as with --probe=knn'
    )
  if _has_label_logits(loaded):  # the data may have some of the classes
    features = _trained_features(loaded)
  if loaded.beside:
    made, params = of_run(loaded, features)
  else:
    config.objective = stored.objective.copy_and_resolve_references()
    config.model = stored.model.copy_and_resolve_references()
    made, params = create(config, features), loaded.params
    made.model = loaded.model
  if made.target is None or _has_label_logits(loaded):
    return made, params  # positions of labels are matched by their names
  name, _ = made.target
  wanted = features_lib.from_dict(trained.features[name])
  if features[name].names != wanted.names:
    raise config_lib.UserError(
      f'the model predicts {config_lib.some(wanted.names)}, but'
      f' {config.data.name} has {config_lib.some(features[name].names)}: name'
      ' all of the model, in its order, where the data lists them'
    )
  return made, params


def of_run(
  loaded: weights.Loaded, features: features_lib.Features | None = None
) -> tuple[Objective, Params]:
  """Returns the objective of the run that trained a model, and all parameters.

  Args:
    loaded: The model.
    features: Features of the examples; None: those of training.

  Raises:
    UserError: The model is not that of a run, or it was changed.
  """
  config = loaded.trained_with
  if config is None:
    raise config_lib.UserError(
      'the model is of a file, which does not say how it was trained: give the'
      ' work directory of a run with --from'
    )
  if loaded.changes:
    raise config_lib.UserError(
      'the method of the run needs the model as it was trained: leave'
      ' --image_size and --model out'
    )
  config = config.copy_and_resolve_references()
  fill_options(config)  # a run of an earlier version lacks some
  known = _trained_features(loaded)
  for feature in known.values():
    feature.check_vocabulary()
  made = create(config, known if features is None else features)
  trunk = loaded.preprocess.trunk
  return made, whole.joined(loaded.params, trunk, loaded.beside)


def _trained_features(loaded: weights.Loaded) -> dict[str, Any]:
  """Returns the features of the examples that a model was trained on."""
  stored = loaded.preprocess.features
  return {name: features_lib.from_dict(x) for name, x in stored.items()}


def _has_label_logits(loaded: weights.Loaded) -> bool:
  """Whether the objective of a run says that logits are of the label."""
  facts = loaded.preprocess.outputs.get('logits', {})
  return facts.get('feature') == 'label'


def _is_classifier(loaded: weights.Loaded) -> bool:
  """Whether a model's own logits belong to mutually exclusive classes."""
  stored = loaded.trained_with
  if stored is None:
    return loaded.preprocess.has_label
  cls = class_of(stored)
  if loaded.beside or cls.outputs is not Objective.outputs:
    return False
  if 'logits' in loaded.preprocess.outputs:
    return loaded.preprocess.has_label
  return cls.target is not None and cls.target[0] == 'label'


def lower_is_better(config: ml_collections.ConfigDict) -> bool:
  """Whether lower values of the metric `config.checkpoint.best` are better."""
  best = config.checkpoint.best
  return bool(best) and directions(config)[best] == 'min'


def create(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  lengths: optim.Lengths | None = None,
) -> Objective:
  """Returns the objective of a config.

  Args:
    config: The full config, with all values set.
    features: Features of the examples, by name.
    lengths: Steps of the run; None: not known, and only shapes matter.

  Raises:
    UserError: The examples lack what the objective needs.
  """
  make: Any = class_of(config)
  made: Objective = make(config, features)
  if lengths is not None:
    made.lengths = lengths
  return made
