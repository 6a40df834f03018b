"""timm's blocks with parts beside each other, under the names of its ViT.

ParallelScalingBlock (ViT-22B, arXiv:2302.05442) has the MLP beside attention,
and one projection for both; DiffParallelScalingBlock also has differential
attention, and one output layer; ParallelThingsBlock (arXiv:2203.09795) has
lists of attentions and of MLPs. Here the first of a list has the names that a
ViT's block has, and the others have `branch_1.`, `branch_2.`, ... before them.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Any

import numpy as np

from vit_jax.weights.files import containers
from vit_jax.weights.formats import base

# Beginnings of names in a block: timm's, and those of its ViT. `in_norm` keeps
# its name, by which such a file is known.
_SCALING = (
  ('q_norm.', 'attn.q_norm.'),
  ('k_norm.', 'attn.k_norm.'),
  ('attn_out_proj.', 'attn.proj.'),
  ('mlp_out_proj.', 'mlp.fc2.'),
  ('mlp_bias', 'mlp.fc1.bias'),
  ('lambda_', 'attn.lambda_'),
  ('sub_norm.', 'attn.sub_norm.'),
  ('ls.', 'ls1.'),
)
_THINGS = (
  ('attns.{}.norm.', 'norm1.'),
  ('attns.{}.attn.', 'attn.'),
  ('attns.{}.ls.', 'ls1.'),
  ('ffns.{}.norm.', 'norm2.'),
  ('ffns.{}.mlp.', 'mlp.'),
  ('ffns.{}.ls.', 'ls2.'),
)
_BLOCK = r'(blocks\.\d+\.)'
# What is joined, in this order.
_INPUTS = ('mlp.fc1.', 'attn.qkv.')
_OUTPUTS = ('attn.proj.', 'mlp.fc2.')
_Make = Callable[[np.ndarray], np.ndarray]


def is_joint(values: Mapping[str, Any]) -> bool:
  """Whether a model has such layers."""
  return values.get('block') in ('parallel', 'branches')


def has_one_output(values: Mapping[str, Any]) -> bool:
  """Whether timm's block has one layer after attention and MLP."""
  is_parallel: bool = values['block'] == 'parallel'
  return is_parallel and values['attention'] == 'differential'


def has_signs(names: Collection[str]) -> bool:
  """Whether a file has such blocks, under timm's names."""
  pattern = rf'{_BLOCK}(in_proj\.weight|attns\.1\..*)'
  return any(re.fullmatch(pattern, name) for name in names)


def as_vit(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays of a file under the names of timm's ViT."""
  renamed = base.Renamed(arrays, _vits)
  parts: dict[str, tuple[list[str], _Make]] = {}
  for name, shape in renamed.shapes.items():
    match = re.fullmatch(rf'{_BLOCK}(in_proj|out_proj)\.(weight|bias)', name)
    kernel = renamed.shapes.get(f'{match[1]}in_proj.weight') if match else None
    if match and shape and kernel and len(kernel) == 2:
      block, which, leaf = match.groups()
      first, second = _cuts(which, kernel, len(shape))
      starts = _INPUTS if which == 'in_proj' else _OUTPUTS
      parts[f'{block}{starts[0]}{leaf}'] = ([name], first)
      parts[f'{block}{starts[1]}{leaf}'] = ([name], second)
  return base.Renamed(base.derived(renamed, parts), show=renamed.stored)


def _cuts(which: str, kernel: base.Shape, axes: int) -> tuple[_Make, _Make]:
  """Returns functions that cut both parts out of a joint array.

  Args:
    which: 'in_proj', rows of the MLP and of attention; or 'out_proj', columns
      of attention and of the MLP.
    kernel: Shape of the first one's kernel, [M + 3 D, D].
    axes: 2 for a kernel, 1 for a bias.
  """
  rows, width = kernel
  end = max(rows - 3 * width, 0)
  if which == 'in_proj':
    return lambda x: x[:end], lambda x: x[end:]
  if axes == 2:
    return lambda x: x[:, :width], lambda x: x[:, width:]
  return lambda x: x, np.zeros_like  # one bias for the sum


def _vits(name: str) -> str:
  """Returns the name in timm's ViT for one in such a block."""
  match = re.fullmatch(rf'{_BLOCK}(.*)', name)
  if not match:
    return name
  block, rest = match[1], match[2]
  for theirs, ours in _SCALING:
    if rest.startswith(theirs):
      return f'{block}{ours}{rest.removeprefix(theirs)}'
  for theirs, ours in _THINGS:
    pattern = re.escape(theirs).replace(r'\{\}', r'(\d+)')
    if found := re.match(pattern, rest):
      branch = f'branch_{found[1]}.' if int(found[1]) else ''
      return f'{block}{branch}{ours}{rest[found.end() :]}'
  return name


def as_timm(
  values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
  """Returns the arrays of a ViT under timm's names: the inverse of `as_vit`.

  Args:
    values: Those of the model.
    arrays: By the names of timm's ViT.
  """
  if not is_joint(values):
    return arrays
  result = {_timms(values, name): x for name, x in arrays.items()}

  def pop(block: str, starts: Sequence[str], leaf: str) -> list[np.ndarray]:
    return [result.pop(f'{block}{start}{leaf}') for start in starts]

  depth = values['depth'] if values['block'] == 'parallel' else 0
  for block in (f'blocks.{i}.' for i in range(depth)):
    for leaf in _leaves(values):
      joint = np.concatenate(pop(block, _INPUTS, leaf))
      result[f'{block}in_proj.{leaf}'] = joint
    if has_one_output(values):
      apart = ('attn_out_proj.', 'mlp_out_proj.')
      kernel = np.concatenate(pop(block, apart, 'weight'), axis=1)
      result[f'{block}out_proj.weight'] = kernel
      result[f'{block}out_proj.bias'] = np.add(*pop(block, apart, 'bias'))
  return result


def _leaves(values: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the arrays of the projection for attention and MLP."""
  return ('weight', 'bias') if values['attention.qkv_bias'] else ('weight',)


def _timms(values: Mapping[str, Any], name: str) -> str:
  match = re.fullmatch(rf'{_BLOCK}(?:branch_(\d+)\.)?(.*)', name)
  if not match:
    return name
  block, branch, tail = match[1], match[2] or '0', match[3]
  is_parallel = values['block'] == 'parallel'
  for theirs, ours in _SCALING if is_parallel else _THINGS:
    # The bias of the MLP's first layer is in the projection, if that has one.
    is_joint = theirs == 'mlp_bias' and 'bias' in _leaves(values)
    if tail.startswith(ours) and not is_joint:
      return f'{block}{theirs.format(branch)}{tail.removeprefix(ours)}'
  return name
