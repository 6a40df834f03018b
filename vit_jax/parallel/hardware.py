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
# Other H100s (PCIe, NVL) are slower, so they are left out. A chip of the v7x is
# two devices.
TABLE = (
  Hardware(
    'A100',
    r'A100\b',
    peak_flops=312e12,
    memory=80e9,
    memory_bandwidth=2.039e12,
    node_size=8,
    link_bandwidth=300e9,
    network_bandwidth=25e9,
  ),
  Hardware(
    'H100',
    r'H100.*HBM3$',
    peak_flops=989e12,
    memory=80e9,
    memory_bandwidth=3.35e12,
    node_size=8,
    link_bandwidth=450e9,
    network_bandwidth=50e9,
  ),
  Hardware(
    'H200',
    r'H200\b(?! NVL)',
    peak_flops=989e12,
    memory=141e9,
    memory_bandwidth=4.8e12,
    node_size=8,
    link_bandwidth=450e9,
    network_bandwidth=50e9,
  ),
  Hardware(
    'B200',
    r'B200\b',
    peak_flops=2.25e15,
    memory=180e9,
    memory_bandwidth=8e12,
    node_size=8,
    link_bandwidth=900e9,
    network_bandwidth=50e9,
  ),
  Hardware(
    'TPU v4',
    r'TPU v4$',
    peak_flops=275e12,
    memory=32 * 2**30,
    memory_bandwidth=1.2e12,
    node_size=4096,
    link_bandwidth=268e9,
    network_bandwidth=None,
    sides=3,
  ),
  Hardware(
    'TPU v5e',
    r'TPU (v5 lite|v5e)\b',
    peak_flops=197e12,
    memory=16e9,
    memory_bandwidth=819e9,
    node_size=256,
    link_bandwidth=200e9,
    network_bandwidth=3.125e9,
    sides=2,
  ),
  Hardware(
    'TPU v5p',
    r'TPU v5p?$',
    peak_flops=459e12,
    memory=95 * 2**30,
    memory_bandwidth=2.765e12,
    node_size=8960,
    link_bandwidth=600e9,
    network_bandwidth=6.25e9,
    sides=3,
    sparse_cores=True,
  ),
  Hardware(
    'TPU v6e',
    r'TPU (v6 lite|v6e)\b',
    peak_flops=918e12,
    memory=32e9,
    memory_bandwidth=1.638e12,
    node_size=256,
    link_bandwidth=400e9,
    network_bandwidth=12.5e9,
    sides=2,
    sparse_cores=True,
  ),
  Hardware(
    'TPU v7x',
    r'TPU7x$',
    peak_flops=2307e12 / 2,
    memory=96 * 2**30,
    memory_bandwidth=7.38e12 / 2,
    node_size=2 * 9216,
    link_bandwidth=300e9,
    network_bandwidth=None,
    sides=3,
    cores=2,
  ),
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
