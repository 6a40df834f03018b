"""The images of a report, and labelled examples with their predictions."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax import weights
from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.data import features as data_features
from vit_jax.data.device import views
from vit_jax.evaluation import predictions as evaluation_predictions
from vit_jax.plots import tiles
from vit_jax.weights import features as features_lib

_TOP = 5  # most probable classes of each example
_THUMBNAIL = 96  # pixels of the longer side


@dataclasses.dataclass(frozen=True)
class Images:
  """Images of a report."""

  names: tuple[str, ...]
  truths: tuple[str, ...]  # names of the labels; '' where unknown
  inputs: np.ndarray  # input of the model, float32 [B, H, W, C]
  # The images before preprocessing, for another model: paths, or arrays uint8
  # [h, w, C].
  sources: Sequence[Any]
  available: int  # number of images that these were chosen from
  naming: str = ''  # a sentence that explains the names; '' for names of files
  # Positions of the images among the labelled examples; () for other images.
  rows: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Examples:
  """The first N examples of a split."""

  source_name: str  # names of the dataset and the split
  total: int  # number of examples in the split
  classes: tuple[str, ...]  # names of the classes in the data
  # uint8 [N, h, w, C], in the stored size if all images have one size, else in
  # the input size of the model.
  image: np.ndarray
  # Paths of the files below the folder that has them all; numbers where there
  # are no files.
  names: tuple[str, ...]
  # Positions in `classes`, int32 [N]; None: they have no label.
  labels: np.ndarray | None
  # The class of each pixel, [N, h, w], of the size of `image`; None: they have
  # none.
  maps: np.ndarray | None
  features: data_features.Features  # features of the examples, by name
  index: np.ndarray  # positions in the unsliced split, int32 [N]
  # Config that the examples are read and prepared with.
  config: ml_collections.ConfigDict
  # (h, w) if the images are resized on the device, else None.
  image_shape: tuple[int, int] | None

  def __len__(self) -> int:
    return len(self.index)

  @property
  def label(self) -> np.ndarray:
    """Positions in `classes`, int32 [N]."""
    if self.labels is None:
      raise UserError('needs a label for each image, and these have maps')
    return self.labels

  @property
  def numbered(self) -> bool:
    """Whether the names are numbers, because there are no files."""
    return self.names == _numbers(self.index)

  @property
  def described(self) -> str:
    """Words for the examples, as 'the 359 examples of digits, test'."""
    count = len(self)
    if count == self.total:
      return f'the {counted(count, "example")} of {self.source_name}'
    return f'the first {count} of {self.total} examples of {self.source_name}'

  def inputs(self, rows: Any) -> np.ndarray:
    """Returns the model's input for examples `rows`, float32 [b, H, W, C]."""
    return np.asarray(self._prepare(self.image[rows]))

  @functools.cached_property
  def _prepare(self) -> Callable[..., jax.Array]:
    return jax.jit(views.eval_transform(self.config, self.image_shape))

  def predictions(
    self, vit: weights.Loaded, same_order: bool
  ) -> tuple[evaluation_predictions.Predictions, tuple[str, ...]]:
    """Returns a model's predictions for all examples, and its class names.

    `same_order` says whether the classes of the model and of the data have the
    same order, whatever their names.
    """
    size = self.config.train.batch_size
    head = evaluation_predictions.Head.from_loaded(vit, _TOP)
    label_of = evaluation_predictions.match_classes(
      () if same_order else vit.classes, len(head.names), self.classes
    )
    label = label_of[self.label]

    def batches() -> Any:
      for start in range(0, len(self), size):
        rows = np.arange(start, start + size)
        real = rows < len(self)
        rows = np.minimum(rows, len(self) - 1)  # one shape for all batches
        yield real, {'image': self.image[rows], 'label': label[rows]}

    parts = [
      {key: x[real] for key, x in result.items()}
      for real, result in evaluation_predictions.predict(
        vit, head, self.config, batches(), self.image_shape
      )
    ]
    columns = {key: np.concatenate([x[key] for x in parts]) for key in parts[0]}
    predicted = evaluation_predictions.Predictions(
      index=self.index, label=label, **columns
    )
    return predicted, head.names

  def thumbnails(self, preprocess: data.Preprocess) -> np.ndarray:
    """Returns small images, uint8 [N, h, w, 3]."""
    scale = _THUMBNAIL / max(preprocess.image_size)
    h, w = (max(1, round(n * scale)) for n in preprocess.image_size)
    images: list[np.ndarray] = []
    for rows in self._parts():
      pixels = tiles.pixels(preprocess, self.inputs(rows))
      images += tiles.fit_all(pixels, (h, w))
    return np.stack(images)

  def embeddings(self, vit: weights.Loaded) -> np.ndarray:
    """Returns the input of the head, float32 [N, D']."""
    parts = [
      features_lib.embeddings(vit, self.inputs(rows)) for rows in self._parts()
    ]
    return np.concatenate(parts)

  def _parts(self) -> list[slice]:
    """Returns slices of the examples, to limit the memory in use."""
    size = 4 * self.config.train.batch_size
    return [slice(i, i + size) for i in range(0, len(self), size)]


