"""What `python -m vit_jax.data check` found, as text for people."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from vit_jax import tables
from vit_jax.config import counted

_MOST_LINES = 20  # of one kind
_MOST_CLASSES = 10  # with more, only the smallest and largest are shown


def as_text(report: Mapping[str, Any]) -> str:
  """Returns what `survey.report` found as a report for people."""
  splits = report['splits']
  rows = [
    (name, part['examples'], _classes(part['classes']))
    for name, part in splits.items()
  ]
  table = tables.Table(('split', 'examples', 'classes'), rows)
  lines = [report['data'], table.text(tables.room())]
  lines += [*_about_images(report)]
  for ending, files in report['ignored'].items():
    lines.append(
      f'ignored: {counted(files["count"], "file")} with the ending {ending},'
      f' such as {files["example"]}'
    )
  lines += [*_about_maps(report['maps'])]
  lines += [f'warning: {x}' for x in report['warnings']]
  pairs = [' = '.join(group['ids']) for group in report['duplicates']]
  damaged = [entry['problem'] for entry in report['damaged']]
  lines += _listed('problems of splits and classes', report['problems'])
  lines += _listed('damaged', damaged)
  lines += _listed('the same bytes in several splits or classes', pairs)
  if report['copies']:
    lines.append(f'copies within a class of a split: {report["copies"]}')
  warns = any(line.startswith('warning:') for line in lines)
  if not any((damaged, pairs, report['problems'], warns)):
    lines.append('nothing is wrong')
  return '\n'.join(lines) + '\n'


def _about_images(report: Mapping[str, Any]) -> Iterator[str]:
  sizes = report['sizes']
  if sizes is None:
    return
  common = sizes['common'][0]
  yield (
    f'height x width: {_by(sizes["smallest"])} to {_by(sizes["largest"])},'
    f' {counted(sizes["different"], "size")}; most often'
    f' {_by(common["size"])} ({counted(common["count"], "image")})'
  )
  for name in ('channels', 'bits'):
    counts = ', '.join(f'{x} ({n})' for x, n in report[name].items() if n)
    yield f'{name} (images): {counts}'
  if all(report['bits'].values()):
    yield (
      'warning: some images have 8 bits and some 16: leave'
      ' config.data.intensity at type, since other settings need one depth'
    )
  if values := report['intensity']:
    low, high = values['percentiles'].values()
    yield (
      f'values of 16 bits: {values["least"]} to {values["greatest"]}, 99% of'
      f' them {low} to {high}'
    )
    if values['warning']:
      yield f'warning: {values["warning"]}'


def _about_maps(maps: Mapping[str, Any]) -> Iterator[str]:
  for name, by_split in maps.items():
    for split, areas in by_split.items():
      total = sum(areas['classes'].values()) + areas['ignored']
      shares = {k: n / total for k, n in areas['classes'].items()}
      least = sorted(shares, key=lambda k: shares[k])[:_MOST_CLASSES]
      kind = 'classes' if len(shares) <= _MOST_CLASSES else 'rarest classes'
      text = ', '.join(f'{k} {shares[k]:.1%}' for k in shares if k in least)
      yield (
        f'{kind} of the pixels of {counted(areas["maps"], "map")} ({name} of'
        f' {split}): {text}; {areas["ignored"] / total:.1%} are ignored'
      )


def _classes(counts: Mapping[str, int]) -> str:
  """Returns classes with their sizes; if many, the smallest and largest."""
  if len(counts) <= _MOST_CLASSES:
    return ', '.join(f'{name} {n}' for name, n in counts.items())
  least = min(counts, key=lambda name: counts[name])
  most = max(counts, key=lambda name: counts[name])
  return (
    f'{len(counts)}, of {counts[least]} ({least}) to {counts[most]} ({most})'
  )


def _by(size: Sequence[int]) -> str:
  return f'{size[0]} x {size[1]}'


def _listed(title: str, lines: Sequence[str]) -> list[str]:
  if not lines:
    return []
  first_lines = [f'  {x}' for x in lines[:_MOST_LINES]]
  left = len(lines) - len(first_lines)
  more = [f'  ... and {left} more'] if left else []
  return [f'{title}: {len(lines)}', *first_lines, *more]
