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

from collections.abc import Sequence
import contextlib
import json
import pathlib
from typing import Any
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
  from vit_jax.evaluation.embedded import Embedded

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
  parts = embedder.embed_split(loaded, config, source)
  count, checkpoint = 0, json.dumps(loaded.origin.to_dict())
  with (
    data_flags.progress(len(source)) as progress,
    data_flags.explained(),
    safe_io.replacing_path(path) as temporary,
    contextlib.closing(
      _WRITERS[path.suffix](temporary, source, checkpoint)
    ) as writer,
  ):
    for part in parts:
      names = [source.file(count + i) for i in range(len(part))]
      writer.write(part, names)
      count += len(part)
      progress.update(len(part))
    writer.finish()
  logging.info(
    '%d embeddings of %d numbers are in %s', count, writer.width, path
  )


def _embed_texts(loaded: 'weights.Loaded', path: pathlib.Path) -> None:
  import numpy as np

  from vit_jax.objectives import embedder  # imports jax

  texts = _TEXT.value
  embeddings = embedder.Embedder(loaded, len(texts)).texts(texts, '--text')
  checkpoint = json.dumps(loaded.origin.to_dict())
  with safe_io.replacing_path(path) as temporary:
    if path.suffix == '.npz':
      with temporary.open('wb') as file:
        np.savez(
          file,
          embedding=embeddings,
          text=np.array(texts, np.str_),
          checkpoint=np.array(checkpoint, np.str_),
        )
    else:
      import pyarrow as pa  # an optional dependency
      from pyarrow import parquet

      table = pa.table({'embedding': _column(embeddings), 'text': texts})
      metadata = {'checkpoint': checkpoint}
      parquet.write_table(table.replace_schema_metadata(metadata), temporary)
  logging.info('%d embeddings of %d numbers are in %s', *embeddings.shape, path)


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


def _column(embeddings: 'np.ndarray') -> Any:
  """Returns embeddings [N, D] as a column of Arrow, of lists of D numbers."""
  import pyarrow as pa  # an optional dependency

  numbers = pa.array(embeddings.ravel())
  return pa.FixedSizeListArray.from_arrays(numbers, embeddings.shape[1])


class _Npz:
  """Writes embeddings batch by batch, and the small arrays at the end.

  Attributes:
    width: D, the size of an embedding.
  """

  def __init__(
    self, path: pathlib.Path, source: 'data.Source', checkpoint: str
  ):
    self.width = 0
    self._archive = zipfile.ZipFile(path, 'w')
    self._source, self._checkpoint = source, checkpoint
    self._embedding: Any = None
    self._labels: list[np.ndarray] = []
    self._index: list[np.ndarray] = []
    self._files: list[str] = []

  def write(self, part: 'Embedded', files: Sequence[str | None]) -> None:
    """Appends some examples, and the paths of their files."""
    if self._embedding is None:
      import numpy as np

      self.width = part.features.shape[1]
      header = {
        'descr': np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        'fortran_order': False,
        'shape': (len(self._source), self.width),
      }
      self._embedding = self._open('embedding')
      np.lib.format.write_array_header_1_0(self._embedding, header)
    self._embedding.write(part.features.tobytes())
    self._labels.append(part.labels)
    self._index.append(part.index)
    self._files += [file or '' for file in files]

  def _open(self, name: str) -> Any:
    return self._archive.open(f'{name}.npy', 'w', force_zip64=True)

  def finish(self) -> None:
    """Writes the other arrays; without classes there are no labels."""
    import numpy as np

    self._end()
    classes = self._source.classes
    arrays = {
      'index': np.concatenate(self._index),
      'file': np.array(self._files, np.str_),
      'checkpoint': np.array(self._checkpoint, np.str_),
    }
    if classes:
      arrays['label'] = np.concatenate(self._labels)
      arrays['classes'] = np.array(classes, np.str_)
    for name, array in arrays.items():
      with self._open(name) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)

  def close(self) -> None:
    """Ends the file."""
    try:
      self._end()
    finally:
      self._archive.close()

  def _end(self) -> None:
    """Ends the embeddings, before which no other array can be written."""
    if self._embedding is not None:
      self._embedding.close()


class _Parquet:
  """Writes a Parquet file in groups of rows; as `_Npz`."""

  def __init__(
    self, path: pathlib.Path, source: 'data.Source', checkpoint: str
  ):
    self.width = 0
    self._path, self._classes = path, source.classes
    self._metadata = {'checkpoint': checkpoint}
    if self._classes:
      self._metadata['classes'] = json.dumps(list(self._classes))
    self._file: Any = None
    self._parts: list[Embedded] = []
    self._files: list[str | None] = []

  def write(self, part: 'Embedded', files: Sequence[str | None]) -> None:
    """Appends some examples, and the paths of their files."""
    self.width = part.features.shape[1]
    self._parts.append(part)
    self._files += files
    if len(self._files) >= _ROWS:
      self._flush()

  def finish(self) -> None:
    """Writes the rows that are left."""
    self._flush()

  def _flush(self) -> None:
    """Writes the rows that wait as one group."""
    import pyarrow as pa  # an optional dependency
    from pyarrow import parquet

    from vit_jax.evaluation import embedded

    if not self._parts:
      return
    part = embedded.join(self._parts)
    cells: dict[str, Any] = {'embedding': _column(part.features)}
    if self._classes:
      names = [self._classes[i] for i in part.labels.tolist()]
      cells |= {'label': part.labels, 'label_name': names}
    cells['index'] = part.index
    paths = [columns.as_text(file) for file in self._files]
    cells['file'] = pa.array(paths, pa.string())
    table = pa.table(cells).replace_schema_metadata(self._metadata)
    if self._file is None:
      self._file = parquet.ParquetWriter(self._path, table.schema)
    self._file.write_table(table)
    self._parts, self._files = [], []

  def close(self) -> None:
    """Ends the file."""
    if self._file is not None:
      self._file.close()


_WRITERS: dict[str, type[_Npz] | type[_Parquet]] = {
  '.npz': _Npz,
  '.parquet': _Parquet,
}


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
