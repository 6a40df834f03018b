r"""Measures ViTs on this accelerator within minutes: JSON and Markdown.

  python -m benchmarks.gpu_report --out=gpu_report --budget=500
  python -m benchmarks.gpu_report --out=gpu_report --parts=candidates

`scripts/gpu_report.sh` prepares a bare machine for it. All is in bfloat16, on
batches that are on the device:

  train        training steps of ViT-B/16, L/16, S/16 and H/14 and forward
               passes of B/16, each in turns with timm's model, which PyTorch
               compiles; before that, two layers of both are compared
  profile      the time of each kernel in a step of ViT-B/16
  candidates   each way of `gpu_candidates` in turns with the defaults; losses
               must be the same
  loop         the whole loop: the tutorial's ViT with its data on the device,
               and ViT-B/16 from files
  recipe       the 200 epochs of configs/cifar10.py, with --cifar10=FOLDER, as
               far as the time allows

Both files are written after each row. The same command goes on with a report
that is there: it measures what is missing, and again what had a problem. A row
says if it failed, or was not reached in time. --small does all with a small
model, on a CPU, too: a test, whose numbers mean nothing.
"""

import importlib.util
import os
import pathlib
import sys
from typing import Any
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli

if TYPE_CHECKING:
  from benchmarks import gpu_rows

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_compile_cache(FLAGS)
_OUT = cli.define_path(
  'out', 'gpu_report', 'Directory of the report.', flag_values=FLAGS
)
_BUDGET = flags.DEFINE_integer(
  'budget', 500, 'Seconds for all measurements.', flag_values=FLAGS
)

PARTS = ('train', 'profile', 'candidates', 'loop', 'recipe')
_PARTS = flags.DEFINE_list(
  'parts', list(PARTS), 'Parts to measure, in this order.', flag_values=FLAGS
)
_CANDIDATES = flags.DEFINE_list(
  'candidates', [], 'Names of candidates; default: all.', flag_values=FLAGS
)
_CIFAR10 = cli.define_path(
  'cifar10',
  '',
  'Folder of CIFAR-10 with train/<class>/ and test/<class>/.',
  flag_values=FLAGS,
)
_SMALL = flags.DEFINE_bool(
  'small', False, 'Whether all models are small, to try this out.', FLAGS
)

# Models with their batches, the most important first; the first one is that of
# profile, candidates and loop.
_BASE, _BATCH = 'ViT-B/16', 256
_MODELS = (
  (_BASE, _BATCH),
  (_BASE, 512),
  ('ViT-L/16', 128),
  ('ViT-S/16', 1024),
  ('ViT-H/14', 64),
)
_ON_DEVICE = {'data.cache': 'device', 'train.steps_per_call': 50}
_RECIPE = 'cifar10:200'
# Seconds that a part leaves to these later ones.
_RESERVED = {'profile': 30.0, 'loop': 60.0, 'recipe': 120.0}


def main(argv: list[str]) -> None:
  """Measures, and writes report.json and report.md."""
  from vit_jax import config as config_lib

  cli.refuse_arguments(argv)
  # Otherwise JAX would reserve the memory of the GPU, and PyTorch have none.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  import jax  # after the flags

  from benchmarks import gpu_rows

  if jax.default_backend() == 'cpu' and not _SMALL.value:
    raise config_lib.UserError(
      "JAX finds no GPU: install it for one, as in pip install -e '.[cuda]'; on"
      ' a CPU, python -m benchmarks measures, and --small tries this out'
    )
  parts = {
    'train': _train,
    'profile': lambda report: report.profile(_BASE, _BATCH),
    'candidates': _candidates,
    'loop': _loop,
    'recipe': _recipe,
  }
  for part in _PARTS.value:
    if part not in PARTS:
      raise config_lib.UserError(
        f'--parts={part}: choose from {", ".join(PARTS)}'
      )
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  with gpu_rows.Report(out, _BUDGET.value, _SMALL.value) as report:
    for i, part in enumerate(_PARTS.value):
      later = _PARTS.value[i + 1 :]
      report.reserved = sum(_RESERVED.get(x, 0.0) for x in later)
      parts[part](report)
  print(out / 'report.md', file=sys.stderr)


def _train(report: 'gpu_rows.Report') -> None:
  """Measures models in turns with timm's, or alone where there is no timm."""
  has_timm = importlib.util.find_spec('timm') is not None
  for model, batch_size in _MODELS:
    if not has_timm:
      report.train(model, batch_size)
      continue
    is_last = (model, batch_size) == (_BASE, 512)
    report.against_timm(
      model, batch_size, ('train', 'infer') if is_last else ('train',)
    )


def _candidates(report: 'gpu_rows.Report') -> None:
  """Measures all candidates, or those that are named."""
  from benchmarks import gpu_candidates
  from vit_jax import config as config_lib

  table = gpu_candidates.CANDIDATES
  for name in _CANDIDATES.value:
    if name not in table:
      raise config_lib.UserError(
        f'--candidates={name}: choose from {", ".join(table)}'
      )
  names = _CANDIDATES.value or list(table)
  report.candidates(_BASE, _BATCH, {name: table[name] for name in names})


def _loop(report: 'gpu_rows.Report') -> None:
  """Measures the loop with small images on the device, and from files."""
  steps = 2 if report.is_small else 50
  changes = _ON_DEVICE | {'train.steps_per_call': steps}
  changes |= {'train.log_every': f'{steps} steps'}
  report.loop('tutorial', 128, changes)
  report.loop(_BASE, _BATCH)


def _recipe(report: 'gpu_rows.Report') -> None:
  """Trains the recipe for CIFAR-10, if there is a folder of it."""
  if not _CIFAR10.value:
    return
  changes: dict[str, Any] = {'data.name': f'folder:{_CIFAR10.value}'}
  changes |= _ON_DEVICE | {'train.dtype': 'bfloat16'}
  if report.is_small:
    changes |= {'train.duration': '2 steps', 'train.steps_per_call': 1}
    changes |= {'train.dtype': 'float32', 'train.batch_size': 8}
    changes |= {'model.depth': 1, 'model.hidden_size': 64}
    changes |= {'data.split': 'train', 'evals.val.split': ''}
    changes |= {'evals.test.split': '', 'checkpoint.best': ''}
    changes |= {'optim.warmup': '0 steps'}
  report.recipe(_RECIPE, changes)


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
