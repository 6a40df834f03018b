"""Reads the tensors in files of torch.save, without torch.

Such a file is a ZIP archive. A pickle describes the tensors as views of
storages; each storage is a member, which is read together with a tensor.
"""

import math
import pathlib
import re
import shlex

import numpy as np

from vit_jax.config import explained
from vit_jax.config import UserError
from vit_jax.weights.files import archives
from vit_jax.weights.files import pickles

# First bytes of files written by torch before version 1.6.
LEGACY = bytes.fromhex('80028a0a6cfc9c46f9206aa85019')

_LONGEST_PICKLE = 4 << 20  # bytes; a state dict with 5,000 tensors has 1 MB


def is_torch(archive: archives.Archive) -> bool:
  """Whether an archive is a file of torch.save."""
  return any(x.endswith('/data.pkl') for x in archive.members)


def read(
  archive: archives.Archive, state: str | None = None
) -> archives.Arrays:
  """Opens a file of torch.save: a pickle, and a member for each storage.

  `state` says which of several state dicts; see `pickles.state_dict`.
  """
  root = _root(archive)
  pickle = archive.members[f'{root}data.pkl']
  if pickle.file_size > _LONGEST_PICKLE:
    raise UserError(
      f'{archive.path} holds a pickle of {pickle.file_size:,} bytes, more than'
      ' a state dict needs: save the state dict alone, by torch.save'
    )
  with explained(f'{archive.path} is refused', pickles.PickleError):
    chosen = pickles.state_dict(
      pickles.load(archive.read(pickle.filename)), state
    )
  tensors = chosen.tensors
  total = 0
  for name, tensor in tensors.items():
    storage = tensor.storage
    total += math.prod(tensor.shape) * storage.dtype.itemsize
    member = archive.members.get(f'{root}data/{storage.key}')
    if not member or member.file_size != storage.size * storage.dtype.itemsize:
      raise archives.damaged(
        archive.path,
        f'the numbers of {archives.array_named(name)} are missing or cut short',
      )
  archives.check_total(archive.path, total, archive.size)

  def read_one(name: str) -> np.ndarray:
    return _read_tensor(archive, root, name, tensors[name])

  shapes = {name: x.shape for name, x in tensors.items()}
  return archives.Arrays(shapes, read_one, chosen.name, chosen.other_states)


def _root(archive: archives.Archive) -> str:
  path, members = archive.path, archive.members
  matches = [re.fullmatch('([^/]*/)data[.]pkl', name) for name in members]
  roots = [match[1] for match in matches if match]
  if len(roots) != 1 or f'{roots[0]}constants.pkl' in members:
    raise UserError(
      f'{path} is a TorchScript program, or holds several pickles: save the'
      ' state dict of the model by torch.save'
    )
  (root,) = roots
  if any(map(archives.is_deflated, members.values())):
    raise UserError(
      f'{path} is packed, which torch.save does not do: zip it again with -0'
    )
  order = members.get(f'{root}byteorder')
  if order and archive.read(order.filename).strip() != b'little':
    raise UserError(
      f'{path} was written on a big-endian machine: save it again by torch on'
      ' another'
    )
  return root


def _read_tensor(
  archive: archives.Archive, root: str, name: str, tensor: pickles.Tensor
) -> np.ndarray:
  dtype = tensor.storage.dtype
  begin = tensor.offset * dtype.itemsize if tensor.span else 0
  numbers = archives.empty((tensor.span,), dtype)
  archive.read_into(
    f'{root}data/{tensor.storage.key}',
    archives.as_bytes(numbers),
    begin,
    archives.array_named(name),
  )
  if not tensor.span:
    return numbers.reshape(tensor.shape)
  strides = [x * dtype.itemsize for x in tensor.strides]
  view = np.lib.stride_tricks.as_strided(
    numbers, tensor.shape, strides, writeable=False
  )
  if view.flags.c_contiguous:
    return numbers.reshape(tensor.shape)
  return archives.in_c_order(view)


def legacy_error(path: pathlib.Path) -> UserError:
  """Returns the error for a file of the old format."""
  new = path.with_name(f'{path.stem}-new{path.suffix}')
  code = (
    'import argparse, torch;'
    ' torch.serialization.add_safe_globals([argparse.Namespace]);'
    f" torch.save(torch.load({str(path)!r}, map_location='cpu',"
    f' weights_only=True), {str(new)!r})'
  )
  plain = not any(x in code for x in '"$`\\!')
  quoted = f'"{code}"' if plain else shlex.quote(code)
  return UserError(
    f"{path} is in torch's old format, which only torch reads; where torch is"
    f' installed, convert it by: python -c {quoted}'
  )
