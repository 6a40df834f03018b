r"""Measures ViTs on this accelerator within minutes: JSON and Markdown.

  python -m vit_jax.benchmark.gpu_report --out=gpu_report --budget=500

`scripts/gpu_report.sh` prepares a bare machine for it. Training steps and
forward passes are in bfloat16, on batches that are on the device. On ViT-B/16,
the kinds of attention are tried first; then, with the fastest, scan and remat,
each alone; all other rows have what the fastest of these rows has. The fastest
batch of ViT-B/16 is that of its comparison with timm, and of its loop. Dropout
with two kinds of random bits, and the compiler's options, are tried last, and
chosen for no other row.

Before a model is timed in some way, two layers of it, with the same choices,
are compared with the plain formulation: the logits with those in float32 and in
bfloat16, the losses of two steps with those in bfloat16. What failed, or was
not reached in the time, is a row that says so.
"""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli

if TYPE_CHECKING:
  from vit_jax.benchmark import gpu_rows

_FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_compile_cache(_FLAGS)
_OUT = flags.DEFINE_string(
  'out', 'gpu_report', 'Directory of the report.', flag_values=_FLAGS
)
_BUDGET = flags.DEFINE_integer(
  'budget', 500, 'Seconds that it may take.', flag_values=_FLAGS
)

# What choices are tried on, and in which batch; then other batches.
_BASE, _BATCH = 'ViT-B/16', 256
_BATCHES = (512, 1024, 128)
# Model and batches to try, in the order of their weight.
_OTHERS = (
  ('ViT-L/16', (128, 256)),
  ('ViT-S/16', (512, 1024)),
  ('ViT-H/14', (64, 128)),
)
_ATTENTIONS = ('plain', 'xla', 'cudnn')
# Of the compiler, one by one.
_XLA_OPTIONS = (
  {'xla_gpu_enable_triton_gemm': False},
  {'xla_gpu_enable_cublaslt': True},
  {'xla_gpu_enable_latency_hiding_scheduler': True},
)


def main(argv: list[str]) -> None:
  """Measures, and writes report.json and report.md."""
  from vit_jax import config as config_lib

  if argv[1:]:
    raise config_lib.UserError(f'unexpected argument {argv[1]!r}')
  # Else JAX would take the GPU's memory for itself, and PyTorch have none.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  import jax  # after the flags

  from vit_jax.benchmark import gpu_rows

  if jax.default_backend() == 'cpu':
    raise config_lib.UserError(
      "JAX finds no GPU: install it for one, as in pip install -e '.[cuda]'; on"
      ' a CPU, python -m vit_jax.benchmark measures'
    )
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  with gpu_rows.Report(out, _BUDGET.value) as report:
    measure(report)
  print(out / 'report.md', file=sys.stderr)


def measure(report: 'gpu_rows.Report') -> None:
  """Measures all rows, what others depend on first."""
  _base(report)
  batch_size = report.best(_BASE).get('batch_size', _BATCH)
  report.infer(_BASE, batch_size)
  report.against('timm', _BASE, batch_size)  # which PyTorch compiles
  _loops(report, batch_size)
  _sizes(report)
  _trials(report)


def _base(report: 'gpu_rows.Report') -> None:
  """ViT-B/16: which choices pay, and how large a batch."""
  for attention in _ATTENTIONS:
    report.train(_BASE, _BATCH, attention=attention)
  report.choose(_BASE)
  report.train(_BASE, _BATCH, scan=True)
  report.train(_BASE, _BATCH, remat='full')
  report.choose(_BASE)
  for batch_size in _BATCHES:
    report.train(_BASE, batch_size)


def _sizes(report: 'gpu_rows.Report') -> None:
  for model, batches in _OTHERS:
    for batch_size in batches:
      report.train(model, batch_size)
    report.infer(model, report.best(model).get('batch_size', batches[0]))


def _trials(report: 'gpu_rows.Report') -> None:
  """ViT-B/16: what dropout costs, and what may pay but no other row has."""
  dropout = {'model.dropout_rate': 0.1}
  report.train(_BASE, _BATCH, changes=dropout)
  report.train(_BASE, _BATCH, changes=dropout | {'train.rng': 'rbg'})
  for options in _XLA_OPTIONS:
    report.train(_BASE, _BATCH, options=options)


def _loops(report: 'gpu_rows.Report', batch_size: int) -> None:
  """The loop from files; and of small images that stay on the device."""
  report.loop(_BASE, batch_size)
  on_device = {'data.cache': 'device', 'train.steps_per_call': 50}
  report.loop('tutorial', 128, on_device | {'train.log_every': '50 steps'})


if __name__ == '__main__':
  cli.run(main, __doc__, _FLAGS)
