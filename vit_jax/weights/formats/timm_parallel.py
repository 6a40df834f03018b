"""timm's blocks with parts beside each other, under the names of its ViT.

ParallelScalingBlock (ViT-22B, arXiv:2302.05442) has the MLP beside attention,
and one projection for both; DiffParallelScalingBlock also has differential
attention, and one output layer; ParallelThingsBlock (arXiv:2203.09795) has
lists of attentions and of MLPs. Here the first of a list has the names that a
ViT's block has, and the others have `branch_1.`, `branch_2.`, ... before them.
"""

from collections.abc import Collection
import re

from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats.base import Values

# Beginnings of names: timm's, and those of its ViT. `in_norm`, by which such a
# file is known, and the joint projections keep their names.
_PARALLEL = """
blocks.#.q_norm.          blocks.#.attn.q_norm.
blocks.#.k_norm.          blocks.#.attn.k_norm.
blocks.#.attn_out_proj.   blocks.#.attn.proj.
blocks.#.mlp_out_proj.    blocks.#.mlp.fc2.
blocks.#.mlp_bias         blocks.#.mlp.fc1.bias
blocks.#.lambda_          blocks.#.attn.lambda_
blocks.#.sub_norm.        blocks.#.attn.sub_norm.
blocks.#.ls.              blocks.#.ls1.
"""
_BRANCHES = """
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
_VITS = base.renaming(_PARALLEL + _BRANCHES)
_TIMMS = {
  'parallel': base.renaming(_PARALLEL, back=True),
  'branches': base.renaming(_BRANCHES, back=True),
}
# Of a layer with an MLP beside attention.
LAYERS = """
blocks_#/norm1                 blocks.#.in_norm            norm* ?block=parallel
blocks_#/mlp/up/kernel         blocks.#.in_proj.weight@0   dense ?block=parallel
blocks_#/mlp/up/bias           blocks.#.in_proj.bias@0
                               ?block=parallel&attention.qkv_bias
blocks_#/attention/qkv/kernel  blocks.#.in_proj.weight@1   dense ?block=parallel
blocks_#/attention/qkv/bias    blocks.#.in_proj.bias@1     flat  ?block=parallel
blocks_#/attention/out/kernel  blocks.#.out_proj.weight@0:columns
                               dense2 ?block=parallel&attention=differential
blocks_#/attention/out/bias    blocks.#.out_proj.bias@0:sum
                               ?block=parallel&attention=differential
blocks_#/mlp/down/kernel       blocks.#.out_proj.weight@1:columns
                               dense ?block=parallel&attention=differential
blocks_#/mlp/down/bias         blocks.#.out_proj.bias@1:sum
                               ?block=parallel&attention=differential
"""


def has_one_output(values: Values) -> bool:
  """Whether timm's block has one layer after attention and MLP."""
  is_parallel = values.get('block') == 'parallel'
  return is_parallel and values['attention'] == 'differential'


def has_signs(names: Collection[str]) -> bool:
  """Whether a file has such blocks, under timm's names."""
  pattern = r'blocks\.\d+\.(in_proj\.weight|attns\.1\..*)'
  return any(re.fullmatch(pattern, name) for name in names)


def as_vit(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays of a file under the names of timm's ViT."""
  return base.Renamed(arrays, _VITS)


def stored(values: Values, name: str) -> str:
  """Returns timm's name for a name of its ViT: the inverse of `as_vit`."""
  rename = _TIMMS.get(values.get('block', ''))
  return rename(name) if rename else name
