r"""Says how good a model is on a dataset.

  python -m vit_jax.evaluate --from=runs/digits --data=digits \
    --split='train[80%:]' --format=json --predictions=digits.csv

The classes of the data are found by name among those of the model. Every
example counts once. Accuracies have 95% intervals (Wilson's); the calibration
error is the mean distance of confidence and accuracy over 15 bins
(arXiv:1706.04599); the loss is the mean cross-entropy of the softmax in nats,
whatever the model was trained with.

--format=json is one object: examples, accuracy, loss, calibration_error, k and
top_k_accuracy (k is 5, or the number of classes if that is less), classes
(name, examples and accuracy of each) and confusion (rows: true classes,
columns: predicted ones; null for more than 2,000 classes). Beside each accuracy
there is its ..._interval. checkpoint is what was loaded: path and format; of a
work directory step, kind (best, newest or earlier), averaged (whether the
parameters are moving averages) and newest (the step of the newest checkpoint).

--predictions writes a row for each example: index (its position in the split,
however that is sliced), file (if it has one), label and prediction (positions
in the model's classes) and their names, probability (of the prediction), loss,
and the five most probable classes with their probabilities (in CSV as JSON).

A model that predicts numbers, or several classes of an image, is measured as in
training: the JSON object has the objective's metrics, as r2 and
mean_absolute_error, or map and average_precision/CLASS. --predictions has for
each name its true value and, with _predicted, that of the model: a number, or
the probability of a class.

Whatever the classes of the model, how good its features are on any data:

  python -m vit_jax.evaluate --from=runs/digits --data=digits \
    --split='train[80%:]' --probe=knn --train_split='train[:80%]'

--probe=knn, few_shot or linear measures a simple classifier of what the head
reads, which learns from --train_split: weighted votes of the nearest neighbours
(DINO's), least squares on few images of each class (the ViT paper's), logistic
regression. The JSON object has probe, train_examples, examples, and
knn_accuracy (and k), few_shot_1_accuracy and so on (means over 5 draws, with
Student's intervals over these), or linear_accuracy (and linear_penalty).
"""

import json
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.cli import columns
from vit_jax.cli import data_flags
from vit_jax.config import UserError

if TYPE_CHECKING:
  from vit_jax import data
  from vit_jax import weights
  from vit_jax.evaluation import answers as answers_lib

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
data_flags.define(FLAGS, 'evaluate on')
_SAME_ORDER = data_flags.define_same_order(FLAGS)
_FORMAT = flags.DEFINE_enum(
  'format', 'table', ['table', 'json'], 'Of stdout.', flag_values=FLAGS
)
_PREDICTIONS = flags.DEFINE_string(
  'predictions',
  None,
  'FILE.csv or FILE.parquet, for the answer to each example.',
  flag_values=FLAGS,
)
_PROBE = flags.DEFINE_enum(
  'probe',
  None,
  ['knn', 'few_shot', 'linear'],
  'Measure a classifier of what the head reads, not the head.',
  flag_values=FLAGS,
)
_TRAIN_SPLIT = flags.DEFINE_string(
  'train_split',
  None,
  'What a probe learns from; has no image of --split.',
  flag_values=FLAGS,
)
_K = flags.DEFINE_integer(
  'k',
  None,
  'Neighbours that vote, of --probe=knn. Default: 20.',
  lower_bound=1,
  flag_values=FLAGS,
)
_SHOTS = flags.DEFINE_string(
  'shots',
  None,
  'Images of each class, of --probe=few_shot. Default: 1,5,10,25.',
  flag_values=FLAGS,
)


def main(argv: list[str]) -> None:
  """Evaluates, and prints the report."""
  _check_flags(argv)
  loaded = cli.load(FLAGS)
  if _PROBE.value:
    summary, text = _probe(loaded)
  elif loaded.preprocess.has_label:
    summary, text = _classify(loaded)
  else:
    summary, text = _measure(loaded)
  summary['checkpoint'] = loaded.origin.to_dict()
  if _FORMAT.value == 'json':
    print(json.dumps(summary))
  else:
    print(text, end='')


def _check_flags(argv: list[str]) -> None:
  """Finds mistakes that need no model."""
  data_flags.check(FLAGS, argv)
  if _PREDICTIONS.value:
    columns.check_path(
      '--predictions', _PREDICTIONS.value, ('.csv', '.parquet')
    )
  for flag, value, probe in (
    ('--train_split', _TRAIN_SPLIT.value, _PROBE.value),
    ('--k', _K.value, 'knn'),
    ('--shots', _SHOTS.value, 'few_shot'),
  ):
    if value is not None and (not probe or probe != _PROBE.value):
      needed = f'--probe={probe}' if probe else '--probe'
      raise UserError(f'{flag} is for {needed}: leave it out, or add that')
  if not _PROBE.value:
    return
  if not _TRAIN_SPLIT.value:
    raise UserError(
      '--train_split is missing: name what the probe is to learn from, as in'
      " --train_split='train[:80%]'"
    )
  for flag, given in (
    ('--predictions', _PREDICTIONS.value),
    ('--same_order', _SAME_ORDER.value),
  ):
    if given:
      raise UserError(
        f'{flag} is for the classes of the model, which --probe does not ask'
        ' for: leave one of them out'
      )
  _shots()


