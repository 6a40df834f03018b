"""Fields implied by the names of timm's architectures, as of timm 1.0.31."""

from collections.abc import Collection
import re
from typing import Any

from vit_jax.config import UserError
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats.base import FileFacts

# Arrays of unsupported features: a pattern, and the field of timm's classes.
_FOREIGN_ARRAYS = (
  (
    r'patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.).*',
    'another backbone than ResNetV2',
  ),
  (r'blocks\.\d+\.attn\.lambda_[ab]', 'another attn_layer'),
  (r'blocks\.\d+\.attn\.rel_pos_[hw]', 'windows of attention, as samvit'),
  (r'blocks\.\d+\.(attns|ffns)\..*', 'another block_fn'),
  (r'blocks\.\d+\.(linear_tokens|mlp_channels\.gate)\b.*', 'a block_layer'),
  # MoCo v3 and the probes of MAE have others in their heads.
  (
    r'(?!(momentum_encoder|predictor|head\.\d+)\.)(.*\.)?num_batches_tracked',
    'a BatchNorm as norm_layer',
  ),
)
# Names with act_layer='gelu_tanh'.
_TANH = (
  r'vit_base_patch32_siglip_'
  r'|vit_large_patch16_siglip_(gap_)?512'
  r'|vit_so400m_patch16_siglip_'
  r'|vit_giantopt_patch16_siglip_'
)
# `model_args` of timm's classes (`fields.unread_keys`) that arrays show, or
# that are read elsewhere, or do not affect a trained model.
COMMON = """
drop_path_rate drop_rate img_size in_chans num_classes proj_drop_rate
"""
# Those of timm's VisionTransformer.
IGNORED = f"""
{COMMON} attn_drop_rate distilled dynamic_img_pad dynamic_img_size fix_init
head_init_scale patch_drop_rate pos_drop_rate qkv_bias_separate weight_init
"""
LAYER_NORM = ' norm_layer=layernorm|layernormfp32'
GELUS = {'gelu': 'exact', 'gelu_tanh': 'tanh', 'quick_gelu': 'sigmoid'}
# Numbers of heads that differ from `_HEADS`, by name.
_HEADS_BY_NAME = {
  r'vit_giantopt_patch16_siglip_': 16,
  r'vit_base_patch16_gap_': 16,
  r'vit_huge_plus_patch16_dinov3': 20,
  r'vit_pe_\w+_gigantic_': 16,
}
# Numbers of heads by width: test_vit, vit_wee, little, medium, betwixt, so150m,
# so400m, ...
_OF_64_CHANNELS = (192, 256, 320, 384, 512, 640, 768, 832, 896, 1024, 1536)
_HEADS = {
  **{width: width // 64 for width in _OF_64_CHANNELS},
  **dict.fromkeys((1152, 1280, 1408, 1664, 1792), 16),
  64: 2,
  96: 3,
  4096: 32,
}


def architecture(config: typed.Json) -> str:
  """Returns the name in config.json; '' if there is none."""
  return config.get('architecture', typed.TEXT, '')


def check_arrays(names: Collection[str]) -> None:
  """Raises a UserError that names what is not computed of arrays' names."""
  for pattern, field in _FOREIGN_ARRAYS:
    name = next((x for x in names if re.fullmatch(pattern, x)), None)
    if name:
      raise UserError(
        f'it has {name}, as in timm with {field}: that is not computed here'
      )


def gelu(name: str) -> str:
  """Returns the kind of GELU that an architecture's name stands for."""
  if '_quickgelu_' in name:
    return 'sigmoid'
  return 'tanh' if re.match(_TANH, name) else 'exact'


def heads(config: typed.Json, hidden_size: int) -> int | None:
  """Returns the heads of an architecture by its name; None: it has others."""
  name = architecture(config)
  numbers = [
    n for pattern, n in _HEADS_BY_NAME.items() if re.match(pattern, name)
  ]
  if name.startswith('aimv2_'):
    numbers = [hidden_size // 128]
  if not numbers and re.match(
    '(naflex)?vit_|deit|beit|flexivit_|eva|test_vit', name
  ):
    numbers = [n for width, n in _HEADS.items() if width == hidden_size]
  return numbers[0] if numbers else None


def input_size(config: typed.Json) -> tuple[int, int] | None:
  """Returns (height, width) of the images in config.json, or None."""
  size = config.get('pretrained_cfg.input_size', typed.INPUT_SIZE)
  return (size[1], size[2]) if size else None


def labels(config: typed.Json, classes: int) -> tuple[str, ...]:
  """Returns the class names in config.json; () if there are none."""
  names = config.labels('label_names', classes)
  names = names or config.labels('pretrained_cfg.label_names', classes)
  descriptions = config.get('label_descriptions', typed.OBJECT, {})
  return tuple(str(descriptions.get(name, name)) for name in names)


def preprocess(
  file: FileFacts, size: tuple[int, int], channels: int
) -> tuple[dict[str, Any], str]:
  """Returns the preprocessing that the config says, or the usual one.

  DeiT, MAE, DINO and EVA-02 use ImageNet's mean; SigLIP, hybrids, BEiT, Mixer
  and BiT Google's.
  """
  values = file.values
  is_google = (
    values.get('pool', 'map') == 'map'
    or values['patches'] == 'hybrid'
    or values.get('positions.relative_bias', False)
  )
  defaults = preprocessing.TIMM_OF_GOOGLE if is_google else preprocessing.TIMM
  content, silent = preprocessing.from_timm(
    file.config, size, channels, defaults
  )
  return {
    'classes': labels(file.config, values['num_classes']),
    **content,
  }, silent
