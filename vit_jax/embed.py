r"""Embeds images: writes the inputs of the model's head.

  python -m vit_jax.embed --from=runs/digits --data=digits \
    --split='train[80%:]' --out=digits.npz
  python -m vit_jax.embed --from=runs/digits --images='photos/*.png' \
    --out=photos.npz
  python -m vit_jax.embed --from=runs/cifar10_clip --text='a photo of a dog' \
    --text='a photo of a cat' --out=texts.npz

Of a model of images and texts, it writes embeddings of unit length in the space
that both share, so that the product of two is their similarity. --text, which
may be repeated, is a text.

--images is a file, a folder (all images in it and below it) or a pattern, and
may be repeated. If an image cannot be read, the command stops and writes no
file.

FILE.npz has these arrays, for N images in the order of the split or the files:

  embedding  float32 [N, D]
  label      int32 [N], positions in classes
  index      int32 [N], positions in the whole split, before slicing
  file       [N], paths, '' where an image has no file of its own
  classes    [K], the names of the data's classes
  checkpoint JSON: path, format, step, ... of the checkpoint

With --images there are no labels, so label and classes are left out, and index
counts the files. With --text the arrays are embedding, text [N] and checkpoint.

FILE.parquet (needs pyarrow) has a row for each image: embedding, label,
label_name (both only with --data), index and file (or null). Its metadata has
classes and checkpoint, as JSON. Both formats are written batch by batch, so a
split may be larger than memory.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import pathlib
from typing import Any
from typing import IO
from typing import TYPE_CHECKING
import zipfile

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.cli import columns
from vit_jax.cli import data_flags
from vit_jax.cli import image_files
from vit_jax.config import UserError
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  import numpy as np

  from vit_jax import data
  from vit_jax import weights

  # Embeddings float32 [B, D], and further columns by name.
  Rows = tuple[np.ndarray, Mapping[str, Any]]

USAGE = (
  'embed --from=PATH --out=FILE (--data=NAME | --images=PATH | --text=TEXT)'
)
FLAGS = flags.FlagValues()  # separate, since other commands share flag names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
data_flags.define(FLAGS, 'embed')
_IMAGES = flags.DEFINE_multi_string(
  'images', [], 'Image file, folder or pattern.', flag_values=FLAGS
)
_TEXT = flags.DEFINE_multi_string(
  'text', [], 'Text, for a model of images and texts.', flag_values=FLAGS
)
_OUT = cli.define_path(
  'out', None, 'FILE.npz or FILE.parquet to write.', flag_values=FLAGS
)

_ROWS = 4096  # rows of a group in a Parquet file
_NUMBERS = ('label', 'index')  # arrays; other columns are texts


def main(argv: list[str]) -> None:
  """Embeds, and writes the file."""
  path = _check_flags(argv)
  paths = image_files.find(_IMAGES.value) if _IMAGES.value else []
  loaded = cli.load(FLAGS)
  if _TEXT.value:
    _embed_texts(loaded, path)
    return
  from vit_jax.data import given
  from vit_jax.data import input_kinds
  from vit_jax.objectives import embedder

  config = data_flags.make_config(FLAGS, loaded)
  source: data.Source
  if paths:
    preprocess = loaded.preprocess
    is_video = isinstance(preprocess.input, input_kinds.Video)
    paths = image_files.as_examples(paths, is_video)
    source = given.GivenSource(paths, preprocess)
  else:
    source = data_flags.open_split(FLAGS, config)

  with data_flags.progress(len(source)) as progress, data_flags.explained():

    def rows() -> 'Iterator[Rows]':
      first = 0
      for part in embedder.embed_split(loaded, config, source):
        cells: dict[str, Any] = {}
        if classes := source.classes:
          names = [classes[i] for i in part.labels.tolist()]
          cells = {'label': part.labels, 'label_name': names}
        files = [source.file(first + i) for i in range(len(part))]
        yield part.features, cells | {'index': part.index, 'file': files}
        first += len(part)
        progress.update(len(part))

    _write(path, loaded, len(source), rows(), source.classes)


def _embed_texts(loaded: 'weights.Loaded', path: pathlib.Path) -> None:
  from vit_jax.objectives import embedder  # imports jax

  texts = _TEXT.value
  embeddings = embedder.Embedder(loaded, len(texts)).texts(texts, '--text')
  _write(path, loaded, len(texts), [(embeddings, {'text': texts})], ())


def _write(
  path: pathlib.Path,
  loaded: 'weights.Loaded',
  total: int,
  rows: 'Iterable[Rows]',
  classes: Sequence[str],
) -> None:
  """Writes `total` rows as they come; without classes there are no labels."""
  checkpoint = json.dumps(loaded.origin.to_dict())
  write = _write_npz if path.suffix == '.npz' else _write_parquet
  with safe_io.replacing_path(path) as temporary:
    width = write(temporary, total, rows, checkpoint, classes)
  logging.info('%d embeddings of %d numbers are in %s', total, width, path)


def _check_flags(argv: list[str]) -> pathlib.Path:
  """Checks the flags before a model is loaded; returns the output path."""
  advice = {
    'text': 'each of several texts needs a --text of its own',
    'images': 'each of several images needs an --images of its own, or one'
    " pattern for all, as --images='*.png'",
  }
  kind = next((name for name in advice if FLAGS[name].value), None)
  if kind is None:
    data_flags.check(FLAGS, argv)
  elif argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}: {advice[kind]}')
  else:
    for name in ('data', 'split', 'source_size', 'images'):
      if name != kind and FLAGS[name].value:
        raise UserError(f'--{name} and --{kind} exclude each other')
  if not _OUT.value:
    raise cli.missing('out', 'a file', 'digits.npz')
  return columns.check_path('--out', _OUT.value, ('.npz', '.parquet'))


def _write_npz(
  path: pathlib.Path,
  total: int,
  rows: 'Iterable[Rows]',
  checkpoint: str,
  classes: Sequence[str],
) -> int:
  """Writes embeddings batch by batch, and the small arrays at the end.

  Returns the size of an embedding.
  """
  import numpy as np

  width = 0
  parts: dict[str, list[np.ndarray]] = {}
  with zipfile.ZipFile(path, 'w') as archive:

    def member(name: str) -> IO[bytes]:
      return archive.open(f'{name}.npy', 'w', force_zip64=True)

    with member('embedding') as file:
      for embeddings, part in rows:
        if not width:
          width = embeddings.shape[1]
          header = {
            'descr': np.lib.format.dtype_to_descr(np.dtype(np.float32)),
            'fortran_order': False,
            'shape': (total, width),
          }
          np.lib.format.write_array_header_1_0(file, header)
        file.write(embeddings.tobytes())
        for name, cells in part.items():
          array = cells
          if name not in _NUMBERS:
            array = np.array([text or '' for text in cells], np.str_)
          parts.setdefault(name, []).append(array)
    parts.pop('label_name', None)  # `classes` has the names
    arrays = {name: np.concatenate(x) for name, x in parts.items()}
    arrays['checkpoint'] = np.array(checkpoint)
    if classes:
      arrays['classes'] = np.array(classes)
    for name, array in arrays.items():
      with member(name) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
  return width


def _write_parquet(
  path: pathlib.Path,
  total: int,
  rows: 'Iterable[Rows]',
  checkpoint: str,
  classes: Sequence[str],
) -> int:
  """Writes a Parquet file in groups of rows; as `_write_npz`."""
  import pyarrow as pa  # an optional dependency
  from pyarrow import parquet

  del total
  metadata = {'checkpoint': checkpoint}
  if classes:
    metadata['classes'] = json.dumps(list(classes))
  width = 0
  with contextlib.ExitStack() as stack:
    writer, waiting = None, []
    for embeddings, part in rows:
      width = embeddings.shape[1]
      numbers = pa.array(embeddings.ravel())
      lists = pa.FixedSizeListArray.from_arrays(numbers, width)
      cells: dict[str, Any] = {'embedding': lists, **part}
      if 'file' in cells:
        paths = [columns.as_text(file) for file in cells['file']]
        cells['file'] = pa.array(paths, pa.string())
      waiting.append(pa.table(cells).replace_schema_metadata(metadata))
      if writer is None:
        schema = waiting[0].schema
        writer = stack.enter_context(parquet.ParquetWriter(path, schema))
      if sum(map(len, waiting)) >= _ROWS:
        writer.write_table(pa.concat_tables(waiting).combine_chunks())
        waiting = []
    if writer and waiting:
      writer.write_table(pa.concat_tables(waiting).combine_chunks())
  return width


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
