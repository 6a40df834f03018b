"""Leaves out the examples that a check of the data listed as damaged."""

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
from vit_jax.data import stored as stored_lib
from vit_jax.data import wrapped
from vit_jax.runs import safe_io


def skip_damaged(
  source: base.Source, config: ml_collections.ConfigDict, split: str
) -> base.Source:
  """Returns a split without what `config.data.skip_damaged` lists.

  The other examples keep their index. A split in memory has no damaged ones.
  """
  data_name = config.data.name
  listed = _read(config.data.skip_damaged, data_name)
  if isinstance(source, base.ArraySource) or not listed:
    return source
  example_ids = [source.id(i) for i in range(len(source))]
  skipped = sorted(listed.intersection(example_ids))
  if not skipped:
    return source
  kept_rows = np.flatnonzero([x not in listed for x in example_ids])
  if not len(kept_rows):
    raise UserError(
      f'{data_name}, {split}: config.data.skip_damaged leaves out all'
      f' {len(example_ids)} examples'
    )
  folder.inform_once(
    f'{data_name}, {split}: {len(example_ids) - len(kept_rows)} of'
    f' {len(example_ids)} examples are left out, which config.data.skip_damaged'
    f' lists: {skipped[0]}, for example'
  )
  return wrapped.SelectedSource(source, skipped, kept_rows)


def advice(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> str:
  """Returns the end of an error of training about an image that is damaged."""
  if isinstance(features['image'], input_kinds.Volume):
    return ''
  name = config.data.name
  arguments = f'CONFIG.py --config.data.name={shlex.quote(name)}'
  if name.startswith(folder.PREFIX) and not features_lib.maps(features):
    arguments = shlex.quote(stored_lib.data_path(name))
  return (
    '; to train without such files, run python -m vit_jax.data check'
    f' {arguments} --out=damaged.json, and add'
    ' --config.data.skip_damaged=damaged.json'
  )


def _read(path: str, data: str) -> frozenset[str]:
  """Returns the ids that a check listed as damaged, of these data."""
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
