"""Devices that are not here, for which their own compilers compile programs.

`libtpu` and JAX's CUDA plugin compile for a described topology on a machine
that has neither TPU nor GPU. Nothing can be run on such devices.
"""

import dataclasses
import importlib.util
import math
import re
from typing import Any
from typing import TYPE_CHECKING

from vit_jax.config import UserError
from vit_jax.parallel import hardware as hardware_lib

if TYPE_CHECKING:
  import jax

# `libtpu` reads these in place of a TPU VM's metadata server, and locks the TPU
# for one process unless it is told that there may be several.
_TPU_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
# Autotuning runs kernels on a card, which is not here.
_GPU_FLAGS = '--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false'

# The fields of _GPU_TARGET in which the cards differ.
_GPUS = """
             a100           h100           h200           b200
cores        108            132            132            148
fpus         64             128            128            128
shared       167936         233472         233472         233472
shared_optin 166912         232448         232448         232448
bandwidth    2039000000000  3352320000000  4800000000000  8000000000000
l2           41943040       52428800       52428800       132644864
clock        1.41           1.98           1.98           1.965
memory       85100000000    84942979072    150000000000   191000000000
capability   8              9              9              10
"""
_GPU_NAMES = {
  'a100': 'NVIDIA A100-SXM4-80GB',
  'h100': 'NVIDIA H100 80GB HBM3',
  'h200': 'NVIDIA H200',
  'b200': 'NVIDIA B200',
}
# Facts that XLA's GPU compiler plans with, as a text protocol buffer.
_GPU_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: {shared}
  threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: {bandwidth}
  l2_cache_size: {l2} clock_rate_ghz: {clock} device_memory_size: {memory}
  shared_memory_per_block_optin: {shared_optin}
  cuda_compute_capability {{ major: {capability} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""


@dataclasses.dataclass(frozen=True)
class Topology:
  """Some devices of one kind.

  Attributes:
    hardware: The kind of device.
    shape: Chips along each side of a TPU slice, or the number of GPUs in a
      node.
    slices: Number of TPU slices, or of nodes of GPUs, of this shape.
  """

  hardware: hardware_lib.Hardware
  shape: tuple[int, ...]
  slices: int = 1

  def __str__(self) -> str:
    sides = 'x'.join(map(str, self.shape))
    slices = f' ({self.slices} slices)' if self.slices > 1 else ''
    return f'{self.name}:{sides}{slices}'

  @property
  def name(self) -> str:
    """Name of the hardware as `--hardware` has it: 'v5e' or 'h100'."""
    return self.hardware.name.lower().removeprefix('tpu ')

  @property
  def is_tpu(self) -> bool:
    """Whether the devices are TPUs, and not GPUs."""
    return self.hardware.sides > 0

  @property
  def size(self) -> int:
    """Number of devices in all slices."""
    return math.prod(self.shape) * self.slices * self.hardware.cores


def parse(text: str, slices: int = 1) -> Topology:
  """Parses `v5e:4x4`, `v5p:2x2x2` or `h100:8`: hardware, shape of a slice."""
  name, _, sides = text.lower().partition(':')
  hardware = hardware_lib.named(name)
  shape = tuple(int(x) for x in sides.split('x') if x.isdecimal())
  well_formed = re.fullmatch(r'[1-9]\d*(x[1-9]\d*)*', sides)
  if not well_formed or len(shape) != (hardware.sides or 1):
    example = {0: ':8', 2: ':4x4', 3: ':2x2x4'}[hardware.sides]
    raise UserError(
      f'--hardware={text}: write the shape of the topology, as {name}{example}'
    )
  if slices < 1:
    raise UserError(f'--slices={slices}: there must be at least 1')
  return Topology(hardware, shape, slices)


def missing_extra(topology: Topology) -> str | None:
  """Returns the extra that installs the compiler; None if it is here."""
  packages, extra = ['jax_cuda12_plugin', 'jax_cuda13_plugin'], 'cuda'
  if topology.is_tpu:
    packages, extra = ['libtpu'], 'compile-tpu'
  return None if any(map(importlib.util.find_spec, packages)) else extra


def environment(topology: Topology, flags: str = '') -> dict[str, str]:
  """Returns variables to set before a process imports jax.

  `flags` is the present value of XLA_FLAGS.
  """
  if topology.is_tpu:
    # It ends the process at a flag for another kind of device.
    tpu_flags = [
      x for x in flags.split() if not re.match('--xla_(cpu|gpu)_', x)
    ]
    return _TPU_ENVIRONMENT | {'XLA_FLAGS': ' '.join(tpu_flags)}
  return {'XLA_FLAGS': f'{flags} {_GPU_FLAGS}'.strip()}


def devices(topology: Topology) -> 'list[jax.Device]':
  """Returns the devices, to compile for."""
  from jax.experimental import topologies

  sides = 'x'.join(map(str, topology.shape))
  options: dict[str, Any] = {}
  if topology.is_tpu:
    name = {'v7x': 'tpu7x'}.get(topology.name, topology.name)
    options = {'platform': 'tpu', 'topology_name': f'{name}:{sides}'}
    if topology.slices > 1:
      options['num_slices'] = topology.slices
    if topology.name == 'v4':  # both cores of a chip are one device
      options['chip_config_name'] = 'megacore'
  else:
    names, *rows = [line.split() for line in _GPUS.strip().splitlines()]
    column = 1 + names.index(topology.name)
    facts = {row[0]: row[column] for row in rows}
    options = {
      'platform': 'cuda',
      'topology_name': topology.name,
      'topology': f'{topology.slices}x1x{sides}',
      'target_config': _GPU_TARGET.format(
        **facts, name=_GPU_NAMES[topology.name]
      ),
    }
  try:
    return topologies.get_topology_desc(**options).devices
  except RuntimeError as e:  # JAX's own errors are such
    problem = str(e).splitlines()[0]
    raise UserError(f'--hardware={topology}: {problem}') from None
