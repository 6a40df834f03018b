"""Fails if training or inference has lost its lead over the baseline.

  python -m benchmarks.guard

The tutorial's ViT and a plain formulation of it take turns in small batches on
the CPU. Only the ratios count, which hardly depend on the machine: none may be
20% below its expected value. A ratio that is too low is measured once more,
since another load on the machine may last as long as one measurement.
"""

import json

from absl import logging

from vit_jax import cli

# Ours over the baseline, as measured by this command on 2 CPU cores
# (JAX 0.10.2); raise a value when something becomes faster.
EXPECTED = {'infer': 1.35, 'train': 1.28}
_LOSS = 0.2

_BATCH_SIZE, _BLOCKS = 32, 7


def main(argv: list[str]) -> int:
  """Prints the ratios; returns the exit status, 1 if one is too low."""
  from benchmarks import measures  # after the flags: it imports jax
  from benchmarks import setting as setting_lib

  cli.refuse_arguments(argv)
  setting = setting_lib.Setting(batch_size=_BATCH_SIZE)
  with setting.changes() as changes:
    config = setting_lib.config(changes)
    bench = measures.Bench(config, _BLOCKS, matmul_flops=1.0)
    bench.check()
    ratios = {part: _best_ratio(bench, part) for part in EXPECTED}
  print(json.dumps(ratios))
  lost = [part for part in EXPECTED if ratios[part] < least(part)]
  for part in lost:
    logging.error(
      'error: %s is %.2f times as fast as the baseline: it was %.2f, and at'
      ' least %.2f is asked for',
      *(part, ratios[part], EXPECTED[part], least(part)),
    )
  return 1 if lost else 0


def least(part: str) -> float:
  """Returns the lowest ratio that is accepted."""
  return (1 - _LOSS) * EXPECTED[part]


def _best_ratio(bench: object, part: str) -> float:
  """Returns the ratio of a part; the better of two if the first is too low."""
  ratio = getattr(bench, part)()['ratio']
  if ratio < least(part):
    logging.warning('warning: %s: %.2f; once more', part, ratio)
    ratio = max(ratio, getattr(bench, part)()['ratio'])
  return ratio


if __name__ == '__main__':
  cli.run(main, __doc__)
