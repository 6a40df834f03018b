"""The ViTs of timm and transformers, with our weights, in PyTorch."""

import functools
import importlib
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import base
from benchmarks.peers import torchvision_operators
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data.host import batches
from vit_jax.optim import optimizers
from vit_jax.weights.formats import export

# The format of our weights that each library reads.
_FORMATS = {'timm': 'timm', 'transformers': 'huggingface'}
_PACKAGES = {
  'timm': 'torch torchvision timm',
  'transformers': 'torch transformers',
}


class TorchModel(base.Peer):
  """A PyTorch model, by default in eager mode.

  It is on the GPU if JAX computes on one, and uses a thread for each core. For
  bfloat16 it uses autocast, with parameters in float32 like ours.
  """

  def __init__(self, name: str, task: base.Task, compiles: bool):
    """Converts the weights, and copies them and the batch to the device.

    Args:
      name: 'timm' or 'transformers'.
      task: The model, its parameters and a batch.
      compiles: Whether `torch.compile` compiles the model.

    Raises:
      UserError: The library is not installed, or has no such model.
    """
    self.name = name
    library, self._torch = _import(name, name), _import('torch', name)
    torch = self._torch
    torch.set_num_threads(batches.num_cores())
    self._device = device(torch, f'--compare={name}')
    on_gpu = self._device.type == 'cuda'
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'model')
      _write(task, path, _FORMATS[name])
      load = {'timm': _load_timm, 'transformers': _load_transformers}[name]
      module = load(library, path, task).to(self._device)
    if on_gpu:  # the patch embedding is a convolution
      module = module.to(memory_format=torch.channels_last)
    self._module = module  # the compiled function shares its mode
    self._call = torch.compile(module) if compiles else module
    self._optim = task.optim
    adamw: Any = optimizers.method(task.optim)
    self._optimizer = torch.optim.AdamW(
      module.parameters(),
      lr=task.optim.learning_rate,
      betas=(adamw.b1, adamw.b2),
      eps=adamw.eps,
      weight_decay=task.optim.weight_decay,
      fused=on_gpu or None,
    )
    images = np.ascontiguousarray(np.moveaxis(task.images, -1, 1))
    self._images = torch.from_numpy(images).to(self._device)
    if on_gpu:
      self._images = self._images.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(task.labels.astype(np.int64))
    self._labels = labels.to(self._device)
    self._autocast = functools.partial(
      torch.autocast,
      self._device.type,
      torch.bfloat16,
      enabled=task.model.dtype == jnp.bfloat16,
    )

  def logits(self) -> np.ndarray:
    """Returns the logits of the batch; see `base`."""
    return self._classify(1).float().cpu().numpy()

  def forward(self, count: int) -> None:
    """Classifies the batch some times; see `base`."""
    self._classify(count)
    self._wait()

  def _classify(self, count: int) -> Any:
    self._module.eval()
    with self._torch.inference_mode():
      for _ in range(count):
        logits = self._predict()
    return logits

  def _predict(self) -> Any:
    with self._autocast():
      output = self._call(self._images)
    return getattr(output, 'logits', output)

  def train(self, count: int) -> float:
    """Takes training steps; see `base`."""
    torch, optim = self._torch, self._optim
    self._module.train()
    for _ in range(count):
      self._optimizer.zero_grad(set_to_none=True)
      logits = self._predict().float()
      loss = torch.nn.functional.cross_entropy(logits, self._labels)
      loss.backward()
      if optim.clip_norm:
        torch.nn.utils.clip_grad_norm_(
          self._module.parameters(), optim.clip_norm
        )
      self._optimizer.step()
    self._wait()
    return loss.item()

  def _wait(self) -> None:
    if self._device.type == 'cuda':
      self._torch.cuda.synchronize()


def device(torch: Any, flag: str) -> Any:
  """Returns the device of PyTorch: the GPU if JAX computes on one.

  Args:
    torch: PyTorch.
    flag: The flag that asks for PyTorch, for the error.

  Raises:
    UserError: This PyTorch cannot compute on a GPU.
  """
  if jax.default_backend() != 'gpu':
    return torch.device('cpu')
  if not torch.cuda.is_available():
    raise UserError(
      f'{flag}: JAX computes on a GPU, but this PyTorch cannot:'
      ' install one for CUDA, or set JAX_PLATFORMS=cpu'
    )
  torch.set_float32_matmul_precision('high')  # TF32, as in XLA
  return torch.device('cuda')


def _import(module: str, name: str) -> Any:
  """Imports a library.

  Raises:
    UserError: The library or a dependency is missing; says what to install.
  """
  try:
    if module != 'torch':
      torchvision_operators.define_missing()
    return importlib.import_module(module)
  except ImportError as e:
    raise UserError(
      f'--compare={name}: {module} cannot be imported ({e}): pip install'
      f' {_PACKAGES[name]}'
    ) from None


def _write(task: base.Task, path: pathlib.Path, form: str) -> None:
  """Writes the model in the format of the library."""
  size = task.images.shape[1:3]
  loaded = weights.Loaded(
    task.model, task.params, task.preprocess, size, 'corner'
  )
  export.write(loaded, path, form, 'the benchmark')


def _load_timm(timm: Any, path: pathlib.Path, task: base.Task) -> Any:
  rate = task.model.dropout_rate  # not in its config.json
  return timm.create_model(
    f'local-dir:{path}',
    pretrained=True,
    pos_drop_rate=rate,
    proj_drop_rate=rate,
  )


def _load_transformers(
  transformers: Any, path: pathlib.Path, task: base.Task
) -> Any:
  """Loads the model, which has no dropout between the layers of the MLP."""
  del task  # config.json has all fields
  transformers.utils.logging.disable_progress_bar()
  return transformers.ViTForImageClassification.from_pretrained(path)
