r"""Downloads a TFDS dataset and stores it as ArrayRecord files.

  pip install -e '.[prepare]'
  python scripts/prepare_tfds.py cifar10 --data_dir=DIR

This is done once and needs TensorFlow, which training does not. A dataset that
is already stored as TFRecord files is not downloaded again; ArrayRecord files
are added to it. Some datasets (imagenet2012) cannot be downloaded: put the
files that the error asks for into --manual_dir.
"""

import os
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import tensorflow_datasets as tfds

_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Directory, as config.data.dir. Default: TFDS's own."
)
_MANUAL_DIR = flags.DEFINE_string(
  'manual_dir', None, 'Directory of files that cannot be downloaded.'
)
_FORMAT = 'array_record'


def main(argv: list[str]) -> None:
  """Prepares the dataset that is named on the command line."""
  if len(argv) != 2:
    raise UserError('name one dataset: python scripts/prepare_tfds.py cifar10')
  try:
    import tensorflow  # noqa: F401  TFDS would fail with a worse message
  except ImportError:
    raise UserError(
      "TensorFlow is missing: run pip install -e '.[prepare]'"
    ) from None
  import tensorflow_datasets as tfds

  try:
    builder = tfds.builder(argv[1], data_dir=_DATA_DIR.value)
  except (tfds.core.DatasetNotFoundError, ValueError) as e:
    raise UserError(str(e).strip().splitlines()[0]) from None
  if not os.path.exists(builder.data_path):
    _download(builder)
  elif _FORMAT not in {f.value for f in builder.info.available_file_formats()}:
    _convert(builder)
  sizes = {name: s.num_examples for name, s in builder.info.splits.items()}
  print(f'{builder.info.full_name} is in {builder.data_path}: {sizes}')


def _download(builder: 'tfds.core.DatasetBuilder') -> None:
  """Downloads a dataset and writes it as ArrayRecord files."""
  import tensorflow_datasets as tfds

  try:
    builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(
        manual_dir=_MANUAL_DIR.value
      ),
      file_format=_FORMAT,
    )
  except AssertionError as e:  # files that must be downloaded by hand
    raise UserError(f'{e} (--manual_dir says where they are)') from None


def _convert(builder: 'tfds.core.DatasetBuilder') -> None:
  """Adds ArrayRecord files to a dataset that has TFRecord files."""
  from array_record.python import array_record_module
  import tensorflow as tf

  for split in builder.info.splits.values():
    template = split.filename_template.replace(filetype_suffix=_FORMAT)
    targets = template.sharded_filepaths(split.num_shards)
    for source, target in zip(split.filepaths, targets, strict=True):
      partial = f'{target}.incomplete'
      writer = array_record_module.ArrayRecordWriter(partial, 'group_size:1')
      for record in tf.data.TFRecordDataset(str(source)).as_numpy_iterator():
        writer.write(record)
      writer.close()
      os.replace(partial, target)
      print(target)
  # Last, since it declares the files to be complete.
  builder.info.add_alternative_file_format(_FORMAT)
  builder.info.write_to_directory(builder.data_path)


if __name__ == '__main__':
  cli.run(main, __doc__)
