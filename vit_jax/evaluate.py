"""Says how good a model is on a dataset.

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
there is its ..._interval.

--predictions writes a row for each example: index (its position in the split,
however that is sliced), file (if it has one), label and prediction (positions
in the model's classes) and their names, probability (of the prediction), loss,
and the five most probable classes with their probabilities (in CSV as JSON).
"""

from collections.abc import Iterator
import contextlib
import csv
import importlib.util
import json
import pathlib
import sys
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import data
  from vit_jax import weights
  from vit_jax.evaluation import answers as answers_lib

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_DATA = flags.DEFINE_string(
  'data',
  None,
  "What to evaluate on: 'digits', 'folder:PATH' or a TFDS name.",
  flag_values=FLAGS,
)
_SPLIT = flags.DEFINE_string(
  'split', None, "As 'test' or 'train[90%:]'.", flag_values=FLAGS
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Where TFDS datasets are.', flag_values=FLAGS
)
_SOURCE_SIZE = flags.DEFINE_string(
  'source_size',
  None,
  'Of all stored images, as 32x32: then the device crops them. For a run that'
  ' was trained with config.data.source_size.',
  flag_values=FLAGS,
)
_SAME_ORDER = flags.DEFINE_bool(
  'same_order',
  False,
  'The classes of the data are those of the model, in its order, though their'
  ' names are others.',
  flag_values=FLAGS,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 64, 'Images at a time.', lower_bound=1, flag_values=FLAGS
)
_NUM_WORKERS = flags.DEFINE_integer(
  'num_workers',
  0,
  'Processes that read and decode; 0: threads.',
  lower_bound=0,
  flag_values=FLAGS,
)
_FORMAT = flags.DEFINE_enum(
  'format', 'table', ['table', 'json'], 'Of stdout.', flag_values=FLAGS
)
_PREDICTIONS = flags.DEFINE_string(
  'predictions',
  None,
  'FILE.csv or FILE.parquet, for the answer to each example.',
  flag_values=FLAGS,
)

# What errors call by the key of a config.
_FLAG_OF = {
  'config.data.name': '--data',
  'config.data.dir': '--data_dir',
  'config.data.source_size': '--source_size',
}


def main(argv: list[str]) -> None:
  """Evaluates, and prints the report."""
  _check_flags(argv)
  loaded = cli.load(FLAGS)
  from vit_jax.evaluation import answers as answers_lib  # they import jax
  from vit_jax.evaluation import report

  config = _config(loaded)
  with _flags_for_keys():
    source = _open(config)
  classifier = answers_lib.Classifier(
    loaded, config, source.image_shape, config.train.batch_size, 5
  )
  label_of = answers_lib.match_classes(
    () if _SAME_ORDER.value else loaded.classes,
    len(classifier.names),
    source.classes,
  )
  with _progress(len(source)) as progress, _flags_for_keys():
    answers = answers_lib.answer_split(
      classifier, source, config, label_of, progress.update
    )
  if _PREDICTIONS.value:
    columns = predictions(answers, source, classifier.names)
    write_columns(pathlib.Path(_PREDICTIONS.value), columns)
  summary = report.summarize(answers, classifier.names)
  if _FORMAT.value == 'json':
    print(json.dumps(summary))
  else:
    print(report.as_text(summary), end='')


def _check_flags(argv: list[str]) -> None:
  """Finds mistakes that need no model."""
  if argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}')
  if not _DATA.value:
    raise UserError('--data is missing: name a dataset, as in --data=digits')
  if not _SPLIT.value:
    raise UserError('--split is missing: name one, as in --split=test')
  path = pathlib.Path(_PREDICTIONS.value or 'none.csv')
  if path.suffix not in ('.csv', '.parquet'):
    raise UserError(
      f'--predictions={path}: its name must end in .csv or .parquet'
    )
  if not path.parent.is_dir():
    raise UserError(f'--predictions={path}: there is no folder {path.parent}')
  if path.suffix == '.parquet' and not importlib.util.find_spec('pyarrow'):
    raise UserError(
      f'--predictions={path} needs pyarrow: run pip install pyarrow, or name a'
      ' .csv file'
    )


def _config(loaded: 'weights.Loaded') -> 'ml_collections.ConfigDict':
  """Returns a config for the data that the flags name."""
  config = loaded.preprocess.to_config()
  config.data.name = _DATA.value
  config.data.split = _SPLIT.value
  config.data.dir = _DATA_DIR.value
  config.data.num_workers = _NUM_WORKERS.value
  config.train.batch_size = _BATCH_SIZE.value
  if _SOURCE_SIZE.value:
    size = cli.parse_size(_SOURCE_SIZE.value, '--source_size')
    config.data.source_size = size
  return config


def _open(config: 'ml_collections.ConfigDict') -> 'data.Source':
  from vit_jax import data

  data.check(config)
  try:
    return data.open_source(config, config.data.split)
  except data.SplitError as e:
    raise UserError(f'--split: {e}') from None


@contextlib.contextmanager
def _flags_for_keys() -> Iterator[None]:
  """Lets errors about the config's keys speak of our flags instead."""
  try:
    yield
  except UserError as e:
    text = str(e).replace('config.data.split', '--split')
    for key, flag in _FLAG_OF.items():
      text = text.replace(key, flag)
    raise UserError(text) from None


def _progress(total: int) -> Any:
  import tqdm

  hidden = not sys.stderr.isatty()
  return tqdm.tqdm(
    total=total, unit='image', file=sys.stderr, disable=hidden, leave=False
  )


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


def write_columns(path: pathlib.Path, columns: dict[str, list[Any]]) -> None:
  """Writes columns of equal length.

  Args:
    path: Ends in .csv or .parquet.
    columns: By name; lists within them become JSON in CSV.

  Raises:
    OSError: It cannot be written.
  """
  if path.suffix == '.parquet':
    import pyarrow as pa  # not among what we require
    from pyarrow import parquet

    file = pa.array(columns['file'], pa.string())  # also where all are None
    parquet.write_table(pa.table(columns | {'file': file}), path)
    return
  with open(path, 'w', newline='', errors='surrogateescape') as f:
    writer = csv.writer(f, lineterminator='\n')
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
      writer.writerow(
        [json.dumps(x) if isinstance(x, list) else x for x in row]
      )


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
