"""Methods with a class in transformers: MAE, BEiT, iGPT and CLIP.

They start from our parameters, so that the first losses are alike.
"""

import pathlib
import tempfile
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional
import transformers

from benchmarks.peers import torch_step
from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.models import embedding
from vit_jax.models import igpt
from vit_jax.models import subtrees
from vit_jax.weights.formats import export
from vit_jax.weights.formats import objective_tables


class MAE(torch_step.TorchStep):
  """ViTMAEForPreTraining, which draws its own masks."""

  def make(self) -> Any:
    """Returns the module."""
    module = _converted(self.task, transformers.ViTMAEForPreTraining)
    # Fixed, but `from_pretrained` lets them train.
    module.vit.embeddings.position_embeddings.requires_grad_(False)
    module.decoder.decoder_pos_embed.requires_grad_(False)
    return module

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    return self.module(self.views['image']).loss


class BEiT(torch_step.TorchStep):
  """BeitForMaskedImageModeling, and the nearest codes of the patches.

  Masked patches are drawn one by one, which costs next to nothing.
  """

  def make(self) -> Any:
    """Returns the module."""
    task = self.task
    patch = models.patch_of_images(task.objective.model)
    patches = embedding.patches(task.views['image'], patch)
    codes = self.tensor(np.asarray(task.extra['tokenizer']['codes']))
    self._patches, self._codes = self.tensor(np.asarray(patches)), codes
    return _converted(task, transformers.BeitForMaskedImageModeling)

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    count = self.task.config.objective.options.masked
    noise = torch.rand(self._patches.shape[:2], device=self._codes.device)
    masked = noise.argsort(dim=1).argsort(dim=1) < count
    with torch.no_grad():
      products = self._patches @ self._codes.T
      distances = (self._codes**2).sum(dim=1) - 2 * products
      tokens = distances.argmin(dim=-1)[masked]
    images = self.views['image']
    return self.module(images, bool_masked_pos=masked, labels=tokens).loss


class IGPT(torch_step.TorchStep):
  """ImageGPTForCausalImageModeling on colours that are found beforehand."""

  def make(self) -> Any:
    """Returns the module."""
    model, images = self.task.objective.model, self.task.views['image']
    assert isinstance(model, igpt.IGPT)
    pixels = images.reshape(len(images), -1, images.shape[-1])
    ids = igpt.nearest(jnp.asarray(pixels), self.task.params['clusters'])
    inputs = np.asarray(igpt.shifted(ids, model.colours))
    self._ids = self.tensor(np.asarray(ids).astype(np.int64))
    self._inputs = self.tensor(inputs.astype(np.int64))
    return _converted(self.task, transformers.ImageGPTForCausalImageModeling)

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    logits = self.module(input_ids=self._inputs, use_cache=False).logits
    return functional.cross_entropy(
      logits.float().flatten(0, 1), self._ids.flatten()
    )


class CLIP(torch_step.TorchStep):
  """CLIPModel, whose loss is CLIP's own."""

  def make(self) -> Any:
    """Returns the module."""
    tokens = self.task.others['text'].astype(np.int64)
    self._tokens = self.tensor(tokens)
    return _converted(self.task, transformers.CLIPModel)

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    images = self.views['image']
    return self.module(self._tokens, images, return_loss=True).loss


def _converted(task: torch_step.Task, cls: Any) -> Any:
  """Returns a module of a class of transformers with our parameters."""
  objective = task.objective
  model, params = objective.trunk(task.params)
  beside = subtrees.remainder(task.params, objective.trunk_path)
  loaded = weights.Loaded(
    model,
    params,
    data.Preprocess.from_config(task.config, objective.features),
    objective.image_shape[:2],
    'corner',
    objective_params=beside,
  )
  transformers.utils.logging.disable_progress_bar()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'model')
    whole = objective_tables.table(objective, 'huggingface')
    export.write(loaded, path, 'huggingface', 'the benchmark', whole)
    return cls.from_pretrained(path)
