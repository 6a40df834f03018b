"""The time of each kernel in a training step, from JAX's profiler."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
import pathlib
import re
import tempfile
from typing import Any

import jax

Entry = dict[str, Any]

_STEPS = 3
_LONGEST = 40  # kernels to report
# Kinds of kernels by words in their names; the first that fits.
_KINDS = (
  ('attention', 'fmha|flash|sdpa|cudnn_generated'),
  ('products', 'gemm|cutlass|nvjet|xmma|cublas|dot'),
  ('transposes', 'transpose|copy'),
  ('reductions', 'reduce|input_'),
  ('elementwise', 'loop_|fusion|wrapped_'),
)
# Lines of a device that repeat what its streams have.
_NOT_STREAMS = re.compile('XLA|Step|Framework|Source|Launch')


def measure(train: Callable[[int], Any]) -> Entry:
  """Profiles some steps; returns milliseconds of a step by kernel.

  Args:
    train: Takes a number of steps, and waits for them. It is compiled.
  """
  train(1)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      train(_STEPS)
    (path,) = pathlib.Path(folder).rglob('*.xplane.pb')
    events = _events(jax.profiler.ProfileData.from_file(str(path)))
  count = collections.Counter(name for name, _ in events)
  total = collections.defaultdict[str, float](float)
  kinds = collections.defaultdict[str, float](float)
  for name, nanoseconds in events:
    milliseconds = nanoseconds / 1e6 / _STEPS
    total[name] += milliseconds
    kinds[_kind(name)] += milliseconds
  return {
    'milliseconds': sum(total.values()),
    'kernels_per_step': count.total() / _STEPS,
    'kinds': dict(_descending(kinds)),
    'kernels': [
      {
        'name': name,
        'milliseconds': milliseconds,
        'times': count[name] / _STEPS,
      }
      for name, milliseconds in _descending(total)[:_LONGEST]
    ],
  }


def _descending(times: Mapping[str, float]) -> list[tuple[str, float]]:
  """Returns names and times, the longest first."""
  return sorted(times.items(), key=lambda item: -item[1])


def _events(profile: Any) -> list[tuple[str, float]]:
  """Returns names and nanoseconds of all kernels; on CPUs of operations."""
  planes = [x for x in profile.planes if x.name.startswith('/device:')]
  on_device = [
    line
    for plane in planes
    for line in plane.lines
    if not _NOT_STREAMS.search(line.name)
  ]
  lines = on_device or [
    line
    for plane in profile.planes
    if plane.name == '/host:CPU'
    for line in plane.lines
    if line.name.startswith('tf_XLA')
  ]
  return [
    (_shortened(event.name), event.duration_ns)
    for line in lines
    for event in line.events
  ]


def _shortened(name: str) -> str:
  """Returns a kernel's name without the number of its instance."""
  return re.sub(r'[._]\d+$', '', name)[:120]


def _kind(name: str) -> str:
  return next(
    (kind for kind, words in _KINDS if re.search(words, name)), 'other'
  )
