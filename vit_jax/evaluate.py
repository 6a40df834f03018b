r"""Evaluates a model on a dataset.

  python -m vit_jax.evaluate --from=runs/digits --data=digits \
    --split='train[80%:]' --format=json --predictions=digits.csv

The classes of the data are matched with the model's by name; the data
may have only some of them. A folder may have test/<class> alone. Every example
counts once. Accuracies have 95% intervals (Wilson's). The calibration
error is the mean difference of confidence and accuracy over 15 bins
(arXiv:1706.04599). The loss is the mean softmax cross-entropy in nats, even if
the model was trained with another loss.

--format=json is one object: examples, accuracy, loss, calibration_error, k and
top_k_accuracy (k is 5, or the number of classes if that is less), classes
(name, examples and accuracy of each) and confusion (rows: true classes,
columns: predicted classes; null for more than 2,000 classes), and what an
objective of your own measures beside these. Each accuracy has an interval with
the same name and _interval at its end. checkpoint has path and format; for a
work directory also step, kind (best, newest or earlier), averaged (whether the
parameters are moving averages) and newest (the step of the newest checkpoint).

--predictions writes a row for each example: index (its position in the whole
split, before slicing), file (if it has one), label and prediction (positions
in the model's classes) and their names, probability (of the prediction), loss,
and the five most probable classes with their probabilities (in CSV as JSON).

A regression or multi-label model is measured with the metrics of its training
objective: the JSON object has r2 and mean_absolute_error, or map and
average_precision/CLASS. For each name, --predictions has the true value and, in
a column that ends with _predicted, the model's number or class probability.

Probes measure the features of any model on any data:

  python -m vit_jax.evaluate --from=runs/digits --data=digits \
    --split='train[80%:]' --probe=knn --train_split='train[:80%]'

A probe is a simple classifier that is fitted on --train_split, with the inputs
of the model's head as its features. --probe=knn takes weighted votes of the
nearest neighbours (as DINO), few_shot fits least squares to a few images of
each class (as the ViT paper), and linear is logistic regression. The JSON
object has probe, train_examples and examples; accuracy (and k, or the penalty
that linear chose); or few_shot_1_accuracy and so on (means over 5 draws, with
Student's intervals over these).

A model of images and texts (objective `contrastive`) is measured by
--probe=zero_shot, the accuracy of the classes whose captions are closest to an
image, and by --probe=retrieval, the recalls of captions by images and of images
by captions. A model of segmentation is measured as in training; the report also
has the confusion of the classes (rows: true), the worst images, and intervals
over images: percentiles of 1,000 draws with replacement. --hausdorff adds the
distance of boundaries that 95% of their places do not exceed, by class and as
their mean without a class 'background', over images that have the class in
either map: where only one has it, the distance is the image's diagonal. It is
in mm where the model's scans are resampled, else in places. It also adds
objects (connected parts of a class), missed_objects that no prediction touches,
and false_objects that touch no label.
Training and this command see the middle crop of an image; --whole measures
whole images, each at the size in which its map is stored, by windows that slide
over them. --scales and --flip average over views, and --overlap and --gaussian
change the windows, of volumes, too.

Several sizes are measured one after the other, a row each:

  python -m vit_jax.evaluate --from=runs/digits --data=digits \
    --split='train[80%:]' --image_size=8,16 --merge=0,2,4 --plot=curve.png

--image_size, --patch_size (resized as FlexiViT) and --merge (tokens that each
layer merges, ToMe) take lists, of which all combinations are measured, and so
does --quantize=none,int8, whose rows have the bytes of the parameters. A row
has images_per_second, where the variants take turns on one device: only ratios
within one run mean something. With three speeds or more, the knee is the
variant farthest above the line from the slowest to the fastest.

--probe=my_module:MyEvaluator runs an evaluator of your own (docs/methods.md),
the same as in training; the JSON object has its metrics.
"""

from collections.abc import Mapping
import dataclasses
import inspect
import json
import pathlib
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.cli import columns
from vit_jax.cli import data_flags
from vit_jax.cli import variant_flags
from vit_jax.cli import window_flags
from vit_jax.config import parts
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections
  import numpy as np

  from vit_jax import data
  from vit_jax import weights
  from vit_jax.evaluation import predictions as predictions_lib
  from vit_jax.evaluation.base import Evaluator
  from vit_jax.objectives import segmenter

_TOP = 5  # classes of a prediction
_ZERO_SHOT = 'zero_shot'
# The values of --probe that alone read a flag.
_PROBE_OF_FLAG = {
  'k': '--probe=knn',
  'shots': '--probe=few_shot',
  'templates': '--probe=zero_shot',
  'class_names': '--probe=zero_shot',
}

