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

# Beginnings of names: of this class of timm, and of its ViT. `in_norm` keeps
# its name, by which such a file is known.
_SCALING = """
blocks.#.q_norm.          blocks.#.attn.q_norm.
blocks.#.k_norm.          blocks.#.attn.k_norm.
blocks.#.attn_out_proj.   blocks.#.attn.proj.
blocks.#.mlp_out_proj.    blocks.#.mlp.fc2.
blocks.#.lambda_          blocks.#.attn.lambda_
blocks.#.sub_norm.        blocks.#.attn.sub_norm.
blocks.#.ls.              blocks.#.ls1.
"""
# Unless it is in the projection.
_MLP_BIAS = """
blocks.#.mlp_bias         blocks.#.mlp.fc1.bias
"""
_BLOCK_MODULES = """
blocks.#.attns.0.norm.    blocks.#.norm1.
blocks.#.attns.0.attn.    blocks.#.attn.
blocks.#.attns.0.ls.      blocks.#.ls1.
blocks.#.ffns.0.norm.     blocks.#.norm2.
blocks.#.ffns.0.mlp.      blocks.#.mlp.
blocks.#.ffns.0.ls.       blocks.#.ls2.
blocks.#.attns.#.norm.    blocks.#.branch_#.norm1.
blocks.#.attns.#.attn.    blocks.#.branch_#.attn.
blocks.#.attns.#.ls.      blocks.#.branch_#.ls1.
blocks.#.ffns.#.norm.     blocks.#.branch_#.norm2.
blocks.#.ffns.#.mlp.      blocks.#.branch_#.mlp.
blocks.#.ffns.#.ls.       blocks.#.branch_#.ls2.
"""
_VITS = base.renaming(_SCALING + _MLP_BIAS + _BLOCK_MODULES)
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
  is_parallel = values.get('block') == 'parallel'
  return is_parallel and values['attention'] == 'differential'


def has_signs(names: Collection[str]) -> bool:
  """Whether a file has such blocks, under timm's names."""
  pattern = rf'{_BLOCK}(in_proj\.weight|attns\.1\..*)'
  return any(re.fullmatch(pattern, name) for name in names)


def as_vit(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays of a file under the names of timm's ViT."""
  renamed = base.Renamed(arrays, _VITS)
  parts: dict[str, tuple[list[str], _Make]] = {}
  for name, shape in renamed.shapes.items():
    match = re.fullmatch(rf'{_BLOCK}(in_proj|out_proj)\.(weight|bias)', name)
    # [M + 3 D, D]
    kernel = renamed.shapes.get(f'{match[1]}in_proj.weight') if match else None
    if match and shape and kernel and len(kernel) == 2:
      block, projection, leaf = match.groups()
      starts = _INPUTS if projection == 'in_proj' else _OUTPUTS
      cuts = _cuts(projection, *kernel, len(shape))
      for start, cut in zip(starts, cuts, strict=True):
        parts[f'{block}{start}{leaf}'] = ([name], cut)
  return base.Renamed(base.derived(renamed, parts), show=renamed.stored)


def _cuts(
  projection: str, rows: int, width: int, axes: int
) -> tuple[_Make, _Make]:
  """Returns functions that cut both parts out of a kernel or a bias.

  Rows of 'in_proj' are of the MLP and of attention, columns of 'out_proj' of
  attention and of the MLP.
  """
  end = max(rows - 3 * width, 0)
  if projection == 'in_proj':
    return lambda x: x[:end], lambda x: x[end:]
  if axes == 2:
    return lambda x: x[:, :width], lambda x: x[:, width:]
  return lambda x: x, np.zeros_like  # one bias for the sum


def as_timm(
  values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
  """Returns the arrays of a ViT under timm's names: the inverse of `as_vit`."""
  if not is_joint(values):
    return arrays
  if values['block'] == 'branches':
    rename = base.renaming(_BLOCK_MODULES, back=True)
    return {rename(name): x for name, x in arrays.items()}
  has_bias = values['attention.qkv_bias']
  rename = base.renaming(_SCALING + _MLP_BIAS * (not has_bias), back=True)
  joint = {rename(name): x for name, x in arrays.items()}

  def pop(block: str, starts: Sequence[str], leaf: str) -> list[np.ndarray]:
    return [joint.pop(f'{block}{start}{leaf}') for start in starts]

  for block in (f'blocks.{i}.' for i in range(values['depth'])):
    for leaf in ('weight', 'bias') if has_bias else ('weight',):
      parts = pop(block, _INPUTS, leaf)
      joint[f'{block}in_proj.{leaf}'] = np.concatenate(parts)
    if has_one_output(values):
      output_names = ('attn_out_proj.', 'mlp_out_proj.')
      kernel = np.concatenate(pop(block, output_names, 'weight'), axis=1)
      joint[f'{block}out_proj.weight'] = kernel
      joint[f'{block}out_proj.bias'] = np.add(*pop(block, output_names, 'bias'))
  return joint
