"""Names the classes of images, or draws images.

  python -m vit_jax.predict --from=runs/digits photo.jpg holidays/
  find . -name '*.png' | python -m vit_jax.predict --from=runs/digits --top=1 -

An image is a file, a folder (all images in it and below it), a pattern such as
'holidays/**/*.jpg', or - for a list of these on standard input, one a line.
Predictions come in the order of the images; the files of a folder or pattern
are sorted.

--format=table is for people. --format=json is one array of
  {"image": path, "predictions": [{"class": name, "index": 3,
   "probability": 0.98}, ...], "checkpoint": {"path": ..., "step": 65, ...}}
with one image a line; --format=csv has the columns image, rank (from 1),
class, index and probability, one row for each class. An index is a position in
the model's output.

A multi-label model gives each class an independent probability. The numbers of
a regression model are in the units of its data: in JSON as "numbers":
{name: value}, in CSV with the columns image, name and value.

An iGPT, which predicts pixels, draws images instead: --sample=16 new ones, or
with --complete that many lower halves of each of the images that are named:

  python -m vit_jax.predict --from=runs/igpt --sample=16 --output=samples.png
  python -m vit_jax.predict --from=runs/igpt --complete --sample=4 photo.jpg

The path of the picture is printed.

An image that cannot be read is reported on stderr and left out; the exit
status is then 1.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import csv
import itertools
import json
import os
import pathlib
import sys
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.cli import image_files
from vit_jax.config import UserError

if TYPE_CHECKING:
  import numpy as np

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_TOP = flags.DEFINE_integer(
  'top', 5, 'Classes to name.', lower_bound=1, flag_values=FLAGS
)
_FORMAT = flags.DEFINE_enum(
  'format', 'table', ['table', 'json', 'csv'], 'Of stdout.', flag_values=FLAGS
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 32, 'Images at a time.', lower_bound=1, flag_values=FLAGS
)
_SAMPLE = flags.DEFINE_integer(
  'sample',
  None,
  'Images that an iGPT draws; with --complete, lower halves of each image.',
  lower_bound=1,
  flag_values=FLAGS,
)
_COMPLETE = flags.DEFINE_bool(
  'complete', False, 'Draw lower halves of the images.', flag_values=FLAGS
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature',
  1.0,
  'Of --sample: below 1 likely colours become more likely; 0: always the most'
  ' probable colour.',
  lower_bound=0.0,
  flag_values=FLAGS,
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Of --sample.', lower_bound=0, flag_values=FLAGS
)
_OUTPUT = flags.DEFINE_string(
  'output', 'samples.png', 'Picture of --sample.', flag_values=FLAGS
)

_AHEAD = 3  # batches that are decoded in advance


class Prediction(NamedTuple):
  """A class, or a quantity, with the value that is predicted for it."""

  name: str
  number: int  # position in the output
  probability: float


# An image's path with its predictions, the most probable first.
Predictions = Iterable[tuple[str, Sequence[Prediction]]]
Checkpoint = dict[str, Any]  # where the model comes from


def main(argv: list[str]) -> int:
  """Predicts, or draws, and returns the exit status."""
  if _SAMPLE.value or _COMPLETE.value:
    return _draw(argv[1:])
  paths = image_files.find(argv[1:])
  loaded = cli.load(FLAGS)
  from vit_jax.evaluation import predictions as predictions_lib  # imports jax

  batch_size = min(_BATCH_SIZE.value, len(paths))
  head = predictions_lib.Head.of(loaded, _TOP.value)
  config = loaded.preprocess.to_config()
  config.train.batch_size = batch_size
  with _progress(len(paths)) as progress:
    failed = []

    def report(error: UserError) -> None:
      failed.append(error)
      progress.write(f'error: {error}', file=sys.stderr)

    images = decode(
      paths, loaded.preprocess.pixels, _AHEAD * batch_size, progress.update
    )
    batches = in_batches(images, batch_size, report)
    results = predictions_lib.predict(loaded, head, config, None, batches)
    predictions = (
      (path, _named(path, head.names, *row))
      for batch, result in results
      for path, *row in zip(
        batch, result['top'], result['probability'], strict=False
      )
    )
    writers = _NUMBER_WRITERS if head.predicts_numbers else _WRITERS
    width, origin = max(map(len, paths)), loaded.origin.to_dict()
    writers[_FORMAT.value](predictions, width, origin)
  return 1 if failed else 0


def _draw(arguments: Sequence[str]) -> int:
  """Draws what --sample and --complete ask for; returns the exit status."""
  if arguments and not _COMPLETE.value:
    raise UserError(
      f'{arguments[0]}: --sample draws new images: add --complete to draw the'
      ' lower halves of these'
    )
  paths = image_files.find(arguments) if _COMPLETE.value else []
  loaded = cli.load(FLAGS)
  import numpy as np

  from vit_jax.plots import contact_sheet  # these import jax
  from vit_jax.plots import tiles
  from vit_jax.weights import sampling

  sampling.check(loaded)
  count, how = _SAMPLE.value or 1, (_TEMPERATURE.value, _SEED.value)
  if _COMPLETE.value:
    images, drawn = sampling.complete(
      loaded, loaded.preprocess(paths), count, *how
    )
    rows = zip(paths, images, drawn, strict=True)
    cells = [cell for row in rows for cell in _completed(*row)]
    columns = count + 2
  else:
    drawn = sampling.sample(loaded, count, *how)
    cells, columns = [('', image) for image in drawn], 8
  captions, shown = zip(*cells, strict=True)
  pixels = tiles.pixels(loaded.preprocess, np.stack(shown))
  path = pathlib.Path(_OUTPUT.value)
  contact_sheet.draw(list(pixels), captions, path, columns=columns)
  print(path)
  return 0


def _completed(
  path: str, image: 'np.ndarray', drawn: 'np.ndarray'
) -> 'list[tuple[str, np.ndarray]]':
  """Returns an image's given half, its completions, and itself, with captions.

  Args:
    path: Path of the image.
    image: [H, W, C].
    drawn: [count, H, W, C].
  """
  half = image.copy()
  half[len(half) // 2 :] = 0
  cells = [(os.path.basename(path), half)]
  cells += [(f'completed {i}', x) for i, x in enumerate(drawn, 1)]
  return [*cells, ('the image', image)]


def decode(
  paths: Sequence[str],
  pixels: 'Callable[[str], np.ndarray]',
  ahead: int,
  progress: Callable[[int], object],
) -> 'Iterator[tuple[str, np.ndarray | UserError]]':
  """Yields images in order; threads decode them in advance.

  Args:
    paths: Paths of images.
    pixels: Path -> uint8 [1, H, W, C].
    ahead: Largest number of decoded images that wait to be used.
    progress: Called with the number of images that were taken.

  Yields:
    A path, and uint8 [H, W, C] or why it cannot be read.
  """
  from vit_jax.data.host import batches

  def read(path: str) -> 'tuple[str, np.ndarray | UserError]':
    try:
      return path, pixels(path)[0]
    except UserError as e:
      return path, e

  pool = concurrent.futures.ThreadPoolExecutor(batches.num_cores())
  rest = iter(paths)
  try:
    waiting = collections.deque(
      pool.submit(read, path) for path in itertools.islice(rest, ahead)
    )
    while waiting:
      image = waiting.popleft().result()
      waiting.extend(
        pool.submit(read, path) for path in itertools.islice(rest, 1)
      )
      progress(1)
      yield image
  finally:
    pool.shutdown(cancel_futures=True)


def in_batches(
  images: 'Iterable[tuple[str, np.ndarray | UserError]]',
  size: int,
  report: Callable[[UserError], None],
) -> 'Iterator[tuple[list[str], dict[str, np.ndarray]]]':
  """Yields paths with batches of their images.

  The last batch is padded, so that only one shape is compiled.

  Args:
    images: From `decode`.
    size: Number of images in each batch.
    report: Called with the error of each image that is left out.
  """
  import numpy as np

  paths: list[str] = []
  batch: list[np.ndarray] = []
  for path, image in images:
    if isinstance(image, UserError):
      report(image)
      continue
    paths.append(path)
    batch.append(image)
    if len(batch) == size:
      yield paths, {'image': np.stack(batch)}
      paths, batch = [], []
  if batch:
    padding = [np.zeros_like(batch[0])] * (size - len(batch))
    yield paths, {'image': np.stack(batch + padding)}


def _named(
  path: str,
  names: Sequence[str],
  classes: 'np.ndarray',
  probabilities: 'np.ndarray',
) -> list[Prediction]:
  """Returns an image's predictions.

  Raises:
    UserError: The outputs are not finite.
  """
  import numpy as np

  if not np.isfinite(probabilities).all():
    raise UserError(
      f'the model has no answer for {path}: its output is not finite'
    )
  pairs = zip(classes.tolist(), probabilities.tolist(), strict=True)
  return [Prediction(names[number], number, p) for number, p in pairs]


def _progress(total: int) -> Any:
  """Returns a bar on the terminal, unless the predictions go there."""
  import tqdm

  hidden = not sys.stderr.isatty() or sys.stdout.isatty()
  return tqdm.tqdm(
    total=total, unit='image', file=sys.stderr, disable=hidden, leave=False
  )


def _write_table(predictions: Predictions, width: int, _: Checkpoint) -> None:
  for path, classes in predictions:
    for i, x in enumerate(classes):
      image = '' if i else path
      print(f'{image:{width}}  {x.probability:.4f}  {x.name}')


def _write_json(predictions: Predictions, _: int, origin: Checkpoint) -> None:
  _write_objects(
    (
      {
        'image': path,
        'predictions': [
          {'class': x.name, 'index': x.number, 'probability': x.probability}
          for x in classes
        ],
      }
      for path, classes in predictions
    ),
    origin,
  )


def _write_objects(
  objects: Iterable[dict[str, Any]], origin: Checkpoint
) -> None:
  """Prints an array of JSON with one object a line."""
  separator = '['
  for each in objects:
    line = json.dumps({**each, 'checkpoint': origin})
    print(f'{separator}\n{line}', end='')
    separator = ','
  print('\n]' if separator == ',' else '[]')


def _write_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(['image', 'rank', 'class', 'index', 'probability'])
  for path, classes in predictions:
    for rank, x in enumerate(classes, 1):
      writer.writerow([path, rank, x.name, x.number, x.probability])


def _write_number_table(
  predictions: Predictions, width: int, _: Checkpoint
) -> None:
  for path, numbers in predictions:
    for i, x in enumerate(numbers):
      print(f'{"" if i else path:{width}}  {x.probability:<12.6g}  {x.name}')


def _write_number_json(
  predictions: Predictions, _: int, origin: Checkpoint
) -> None:
  _write_objects(
    (
      {'image': path, 'numbers': {x.name: x.probability for x in numbers}}
      for path, numbers in predictions
    ),
    origin,
  )


def _write_number_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(['image', 'name', 'value'])
  for path, numbers in predictions:
    writer.writerows([path, x.name, x.probability] for x in numbers)


_Writer = Callable[[Predictions, int, Checkpoint], None]
_WRITERS: dict[str, _Writer] = {
  'table': _write_table,
  'json': _write_json,
  'csv': _write_csv,
}
_NUMBER_WRITERS: dict[str, _Writer] = {
  'table': _write_number_table,
  'json': _write_number_json,
  'csv': _write_number_csv,
}


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
