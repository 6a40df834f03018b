"""Makes the JSON files from which transformers rebuilds a model."""

from typing import Any

from vit_jax import data
from vit_jax.models import flat
from vit_jax.models import igpt
from vit_jax.models import resnet
from vit_jax.weights import preprocessing
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface
from vit_jax.weights.formats import huggingface_aimv2 as aimv2
from vit_jax.weights.formats import huggingface_beit
from vit_jax.weights.formats import huggingface_bit as bit
from vit_jax.weights.formats import huggingface_clip as clip
from vit_jax.weights.formats import huggingface_dinov3 as dinov3
from vit_jax.weights.formats import huggingface_kinds
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import imagegpt

# Kinds whose config.json has other keys.
_OF_ITS_OWN = {
  dinov3.KIND: dinov3.config,
  aimv2.KIND: aimv2.config,
  **dict.fromkeys(towers.ARCHITECTURES, towers.config),
}
_RESAMPLE = {name: i for i, name in preprocessing.RESAMPLE.items()}


def companions(
  model: flat.ViT | resnet.BiT,
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  return {
    'config.json': _config(model, preprocess, image_size),
    'preprocessor_config.json': _preprocessor_config(preprocess),
  }


def _config(
  model: flat.ViT | resnet.BiT,
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, Any]:
  if isinstance(model, resnet.BiT):
    return bit.config(model, preprocess) | _labels(model, preprocess)
  kind = huggingface_kinds.model_type(model)
  if kind in _OF_ITS_OWN:
    return _OF_ITS_OWN[kind](model, preprocess, image_size)
  architecture = huggingface.ARCHITECTURES[kind]
  if model.distillation_token and model.distillation_head:
    architecture += 'WithTeacher'
  if not model.num_classes:
    architecture = architecture.split('For')[0] + 'Model'
  height, width = image_size
  result: dict[str, Any] = {
    'model_type': kind,
    'architectures': [architecture],
    'hidden_size': model.hidden_size,
    'num_hidden_layers': model.depth,
    'num_attention_heads': model.num_heads,
    'hidden_act': clip.ACTIVATIONS[model.gelu],
    'hidden_dropout_prob': model.dropout_rate,
    'attention_probs_dropout_prob': model.attention_dropout_rate,
    'layer_norm_eps': model.layer_norm_epsilon,
    'image_size': height if height == width else [height, width],
    'patch_size': model.patch_size[0],
    'num_channels': preprocess.channels,
    'qkv_bias': model.qkv_bias,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }
  return result | _of_kind(model, kind) | _labels(model, preprocess)


def _labels(
  model: flat.ViT | resnet.BiT, preprocess: data.Preprocess
) -> dict[str, Any]:
  """Returns the fields with the names of classes, if there are any."""
  names = [*preprocess.classes]
  names += [f'LABEL_{i}' for i in range(len(names), model.num_classes)]
  if not model.num_classes:
    return {}
  return {
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': {name: i for i, name in enumerate(names)},
  }


def _of_kind(model: flat.ViT, kind: str) -> dict[str, Any]:
  """Returns the fields that only some of transformers' classes have."""
  if kind == huggingface_beit.KIND:
    return huggingface_beit.config(model)
  if not kind.startswith('dinov2'):
    pooler = {'pooler_output_size': model.pre_logits}
    return {
      'intermediate_size': model.mlp_dim,
      'encoder_stride': model.patch_size[0],
      **(pooler if model.pre_logits else {}),
    }
  registers = {'num_register_tokens': model.registers}
  return {
    'mlp_ratio': huggingface_kinds.mlp_ratio(model),
    'use_swiglu_ffn': model.gated_mlp,
    'use_mask_token': model.mask_token,
    'layerscale_value': model.layer_scale,
    'drop_path_rate': model.stochastic_depth,
    **(registers if model.registers else {}),
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


def notes(model: flat.ViT | igpt.IGPT | resnet.BiT) -> list[str]:
  """Returns notes on where transformers computes something else."""
  if isinstance(model, igpt.IGPT):
    return imagegpt.NOTES
  if isinstance(model, resnet.BiT):
    return []
  kind = huggingface_kinds.model_type(model)
  has_pool = kind.startswith('dinov') or kind in towers.ARCHITECTURES
  has_pool |= kind == aimv2.KIND and model.pool == 'map'
  if model.num_classes or model.pre_logits or has_pool:
    return []
  if model.pool == 'gap':
    return [
      'transformers has the mean in its classifier alone: of this model without'
      ' a head, average last_hidden_state over the patches'
    ]
  return [
    'transformers puts a pooler of random numbers after a model without a head:'
    ' read its last_hidden_state, not its pooler_output'
  ]


def usage(
  model: flat.ViT | igpt.IGPT | resnet.BiT, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  del file
  if isinstance(model, igpt.IGPT):
    return imagegpt.usage(directory)
  auto = 'AutoModelForImageClassification' if model.num_classes else 'AutoModel'
  return 'transformers', (
    f'from transformers import AutoImageProcessor, {auto}\n'
    f"model = {auto}.from_pretrained('{directory}')\n"
    f"processor = AutoImageProcessor.from_pretrained('{directory}')"
  )
