"""Formats the report as a table."""

from collections.abc import Mapping
from typing import Any

from vit_jax import tables

_NAMES = ('', 'images/s', 'against', 'images/s', 'ratio', 'GFLOP/s', 'MiB')


def table(report: Mapping[str, Any]) -> str:
  """Returns a table of the entries with a rate, and a line for each other one.

  Args:
    report: The JSON report of the benchmark.
  """
  parts = {k: v for k, v in report.items() if isinstance(v, Mapping)}
  entries: dict[str, Mapping[str, Any]] = {}
  for part, entry in parts.items():
    rows_of = {k: v for k, v in entry.items() if isinstance(v, Mapping)}
    entries |= {f'{part} {name}': row for name, row in rows_of.items()}
    if not rows_of:
      entries[part] = entry
  rows = [
    _row(name, entry)
    for name, entry in entries.items()
    if 'images_per_second' in entry
  ]
  lines = [tables.Table(_NAMES, rows).text()] if rows else []
  lines += [
    f'{name}: {_pairs(entry)}'
    for name, entry in entries.items()
    if 'images_per_second' not in entry
  ]
  lines += [_pairs({k: v for k, v in report.items() if k not in parts})]
  return '\n'.join(line.rstrip() for line in lines)


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
  gflops = _number(entry['gflops']) if 'gflops' in entry else ''
  for key, of in (('mfu', 'peak'), ('share_of_matmul_rate', 'products')):
    if key in entry:
      gflops += f' ({entry[key]:.1%} of {of})'
      break
  memory = ''
  if 'peak_memory_mb' in entry:
    source = entry.get('peak_memory_from', '')
    memory = f'{_number(entry["peak_memory_mb"])} {source}'
  return (
    name,
    _spread(entry['images_per_second'], entry.get('range')),
    str(entry.get('against', 'baseline')),
    _spread(entry.get('baseline'), entry.get('baseline_range')),
    _spread(entry.get('ratio'), entry.get('ratio_range')),
    gflops,
    memory,
  )


def _spread(median: float | None, ends: Any) -> str:
  """Returns `64.1 (62.9 - 65)`; '' if there is no rival."""
  if median is None:
    return ''
  if not ends:
    return _number(median)
  return f'{_number(median)} ({_number(ends[0])} - {_number(ends[1])})'


def _pairs(entry: Mapping[str, Any]) -> str:
  return ', '.join(f'{key} {_value(value)}' for key, value in entry.items())


def _value(value: Any) -> str:
  if isinstance(value, list | tuple):
    return ' - '.join(map(_value, value))
  return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
  """Returns at least three digits, and no decimals from 100 on."""
  return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'
