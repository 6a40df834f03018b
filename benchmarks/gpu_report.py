r"""Measures ViTs on this accelerator within minutes: JSON and Markdown.

  python -m benchmarks.gpu_report --out=gpu_report --budget=500

`scripts/gpu_report.sh` prepares a bare machine for it. Training steps and
forward passes are in bfloat16, on batches that are on the device. For ViT-B/16,
the report first tries the kinds of attention, then scan and remat, each alone,
with the fastest attention. All other rows use the choices of the fastest of
these rows. The comparison with timm has the batch size of these trials, since
both models share the memory; the loop has the fastest one. The last rows try
dropout with two kinds of random bits, and compiler options; no other row uses
these.

Before a model is timed, two of its layers with the same choices are compared
with the plain formulation: logits in float32 and in bfloat16, and the losses of
two steps in bfloat16. A row says if it failed, or was not reached in time.
"""

import os
import pathlib
import sys
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

# Model and batch that choices are tried on; then other batches.
_BASE, _BATCH = 'ViT-B/16', 256
_BATCHES = (512, 128)
# Other models with their batches, the most important first.
_OTHERS = (
  ('ViT-L/16', (128,)),
  ('ViT-S/16', (1024, 512)),
  ('ViT-H/14', (64,)),
)
_ATTENTIONS = ('cudnn', 'plain')
# Compiler options, tried one by one.
_XLA_OPTIONS = (
  {'xla_gpu_enable_triton_gemm': False},
  {'xla_gpu_enable_cublaslt': True},
  {'xla_gpu_enable_latency_hiding_scheduler': True},
)


def main(argv: list[str]) -> None:
  """Measures, and writes report.json and report.md."""
  from vit_jax import config as config_lib

  cli.refuse_arguments(argv)
  # Otherwise JAX would reserve the memory of the GPU, and PyTorch have none.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  import jax  # after the flags

  from benchmarks import gpu_rows

  if jax.default_backend() == 'cpu':
    raise config_lib.UserError(
      "JAX finds no GPU: install it for one, as in pip install -e '.[cuda]'; on"
      ' a CPU, python -m benchmarks measures'
    )
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  with gpu_rows.Report(out, _BUDGET.value) as report:
    measure(report)
  print(out / 'report.md', file=sys.stderr)


def measure(report: 'gpu_rows.Report') -> None:
  """Measures all rows; those that others depend on come first."""
  _base(report)
  batch_size = report.best(_BASE).get('batch_size', _BATCH)
  report.infer(_BASE, batch_size)
  report.against_timm(_BASE, _BATCH)  # compiled by PyTorch
  _sizes(report)
  _loops(report, batch_size)
  _trials(report)


def _base(report: 'gpu_rows.Report') -> None:
  """Finds the best choices and batch size for ViT-B/16."""
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
  """Measures dropout and compiler options for ViT-B/16."""
  dropout = {'model.dropout_rate': 0.1}
  report.train(_BASE, _BATCH, changes=dropout)
  report.train(_BASE, _BATCH, changes=dropout | {'train.rng': 'rbg'})
  for options in _XLA_OPTIONS:
    report.train(_BASE, _BATCH, options=options)


def _loops(report: 'gpu_rows.Report', batch_size: int) -> None:
  """Measures the loop with small images on the device, and from files."""
  on_device = {'data.cache': 'device', 'train.steps_per_call': 50}
  report.loop('tutorial', 128, on_device | {'train.log_every': '50 steps'})
  report.loop(_BASE, batch_size)


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
