"""Reads or chooses the images of a report."""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import os
import pathlib

import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import tiles


def read(
  vit: weights.Loaded,
  paths: Sequence[str],
  most: int,
  report: Callable[[UserError], object],
) -> subject_lib.Images:
  """Reads image files for a model; evenly spread ones if there are too many.

  paths: Those given twice are read once. report: Called with the error of each
  image that cannot be read.
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
  return subject_lib.Images(
    names=_names(chosen),
    truths=('',) * len(chosen),
    inputs=np.concatenate(inputs),
    sources=chosen,
    available=len(paths),
  )


def _names(paths: Sequence[str]) -> tuple[str, ...]:
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


def from_examples(
  examples: examples_lib.Examples, most: int
) -> subject_lib.Images:
  """Returns at most `most` of the examples, evenly spread."""
  rows = np.asarray(tiles.spread(len(examples), most))
  truths, naming = ('',) * len(rows), ''
  if examples.labels is not None:
    truths = tuple(examples.classes[i] for i in examples.labels[rows])
  if examples.numbered:
    naming = 'Numbers of examples count the whole split from 0.'
  return subject_lib.Images(
    names=tuple(printable(examples.names[i]) for i in rows),
    truths=truths,
    inputs=examples.inputs(rows),
    sources=list(examples.image[rows]),
    available=len(examples),
    naming=naming,
    rows=tuple(rows.tolist()),
  )