USAGE = 'evaluate --from=PATH --data=NAME [--split=SPLIT]'
FLAGS = flags.FlagValues()  # separate, since other commands share flag names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
data_flags.define(FLAGS, 'evaluate on')
_SAME_ORDER = data_flags.define_same_order(FLAGS)
_FORMAT = cli.define_format(FLAGS)
_PREDICTIONS = cli.define_path(
  'predictions',
  None,
  'FILE.csv or FILE.parquet to write the prediction of each example to.',
  flag_values=FLAGS,
)
_PROBE = flags.DEFINE_string(
  'probe',
  None,
  'knn, few_shot or linear fit a classifier to the features of --train_split.'
  ' zero_shot and retrieval compare images with texts. my_module:MyEvaluator is'
  ' an evaluator of your own.',
  flag_values=FLAGS,
)
_HAUSDORFF = flags.DEFINE_bool(
  'hausdorff',
  False,
  'Also compute the 95% Hausdorff distance, which takes time.',
  flag_values=FLAGS,
)
_WHOLE_IMAGES = flags.DEFINE_bool(
  'whole',
  False,
  'Measure whole images at their own size, by sliding windows, instead of'
  ' center crops. --scales, --flip, --overlap and --gaussian imply it.',
  flag_values=FLAGS,
)
window_flags.define(FLAGS)
_TRAIN_SPLIT = flags.DEFINE_string(
  'train_split',
  None,
  'The split that the probe is fitted to. It must not share images with'
  ' --split.',
  flag_values=FLAGS,
)
_FEATURES = flags.DEFINE_enum(
  'features',
  None,
  ['head', 'tokens', 'layers'],
  "Features of the probe: the head's input, all tokens, or the mean patch of"
  ' each layer. Default: head.',
  flag_values=FLAGS,
)
_K = flags.DEFINE_integer(
  'k',
  None,
  'Number of neighbours that vote, for --probe=knn. Default: 20.',
  lower_bound=1,
  flag_values=FLAGS,
)
_SHOTS = flags.DEFINE_string(
  'shots',
  None,
  'Images of each class, for --probe=few_shot. Default: 1,5,10,25.',
  flag_values=FLAGS,
)
_TEMPLATES = flags.DEFINE_string(
  'templates',
  None,
  "Captions for --probe=zero_shot: 'a photo of a {}.|a {}.', or CLIP's lists"
  ' imagenet (80 captions) and cifar (18), or a file with a caption on each'
  ' line.',
  flag_values=FLAGS,
)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names',
  None,
  'Names of the classes for --probe=zero_shot: cifar10, cifar100, food101,'
  ' imagenet2012, oxford_iiit_pet, or a file with a name on each line. Default:'
  " the data's names.",
  flag_values=FLAGS,
)
variant_flags.define(FLAGS)


def main(argv: list[str]) -> None:
  """Evaluates, and prints the report."""
  data_flags.check(FLAGS, argv)
  changes = variant_flags.parse(FLAGS)
  path = None
  if changes:
    summary, text = _evaluate_variants(changes)
  else:
    if _PREDICTIONS.value:
      path = columns.check_path(
        '--predictions', _PREDICTIONS.value, ('.csv', '.parquet')
      )
    evaluator = _evaluator()
    loaded = cli.load(FLAGS)
    evaluator.check_model(loaded.model)
    summary, text = _evaluate(loaded, evaluator, path)
    summary['checkpoint'] = loaded.origin.to_dict()
  print(json.dumps(summary) if _FORMAT.value == 'json' else text)


def _evaluate_variants(
  changes: list[dict[str, Any]],
) -> tuple[dict[str, Any], str]:
  """Measures a model with each of several changes; returns the report."""
  from vit_jax.evaluation import variants  # it imports jax

  plot = variant_flags.plot(FLAGS)
  evaluator = _evaluator()
  loaded = cli.load(FLAGS, sizes=False)
  adapted = variants.adapted(loaded, changes)
  for variant in adapted:
    evaluator.check_model(variant.model)
  rows = variants.measure(
    adapted,
    changes,
    lambda variant: _evaluate(variant, evaluator, None)[0],
    bool(plot),
    int(str(FLAGS['batch_size'].value)),
  )
  if plot:
    variants.draw(rows, plot)
  summary = {'variants': rows, 'checkpoint': loaded.origin.to_dict()}
  return summary, variants.table(rows).text(tables.room())


