"""Fails if a step that TPUs' compiler makes needs more than it once did.

  python -m benchmarks.compiled
  python -m benchmarks.compiled --only=l16_fsdp_v5p
  python -m benchmarks.compiled --all --write

Compiles training steps for TPUs that are not here (extra [compile-tpu]):
ViT-B/16 unrolled and scanned on one chip, ViT-L/16 and ViT-H/14 with FSDP on
eight, each for v5e, v5p and v6e. Temporaries, traffic of memory and the bytes
of each kind of collective must be within 10% of what is recorded in
compiled_figures.json, beside this module. Without --all it takes one scanned
program for each chip. After a change that is meant, --write records the
figures.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import pathlib
import time
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli

if TYPE_CHECKING:
  from vit_jax.ahead import step as step_lib

Figures = dict[str, float]

PATH = pathlib.Path(__file__).with_name('compiled_figures.json')
TOLERANCE = 0.1
_PACKAGES = ('jax', 'libtpu')
_PROCESSES = 2  # a compiler takes a core, and 2 to 6 GB

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_ALL = flags.DEFINE_bool('all', False, 'Whether to compile all.', FLAGS)
_ONLY = flags.DEFINE_list('only', [], 'Names of programs to compile.', FLAGS)
_WRITE = flags.DEFINE_bool('write', False, 'Whether to record it.', FLAGS)


@dataclasses.dataclass(frozen=True)
class Program:
  """A training step for some chips.

  Attributes:
    hardware: The chips, as `--hardware` names them.
    config: Path of a config.
    images: Images of each chip.
    changes: Changes of the config, by key.
    usual: Whether it is compiled without --all.
  """

  hardware: str
  config: str
  images: int
  changes: Mapping[str, Any]
  usual: bool = False


_FULL: Mapping[str, Any] = {'model.scan': True, 'model.remat': 'full'}
_FSDP: Mapping[str, Any] = {'model.scan': True, 'mesh.data': 1, 'mesh.fsdp': 8}
_HUGE: Mapping[str, Any] = {'model.name': 'ViT-H/14', 'model.head': 'linear'}
_B16, _L16 = 'vit_i1k:B/16,none', 'vit_i1k:L/16,none'

PROGRAMS = {
  'b16_v5e': Program('v5e:1x1', _B16, 128, {}),
  'b16_v5p': Program('v5p:1x1x1', _B16, 128, {}),
  'b16_v6e': Program('v6e:1x1', _B16, 128, {}),
  'b16_scan_v5e': Program('v5e:1x1', _B16, 128, _FULL, usual=True),
  'b16_scan_v5p': Program('v5p:1x1x1', _B16, 128, _FULL),
  'b16_scan_v6e': Program('v6e:1x1', _B16, 128, _FULL),
  'l16_fsdp_v5e': Program('v5e:2x4', _L16, 64, _FSDP),
  'l16_fsdp_v5p': Program('v5p:2x2x2', _L16, 64, _FSDP, usual=True),
  'l16_fsdp_v6e': Program('v6e:2x4', _L16, 64, _FSDP),
  'h14_fsdp_v5e': Program('v5e:2x4', _L16, 32, {**_FSDP, **_HUGE}),
  'h14_fsdp_v5p': Program('v5p:2x2x2', _L16, 32, {**_FSDP, **_HUGE}),
  'h14_fsdp_v6e': Program('v6e:2x4', _L16, 32, {**_FSDP, **_HUGE}, usual=True),
}


def main(argv: list[str]) -> int:
  """Prints a line for each program; returns 1 if a figure is off, else 0."""
  from vit_jax.config import UserError
  from vit_jax.parallel import topologies

  cli.refuse_arguments(argv)
  for name in _ONLY.value:
    if name not in PROGRAMS:
      raise UserError(f'--only={name}: choose from {", ".join(PROGRAMS)}')
  chosen = _ONLY.value or [
    name for name, one in PROGRAMS.items() if one.usual or _ALL.value
  ]
  extra = topologies.missing_extra(topologies.parse('v5e:1x1'))
  if extra is not None:
    raise UserError(f"libtpu is missing: pip install -e '.[{extra}]'")
  recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
  here = {name: importlib.metadata.version(name) for name in _PACKAGES}
  before = recorded.get('versions', here)
  if here != before and _WRITE.value and set(chosen) != set(PROGRAMS):
    raise UserError(
      f'--write: the figures are those of {_show(before)}, and here is'
      f' {_show(here)}: record all of them, with --all'
    )
  if here != before:
    print(f'recorded with {_show(before)}; compiled with {_show(here)}')
  expected = recorded.get('figures', {})
  found, is_off = compare(chosen, expected)
  if _WRITE.value:
    figures = expected | found
    ordered = {name: figures[name] for name in PROGRAMS if name in figures}
    text = json.dumps({'versions': here, 'figures': ordered}, indent=2)
    PATH.write_text(f'{text}\n')
    return 0
  if is_off:
    logging.error(
      'error: figures are more than %.0f%% off; if that is meant, record them'
      ' with --all --write',
      100 * TOLERANCE,
    )
  return int(is_off)


def compare(
  names: Sequence[str], expected: Mapping[str, Figures]
) -> tuple[dict[str, Figures], bool]:
  """Compiles programs, and prints a line for each.

  Args:
    names: Names of the programs.
    expected: Their figures as recorded.

  Returns:
    The figures by program, and whether one of them is off.
  """
  found, is_off = {}, False
  with concurrent.futures.ThreadPoolExecutor(_PROCESSES) as pool:
    waiting = {name: pool.submit(_timed, PROGRAMS[name]) for name in names}
    for name, one in waiting.items():
      found[name], seconds = one.result()
      wrong = differences(expected.get(name), found[name])
      is_off |= bool(wrong)
      mark = 'off' if wrong else 'ok'
      text = '; '.join(wrong) or _show(found[name])
      print(f'{mark:4}{name}: {text} ({seconds:.0f} s)', flush=True)
  return found, is_off


def _timed(program: Program) -> tuple[Figures, float]:
  start = time.perf_counter()
  return measure(program), time.perf_counter() - start


def measure(program: Program) -> Figures:
  """Returns the figures of a program, compiled in another process.

  Raises:
    UserError: It does not fit, or the compiler does not know the chips.
  """
  from vit_jax import config as config_lib
  from vit_jax.ahead import plan
  from vit_jax.ahead import step
  from vit_jax.parallel import topologies

  topology = topologies.parse(program.hardware)
  config = config_lib.load(
    program.config,
    {
      **program.changes,
      'model.num_classes': 1000,
      'train.batch_size': program.images * topology.size,
    },
  )
  ahead = step.run(plan.complete(config), topology)
  if ahead.cost is None:
    raise config_lib.UserError(
      f'{config.model.name} does not fit {topology}: {ahead.problem}'
    )
  return figures_of(ahead)


def figures_of(ahead: 'step_lib.Ahead') -> Figures:
  """Returns memory, its traffic and the bytes of collectives, of one chip."""
  assert ahead.cost is not None
  figures = {
    'temporary_gib': ahead.cost.temporary_gib,
    'traffic_gb': ahead.cost.traffic_gb,
  }
  if ahead.cost.unknown_loops:  # counted once: the traffic is wrong
    figures['unknown_loops'] = len(ahead.cost.unknown_loops)
  for one in ahead.collectives:
    key = f'{one.kind}_gb'
    figures[key] = figures.get(key, 0.0) + one.bytes / 1e9
  return {key: float(f'{value:.5g}') for key, value in figures.items()}


def differences(
  expected: Mapping[str, float] | None, found: Mapping[str, float]
) -> list[str]:
  """Returns a text for each figure that is off.

  Args:
    expected: Figures as recorded, without those that are 0; None: there are
      none.
    found: Figures of now.
  """
  if expected is None:
    return [f'not recorded yet: {_show(found)}']
  texts = []
  for key in {**expected, **found}:
    before, now = expected.get(key, 0.0), found.get(key, 0.0)
    if abs(now - before) > TOLERANCE * before:
      change = f' ({now / before - 1:+.0%})' if before else ''
      texts.append(f'{key} is {now:g}, was {before:g}{change}')
  return texts


def _show(values: Mapping[str, Any]) -> str:
  return ', '.join(f'{name} {value}' for name, value in values.items())


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
