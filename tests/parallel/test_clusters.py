import importlib.util
import socket

from absl import flags
import pytest

from vit_jax import config as config_lib
from vit_jax.parallel import clusters

# What `srun` tells the third of four tasks on two nodes with four GPUs each.
_SRUN = {
  'SLURM_JOB_ID': '4711',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '2',
  'SLURM_LOCALID': '0',
  'SLURM_NODEID': '1',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NUM_TASKS': '4',
  'SLURM_STEP_NODELIST': 'node[1-2]',
  'SLURM_STEP_TASKS_PER_NODE': '2(x2)',
  'CUDA_VISIBLE_DEVICES': '0,1,2,3',
}
# What the script of `sbatch --ntasks=4` has.
_SBATCH = {
  'SLURM_JOB_ID': '4711',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '0',
  'SLURM_NODEID': '0',
  'SLURM_JOB_NODELIST': 'node[1-2]',
}
# And the shell of `salloc --ntasks=4`, where that is a step.
_SALLOC = _SBATCH | {
  'SLURM_STEP_ID': '4294967290',
  'SLURM_STEP_NUM_TASKS': '1',
  'SLURM_STEP_NODELIST': 'node1',
  'SLURM_STEP_TASKS_PER_NODE': '1',
}
_MPIRUN = {
  'OMPI_COMM_WORLD_SIZE': '2',
  'OMPI_COMM_WORLD_RANK': '1',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
  'OMPI_COMM_WORLD_LOCAL_RANK': '1',
}
_ORTE = {'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.96.0.1:34911'}
_KUBERNETES = {'KUBERNETES_SERVICE_HOST': '10.0.0.1'}
_INDEXED = _KUBERNETES | {'JOB_COMPLETION_INDEX': '1'}


@pytest.mark.parametrize(
  'environ',
  [
    {},
    {'JPY_PARENT_PID': '7', 'COLAB_RELEASE_TAG': 'x'},
    _SBATCH,
    _SALLOC,
    _SRUN | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '1'},
    _MPIRUN | _ORTE | {'OMPI_COMM_WORLD_SIZE': '1'},
    _KUBERNETES,
  ],
  ids=['laptop', 'notebook', 'sbatch', 'salloc', 'srun 1', 'mpirun 1', 'pod'],
)
def test_alone(environ):
  assert clusters.detect(environ, on_tpu=False) is None


def test_slurm():
  cluster = clusters.detect(_SRUN, on_tpu=False)
  assert cluster.name == 'SLURM'
  assert cluster.arguments == {
    'cluster_detection_method': 'slurm',
    'num_processes': 4,
    'process_id': 2,
    'local_device_ids': [0, 1],
  }


@pytest.mark.parametrize(
  ('environ', 'devices'),
  [
    ({'SLURM_LOCALID': '1'}, [2, 3]),
    ({'SLURM_LOCALID': '1', 'CUDA_VISIBLE_DEVICES': '5'}, []),
    ({'CUDA_VISIBLE_DEVICES': '0,1', 'SLURM_GPUS_PER_TASK': 'h100:2'}, []),
    ({'SLURM_LOCALID': '1', 'SLURM_GPUS_PER_TASK': '2'}, [2, 3]),
    ({'SLURM_STEP_TASKS_PER_NODE': '3,1'}, []),
    ({'JAX_LOCAL_DEVICE_IDS': '3'}, None),
  ],
  ids=['shared', 'bound', 'bound 2', 'not bound', 'one task', 'given'],
)
def test_devices_are_shared_by_the_tasks_of_a_node(environ, devices):
  cluster = clusters.detect(_SRUN | environ, on_tpu=False)
  assert cluster.arguments['local_device_ids'] == devices


def test_open_mpi():
  cluster = clusters.detect(_SBATCH | _MPIRUN | _ORTE, on_tpu=False)
  assert cluster == clusters.Cluster(
    'Open MPI',
    {
      'cluster_detection_method': 'ompi',
      'num_processes': 2,
      'process_id': 1,
      'local_device_ids': [1],
    },
  )


@pytest.mark.parametrize(
  ('environ', 'package', 'arguments'),
  [
    (_INDEXED, 'kubernetes', {}),
    (
      _MPIRUN,
      'mpi4py',
      {
        'cluster_detection_method': 'mpi4py',
        'num_processes': 2,
        'process_id': 1,
        'local_device_ids': [1],
      },
    ),
  ],
  ids=['indexed job', 'Open MPI 5'],
)
def test_packages_that_jax_needs(monkeypatch, environ, package, arguments):
  actual = {package: object()}
  monkeypatch.setattr(importlib.util, 'find_spec', actual.get)
  assert clusters.detect(environ, on_tpu=False).arguments == arguments
  actual.clear()
  with pytest.raises(config_lib.UserError, match=f'pip install {package}; or'):
    clusters.detect(environ, on_tpu=False)


@pytest.mark.parametrize(
  ('environ', 'several'),
  [
    ({}, True),  # a TPU VM: its metadata know
    ({'TPU_SKIP_MDS_QUERY': '1'}, False),
    ({'TPU_WORKER_HOSTNAMES': 'localhost'}, False),
    ({'TPU_WORKER_HOSTNAMES': 'a,b'} | _INDEXED, True),
    ({'TPU_WORKER_HOSTNAMES': 'a', 'MEGASCALE_NUM_SLICES': '2'}, True),
    ({'TPU_PROCESS_ADDRESSES': 'local', 'TPU_SKIP_MDS_QUERY': '1'}, False),
    ({'TPU_PROCESS_ADDRESSES_PATH': '/x', 'TPU_SKIP_MDS_QUERY': '1'}, True),
  ],
  ids=['VM', 'no metadata', 'GKE 1', 'GKE 2', 'slices', 'Kaggle', 'file'],
)
def test_tpu(environ, several):
  cluster = clusters.detect(environ, on_tpu=True)
  assert cluster == (clusters.Cluster('TPU', {}) if several else None)


def _flags(*args: str) -> flags.FlagValues:
  flag_values = flags.FlagValues()
  clusters.define_flags(flag_values)
  flag_values(['main', *args])
  return flag_values


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    (['--coordinator=a:1', '--num_processes=2'], 'belong together: give all'),
    (['--process_id=0'], 'belong together: give all three, or none'),
    (
      ['--coordinator=a', '--process_id=0', '--num_processes=2'],
      '--coordinator=a: write HOST:PORT of process 0',
    ),
    (
      ['--coordinator=a:99999', '--process_id=0', '--num_processes=2'],
      '--coordinator=a:99999: write HOST:PORT',
    ),
    (
      ['--coordinator=[::1]:80', '--process_id=2', '--num_processes=2'],
      '--process_id=2: with --num_processes=2 it is 0 to 1',
    ),
  ],
)
def test_flags_that_do_not_fit(args, message):
  with pytest.raises(config_lib.UserError) as e:
    clusters.find(_flags(*args))
  assert message in str(e.value)


@pytest.mark.parametrize('arg', ['--process_id=-1', '--num_processes=x'])
def test_flags_that_are_no_numbers(arg):
  with pytest.raises(flags.IllegalFlagValueError, match=arg):
    _flags(arg)


def test_a_port_that_is_in_use():
  with socket.create_server(('', 0)) as server:
    port = server.getsockname()[1]
    with pytest.raises(config_lib.UserError, match=f'port {port} of this'):
      clusters.find(
        _flags(
          f'--coordinator=localhost:{port}',
          '--process_id=0',
          '--num_processes=2',
        )
      )