def load(
  source: data.Source, config: ml_collections.ConfigDict, most: int
) -> Examples:
  """Returns at most `most` examples of a split, from the first on.

  `config` is the config that the split was opened with. `train.batch_size`
  examples are read at a time.
  """
  size = config.train.batch_size
  parts: list[data.Batch] = []
  with contextlib.closing(
    data.eval_batches(source, config, batch_size=size)
  ) as batches:
    for batch in batches:
      parts.append({key: x[batch['valid']] for key, x in batch.items()})
      if len(parts) * size >= most:
        break
  columns = {
    key: np.concatenate([part[key] for part in parts])[:most]
    for key in ('image', 'label', 'map', 'index')
    if key in parts[0]
  }
  index = columns['index']
  names = _numbers(index)
  paths = [x for i in range(len(index)) if (x := source.file(i))]
  if len(paths) == len(index):
    folder = os.path.commonpath([os.path.dirname(x) for x in paths])
    names = tuple(os.path.relpath(x, folder) for x in paths)
  return Examples(
    source_name=f'{config.data.name}, {config.data.split}',
    total=len(source),
    classes=source.classes,
    config=config,
    image_shape=source.image_shape,
    names=names,
    image=columns['image'],
    labels=columns.get('label'),
    maps=columns.get('map'),
    features=source.features,
    index=index,
  )


def _numbers(index: np.ndarray) -> tuple[str, ...]:
  return tuple(f'example {number}' for number in index.tolist())


def read_images(
  vit: weights.Loaded,
  paths: Sequence[str],
  most: int,
  report: Callable[[UserError], object],
) -> Images:
  """Reads image files for a model; evenly spread ones if there are too many.

  Args:
    vit: The model that the images are prepared for.
    paths: Paths of all images; a path that is given twice is read once.
    most: Largest number of images to read.
    report: Called with the error of each image that cannot be read.
  """
  paths = list(dict.fromkeys(paths))
  chosen, inputs = [], []
  for i in tiles.spread(len(paths), most):
    try:
      inputs.append(vit.preprocess(paths[i]))
    except UserError as e:
      report(e)
      continue
    chosen.append(paths[i])
  if not chosen:
    raise UserError('none of the images can be read')
  return Images(
    names=_file_names(chosen),
    truths=('',) * len(chosen),
    inputs=np.concatenate(inputs),
    sources=chosen,
    available=len(paths),
  )


def _file_names(paths: Sequence[str]) -> tuple[str, ...]:
  """Returns names of files, with parent folders where names are not unique."""
  parts = [pathlib.PurePath(path).parts for path in paths]
  names: dict[int, str] = {}
  for length in range(1, max(map(len, parts)) + 1):
    ends = [part[-length:] for part in parts]
    counts = collections.Counter(ends)
    for i, end in enumerate(ends):
      if i not in names and (counts[end] == 1 or len(parts[i]) == length):
        names[i] = printable(os.path.join(*end))
  return tuple(names[i] for i in range(len(paths)))


def printable(name: str) -> str:
  """Returns a file name as one line of text, whatever bytes it has."""
  text = name.encode('utf-8', 'surrogateescape').decode('utf-8', 'replace')
  return ''.join(
    c if c.isprintable() else '\N{REPLACEMENT CHARACTER}' for c in text
  )


def choose(examples: Examples, most: int) -> Images:
  """Returns at most `most` of the examples, evenly spread."""
  rows = np.asarray(tiles.spread(len(examples), most))
  truths, naming = ('',) * len(rows), ''
  if examples.labels is not None:
    truths = tuple(examples.classes[i] for i in examples.labels[rows])
  if examples.numbered:
    naming = 'Numbers of examples count the whole split from 0.'
  return Images(
    names=tuple(printable(examples.names[i]) for i in rows),
    truths=truths,
    inputs=examples.inputs(rows),
    sources=list(examples.image[rows]),
    available=len(examples),
    naming=naming,
    rows=tuple(rows.tolist()),
  )
