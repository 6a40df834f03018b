"""Leaves out the examples that a check of the data listed as damaged."""

from collections.abc import Collection
import os
import pathlib
import shlex

import ml_collections
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features as features_lib
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data import wrapped
from vit_jax.runs import safe_io


class SkippingSource(wrapped.WrappedSource):
  """A split without some of its examples; the others keep their index."""

  def __init__(
    self, source: base.Source, kept_positions: np.ndarray, skipped: list[str]
  ):
    """Wraps a split.

    Args:
      source: The split.
      kept_positions: int [N], positions of the examples to keep.
      skipped: Ids of the other examples, sorted.
    """
    super().__init__(source)
    self._kept_positions, self._skipped = kept_positions, skipped

  def __len__(self) -> int:
    return len(self._kept_positions)

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return int(self._kept_positions[position])

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    try:
      return self.source.column(name)[self._kept_positions]
    except UserError:  # perhaps of an example that is left out
      return base.Source.column(self, name)

  def fingerprint(self) -> str:
    """Returns a digest of the split's fingerprint and the skipped ids."""
    return base.digest([self.source.fingerprint(), *self._skipped])


def skip_damaged(
  source: base.Source, config: ml_collections.ConfigDict, split: str
) -> base.Source:
  """Returns a split without what `config.data.skip_damaged` lists.

  Args:
    source: The split.
    config: The full config.
    split: Specification of the split.

  Raises:
    UserError: The list cannot be read, or nothing is left.
  """
  data = config.data
  listed = read(data.skip_damaged, data.name)
  return without(source, listed, f'{data.name}, {split}')


def advice(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> str:
  """Returns the end of an error of training about an image that is damaged.

  Args:
    config: The full config.
    features: Features of its examples.
  """
  if isinstance(features['image'], input_kinds.Volume):
    return ''
  name = config.data.name
  arguments = f'CONFIG.py --config.data.name={shlex.quote(name)}'
  if name.startswith(folder.PREFIX) and not features_lib.maps(features):
    arguments = shlex.quote(base.data_path(name))
  return (
    '; to train without such files, run python -m vit_jax.data check'
    f' {arguments} --out=damaged.json, and add'
    ' --config.data.skip_damaged=damaged.json'
  )


def read(path: str, data: str) -> frozenset[str]:
  """Returns the ids that a check listed as damaged.

  Args:
    path: The JSON file that `python -m vit_jax.data check` wrote.
    data: `config.data.name`; a warning is logged if other data were checked.

  Raises:
    UserError: There is no such file, or it holds something else.
  """
  file = pathlib.Path(os.path.expanduser(path))
  advice = f'write it by python -m vit_jax.data check FOLDER --out={path}'
  try:
    content = safe_io.read_json(file, advice)
    if content is None:
      raise UserError(f'there is no file {path}; {advice}')
    ids = frozenset(str(entry['id']) for entry in content['damaged'])
    if ids and _whole_name(content['data']) != _whole_name(data):
      folder.warn_once(
        f'warning: {path} lists damaged files of {content["data"]}, but'
        f' config.data.name is {data}: their names may differ; check that'
      )
    return ids
  except (AttributeError, KeyError, TypeError):
    problem = f'{path} is not what a check writes; {advice}'
  except UserError as e:
    problem = str(e)
  raise UserError(f'config.data.skip_damaged: {problem}')


def _whole_name(name: str) -> str:
  """Returns the name of a dataset, with its path made absolute."""
  kind, _, path = name.partition(':')
  path = os.path.expanduser(path)
  return f'{kind}:{os.path.realpath(path)}' if os.path.exists(path) else name


def without(
  source: base.Source, ids: Collection[str], name: str
) -> base.Source:
  """Returns a split without the examples of some ids.

  Args:
    source: The split; one in memory has no damaged examples.
    ids: Ids of the examples to leave out; those of other splits are ignored.
    name: Name of the split, for messages.

  Raises:
    UserError: Nothing is left.
  """
  if isinstance(source, base.ArraySource) or not ids:
    return source
  example_ids = [source.id(i) for i in range(len(source))]
  kept_positions = np.array(
    [i for i, x in enumerate(example_ids) if x not in ids], np.int64
  )
  skipped = sorted(set(example_ids).intersection(ids))
  if not skipped:
    return source
  if not len(kept_positions):
    raise UserError(
      f'{name}: config.data.skip_damaged leaves out all {len(example_ids)}'
      ' examples'
    )
  folder.inform_once(
    f'{name}: {len(example_ids) - len(kept_positions)} of {len(example_ids)}'
    ' examples are left out, which config.data.skip_damaged lists:'
    f' {skipped[0]}, for example'
  )
  return SkippingSource(source, kept_positions, skipped)
