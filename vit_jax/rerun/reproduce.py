"""Runs the config of a work directory again, and reports what has changed.

The original is only read. The new run is like any other: the same command with
its --workdir resumes it. Once it is done, its metrics are compared with the
original's at the steps that both have.
"""

from collections.abc import Mapping
import math
import os
import pathlib
import sys
from typing import Any

from absl import logging
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.parallel import processes
from vit_jax.runs import logs
from vit_jax.runs import records
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop


def run(original: str, workdir: str, dry_run: bool = False) -> int:
  """Trains with the config of another run, and compares the metrics.

  The other run may be unfinished. The exit status is 0 even if metrics differ.
  In a dry run nothing is compared.
  """
  old, new = pathlib.Path(original).resolve(), pathlib.Path(workdir).resolve()
  if old == new:
    raise UserError(
      f'--workdir={workdir} is the run that --reproduce names: name a directory'
      ' for the new run'
    )
  with processes.lost_peers_explained():
    stored = processes.call_on_first(lambda: _stored_config(old))
    try:
      config = config_lib.from_dict(stored)
    except UserError as e:
      raise UserError(
        f'{old / "config.json"} is of another version of vit_jax: {e}; run the'
        ' code of that version: run.json names its commit'
      ) from None
    # In all processes, since it looks for devices.
    info = workdir_lib.run_info(sys.orig_argv)
    processes.call_on_first(lambda: _tell_changes(old, stored, info, config))
  status = loop.run(config, str(new), dry_run).status

  def tell_outcome() -> None:
    with logs.log_to(new / workdir_lib.LOG):
      for line in outcome(records.read(old), records.read(new)):
        logging.info('%s', line)

  if status == 0 and not dry_run:
    processes.call_on_first(tell_outcome)
  return status


def _stored_config(path: pathlib.Path) -> dict[str, Any]:
  advice = 'name another run'
  stored = safe_io.read_json(path / 'config.json', advice)
  if not isinstance(stored, dict):
    reason = f'it has no config.json, so no run began there; {advice}'
    if not path.is_dir():
      hint = config_lib.nearby(str(path), os.path.isdir, f'; {advice}')
      reason = f'there is no such directory{hint}'
    raise UserError(f'--reproduce={path}: {reason}')
  return stored


def _tell_changes(
  path: pathlib.Path,
  stored: Mapping[str, Any],
  info: Mapping[str, Any],
  config: ml_collections.ConfigDict,
) -> None:
  """Logs the original's setting and what has changed since; opens the data."""
  record = records.read(path)
  if record.starts:
    first = record.starts[0]
    logging.info(
      'reproducing %s, begun %s on %s by: %s',
      *(path, first.get('started'), first.get('host'), first.get('command')),
    )
  changes = _changed_setting(record, info)
  recorded = dict(config_lib.flatten(stored))
  values = config_lib.flatten(config)
  new = [f'{key}={x!r}' for key, x in values if key not in recorded]
  if new:
    text = f'{len(new)} key(s) of the config are new'
    changes.insert(0, f'{text}: {config_lib.join_first(new)}')
  for change in changes:
    logging.info('since then: %s', change)
  _check_paths(config, record)
  experiment_lib.check(config)
  source = data.open_split(config)
  if change := _change(record, 'data', source.fingerprint()):
    changes.append(change)
    logging.info('since then: %s', change)
  if not changes:
    unchanged = 'versions, code, devices, data'
    logging.info('since then: nothing has changed: %s', unchanged)


def _changed_setting(
  record: records.Record, info: Mapping[str, Any]
) -> list[str]:
  """Lists what differs from any start of the original, except for the data."""
  if not record.starts:
    return ['it has no run.json: on what it ran is not known']
  now = records.setting(info)
  names = dict.fromkeys(
    name for start in (*record.starts, info) for name in records.setting(start)
  )
  names.pop('data', None)
  changes = [_change(record, name, now.get(name)) for name in names]
  if not {'git', 'vit_jax'} & names.keys():
    changes.append('the code may be another: it is in no git checkout')
  return [change for change in changes if change]


def _change(record: records.Record, name: str, now: str | None) -> str:
  """Describes how a part of the setting has changed; '' if it has not."""
  starts = [records.setting(start).get(name) for start in record.starts]
  then = list(dict.fromkeys(starts))
  if then != [now]:
    was = ', then '.join(text or 'none' for text in then)
    return f'{name} is {now or "none"}, was {was or "not recorded"}'
  if name == 'git' and now and now.endswith(records.CHANGED):
    return f'the code may be another: {now}, then as now'
  return ''


def _check_paths(
  config: ml_collections.ConfigDict, record: records.Record
) -> None:
  start = config.init_from.path
  teacher = config.objective.options.get('teacher', '')
  kind, _, path = config.data.name.partition(':')
  paths = {
    'data.name': path if kind in ('folder', 'table') else '',
    'data.dir': config.data.dir or '',
    'data.skip_damaged': config.data.skip_damaged,
    # Paths with ':' are on the network.
    'init_from.path': '' if ':' in start else start,
    'objective.options.teacher': '' if ':' in teacher else teacher,
  }
  for key, path in paths.items():
    path = os.path.expanduser(path)
    if not path or os.path.isabs(path) or os.path.exists(path):
      continue
    directory = record.starts[-1].get('directory') if record.starts else None
    raise UserError(
      f'config.{key} of the run leads to {path}, which is not here: give this'
      ' command in the directory where the run was started,'
      f' {directory or "too"}'
    )


def outcome(old: records.Record, new: records.Record) -> list[str]:
  """Compares the metrics of a run with another run's that it reproduces.

  The lines have the newest metrics of each evaluation that both have, and how
  far all metrics agree, except for metrics of speed.
  """
  pairs = {}  # (old, new) values by metric and step
  for name in old.curves.keys() & new.curves.keys():
    if reporting.is_timed(name):
      continue
    before = {point.step: point.value for point in old.curves[name]}
    for point in new.curves[name]:
      if point.step in before:
        pairs[name, point.step] = (before[point.step], point.value)
  if not pairs:
    return [f'{old.path} has no metrics to compare with']
  lines = []
  if old.state != 'finished':
    step = max(step for _, step in pairs)
    lines.append(f'{old.path} has not finished: compared up to step {step}')
  last = {name: step for name, step in sorted(pairs)}
  for name, step in last.items():
    if records.is_evaluation(name):
      was, now = map(config_lib.number, pairs[name, step])
      lines.append(f'{name} {now}, was {was} (step {step})')
  differences = {}  # relative to the larger number
  for key, (a, b) in pairs.items():
    if math.isnan(a) != math.isnan(b):
      differences[key] = math.inf
    elif a != b and not math.isnan(a):
      differences[key] = abs(a - b) / max(abs(a), abs(b))
  if not differences:
    return [*lines, f'equal to the bit: all {len(pairs)} values of the metrics']
  (name, step), largest = max(differences.items(), key=lambda item: item[1])
  lines.append(
    f'{len(differences)} of {len(pairs)} values of the metrics are others, from'
    f' step {min(step for _, step in differences)} on; the largest difference'
    f' is {largest:.2g} of the value, in {name} at step {step}'
  )
  return lines
