"""Makes the JSON files from which transformers rebuilds a model."""

from typing import Any

from vit_jax import data
from vit_jax import models
from vit_jax.models import values as values_lib
from vit_jax.weights import preprocessing
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_vit
from vit_jax.weights.formats import imagegpt
from vit_jax.weights.formats.format import Format

_RESAMPLE = {name: i for i, name in preprocessing.RESAMPLE.items()}


def companions(
  kind: Format,
  model: models.Model,
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  values = values_lib.model_values(model)
  values |= {'image_size': image_size, 'image_channels': preprocess.channels}
  labels = _labels(values['num_classes'], preprocess)
  return {
    'config.json': {**kind.config(values), **labels},
    'preprocessor_config.json': _preprocessor_config(preprocess),
  }


def _labels(classes: int, preprocess: data.Preprocess) -> dict[str, Any]:
  """Returns the fields with the names of classes, if there are any."""
  names = [*preprocess.classes]
  names += [f'LABEL_{i}' for i in range(len(names), classes)]
  if not classes:
    return {}
  return {
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': {name: i for i, name in enumerate(names)},
  }


def _preprocessor_config(preprocess: data.Preprocess) -> dict[str, Any]:
  height, width = preprocess.image_size
  resize: Any = preprocess.resize
  if resize is None:  # the image just fills the crop
    resize = height if height == width else (height, width)
  channels = preprocess.channels
  result: dict[str, Any] = {
    'do_resize': True,
    'resample': _RESAMPLE[preprocess.interpolation],
    'do_convert_rgb': channels == 3,
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
    'image_mean': base.per_channel(preprocess.mean, channels),
    'image_std': base.per_channel(preprocess.std, channels),
  }
  if resize == preprocess.image_size:
    return {
      'image_processor_type': 'ViTImageProcessor',
      'size': {'height': height, 'width': width},
      **result,
    }
  size = {'shortest_edge': resize}
  if isinstance(resize, tuple):
    size = {'height': resize[0], 'width': resize[1]}
  return {
    'image_processor_type': 'BitImageProcessor',
    'size': size,
    'do_center_crop': True,
    'crop_size': {'height': height, 'width': width},
    **result,
  }


def notes(kind: Format, model: models.Model) -> list[str]:
  """Returns notes on where transformers computes something else."""
  values = values_lib.model_values(model)
  if kind is imagegpt.IGPT:
    return [imagegpt.NOTE]
  if values['num_classes']:
    return []
  if values.get('pool') == 'mean' and not values['pool.norm_after']:
    return [
      'transformers has the mean in its classifier alone: of this model without'
      ' a head, average last_hidden_state over the patches'
    ]
  if kind is huggingface_vit.VIT and not values['head.pre_logits']:
    return [
      'transformers puts a pooler of random numbers after a model without a'
      ' head: read its last_hidden_state, not its pooler_output'
    ]
  return []


def usage(
  kind: Format, model: models.Model, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  del file
  auto = 'AutoModelForImageClassification' if model.num_classes else 'AutoModel'
  if kind is imagegpt.IGPT:
    auto = imagegpt.ARCHITECTURE
  return 'transformers', (
    f'from transformers import AutoImageProcessor, {auto}\n'
    f"model = {auto}.from_pretrained('{directory}')\n"
    f"processor = AutoImageProcessor.from_pretrained('{directory}')"
  )
