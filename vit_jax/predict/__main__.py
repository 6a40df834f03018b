r"""Names the classes of images, or draws images.

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

A model of videos names the classes of video files, and of folders of frames; a
model of sounds names the classes of .wav and .flac files, among others:

  python -m vit_jax.predict --from=runs/moving clip.mp4 frames/
  python -m vit_jax.predict --from=runs/tones melody.wav

A model of images and texts answers with the texts of --prompts that fit best:

  python -m vit_jax.predict --from=runs/cifar10_clip photo.jpg \
    --prompts='a photo of a cat,a photo of a dog'

A model of segmentation writes NAME.map.png (the number of each pixel's class),
NAME.colour.png and NAME.overlay.png into the folder --output, and prints the
largest shares of classes, at most --top; JSON and CSV have all. The model's
window slides over larger images. A model of volumes reads scans, .nii, .nii.gz
or .npy, and writes NAME.map.nii.gz with the affine of the scan, or
NAME.map.npy, and slices of it as NAME.overlay.png.

An image that cannot be read is reported on stderr and skipped; the exit
status is then 1.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import os
import pathlib
import sys
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.cli import data_flags
from vit_jax.cli import image_files
from vit_jax.cli import window_flags
from vit_jax.config import UserError
from vit_jax.evaluation import answers
from vit_jax.predict import writers

if TYPE_CHECKING:
  import numpy as np

USAGE = 'predict --from=PATH IMAGE ...'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
cli.define_quantize(FLAGS)
_SAMPLE_COLUMNS = 8  # of the picture of --sample
_TOP = flags.DEFINE_integer(
  'top',
  5,
  'Number of classes to print for each image.',
  lower_bound=1,
  flag_values=FLAGS,
)
_FORMAT = cli.define_format(FLAGS, 'csv')
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 32, 'Images at a time.', lower_bound=1, flag_values=FLAGS
)
_SAMPLE = flags.DEFINE_integer(
  'sample',
  None,
  'Number of images that an iGPT draws. With --complete: lower halves of each'
  ' image.',
  lower_bound=1,
  flag_values=FLAGS,
)
_COMPLETE = flags.DEFINE_bool(
  'complete',
  False,
  'Let an iGPT complete the upper halves of the images.',
  flag_values=FLAGS,
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature',
  1.0,
  'Temperature of --sample. Below 1, likely colours become more likely. 0:'
  ' always the most probable colour.',
  lower_bound=0.0,
  flag_values=FLAGS,
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Random seed of --sample.', lower_bound=0, flag_values=FLAGS
)
_OUTPUT = cli.define_path(
  'output',
  None,
  'File of the picture of --sample, or folder for the masks of a segmentation.'
  ' Default: samples.png or maps.',
  flag_values=FLAGS,
)
_PROMPTS = flags.DEFINE_string(
  'prompts',
  None,
  "Texts to choose from: 'a photo of a cat,a photo of a dog'.",
  flag_values=FLAGS,
)
window_flags.define(FLAGS)


def main(argv: list[str]) -> int:
  """Predicts, or draws, and returns the exit status."""
  if _SAMPLE.value or _COMPLETE.value:
    return _draw(argv[1:])
  for name in ('temperature', 'seed'):
    if FLAGS[name].present:
      raise UserError(f'--{name} has no effect without --sample=N')
  texts: list[str] = []
  if _PROMPTS.value is not None:
    from vit_jax.predict import prompts  # imports jax

    texts = prompts.split(_PROMPTS.value)
  paths = image_files.find(argv[1:])
  loaded = cli.load(FLAGS)
  from vit_jax.data import input_kinds
  from vit_jax.objectives import segmenter  # imports jax

  is_video = isinstance(loaded.preprocess.input, input_kinds.Video)
  paths = image_files.as_examples(paths, is_video)
  if segmenter.is_segmentation(loaded) and not texts:
    return _segment(loaded, paths)
  segment_flags = window_flags.set_flags(FLAGS)
  segment_flags += ['--output'] * bool(_OUTPUT.value)
  if segment_flags:
    raise UserError(
      f'{segment_flags[0]} is for models of segmentation: leave it out'
    )
  batch_size = min(_BATCH_SIZE.value, len(paths))
  names, predicts_numbers, answer = _answers(loaded, texts, batch_size)
  # The bar would be among the predictions if these go to the terminal, too.
  hidden = sys.stdout.isatty()
  with data_flags.progress(len(paths), hidden) as progress:
    failed: list[UserError] = []
    report = image_files.reporter(failed, progress.write)
    pixels = loaded.preprocess.pixels
    batches = image_files.decoded_batches(
      paths, pixels, batch_size, report, progress.update
    )
    predictions = (
      (path, answers.named(path, names, numbers.tolist(), values.tolist()))
      for batch, best in answer(batches)
      for path, numbers, values in zip(
        batch, best['top'], best['probability'], strict=False
      )
    )
    _print(predictions, paths, loaded, predicts_numbers)
  return 1 if failed else 0


def _print(
  predictions: Iterable[tuple[str, Sequence[answers.Prediction]]],
  paths: Sequence[str],
  loaded: Any,
  are_numbers: bool,
) -> None:
  width, checkpoint = max(map(len, paths)), loaded.origin.to_dict()
  writers.write(
    predictions, _FORMAT.value, width, checkpoint, are_numbers=are_numbers
  )


def _answers(
  loaded: Any, texts: Sequence[str], batch_size: int
) -> tuple[Sequence[str], bool, Callable[..., Any]]:
  """Returns what a model answers with, the texts of --prompts or its outputs.

  These are names of the answers; whether they are numbers; and the function
  that maps batches of images to the best answers.
  """
  from vit_jax.evaluation import predictions as predictions_lib  # imports jax
  from vit_jax.predict import prompts

  if texts:
    arguments = loaded, texts, _TOP.value, batch_size
    return texts, False, functools.partial(prompts.rank, *arguments)
  head = predictions_lib.Head.from_loaded(loaded, _TOP.value)
  config = loaded.preprocess.to_config()
  config.train.batch_size = batch_size
  answer = functools.partial(predictions_lib.predict, loaded, head, config)
  return head.names, head.predicts_numbers, answer


def _segment(loaded: Any, paths: Sequence[str]) -> int:
  from vit_jax.objectives import segmenter  # imports jax
  from vit_jax.predict import segments

  settings = segmenter.WindowSettings(**window_flags.read(FLAGS))
  segment = segmenter.Segmenter(loaded, settings)
  failed: list[UserError] = []
  report = image_files.reporter(failed)
  folder = pathlib.Path(_OUTPUT.value or 'maps')
  fractions = segments.write(segment, paths, folder, report)
  shares = ((path, _shares(segment.classes, x)) for path, x in fractions)
  _print(shares, paths, loaded, are_numbers=True)
  counts = len(paths) - len(failed), len(paths)
  logging.info('maps of %d of %d images are in %s', *counts, folder.absolute())
  return 1 if failed else 0


def _shares(
  classes: Sequence[str], fractions: 'np.ndarray'
) -> list[answers.Prediction]:
  """Returns the shares of all classes; for people those that matter."""
  pairs = enumerate(zip(classes, fractions.tolist(), strict=True))
  shares = [answers.Prediction(name, i, share) for i, (name, share) in pairs]
  if _FORMAT.value != 'table':
    return shares
  shares.sort(key=lambda x: -x.probability)
  return [x for x in shares[: _TOP.value] if x.probability]


def _draw(arguments: Sequence[str]) -> int:
  if arguments and not _COMPLETE.value:
    raise UserError(
      f'{arguments[0]}: --sample reads no images; with --complete it draws the'
      ' lower halves of these images'
    )
  paths = image_files.find(arguments) if _COMPLETE.value else []
  loaded = cli.load(FLAGS)
  import numpy as np

  from vit_jax.plots import paper  # these import jax
  from vit_jax.plots import sheet
  from vit_jax.plots import tiles
  from vit_jax.weights import sampling

  sampling.check(loaded)
  count, draw = _SAMPLE.value or 1, (_TEMPERATURE.value, _SEED.value)

  def as_tiles(images: 'np.ndarray') -> list[sheet.Tile]:
    pixels = tiles.pixels(loaded.preprocess, images)
    return [sheet.Tile(sheet.readable(x)) for x in pixels]

  if _COMPLETE.value:
    images, drawn = sampling.complete(
      loaded, loaded.preprocess(paths), count, *draw
    )
    rows = []
    for image, completions in zip(images, drawn, strict=True):
      half = image.copy()
      half[len(half) // 2 :] = 0
      rows.append(as_tiles(np.stack([half, *completions, image])))
    picture = sheet.draw(
      rows,
      heads=['given', *(f'drawn {i + 1}' for i in range(count)), 'original'],
      names=[os.path.basename(path) for path in paths],
    )
  else:
    samples = as_tiles(sampling.sample(loaded, count, *draw))
    picture = sheet.draw(sheet.grouped([[x] for x in samples], _SAMPLE_COLUMNS))
  path = pathlib.Path(_OUTPUT.value or 'samples.png')
  paper.save(path, picture)
  print(path)
  return 0


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
