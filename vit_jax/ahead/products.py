"""The FLOPs of the matrix products, convolutions and kernels of a program."""

import itertools
import json
import math
import re

import numpy as np

from vit_jax.ahead import hlo


def flops(module: hlo.Module) -> int:
  """Returns the FLOPs of the products and convolutions of one device.

  A multiply-add counts 2. Recomputation to save memory counts, and so does work
  that several devices repeat.
  """
  counts = hlo.executed(module, _flops, float)
  return sum(count * times for count, times in counts)


def product_flops(instruction: hlo.Instruction) -> int:
  """Returns the FLOPs of an instruction and of what it calls, run once."""
  called = itertools.chain(*(x.values() for x in instruction.all_callees()))
  return sum(sum(_flops(x)) for x in (instruction, *called))


def _flops(instruction: hlo.Instruction) -> list[int]:
  """Returns the FLOPs of a product or a kernel; [] for other instructions."""
  if instruction.opcode == 'custom-call':
    return _call_flops(instruction)
  if instruction.opcode not in ('dot', 'convolution'):
    return []
  ((_, out),) = hlo.arrays(instruction.shape)
  lhs, kernel = (hlo.arrays(x.shape)[0][1] for x in instruction.operands[:2])
  if instruction.opcode == 'dot':
    contracted = re.search(
      r'lhs_contracting_dims=\{([\d,]*)\}', instruction.attributes
    )
    axes = re.findall(r'\d+', contracted[1]) if contracted else []
    return [2 * math.prod(out) * math.prod(lhs[int(axis)] for axis in axes)]
  return [_convolution_flops(instruction.attributes, lhs, kernel, out)]


def kernel_cost(instruction: hlo.Instruction) -> tuple[int, int] | None:
  """Returns FLOPs and bytes of a Pallas kernel, as its author states them."""
  if instruction.opcode != 'custom-call':
    return None
  estimate = re.search(r'"cost_estimate":(\{[^}]*\})', instruction.attributes)
  if estimate is None:
    return None
  cost = json.loads(estimate[1])
  return int(cost['flops']), int(cost['bytes_accessed'])


def _call_flops(instruction: hlo.Instruction) -> list[int]:
  if (kernel := kernel_cost(instruction)) is not None:
    return [kernel[0]]
  target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
  name = target[1] if target else ''
  out = [shape for _, shape in hlo.arrays(instruction.shape)]
  if name.startswith('__cublas$'):
    axes = re.search(
      r'"lhs_contracting_dimensions":\[([^]]*)\]', instruction.attributes
    )
    assert axes is not None  # every such call has them
    lhs = hlo.arrays(instruction.operands[0].shape)[0][1]
    contracted = [lhs[int(axis)] for axis in re.findall(r'\d+', axes[1])]
    return [2 * math.prod(out[0]) * math.prod(contracted)]
  if name.startswith('__cudnn$fmha'):
    # Results are [B, H, T, K], scores [B, H, T, T].
    scores = re.search(
      r'"intermediate_tensor_shape": \{.*?"dimensions": \[([^]]*)\]',
      instruction.attributes,
    )
    assert scores is not None
    size = math.prod(map(int, re.findall(r'\d+', scores[1])))
    products = 5 if name.endswith('Backward') else 2
    return [2 * products * size * out[0][-1]]
  return []


def _convolution_flops(
  attributes: str,
  lhs: tuple[int, ...],
  kernel: tuple[int, ...],
  out: tuple[int, ...],
) -> int:
  """Returns the FLOPs of a convolution, without products with padding.

  TPUs write every matrix product as a convolution. Its dimensions of batch are
  then spatial ones, with padding or dilation, so that most of the window is
  outside the input.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', attributes)
  assert labels is not None  # every convolution has labels
  window = re.search(r'window=\{([^}]*)\}', attributes)
  fields = dict(re.findall(r'(\w+)=([\d_x-]+)', window[1] if window else ''))
  pairs = 1  # of an output and a place in the window that meet an input element
  for i in range(len(labels[1]) - 2):

    def along(name: str, default: int, i: int = i) -> int:
      if name not in fields:
        return default
      return int(fields[name].split('x')[i].partition('_')[0])  # of '1_1': 1

    outputs = np.arange(out[labels[3].index(str(i))])[:, None]
    offsets = np.arange(kernel[labels[2].index(str(i))])[None]
    places = outputs * along('stride', 1) + offsets * along('rhs_dilate', 1)
    places -= along('pad', 0)
    dilation = along('lhs_dilate', 1)
    last = (lhs[labels[1].index(str(i))] - 1) * dilation
    is_within = (places >= 0) & (places <= last)
    pairs *= int((is_within & (places % dilation == 0)).sum())
  examples = out[labels[3].index('b')]
  channels = kernel[labels[2].index('i')] * kernel[labels[2].index('o')]
  groups = re.search(r'\bbatch_group_count=(\d+)', attributes)
  return 2 * pairs * examples * channels // (int(groups[1]) if groups else 1)
