"""TFDS datasets by name, read without TensorFlow.

They must have been prepared as ArrayRecord files (`scripts/prepare_tfds.py`),
which allow random access.
"""

import difflib
import functools
import os
import re
import shlex
from typing import Any
from typing import TYPE_CHECKING

from absl import logging
import ml_collections
import numpy as np

from vit_jax.config import check_data
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features as features_lib
from vit_jax.data import stored as stored_lib
from vit_jax.data import text_kind

_FORMAT = 'array_record'
# 'name' or 'name/config', optionally with ':version'.
_NAME = re.compile(r'[\w-]+(/[\w.+=,-]+)?(:[\d*]+(\.[\d*]+){0,2})?')

# Aliases of datasets -> their names in TFDS.
_CALLED = {
  'birds': 'caltech_birds2011',
  'caltech': 'caltech101',
  'cars': 'cars196',
  'cifar': 'cifar10',
  'cub': 'caltech_birds2011',
  'flowers': 'oxford_flowers102',
  'flowers102': 'oxford_flowers102',
  'ilsvrc2012': 'imagenet2012',
  'imagenet': 'imagenet2012',
  'imagenet1k': 'imagenet2012',
  'in1k': 'imagenet2012',
  'oxfordpets': 'oxford_iiit_pet',
  'pets': 'oxford_iiit_pet',
  'svhn': 'svhn_cropped',
}

if TYPE_CHECKING:
  import tensorflow_datasets as tfds


