"""Repeats one step of a run, and finds where its values became non-finite.

Step k is the k-th update, as in the message 'step k was not finite'. Batches,
augmentation and dropout depend only on the seed and the step, so repeating the
steps from the nearest earlier checkpoint gives the same step. This does not
change the run; it only writes WORKDIR/replay/STEP.json and STEP.png.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import json
import math
import pathlib
import re
from typing import Any

from absl import logging
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.plots import paper
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.rerun import diagnose
from vit_jax.runs import metrics_file
from vit_jax.runs import restoring
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import model_inputs
from vit_jax.train import resuming
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib

UserError = config_lib.UserError
Scalars = dict[str, float]

_COLUMNS = 8  # of the picture of a batch
_STAGES = {
  'forward': 'the forward pass',
  'loss': 'the loss, though what it is computed from is finite',
  'gradient': 'the gradient of',
  'grad_norm': 'the norm of the gradient (its sum of squares), above all of',
  'optimizer': "the optimizer's state after the step",
  'parameters_after': 'the parameters after the step',
  'param_norm': 'their norm (its sum of squares) after the step, above all of',
}


def run(config: ml_collections.ConfigDict, workdir: str, step: int) -> int:
  """Repeats a step; prints the findings as JSON, and logs them as text.

  `step` is the number of the update, from 1, of a run that is finished, stopped
  or running. The exit status is 0 whatever was found.
  """
  path = pathlib.Path(workdir).absolute()
  with processes.lost_peers_explained():
    e = _open(path, config, step)
    read = e.program.state_to_read
    restored = restoring.restore_at_most(path, step - 1, read)
    state, start = restored or (e.init(), 0)
    state = e.program.adopt(state)
    logging.info(
      'from %s: %d step(s) lead to step %d',
      f'the checkpoint of step {start}' if restored else 'the start of the run',
      step - 1 - start,
      step,
    )
    with e.train_batches(start) as batches:
      for k in range(start + 1, step):
        state, metrics = _repeat(e, state, batches, next(batches), k)
        if not metrics['ok'] and not e.config.train.skip_nonfinite:
          raise UserError(
            f'step {k}, on the way to step {step}, is not finite: look at that'
            f' one, --replay={k}; or skip such steps, if the run did:'
            ' --config.train.skip_nonfinite'
          )
        if not metrics['ok']:
          logging.info('step %d is not finite; it is skipped', k)
      batch = next(batches)
      findings = diagnose.examine(e, state, batch, step - 1)
      _, metrics = _repeat(e, state, batches, batch, step)
    report = {
      'step': step,
      'restored': start,
      **_report(e, findings, metrics),
      **_compare(metrics, _recorded(path / 'metrics.jsonl', step)),
    }
    processes.call_on_first(
      lambda: _write(path / 'replay' / str(step), e, findings, report)
    )
  return 0


def _open(
  path: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> experiment_lib.Experiment:
  experiment_lib.check(config)
  resumed = workdir_lib.check_config(path, config, resuming.aligned)
  if resumed is None:
    raise UserError(
      f'there is no run in {path}: give the --workdir of the run whose step is'
      ' to be repeated'
    )
  e = experiment_lib.build(resumed, resumes=path)
  if not 1 <= step <= e.total_steps:
    raise UserError(
      f'--replay={step}: the run has the steps 1 to {e.total_steps}'
    )
  if workdir_lib.has_other_data(path, e.source.fingerprint()):
    logging.warning(
      'warning: the data is not what it was during the run, so the batches may'
      ' be others'
    )
  return e


def _repeat(
  e: experiment_lib.Experiment,
  state: state_lib.TrainState,
  batches: feed.Feed,
  batch: feed.Batch,
  step: int,
) -> tuple[state_lib.TrainState, dict[str, float]]:
  """Makes one update as the loop does; returns the state and the metrics."""
  signals = mesh_lib.on_each_device(
    train_step_lib.BROKEN if batches.error else 0, e.program.mesh
  )
  program = e.program.variant(step - 1)
  state, metrics = program.train_step(state, batch, np.int32(step - 1), signals)
  scalars = {name: float(x) for name, x in metrics.items()}
  if scalars.pop('signal') >= train_step_lib.BROKEN:
    raise batches.error or UserError(
      f'another process could not make its part of the batch of step {step}: it'
      ' says why'
    )
  return state, scalars


def _report(
  e: experiment_lib.Experiment, f: diagnose.Findings, metrics: Scalars
) -> dict[str, Any]:
  good = {
    name: not any(values.bad for values in arrays.values())
    for name, arrays in f.arrays.items()
  }
  parameters = f.arrays['parameters'].items()
  return {
    'ok': bool(metrics['ok']),
    'skipped': e.config.train.skip_nonfinite and not metrics['ok'],
    'first': next(_causes(f, metrics), None),
    'finite': {
      'images': not f.bad[0].any(),  # the first event is the model's input
      'forward': not f.bad.any(),
      'loss': math.isfinite(metrics['loss']),
      **good,
    },
    'bad_parameters': [name for name, values in parameters if values.bad],
    'examples': f.index.tolist(),
  }


def _causes(f: diagnose.Findings, metrics: Scalars) -> Iterator[dict[str, Any]]:
  """Yields the non-finite values, in the order of computation."""
  for i, (event, bad) in enumerate(zip(f.events, f.bad, strict=True)):
    if bad.any():
      if event.phase == 'output':
        name, place = event.path or 'model', 'output'
      elif event.path:
        # Earlier modules have finite outputs: the outer module computed this.
        name = event.path.rpartition('/')[0] or 'model'
        place = f'input of {event.path}'
      else:
        name, place = 'images', 'input'
      yield {
        'stage': 'forward',
        'name': name,
        'at': place,
        'not_finite': int(bad.sum() if event.by_example else bad[0]),
        'largest_finite': float(f.largest[i]),
        'largest_before': float(f.largest[max(i - 1, 0)]),
        'examples': f.index[bad > 0].tolist(),
      }
  if not math.isfinite(metrics['loss']):
    yield {'stage': 'loss'}
  for stage, norm in (
    ('gradient', 'grad_norm'),
    ('optimizer', ''),
    ('parameters_after', 'param_norm'),
  ):
    arrays = f.arrays[stage]
    names = _last_layers_first(f, arrays) if stage == 'gradient' else arrays
    for name in names:
      if arrays[name].bad:
        yield {
          'stage': stage,
          'name': name,
          'not_finite': arrays[name].bad,
          'largest_finite': arrays[name].largest,
        }
    if norm and not math.isfinite(metrics[norm]):
      # The sum of squares of finite values may overflow float32.
      name = max(arrays, key=lambda name: arrays[name].largest)
      largest = arrays[name].largest
      yield {'stage': norm, 'name': name, 'largest_finite': largest}


def _last_layers_first(f: diagnose.Findings, names: Iterable[str]) -> list[str]:
  """Returns parameters in the order in which their gradients are computed."""
  events = list(enumerate(f.events))
  outputs = {x.path: i for i, x in events if x.phase == 'output'}
  blocks = next((i for i, x in events if x.path.startswith('blocks_')), 0)
  names = list(names)
  stacks = (re.match(r'(|.*?/)blocks_', name) for name in names)
  trunk = next((match[1] for match in stacks if match), '')

  def position(name: str) -> int:
    if not name.startswith(trunk):  # an objective's own, after the trunk
      return len(f.events)
    module = name.removeprefix(trunk).rpartition('/')[0]
    # Parameters of no module are added to the tokens, before the blocks.
    return outputs.get(module, len(f.events)) if module else blocks

  return sorted(names, key=position, reverse=True)


def _recorded(path: pathlib.Path, step: int) -> Scalars:
  metrics: dict[str, float | None] = {}
  with contextlib.suppress(FileNotFoundError):
    for line in metrics_file.read_lines(path):
      values = metrics_file.parse_metrics(line)
      if values is not None and values['step'] == step:
        metrics |= values
  return {
    name.removeprefix('train/'): math.nan if x is None else x
    for name, x in metrics.items()
    if name.startswith('train/')
  }


def _compare(metrics: Scalars, recorded: Scalars) -> dict[str, Any]:
  """Returns metrics of the repetition and of the run; None: not finite."""
  metrics = {name: x for name, x in metrics.items() if name != 'ok'}
  shared = [name for name in metrics if name in recorded]
  now, then = (
    {k: x[k] if math.isfinite(x[k]) else None for k in names}
    for x, names in ((metrics, metrics), (recorded, shared))
  )
  return {
    'metrics': now,
    'recorded': then or None,
    'same': all(now[k] == then[k] for k in shared) if shared else None,
  }


def _write(
  path: pathlib.Path,
  e: experiment_lib.Experiment,
  f: diagnose.Findings,
  report: dict[str, Any],
) -> None:
  report['contact_sheet'] = _draw(path.with_suffix('.png'), e, f, report)
  report['report'] = str(path.with_suffix('.json'))
  modules = {
    event.path or 'model': [int(bad.sum()), float(largest)]
    for event, bad, largest in zip(f.events, f.bad, f.largest, strict=True)
    if event.phase == 'output'
  }
  arrays = {
    stage: {name: [x.bad, x.largest] for name, x in arrays.items()}
    for stage, arrays in f.arrays.items()
  }
  details = {'modules': modules, 'arrays': arrays}
  safe_io.write_json(path.with_suffix('.json'), report | details)
  for line in _lines(report):
    logging.info('%s', line)
  print(json.dumps(report))


def _draw(
  path: pathlib.Path,
  e: experiment_lib.Experiment,
  f: diagnose.Findings,
  report: dict[str, Any],
) -> str:
  guilty = set((report['first'] or {}).get('examples', ()))
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(e.config)
  )
  number, total = len(f.drawn), len(f.index)
  count_text = f'{number} of {total}' if number < total else str(total)
  captions = model_inputs.captions(f.targets, e.source.features, total)
  groups = []
  for image, row in zip(f.images * std + mean, f.drawn, strict=True):
    caption = f'example {f.index[row]}: {captions[row]}'
    frame = style.WRONG if f.index[row] in guilty else ''
    groups.append([sheet.Tile(sheet.readable(image), caption, frame)])
  step = report['step']
  title = f'Step {step}: {count_text} examples, as the model sees them'
  paper.save(path, sheet.draw(sheet.grouped(groups, _COLUMNS), title=title))
  return str(path)


def _lines(report: dict[str, Any]) -> Iterator[str]:
  metrics = ', '.join(
    f'{name} {"not finite" if x is None else config_lib.number(x)}'
    for name, x in report['metrics'].items()
  )
  yield f'step {report["step"]} again: {metrics}'
  if report['same'] is not None:
    then = report['recorded']
    pairs = [(report['metrics'][name], x) for name, x in then.items()]
    likeness = f'other: {then}'
    if report['same']:
      likeness = 'the same'
    elif not any(x is None for pair in pairs for x in pair):
      worst = max(abs(a - b) / max(abs(b), 1e-9) for a, b in pairs)
      if worst <= 1e-3:
        rounds = 'another mesh or machine rounds otherwise'
        likeness = f'the same to {worst:.0e}: {rounds}'
    yield f'what the run reported of it is {likeness}'
  if names := report['bad_parameters']:
    yield f'not finite before the step: {config_lib.join_first(names)}'
  if report['first'] is not None:
    yield f'first not finite: {_show(report["first"], report)}'
    good = [stage for stage, all_ in report['finite'].items() if all_]
    yield f'all finite: {", ".join(good) or "nothing"}'
  elif report['ok']:
    yield 'all is finite here'
  else:
    yield 'not finite, but looked at layer by layer all is finite'
  if report['skipped']:
    yield 'the step is skipped'
  yield f'its batch: {report["contact_sheet"]}'
  yield f'each layer and parameter: {report["report"]}'


def _show(cause: dict[str, Any], report: dict[str, Any]) -> str:
  text = _STAGES[cause['stage']]
  if 'name' in cause:
    comma = '' if text.endswith(' of') else ','
    text += f'{comma} {cause["name"]}'
  if 'at' in cause:
    text += f', {cause["at"]}'
  if 'not_finite' in cause:
    text += f': {cause["not_finite"]} values'
  if 'examples' in cause:
    ids, total = [str(i) for i in cause['examples']], len(report['examples'])
    text += f', in {len(ids)} of {total} examples'
    if len(ids) < total:
      text += f': {config_lib.join_first(ids, 10)}'
  for key, words in (
    ('largest_finite', 'the largest finite one is'),
    ('largest_before', 'the largest before it was'),
  ):
    if key in cause:
      text += f'; {words} {cause[key]:.3g}'
  return text
