"""Parses the groups of devices of a collective in the text of XLA's HLO."""

import math
import re

import numpy as np


def parse(attributes: str, devices: int) -> np.ndarray:
  """Returns the devices of each group, int [groups, size].

  The groups of a collective-permute are its pairs of source and target. XLA
  writes groups in four ways: `{{0,1},...}`; `{}`, all devices;
  `[4,2]<=[2,4]T(1,0)`, the numbers of all devices in the shape [2, 4],
  transposed, then in the shape [4, 2]; and `mesh['a'=2,'b'=4] {'b'}`, devices
  along an axis of the given mesh.
  """
  match = re.search(
    r'\b(?:replica_groups|source_target_pairs)=(.*)', attributes
  )
  text = match[1] if match else ''
  if text.startswith('mesh['):
    return _mesh_groups(text)
  if iota := re.match(r'\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)', text):
    return _transposed(iota[3]).reshape(int(iota[1]), int(iota[2]))
  if text.startswith('{}'):
    return np.arange(devices)[None]
  if listed := re.match(r'\{(\{[\d,]+\},?)+\}', text):
    groups = re.findall(r'\{([\d,]+)\}', listed[0])
    return np.array([_numbers(group) for group in groups])
  raise ValueError(f'these groups of devices cannot be read: {attributes}')


def _numbers(text: str) -> list[int]:
  return [int(x) for x in re.findall(r'\d+', text)]


def _transposed(text: str) -> np.ndarray:
  """Reads `[2,4]T(1,0)`: numbers in the first shape, transposed."""
  dims, _, order = text.partition('T')
  shape = _numbers(dims)
  ids = np.arange(math.prod(shape)).reshape(shape)
  return ids.transpose(_numbers(order) or None)


def _mesh_groups(text: str) -> np.ndarray:
  """Reads `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}`.

  The braces name axes, or parts of them: `(1)2` is the part of size 2 after
  parts whose sizes multiply to 1.
  """
  match = re.match(
    r'mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}', text
  )
  if match is None:
    raise ValueError(f'this mesh of devices cannot be read: {text}')
  grouped = re.findall(r'([^,:]+)(?::\((\d+)\)(\d+))?(?:,|$)', match[3])
  shape: list[int] = []
  within: list[int] = []  # dimensions of `shape`
  for axis, size in re.findall(r'([^,=]+)=(\d+)', match[1]):
    runs = {
      int(before or 1): int(part or size)
      for name, before, part in grouped
      if name == axis
    }
    cuts = {1, int(size)} | {x for k, n in runs.items() for x in (k, k * n)}
    starts = sorted(cuts - {int(size)} if int(size) > 1 else cuts)
    ends = [*starts[1:], int(size)]
    for start, end in zip(starts, ends, strict=True):
      within += [len(shape)] if start in runs else []
      shape.append(end // start)
  ids = np.arange(math.prod(shape))
  if match[2]:
    is_list = not match[2].startswith('[')
    ids = np.array(_numbers(match[2])) if is_list else _transposed(match[2])
  outer = [axis for axis in range(len(shape)) if axis not in within]
  size = math.prod(shape[axis] for axis in within)
  return ids.reshape(shape).transpose(outer + within).reshape(-1, size)