def _shots() -> tuple[int, ...]:
  """Returns the value of --shots."""
  if _SHOTS.value is None:
    return config_lib.evaluation().shots
  parts = _SHOTS.value.split(',')
  shots = tuple(int(part) for part in parts if part.strip().isdecimal())
  if len(shots) < len(parts) or min(shots) < 1 or len(set(shots)) < len(shots):
    raise UserError(
      f'--shots={_SHOTS.value}: write different numbers of images of a class,'
      ' as 1,5,10,25'
    )
  return shots


def _classify(loaded: 'weights.Loaded') -> tuple[dict[str, Any], str]:
  """Evaluates the model's own classes; returns the report, and as text."""
  from vit_jax.evaluation import answers as answers_lib  # they import jax
  from vit_jax.evaluation import report

  config = data_flags.make_config(FLAGS, loaded)
  source = data_flags.open_split(FLAGS, config)
  classifier = answers_lib.Classifier(
    loaded, config, source.image_shape, config.train.batch_size, 5
  )
  label_of = answers_lib.match_classes(
    () if _SAME_ORDER.value else loaded.classes,
    len(classifier.names),
    source.classes,
  )
  with data_flags.progress(len(source)) as progress, data_flags.explained():
    answers = answers_lib.answer_split(
      classifier, source, config, label_of, progress.update
    )
  if _PREDICTIONS.value:
    path = columns.check_path(
      '--predictions', _PREDICTIONS.value, ('.csv', '.parquet')
    )
    columns.write(path, predictions(answers, source, classifier.names))
  summary = report.summarize(answers, classifier.names)
  return summary, report.as_text(summary)


def _measure(loaded: 'weights.Loaded') -> tuple[dict[str, Any], str]:
  """Measures what the objective does; returns the report, and as text."""
  from vit_jax import objectives  # it imports jax
  from vit_jax.evaluation import report
  from vit_jax.objectives import evaluated

  config = data_flags.make_config(FLAGS, loaded)
  source = data_flags.open_split(FLAGS, config)
  objective = objectives.of_loaded(loaded, config, source.features)
  with data_flags.progress(len(source)) as progress, data_flags.explained():
    summary, columns_of = evaluated.measure(
      objective, loaded.params, source, config, progress.update
    )
  if _PREDICTIONS.value:
    path = columns.check_path(
      '--predictions', _PREDICTIONS.value, ('.csv', '.parquet')
    )
    columns.write(path, columns_of)
  return dict(summary), report.metrics_as_text(summary)


def _probe(loaded: 'weights.Loaded') -> tuple[dict[str, Any], str]:
  """Measures a probe; returns the report, and as text."""
  from vit_jax.evaluation import embedded  # they import jax
  from vit_jax.evaluation import probes
  from vit_jax.evaluation import report

  spec = config_lib.evaluation()
  spec.update(
    split=FLAGS['split'].value,
    kind=_PROBE.value,
    train_split=_TRAIN_SPLIT.value,
    shots=_shots(),
  )
  if _K.value is not None:
    spec.k = _K.value
  config = data_flags.make_config(FLAGS, loaded)
  source = data_flags.open_split(FLAGS, config)
  train_source = data_flags.open_split(FLAGS, config, 'train_split')
  probes.check_sources(spec, source, train_source)
  embedder = embedded.Embedder(loaded, config, source.image_shape)
  total = len(train_source) + len(source)
  with data_flags.progress(total) as progress, data_flags.explained():
    train, test = (
      embedder.embed_all(each, progress.update)
      for each in (train_source, source)
    )
  probes.check_examples(
    spec,
    *(train.labels, train.index),
    *(test.labels, test.index),
    source.classes,
  )
  found = probes.measure(spec, train, test)
  summary = report.summarize_probe(spec, len(train), found)
  return summary, report.probe_as_text(summary)


def predictions(
  answers: 'answers_lib.Answers',
  source: 'data.Source',
  names: tuple[str, ...],
) -> dict[str, list[Any]]:
  """Returns the columns of `--predictions`.

  Args:
    answers: To all N examples, in the order of the source.
    source: The split.
    names: Of the model's classes.
  """
  label, top = answers.label.tolist(), answers.top.tolist()
  probability = answers.probability.tolist()
  return {
    'index': answers.index.tolist(),
    'file': [source.file(i) for i in range(len(source))],
    'label': label,
    'label_name': [names[i] for i in label],
    'prediction': [row[0] for row in top],
    'prediction_name': [names[row[0]] for row in top],
    'probability': [row[0] for row in probability],
    'loss': answers.loss.tolist(),
    'top': top,
    'top_probability': probability,
  }


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
