"""Published speeds and memory of the devices that models run on.

NVIDIA's numbers are from the data sheets of the A100 80 GB SXM, the H100 SXM
and the H200 SXM, and of the DGX A100, H100, H200 and B200 systems: dense
bfloat16 (half of the number with sparsity), memory, NVLink bandwidth as the
total of both directions (600, 900, 900 and 1,800 GB/s), 8 devices per node, and
one network port of 200, 400, 400 and 400 Gb/s per device.

Google's numbers are from the pages on TPU v4, v5e, v5p, v6e and v7x of Google
Cloud's documentation: peak, memory, chips of a pod, link bandwidth per chip as
the total of both directions (v5e, v5p, v6e and v7x: 400, 1,200, 800 and 1,200
GB/s; for the v4 there is only the all-reduce bandwidth of a pod, 1.1 PB/s), and
the data centre network (6.4 Tb/s for a pod of 256 v5e, 50 Gb/s for a v5p chip).
The network of the v6e, 100 Gb/s per chip (25.6 Tb/s per pod), is a guess: these
pages do not state it.
"""

import ast
import dataclasses
import os
import re
from typing import Any
from typing import TYPE_CHECKING

from vit_jax.config import UserError

if TYPE_CHECKING:
  import jax

# TPUs' compiler would multiply by each part of a kernel as it arrives, to hide
# the exchange: with FSDP among 8, the activations are read and written 8 times.
# Here is the size in MiB from which on it does.
_WHOLE_KERNELS = {'xla_jf_spmd_threshold_for_windowed_einsum_mib': 1_000_000}
# SparseCores gather and reduce-scatter while the rest of the chip computes.
# Without these options the chip waits, and along all three dimensions of a
# torus all-reduces take their place, with twice the bytes. Options for one
# dimension and the last two are in MaxText's benchmarks/xla_flags_library.py.
_OFFLOADED = (
  'all_gather',
  '2d_all_gather',
  '3d_all_gather',
  'reduce_scatter',
  'nd_reduce_scatter',
)
_SPARSE_CORES = {
  **{
    f'xla_tpu_enable_sparse_core_collective_offload_{x}': True
    for x in _OFFLOADED
  },
  'xla_tpu_prefer_async_allgather_to_allreduce': True,
  'xla_tpu_use_tc_device_shape_on_sc': True,
  'xla_sc_disable_megacore_partitioning': True,
}


@dataclasses.dataclass(frozen=True)
class Hardware:
  """One kind of device and its connections.

  Attributes:
    name: Its usual name, as in messages and on the command line.
    pattern: Regular expression that its `jax.Device.device_kind` matches.
    peak_flops: Peak of dense bfloat16 matrix products, in FLOP/s.
    memory: Device memory, in bytes.
    memory_bandwidth: Bandwidth of that memory, in bytes/s.
    node_size: Number of devices with fast links between them: a node with
      NVLink, or a TPU pod.
    link_bandwidth: Bandwidth of one device over these links in one direction,
      in bytes/s.
    network_bandwidth: Bandwidth of one device to other nodes or pods in one
      direction, in bytes/s; None if it is not published.
    sides: Dimensions of a TPU's torus; 0 for GPUs.
    cores: Devices of one chip.
    sparse_cores: Whether programs let a TPU's SparseCores exchange arrays; the
      compiler of the v7x does so by itself.
  """

  name: str
  pattern: str
  peak_flops: float
  memory: float
  memory_bandwidth: float
  node_size: int
  link_bandwidth: float
  network_bandwidth: float | None
  sides: int = 0
  cores: int = 1
  sparse_cores: bool = False


# The first entry with a matching pattern wins. JAX calls v5e and v6e "lite".
# Other H100s (PCIe, NVL) are slower, so they are left out.
_PATTERNS = {
  'A100': r'A100\b',
  'H100': r'H100.*HBM3$',
  'H200': r'H200\b(?! NVL)',
  'B200': r'B200\b',
  'TPU v4': r'TPU v4$',
  'TPU v5e': r'TPU (v5 lite|v5e)\b',
  'TPU v5p': r'TPU v5p?$',
  'TPU v6e': r'TPU (v6 lite|v6e)\b',
  'TPU v7x': r'TPU7x$',
}
# The fields of `Hardware` after the pattern, in their order. The TPUs v4,
# v5p and v7x have 32, 95 and 96 GiB. Half of a v7x is one device.
_FACTS = """
A100     312e12     80e9          2.039e12  8      300e9  25e9     0  1  False
H100     989e12     80e9          3.35e12   8      450e9  50e9     0  1  False
H200     989e12     141e9         4.8e12    8      450e9  50e9     0  1  False
B200     2.25e15    180e9         8e12      8      900e9  50e9     0  1  False
TPU v4   275e12     34359738368   1.2e12    4096   268e9  None     3  1  False
TPU v5e  197e12     16e9          819e9     256    200e9  3.125e9  2  1  False
TPU v5p  459e12     102005473280  2.765e12  8960   600e9  6.25e9   3  1  True
TPU v6e  918e12     32e9          1.638e12  256    400e9  12.5e9   2  1  True
TPU v7x  1153.5e12  103079215104  3.69e12   18432  300e9  None     3  2  False
"""
TABLE = tuple(
  Hardware(name, _PATTERNS[name], *map(ast.literal_eval, facts))
  for name, *facts in (
    line.rsplit(None, 9) for line in _FACTS.strip().splitlines()
  )
)


def named(name: str) -> Hardware:
  """Looks up hardware by name, such as `H100`, `TPU v5e` or `v5e`."""
  for hardware in TABLE:
    full_name = hardware.name.lower()
    if name.lower() in (full_name, full_name.removeprefix('tpu ')):
      return hardware
  names = ', '.join(hardware.name.removeprefix('TPU ') for hardware in TABLE)
  raise UserError(f'--hardware={name}: choose one of {names}')


def device_hardware(device: 'jax.Device') -> Hardware | None:
  """Returns what the table has of a device; None if it is not there."""
  return next(
    (x for x in TABLE if re.search(x.pattern, device.device_kind)), None
  )


def peak_flops(device: 'jax.Device') -> float | None:
  """Returns the peak of a device's bfloat16 matrix products, in FLOP/s.

  Its maker states it; None: it is not known, as for a CPU.
  """
  hardware = device_hardware(device)
  return None if hardware is None else hardware.peak_flops


def tpu_options(device: 'jax.Device') -> dict[str, Any]:
  """Returns XLA's options for programs on several TPUs.

  With VIT_JAX_SPARSE_CORES=0 in the environment, they do not use SparseCores.
  """
  hardware = device_hardware(device)
  offloads = hardware is not None and hardware.sparse_cores
  offloads = offloads and os.environ.get('VIT_JAX_SPARSE_CORES') != '0'
  return _WHOLE_KERNELS | (_SPARSE_CORES if offloads else {})