def _evaluator() -> 'Evaluator':
  """Returns the evaluator that the flags ask for; needs no model."""
  from vit_jax.evaluation import base  # it imports jax

  part = parts.parse(_PROBE.value or 'accuracy', 'evals.probe.kind')
  options = {
    'train_split': _TRAIN_SPLIT.value,
    'features': _FEATURES.value,
    'k': _K.value,
    'shots': _shots(),
    'templates': _TEMPLATES.value,
    'class_names': _CLASS_NAMES.value,
  }
  options = {name: x for name, x in options.items() if x is not None}
  with data_flags.explained({'config.evals.probe.kind': '--probe'}):
    make = base.find(part.name, 'evals.probe.kind')
  parameters = inspect.signature(make).parameters
  for name in options:
    if name not in parameters:
      probe = _PROBE_OF_FLAG.get(name, '--probe')
      raise UserError(f'--{name} is for {probe}: leave it out, or add that')
  train_split = parameters.get('train_split')
  is_needed = train_split and train_split.default is train_split.empty
  if is_needed and 'train_split' not in options:
    raise UserError(
      '--train_split is missing: name what the probe is to learn from, as in'
      " --train_split='train[:80%]'"
    )
  kind = str(dataclasses.replace(part, options=part.options | options))
  spec = config_lib.evaluation(str(FLAGS['split'].value), kind=kind)
  with data_flags.explained({'config.evals.probe.kind': '--probe'}):
    evaluator = base.create('evals.probe', spec)
  for flag, value, fits in (
    ('--predictions', _PREDICTIONS.value, not _PROBE.value),
    ('--same_order', _SAME_ORDER.value, evaluator.uses_outputs),
  ):
    if value and not fits:
      raise UserError(
        f'{flag} is for the classes of the model, which --probe does not ask'
        ' for: leave one of them out'
      )
  return evaluator


def _shots() -> tuple[int, ...] | None:
  """Returns the value of --shots."""
  if _SHOTS.value is None:
    return None
  texts = _SHOTS.value.split(',')
  shots = tuple(int(text) for text in texts if text.strip().isdecimal())
  if len(shots) < len(texts) or min(shots) < 1 or len(set(shots)) < len(shots):
    raise UserError(
      f'--shots={_SHOTS.value}: write different numbers of images of a class,'
      ' as 1,5,10,25'
    )
  return shots


def _evaluate(
  loaded: 'weights.Loaded', evaluator: 'Evaluator', path: pathlib.Path | None
) -> tuple[dict[str, Any], str]:
  """Runs an evaluator; returns the report, as a dict and as text.

  Predictions are written to `path`; None: they are not written.
  """
  from vit_jax.evaluation import accuracy  # they import jax
  from vit_jax.evaluation import loaded as loaded_lib
  from vit_jax.evaluation import report
  from vit_jax.evaluation import rows as rows_lib

  loaded, segment = _windows(loaded, evaluator)
  config, spec = data_flags.make_config(FLAGS, loaded), evaluator.spec
  if evaluator.kind == _ZERO_SHOT:
    if not config.data.tokenizer:
      raise UserError(
        '--probe=zero_shot needs a model with a text tower, and'
        f' {loaded.origin.path} has none: take knn, few_shot or linear'
      )
    # It has captions of its own, for any data with classes.
    config.data.captions, config.data.class_names = 'templates:{}', ''
  source = data_flags.open_split(FLAGS, config)
  if evaluator.uses_outputs:
    source = _with_model_classes(loaded, source)
  sources = {spec.split: source}
  learned_from: data.Source | None = None
  if evaluator.train_split:
    learned_from = data_flags.open_split(FLAGS, config, 'train_split')
    sources[evaluator.train_split] = learned_from
  evaluator.check_sources(source, learned_from)
  objective, params, head, label_of = _outputs(
    loaded, evaluator, config, source
  )
  total = sum(map(len, sources.values()))
  with data_flags.progress(total) as progress, data_flags.explained():
    context = loaded_lib.LoadedContext(
      *(objective, params, config, sources, progress.update, label_of)
    )
    if isinstance(evaluator, accuracy.Accuracy):
      on_host = None
      if _HAUSDORFF.value:
        spacing = tuple(config.data.volume.spacing)
        on_host = rows_lib.distances(objective, spacing)
      if segment is not None:
        results, rows = rows_lib.measure_whole_images(
          segment, source, on_host, progress.update
        )
      else:
        results, rows = rows_lib.measure(context, spec.split, head, on_host)
      if 'areas' in rows:
        rows_lib.add_intervals(results, rows, source.classes)
      return _report(results, rows, head, source, path)
    results = evaluator.run(context)
  results.pop('confusion', None)
  examples = len(learned_from) if learned_from else None
  summary = report.summarize_probe(evaluator, examples, results)
  return summary, report.probe_as_text(summary)


