r"""Finds the images of a folder that fit a text, or are like an image.

  python -m vit_jax.search --from=runs/cifar10_clip photos/ \
    --text='a photo of a dog' --text='a photo of a truck' --top=5
  python -m vit_jax.search --from=runs/images photos/ --image=cat.jpg

--text needs a model of images and texts; --image works with every model. Both
may be repeated. A similarity is the cosine of two embeddings, from -1 to 1. All
images are compared, so the answer is exact.

The embeddings are kept beside the folder, as photos.embeddings-DIGEST.npz,
where DIGEST stands for the model; --cache names another file. Next time, only
the images that were added or changed are read.

--format=table is for people. --format=json is one array of
  {"query": text or path, "kind": "text", "found": [{"image": path,
   "similarity": 0.31}, ...], "checkpoint": {"path": ..., ...}}
with one query a line; --format=csv has the columns query, rank (from 1), image
and similarity. --picture=FILE.png draws the images that were found, a row for
each query.

An image of the folder that cannot be read is reported on stderr and skipped;
the exit status is then 1.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import os
import pathlib
import sys
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax import tables
from vit_jax.cli import columns
from vit_jax.cli import image_files
from vit_jax.config import check_data
from vit_jax.config import UserError

if TYPE_CHECKING:
  import numpy as np

  from vit_jax import weights
  from vit_jax.evaluation import gallery as gallery_lib

USAGE = 'search --from=PATH FOLDER (--text=TEXT | --image=FILE)'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_TEXT = flags.DEFINE_multi_string(
  'text', [], 'Text to search for.', flag_values=FLAGS
)
_IMAGE = flags.DEFINE_multi_string(
  'image', [], 'Image to search for similar ones.', flag_values=FLAGS
)
_TOP = flags.DEFINE_integer(
  'top',
  10,
  'Number of images for each query.',
  lower_bound=1,
  flag_values=FLAGS,
)
_FORMAT = cli.define_format(FLAGS, 'csv')
_PICTURE = cli.define_path(
  'picture', None, 'FILE.png to draw the results to.', flag_values=FLAGS
)
_CACHE = cli.define_path(
  'cache',
  None,
  'FILE.npz that keeps the embeddings. Default: next to the folder.',
  flag_values=FLAGS,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 32, 'Images at a time.', lower_bound=1, flag_values=FLAGS
)


class Answer(NamedTuple):
  """The images that were found for a query."""

  query: str  # the text, or the path of the image
  kind: str  # 'text' or 'image'
  matches: list[tuple[str, float]]  # similarities of paths, in descending order


def main(argv: list[str]) -> int:
  """Searches; returns the exit status."""
  folder = _check_flags(argv[1:])
  loaded = cli.load(FLAGS)
  import numpy as np

  from vit_jax.evaluation import gallery as gallery_lib  # these import jax
  from vit_jax.objectives import embedder as embedder_lib

  failed: list[UserError] = []
  report = image_files.reporter(failed)
  embedder = embedder_lib.Embedder(loaded, _BATCH_SIZE.value)

  def embed(
    paths: Sequence[str], report: Callable[[UserError], None] = report
  ) -> 'Iterator[tuple[list[str], np.ndarray]]':
    """Yields paths of images that can be read, and their embeddings [B, E]."""
    batches = image_files.decoded_batches(
      paths, loaded.preprocess.pixels, _BATCH_SIZE.value, report
    )
    for read, features in embedder.images(batches):
      yield read, features[: len(read)]  # the last batch is padded

  def refuse(error: UserError) -> None:
    raise error

  queries = []  # float32 [Q, E]: texts, images
  if _TEXT.value:
    queries.append(embedder.texts(_TEXT.value, '--text'))
  if _IMAGE.value:
    queries += [features for _, features in embed(_IMAGE.value, refuse)]
  digest = embedder.digest()
  cache = pathlib.Path(folder).resolve()
  cache = cache.with_name(f'{cache.name}.embeddings-{digest}.npz')
  if _CACHE.value:
    cache = pathlib.Path(_CACHE.value)
  gallery = gallery_lib.embed_folder(folder, cache, digest, embed)
  answers = _answers(folder, gallery, np.concatenate(queries))
  _write(answers, loaded.origin.to_dict())
  if _PICTURE.value:
    _draw(loaded, answers, pathlib.Path(_PICTURE.value))
  return 1 if failed else 0


def _answers(
  folder: str, gallery: 'gallery_lib.Gallery', queries: 'np.ndarray'
) -> list[Answer]:
  from vit_jax.evaluation import knn  # imports jax

  kinds = [(x, 'text') for x in _TEXT.value]
  kinds += [(x, 'image') for x in _IMAGE.value]
  files = [os.path.join(folder, name) for name in gallery.files]
  similarity, order = knn.nearest(
    gallery.features, queries, min(_TOP.value, len(files)), cosine=False
  )
  return [
    Answer(
      query,
      kind,
      [(files[i], x) for i, x in zip(best.tolist(), row.tolist(), strict=True)],
    )
    for (query, kind), best, row in zip(kinds, order, similarity, strict=True)
  ]


def _check_flags(arguments: Sequence[str]) -> str:
  """Checks the flags before a model is loaded; returns the folder."""
  check_data(arguments[0] if arguments else '', '')
  if len(arguments) != 1 or not os.path.isdir(arguments[0]):
    arguments_text = ' '.join(arguments) or 'nothing'
    raise UserError(
      f'name one folder of images, as in photos/: {arguments_text} was given'
    )
  if not _TEXT.value and not _IMAGE.value:
    raise UserError(
      "there is no query: add --text='a photo of a dog', or --image=FILE"
    )
  if _CACHE.value:
    columns.check_path('--cache', _CACHE.value, ['.npz'])
  return arguments[0]


def _draw(
  loaded: 'weights.Loaded', answers: Sequence[Answer], path: pathlib.Path
) -> None:
  """Draws the images that were found, as the model sees them."""
  from vit_jax.plots import paper  # these import OpenCV
  from vit_jax.plots import sheet

  rows = [
    [
      sheet.Tile(
        sheet.readable(loaded.preprocess.pixels(file)[0]),
        f'{similarity:.3f}\n{os.path.basename(file)}',
      )
      for file, similarity in answer.matches
    ]
    for answer in answers
  ]
  names = [answer.query for answer in answers]
  paper.save(path, sheet.draw(rows, names=names))


def _write(answers: Sequence[Answer], checkpoint: dict[str, Any]) -> None:
  if _FORMAT.value == 'json':
    objects = (
      {
        'query': answer.query,
        'kind': answer.kind,
        'found': [{'image': x, 'similarity': s} for x, s in answer.matches],
        'checkpoint': checkpoint,
      }
      for answer in answers
    )
    tables.write_json(objects, sys.stdout)
  elif _FORMAT.value == 'csv':
    names = 'query', 'rank', 'image', 'similarity'
    rows = (
      (answer.query, rank, *pair)
      for answer in answers
      for rank, pair in enumerate(answer.matches, 1)
    )
    tables.Table(names, rows).write_csv(sys.stdout)
  else:
    for answer in answers:
      print(answer.query)
      pairs = [(similarity, file) for file, similarity in answer.matches]
      formats = {'similarity': '.4f'}
      table = tables.Table(('similarity', 'image'), pairs, formats)
      print(table.text(indent='  '))


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
