"""Other formulations of the same model, timed in turns with ours."""

from benchmarks.peers import base
from vit_jax.config import UserError

NAMES = ('baseline', 'timm', 'transformers')


def create(name: str, task: base.Task, compiles: bool = False) -> base.Peer:
  """Returns a formulation of the model; compiles nothing yet.

  Args:
    name: One of NAMES.
    task: The model, its parameters and a batch.
    compiles: Whether PyTorch compiles its model.

  Raises:
    UserError: There is no such formulation, or its library is not installed.
  """
  if name == 'baseline':
    from benchmarks.peers import baseline

    return baseline.Baseline(task)
  if name not in NAMES:
    raise UserError(f'--compare={name}: choose one of {", ".join(NAMES)}')
  from benchmarks.peers import torch_models

  return torch_models.TorchModel(name, task, compiles)