def _with_model_classes(
  loaded: 'weights.Loaded', source: 'data.Source'
) -> 'data.Source':
  """Returns a split whose examples may have some of the model's classes.

  It raises a UserError if a multi-label model lacks a class of the data.
  """
  from vit_jax.data import target_kinds
  from vit_jax.data import wrapped

  name = loaded.preprocess.outputs.get('logits', {}).get('feature')
  kinds = source.features.get(name), loaded.target
  if not all(isinstance(x, target_kinds.MultiLabel) for x in kinds):
    return source
  if source.features[name].names == loaded.target.names:
    return source
  return wrapped.relabel(source, name, loaded.target.names)


def _windows(
  loaded: 'weights.Loaded', evaluator: 'Evaluator'
) -> 'tuple[weights.Loaded, segmenter.Segmenter | None]':
  """Returns the model with the windows of the flags.

  Returns:
    The model, whose objective has these windows; and what predicts the maps of
    whole images, if the flags ask for it.
  """
  from vit_jax.objectives import segmenter  # imports jax

  segment_flags = (
    window_flags.set_flags(FLAGS) + ['--whole'] * _WHOLE_IMAGES.value
  )
  if not segment_flags:
    return loaded, None
  if not segmenter.is_segmentation(loaded) or not evaluator.uses_outputs:
    raise UserError(
      f'{segment_flags[0]} is for models of segmentation: leave it out'
    )
  settings = segmenter.WindowSettings(**window_flags.read(FLAGS))
  segment = segmenter.Segmenter(loaded, settings)
  loaded = segmenter.with_windows(loaded, settings)
  return loaded, None if segment.takes_volumes else segment


def _outputs(
  loaded: 'weights.Loaded',
  evaluator: 'Evaluator',
  config: 'ml_collections.ConfigDict',
  source: 'data.Source',
) -> tuple[Any, Any, 'predictions_lib.Head | None', 'np.ndarray | None']:
  """Returns what is needed to measure a model's outputs.

  Returns:
    The objective and its parameters; the head, or None if it has no logits;
    and, if the head predicts the label, the positions of the data's classes in
    the model's, int32 [classes of the data].
  """
  # They import jax.
  from vit_jax.evaluation import loaded as loaded_lib
  from vit_jax.evaluation import predictions as predictions_lib
  from vit_jax.objectives import trained

  if not evaluator.uses_outputs:
    return loaded_lib.Trunk(loaded.model), loaded.params, None, None
  objective, params = trained.measuring(loaded, config, source.features)
  if 'logits' not in objective.output_facts():
    return objective, params, None, None
  head = predictions_lib.Head.from_loaded(loaded, _TOP)
  if not head.is_classifier:
    return objective, params, head, None
  names = () if _SAME_ORDER.value else loaded.classes
  label_of = predictions_lib.match_classes(
    names, len(head.names), source.classes
  )
  return objective, params, head, label_of


def _report(
  results: dict[str, Any],
  rows: Mapping[str, 'np.ndarray'],
  head: 'predictions_lib.Head | None',
  source: 'data.Source',
  path: pathlib.Path | None,
) -> tuple[dict[str, Any], str]:
  """Returns the report, as a dict and as text; writes the predictions."""
  from vit_jax.evaluation import predictions as predictions_lib  # imports jax
  from vit_jax.evaluation import report

  files = [source.file(i) for i in range(len(source))]
  if head and head.is_classifier:
    predictions = predictions_lib.Predictions(**rows)
    table = report.class_columns(predictions, files, head.names)
    summary = report.summarize(results, predictions, head.names)
    text = report.as_text(summary)
  else:
    matrix = results.pop('confusion', None)
    table = {'index': rows['index'].tolist()}
    if head is None:
      table |= {name: x.tolist() for name, x in rows.items()}
      results |= {'worst': report.worst(rows, files)}
      if matrix is not None:
        results |= {'confusion': matrix.tolist()}
    for i, name in enumerate(head.names if head else ()):
      table[name] = rows['truth'][:, i].tolist()
      table[f'{name}_predicted'] = rows['predicted'][:, i].tolist()
    table['file'] = files
    summary, text = results, report.metrics_as_text(results)
  if path:
    columns.write(path, table)
  return summary, text


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