class TfdsSource(stored_lib.Table):
  """Examples of a split of a TFDS dataset, not decoded by TFDS.

  The classes are in the order of the dataset, which its labels follow.
  """

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Opens the files of the dataset that `config.data.name` names.

    A dataset that is not prepared raises a UserError, as does one with neither
    classes nor captions.
    """
    import tensorflow_datasets as tfds  # slow

    name = config.data.name
    builder = _prepared_builder(name, config.data.dir)
    features = builder.info.features
    self._image_key = _only_feature(name, features, tfds.features.Image)
    self._text_key = _captions_key(features)
    self._label_key = ''
    image = features[self._image_key]
    if image.np_dtype not in (np.uint8, np.uint16):
      raise UserError(
        f'{name} has images of type {image.np_dtype}: only uint8 and uint16'
        ' can be read'
      )
    self._bits = 8 * np.dtype(image.np_dtype).itemsize
    stored = image.shape[:2]
    size = stored_lib.source_size(config) if None in stored else stored
    self.features = {'image': features_lib.Image(size)}
    if self._text_key:
      self.features['text'] = text_kind.Text()
    kinds = [type(x) for x in features.values()]
    if tfds.features.ClassLabel in kinds or not self._text_key:
      self._label_key = _only_feature(name, features, tfds.features.ClassLabel)
      label = features[self._label_key]
      classes = tuple(label.names or map(str, range(label.num_classes)))
      self.features['label'] = features_lib.Label(classes)
    infos = builder.info.splits.items()
    rows = {s: range(info.num_examples) for s, info in infos}
    super().__init__(split, rows, name)
    self._name = builder.info.full_name
    self._records = {
      s: builder.as_data_source(split=s, file_format=_FORMAT).data_source
      for s in self.selection.names
    }

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that `config.data.name` can be the name of a dataset."""
    name = config.data.name
    if _NAME.fullmatch(name):
      return
    hint = f'folder:{name}' if os.path.isdir(name) else 'folder:PATH'
    prefix = re.match(r'[\w-]+:', name)
    unknown = f'; {prefix[0]!r} is not known' if prefix else ''
    raise UserError(
      f"config.data.name is {name!r}: write 'digits', 'scenes', 'volumes',"
      f" 'moving_digits', 'tones', {hint!r}, 'video:PATH', 'audio:PATH',"
      " 'table:FILE', 'tar:SHARDS', 'hf:NAME', 'my_module:MySource' or the name"
      f' of a TFDS dataset{unknown}'
    )

  def example(self, split: str, row: int, index: int) -> base.Example:
    """Returns the example of a record, not decoded."""
    from tensorflow_datasets.proto import tf_example_pb2

    # Parsed here: TFDS converts all values to arrays, which takes longer than
    # reading the record.
    record = tf_example_pb2.Example.FromString(self._records[split][row])
    features = record.features.feature
    record_name = f'{self._name}, example {row} of {split}'
    (image,) = features[self._image_key].bytes_list.value
    values: dict[str, Any] = {'image': image}
    if self._label_key:
      (label,) = features[self._label_key].int64_list.value
      if not 0 <= label < len(self.classes):
        raise UserError(f'{record_name}, has no label: choose another split')
      values['label'] = label
    if self._text_key:
      stored = features[self._text_key].bytes_list.value
      values['text'] = [x.decode() for x in stored if x.strip()]
      if not values['text']:
        raise UserError(f'{record_name}, has no caption: choose another split')
    return base.Example(values, index, record_name)

  def bits(self) -> int:
    """Returns the bits of a stored value, as the dataset says."""
    return self._bits

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples; the labels are int32 [N].

    The first call reads all records, images included.
    """
    return self._labels if name == 'label' else super().column(name)

  @functools.cached_property
  def _labels(self) -> np.ndarray:
    logging.info('reading the labels of %d examples', len(self))
    return super().column('label')

  def fingerprint(self) -> str:
    """Returns a digest of the name with its version, split and classes."""
    ranges = map(str, self.selection.ranges)
    sizes = [f'{name} {len(r)}' for name, r in self._records.items()]
    return base.digest([self._name, *self.classes, *ranges, *sizes])


def _prepared_builder(
  name: str, data_dir: str | None
) -> 'tfds.core.DatasetBuilder':
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import naming
  from tensorflow_datasets.core.utils import file_utils

  check_data(data_dir or '', 'config.data.dir=')
  # Checked first, since TFDS prints three lines about an unknown name.
  dataset = naming.camelcase_to_snakecase(re.split('[/:]', name)[0])
  folders = map(os.path.expanduser, file_utils.list_data_dirs(data_dir))
  has_code = dataset in tfds.list_builders(with_community_datasets=False)
  if not has_code and not any(
    os.path.isdir(os.path.join(folder, dataset)) for folder in folders
  ):
    raise _unknown_name(name)
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except tfds.core.DatasetNotFoundError:
    raise _unknown_name(name) from None
  except (ValueError, AssertionError) as e:  # no such config or version
    reason = re.sub(r'^Failed to construct .*?": ', '', str(e).splitlines()[0])
    raise UserError(f'config.data.name: {name!r}: {reason}') from None
  dir_flag = f' --data_dir={shlex.quote(data_dir)}' if data_dir else ''
  command = (
    "pip install -e '.[prepare]' && python scripts/prepare_tfds.py"
    f' {shlex.quote(name)}{dir_flag}'
  )
  if not os.path.exists(builder.data_path) or not builder.info.splits:
    raise UserError(
      f'{name} is not prepared in {builder.data_path}: run {command}, or read'
      ' it from a folder with train/CLASS/ and test/CLASS/, as folder:PATH'
    )
  formats = {f.value for f in builder.info.available_file_formats()}
  if _FORMAT not in formats:
    raise UserError(
      f'{name} in {builder.data_path} is stored as {", ".join(formats)}, which'
      f' has no random access: run {command}'
    )
  return builder


def _unknown_name(name: str) -> UserError:
  import tensorflow_datasets as tfds

  dataset_names = tfds.list_builders(with_community_datasets=False)
  plain = re.sub('[-_]', '', re.split('[/:]', name)[0].lower())
  if os.path.isdir(name):
    suggestions = [f'folder:{name}']
  elif plain in _CALLED:
    suggestions = [_CALLED[plain]]
  else:
    by_plain = {x.replace('_', ''): x for x in dataset_names}
    close = difflib.get_close_matches(plain, by_plain, n=3, cutoff=0.85)
    suggestions = [
      by_plain[x] for x in ([plain] if plain in by_plain else close)
    ]
  hint = 'they are listed at https://www.tensorflow.org/datasets/catalog'
  if suggestions:
    hint = f'did you mean {" or ".join(suggestions)}?'
  return UserError(
    f'config.data.name: there is no TFDS dataset {name!r}: {hint}'
  )


def _captions_key(features: Any) -> str:
  """Returns the key of the captions in a record, '' if there are none.

  They are a text or a sequence of texts, or a sequence of dicts with one, as in
  coco_captions.
  """
  import tensorflow_datasets as tfds

  for name in ('captions', 'caption'):
    feature = features[name] if name in features else None
    inner = getattr(feature, 'feature', feature)
    if isinstance(inner, tfds.features.Text):
      return name
    if isinstance(inner, tfds.features.FeaturesDict) and 'text' in inner:
      return f'{name}/text'
  return ''


def _only_feature(name: str, features: Any, kind: type) -> str:
  """Returns the key of the only feature of a kind, or of the usual name."""
  keys = [key for key, feature in features.items() if isinstance(feature, kind)]
  usual_key = {'Image': 'image', 'ClassLabel': 'label'}[kind.__name__]
  if usual_key in keys:
    return usual_key
  if len(keys) != 1:
    raise UserError(
      f'{name} is not a dataset for image classification: it has'
      f' {len(keys) or "no"} features of type {kind.__name__}, among'
      f' {", ".join(features)}'
    )
  return keys[0]
