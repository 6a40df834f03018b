"""Detects whether this process is one of several, and how they connect.

The information comes from flags, or else from the environment variables of
SLURM, Open MPI, Kubernetes and TPU hosts. Nothing here uses the network, but
`jax.distributed.initialize` may.
"""

from collections.abc import Mapping
import importlib.util
import os
import re
import socket
from typing import Any
from typing import NamedTuple

from absl import flags

from vit_jax import config as config_lib

OR_FLAGS = '; or pass --coordinator, --process_id and --num_processes'


class Cluster(NamedTuple):
  """A way to connect the processes of a run.

  Attributes:
    name: Source of the information: 'flags', 'SLURM', ...
    arguments: Arguments for `jax.distributed.initialize`.
  """

  name: str
  arguments: dict[str, Any]


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--coordinator`, `--process_id` and `--num_processes`."""
  flags.DEFINE_string(
    'coordinator',
    None,
    'Address of process 0 in a run of several processes. SLURM, Open MPI, TPU'
    ' pods and Kubernetes need no flag.',
    flag_values=flag_values,
  )
  for name, text, least in (
    ('process_id', 'Number of this process, from 0.', 0),
    ('num_processes', 'Number of processes of the run.', 1),
  ):
    flags.DEFINE_integer(
      name, None, text, lower_bound=least, flag_values=flag_values
    )


def find(flag_values: flags.FlagValues) -> Cluster | None:
  """Returns how to connect to the other processes; None for a single process.

  `define_flags` made the flags. Without them, the cluster counts that started
  this process.
  """
  cluster = _from_flags(flag_values, os.environ)
  if cluster is None:
    # Private API, but JAX's own detection uses it, and it needs no network.
    from jax._src import cloud_tpu_init

    platforms = os.environ.get('JAX_PLATFORMS', '')
    allowed = not platforms or 'tpu' in platforms.split(',')
    on_tpu = allowed and cloud_tpu_init.running_in_cloud_tpu_vm
    cluster = detect(os.environ, on_tpu)
  return cluster


def _from_flags(
  flag_values: flags.FlagValues, environ: Mapping[str, str]
) -> Cluster | None:
  """Returns the cluster that the flags describe; None if no flag is given."""
  address: str | None = flag_values['coordinator'].value
  process: int | None = flag_values['process_id'].value
  count: int | None = flag_values['num_processes'].value
  if address is process is count is None:
    return None
  if address is None or process is None or count is None:
    raise config_lib.UserError(
      '--coordinator=HOST:PORT, --process_id=K and --num_processes=N belong'
      ' together: give all three, or none'
    )
  match = re.fullmatch(r'(?:[^:\s]+|\[[^\s]+\]):(\d{1,5})', address)
  if match is None or not 0 < int(match[1]) < 2**16:
    raise config_lib.UserError(
      f'--coordinator={address}: write HOST:PORT of process 0, as in'
      ' --coordinator=node1:8476'
    )
  if process >= count:
    raise config_lib.UserError(
      f'--process_id={process}: with --num_processes={count} it is 0 to'
      f' {count - 1}'
    )
  if process == 0 and count > 1:
    # If the port is in use, JAX may crash without a clear message.
    try:
      socket.create_server(('', int(match[1]))).close()
    except OSError as e:
      raise config_lib.UserError(
        f'--coordinator: process 0 cannot listen at port {match[1]} of this'
        f' machine: {e.strerror}; does another run use it?'
      ) from e
  cluster = _cluster('flags', 'deactivate', environ, count, process)
  cluster.arguments['coordinator_address'] = address
  return cluster


def _cluster(
  name: str, method: str, environ: Mapping[str, str], count: int, process: int
) -> Cluster:
  """Returns a cluster whose starter tells each process its number."""
  return Cluster(
    name,
    {
      'cluster_detection_method': method,
      'num_processes': count,
      'process_id': process,
      'local_device_ids': _local_devices(environ),
    },
  )


def detect(environ: Mapping[str, str], on_tpu: bool) -> Cluster | None:
  """Detects the cluster that started this process as one of several.

  None if it is the only one. This reads only environment variables. A shell
  inside a job does not count; `srun` or `mpirun` must have started several
  processes.

  Args:
    environ: Environment variables.
    on_tpu: Whether this host has TPU chips that JAX may use.
  """
  if (count := _number(environ, 'OMPI_COMM_WORLD_SIZE', 1)) > 1:
    method = 'ompi'
    if 'OMPI_MCA_orte_hnp_uri' not in environ:  # Open MPI 5 or newer
      method = 'mpi4py'
      _require('mpi4py', 'Open MPI 5')
    process = _number(environ, 'OMPI_COMM_WORLD_RANK', 0)
    return _cluster('Open MPI', method, environ, count, process)
  # The variables of the step that `srun` started: SLURM_NTASKS is also set in
  # the script of `sbatch` and the shell of `salloc`, which run once.
  count = _number(environ, 'SLURM_STEP_NUM_TASKS', 1)
  if count > 1 and 'SLURM_PROCID' in environ:
    process = _number(environ, 'SLURM_PROCID', 0)
    return _cluster('SLURM', 'slurm', environ, count, process)
  if on_tpu and _is_one_of_tpus(environ):
    return Cluster('TPU', {})
  if {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'} <= environ.keys():
    _require('kubernetes', 'an indexed job of Kubernetes')
    return Cluster('Kubernetes', {})
  return None


def _is_one_of_tpus(environ: Mapping[str, str]) -> bool:
  slices = _number(environ, 'MEGASCALE_NUM_SLICES', 1)
  if slices > 1 or 'TPU_PROCESS_ADDRESSES_PATH' in environ:  # JAX reads it
    return True
  hosts = environ.get('TPU_PROCESS_ADDRESSES') or environ.get(
    'TPU_WORKER_HOSTNAMES'
  )
  if hosts:  # on Google Kubernetes Engine
    return ',' in hosts
  # A TPU VM, whose metadata JAX asks for the hosts of its slice.
  return 'TPU_SKIP_MDS_QUERY' not in environ


def _require(package: str, cluster: str) -> None:
  if importlib.util.find_spec(package) is None:
    raise config_lib.UserError(
      f'this is {cluster}, where JAX finds the other processes with the package'
      f' {package}: pip install {package}{OR_FLAGS}'
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
  text = environ.get(name, '')
  return int(text) if text.isdecimal() else default


def _local_devices(environ: Mapping[str, str]) -> list[int] | None:
  """Returns the device ids for this process; []: all visible devices.

  By default JAX gives a process one device, whose id is the process's rank on
  its host. If there are more devices than processes, the others are idle. If
  SLURM has bound each process to its own device, there is no device with that
  id.
  """
  if 'JAX_LOCAL_DEVICE_IDS' in environ:  # JAX reads it
    return None
  if 'OMPI_COMM_WORLD_LOCAL_SIZE' in environ:
    size = _number(environ, 'OMPI_COMM_WORLD_LOCAL_SIZE', 1)
    rank = _number(environ, 'OMPI_COMM_WORLD_LOCAL_RANK', 0)
  else:
    sizes = [  # from 2(x3),1: three nodes with two tasks, and one with one
      int(tasks)
      for tasks, nodes in re.findall(
        r'(\d+)(?:\(x(\d+)\))?', environ.get('SLURM_STEP_TASKS_PER_NODE', '')
      )
      for _ in range(int(nodes or 1))
    ]
    node = _number(environ, 'SLURM_NODEID', 0)
    size = sizes[node] if node < len(sizes) else 1
    rank = _number(environ, 'SLURM_LOCALID', 0)
  if size == 1:
    return []
  if 'CUDA_VISIBLE_DEVICES' not in environ:
    return [rank]
  visible = len(environ['CUDA_VISIBLE_DEVICES'].split(','))
  bound = re.search(r'\d+$', environ.get('SLURM_GPUS_PER_TASK', ''))
  if visible < size or (bound and visible <= int(bound[0])):
    return []
  share = visible // size
  return list(range(rank * share, (rank + 1) * share))
