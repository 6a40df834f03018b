r"""What ViTs reach on this accelerator, within some minutes: JSON and Markdown.

  python -m vit_jax.benchmark.gpu_report --out=gpu_report --budget=500

`scripts/gpu_report.sh` prepares a bare machine for it. Training steps and
forward passes are in bfloat16, on batches that are on the device; which choices
pay (attention, scan, remat, random bits, the compiler's options, the batch) is
tried on ViT-B/16, and what pays is what the other sizes get. Before anything of
a model is timed, two layers of it are compared with the plain formulation in
float32. What the time did not suffice for is a row that says so.
"""

import pathlib
import sys
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli

if TYPE_CHECKING:
  from vit_jax.benchmark import gpu_rows

_OUT = flags.DEFINE_string('out', 'gpu_report', 'Directory of the report.')
_BUDGET = flags.DEFINE_integer('budget', 500, 'Seconds that it may take.')

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
  from vit_jax.benchmark import gpu_rows  # after the flags: it imports jax

  if argv[1:]:
    raise config_lib.UserError(f'unexpected argument {argv[1]!r}')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  with gpu_rows.Report(out, _BUDGET.value) as report:
    _base(report)
    _libraries(report)
    _sizes(report)
    _loops(report)
  print(out / 'report.md', file=sys.stderr)


def _base(report: 'gpu_rows.Report') -> None:
  """ViT-B/16: which choices pay, and how large a batch."""
  model = 'ViT-B/16'
  for attention in _ATTENTIONS:
    report.train(model, 256, attention=attention)
  attention = report.best(model).get('attention', 'plain')
  report.choices |= {'attention': attention}
  report.train(model, 256, scan=True)
  report.train(model, 256, remat='full')
  report.train(model, 256, changes={'model.dropout_rate': 0.1})
  report.train(
    model, 256, changes={'model.dropout_rate': 0.1, 'train.rng': 'rbg'}
  )
  for options in _XLA_OPTIONS:
    report.train(model, 256, options=options)
  for batch_size in (128, 512, 1024):
    report.train(model, batch_size)
  report.infer(model, report.best(model).get('batch_size', 256))


def _libraries(report: 'gpu_rows.Report') -> None:
  """ViT-B/16, in turns with timm's, which PyTorch compiles."""
  batch_size = report.best('ViT-B/16').get('batch_size', 256)
  report.against('timm', 'ViT-B/16', batch_size)


def _sizes(report: 'gpu_rows.Report') -> None:
  for model, batches in _OTHERS:
    for batch_size in batches:
      report.train(model, batch_size)
    report.infer(model, report.best(model).get('batch_size', batches[0]))


def _loops(report: 'gpu_rows.Report') -> None:
  """The loop from files; and of small images that stay on the device."""
  report.loop('ViT-B/16', report.best('ViT-B/16').get('batch_size', 256))
  on_device = {'data.cache': 'device', 'train.steps_per_call': 50}
  report.loop('tutorial', 128, on_device | {'train.log_every': '50 steps'})


if __name__ == '__main__':
  cli.run(main, __doc__)
