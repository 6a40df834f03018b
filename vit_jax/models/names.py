"""Names of timm and Hugging Face for models that exist here.

A name gives a model with the same function as in its library. The image size at
the end of the name is ignored. As of timm 1.0.31 and transformers 5.23.
"""

from collections.abc import Callable
from collections.abc import Mapping
import re
from typing import Any

# Our name, and values of fields that differ from the named model's.
Named = tuple[str, dict[str, Any]]

_SIZES = {
  'tiny': 'Ti',
  'small': 'S',
  'base': 'B',
  'large': 'L',
  'huge': 'H',
  'giant': 'g',
}
_SIZE = f'(?P<size>{"|".join(_SIZES)})'
_PATCH = r'(?P<patch>\d+)'
_END = r'_\d+(_in21k|_in21ft1k|_miil)?'  # image size; tags before timm 0.8

# Sizes that only one family has.
_MEDIUM = {'hidden_size': 512, 'mlp_dim': 2048, 'num_heads': 8}
_SO400M = {'hidden_size': 1152, 'mlp_dim': 4304, 'num_heads': 16, 'depth': 27}
_DINO_GIANT = {
  'hidden_size': 1536,
  'mlp_dim': 4096,
  'num_heads': 24,
  'gated_mlp': True,
}
_EXACT = {'gelu': 'exact'}
# transformers' ViT and DeiT, by default.
_HUGGINGFACE = _EXACT | {'layer_norm_epsilon': 1e-12}


def _vit(found: re.Match[str], **fields: Any) -> Named:
  return f'ViT-{_SIZES[found["size"]]}/{found["patch"]}', _EXACT | fields


def _plain(found: re.Match[str]) -> Named:
  # MIIL's models were trained without these biases.
  fields = {'qkv_bias': False} if found[0].endswith('_miil') else {}
  return _vit(found, **fields)


def _siglip(found: re.Match[str]) -> Named:
  size = found['of']
  fields: dict[str, Any] = dict(_SO400M) if size == 'so400m' else {}
  patch, is_large = found['patch'], found[0].endswith('512')
  is_tanh = size == 'so400m' and patch == '16'
  is_tanh |= size == 'base' and patch == '32'
  is_tanh |= size == 'large' and is_large
  fields['gelu'] = 'tanh' if is_tanh else 'exact'
  fields['pool'] = 'gap' if found['gap'] else 'map'
  return f'ViT-{_SIZES.get(size, "B")}/{patch}', fields


def _timm_dinov2(found: re.Match[str]) -> Named:
  fields: dict[str, Any] = {'layer_scale': 1e-5}
  if found['registers']:
    fields |= {'registers': 4, 'position_tokens': 'patches'}
  if found['size'] == 'giant':
    fields |= _DINO_GIANT
  return _vit(found, **fields)


# DINOv3's sizes: ours, and the fields that differ.
_S_PLUS = {'mlp_dim': 1536, 'gated_mlp': True}
_H_PLUS = {'mlp_dim': 5120, 'num_heads': 20, 'gated_mlp': True}
_7B = {
  'hidden_size': 4096,
  'mlp_dim': 8192,
  'num_heads': 32,
  'depth': 40,
  'gated_mlp': True,
}
_NO_BIASES = {'qkv_bias': False, 'key_bias': True}
_DINOV3_SIZES: Mapping[str, tuple[str, dict[str, Any]]] = {
  'small': ('S', {}),
  'small_plus': ('S', _S_PLUS),
  'base': ('B', {}),
  'large': ('L', {}),
  'huge_plus': ('H', _H_PLUS),
  '7b': ('H', _7B),
  's16': ('S', {}),
  's16plus': ('S', _S_PLUS),
  'b16': ('B', {}),
  'l16': ('L', {}),
  'h16plus': ('H', _H_PLUS),
  '7b16': ('H', _7B | _NO_BIASES),
}
_DINOV3: dict[str, Any] = {
  'class_token': True,
  'registers': 4,
  'position_embedding': 'none',
  'rotary': 'dinov3',
  'key_bias': False,
  'layer_norm_epsilon': 1e-5,
  'layer_scale': 1e-5,
  **_EXACT,
}
_EVA02_MLP = {'tiny': 512, 'small': 1024, 'base': 2048, 'large': 2730}
_EVA = {
  'pool': 'gap',
  'norm_after_pool': True,
  'class_token': True,
  'key_bias': False,
  **_EXACT,
}
_ROTARY = {'rotary': 'eva02', 'rotary_base': 1e4, 'rotary_grid': (16, 16)}
_ROPE_SIZES: Mapping[str, dict[str, Any]] = {
  'medium': _MEDIUM,
  'mediumd': _MEDIUM | _NO_BIASES | {'depth': 20},
  'betwixt': {'hidden_size': 640, 'mlp_dim': 2560, 'num_heads': 10},
  'base': {},
}


def _dinov3(found: re.Match[str]) -> Named:
  size, fields = _DINOV3_SIZES[found['of']]
  shown = {'layer_scale': 1.0, 'mask_token': True}
  return f'ViT-{size}/16', _DINOV3 | fields | shown


def _timm_dinov3(found: re.Match[str]) -> Named:
  size, fields = _DINOV3_SIZES[found['of']]
  # Biases of published models are zeros; names without `qkvb` have none.
  biases = {} if found['biases'] else _NO_BIASES
  return f'ViT-{size}/16', _DINOV3 | fields | biases | {'pool': 'gap'}


def _eva02(found: re.Match[str]) -> Named:
  size = found['of']
  fields = {
    'mlp_dim': _EVA02_MLP[size],
    'gated_mlp': True,
    'mlp_norm': size in ('base', 'large'),
  }
  return f'ViT-{_SIZES[size]}/14', _ROTARY | _EVA | fields


def _eva(found: re.Match[str]) -> Named:
  del found
  return 'ViT-g/14', dict(_EVA)


def _timm_rope(found: re.Match[str]) -> Named:
  fields = _ROTARY | _EVA | _ROPE_SIZES[found['of']]
  return 'ViT-B/16', fields | {
    'class_token': False,
    'registers': int(found['registers']),
    'position_embedding': 'none',
    'layer_scale': 1e-5,
  }


def _rope_vit(found: re.Match[str]) -> Named:
  fields = {'rotary': 'rope_vit', 'layer_scale': 1e-5, **_EXACT}
  if found['positions']:
    fields['position_tokens'] = 'patches'
  else:
    fields['position_embedding'] = 'none'
  return f'ViT-{_SIZES[found["of"]]}/16', fields


def _deit(found: re.Match[str]) -> Named:
  return _vit(found, distillation_token=bool(found['distilled']))


def _deit3(found: re.Match[str]) -> Named:
  fields = {'layer_scale': 1e-6, 'position_tokens': 'patches', **_EXACT}
  if found['of'] == 'medium':
    return f'ViT-B/{found["patch"]}', fields | _MEDIUM
  return f'ViT-{_SIZES[found["of"]]}/{found["patch"]}', fields


def _mixer(found: re.Match[str]) -> Named:
  return f'Mixer-{found["size"].upper()}/{found["patch"]}', dict(_EXACT)


def _bit(found: re.Match[str]) -> Named:
  return f'BiT-R{found["size"]}', {}


def _hybrid(found: re.Match[str]) -> Named:
  name = f'{found["stem"].upper()}+ViT-{_SIZES[found["size"]]}/{found["patch"]}'
  return name, dict(_EXACT)


def _huggingface(found: re.Match[str]) -> Named:
  name, fields = _vit(found)
  return name, fields | _HUGGINGFACE


def _huggingface_deit(found: re.Match[str]) -> Named:
  name, fields = _deit(found)
  return name, fields | _HUGGINGFACE


def _dino(found: re.Match[str]) -> Named:
  return f'ViT-{found["size"].upper()}/{found["patch"]}', dict(_HUGGINGFACE)


def _dinov2(found: re.Match[str]) -> Named:
  fields: dict[str, Any] = {
    'pool': 'token+gap',
    'layer_scale': 1.0,
    'position_tokens': 'class',
    'registers': 4 if found['registers'] else 0,
    **_EXACT,
  }
  if found['size'] == 'giant':
    fields |= _DINO_GIANT
  return f'ViT-{_SIZES[found["size"]]}/14', fields


_OWNER = r'[\w.-]+/'
_PATTERNS: Mapping[str, Callable[[re.Match[str]], Named]] = {
  # timm.
  rf'vit_{_SIZE}_patch{_PATCH}{_END}': _plain,
  rf'vit_(?P<of>base|large|so400m)_patch{_PATCH}_siglip_(?P<gap>gap_)?\d+': (
    _siglip
  ),
  rf'vit_{_SIZE}_patch{_PATCH}_(?P<registers>reg4_)?dinov2': _timm_dinov2,
  r'vit_(?P<of>small|small_plus|base|large|huge_plus|7b)_patch16_dinov3'
  r'(?P<biases>_qkvb)?': _timm_dinov3,
  r'eva02_(?P<of>tiny|small|base|large)_patch14_\d+': _eva02,
  r'eva_giant_patch14_\d+': _eva,
  r'vit_(?P<of>medium|mediumd|betwixt|base)_patch16_rope_reg(?P<registers>\d)'
  r'_gap_\d+': _timm_rope,
  r'vit_(?P<of>small|base|large)_patch16_rope_(?P<positions>ape_)?\d+': (
    _rope_vit
  ),
  rf'deit_{_SIZE}_(?P<distilled>distilled_)?patch{_PATCH}{_END}': _deit,
  rf'deit3_(?P<of>medium|{_SIZE})_patch{_PATCH}{_END}': _deit3,
  rf'mixer_(?P<size>[sbl]){_PATCH}{_END}': _mixer,
  r'resnetv2_(?P<size>\d+x\d)_bit(m|m_in21k|_\w+)?': _bit,
  rf'vit_{_SIZE}_(?P<stem>r\d*)_s{_PATCH}(_p8)?{_END}': _hybrid,
  # Hugging Face's repositories.
  rf'{_OWNER}vit-{_SIZE}-patch{_PATCH}-\d+(-in21k)?': _huggingface,
  rf'{_OWNER}deit-{_SIZE}-(?P<distilled>distilled-)?patch{_PATCH}-\d+': (
    _huggingface_deit
  ),
  rf'{_OWNER}dino-vit(?P<size>[sb]){_PATCH}': _dino,
  rf'{_OWNER}dinov2-(?P<registers>with-registers-)?{_SIZE}'
  r'(-imagenet1k-1-layer)?': _dinov2,
  rf'{_OWNER}dinov3-vit(?P<of>s16|s16plus|b16|l16|h16plus|7b16)-pretrain-\w+': (
    _dinov3
  ),
}
# timm's other architectures of these families.
_TIMM = r'[a-z]+\w*_(patch\d+_\w+|\w+_\d{3}|dinov\d)(\.\w+)?'


def find(name: str) -> Named | None:
  """Returns our name and fields for a name of timm or Hugging Face.

  Args:
    name: As `vit_base_patch16_224`, with or without timm's tag after a dot; or
      as `google/vit-base-patch16-224`; both may start with `hf:`.

  Returns:
    Name and fields; None if the name has no known form.
  """
  name = name.removeprefix('hf:').removeprefix('timm/')
  if '/' not in name:
    name = name.partition('.')[0]
  for pattern, named in _PATTERNS.items():
    if found := re.fullmatch(pattern, name, re.ASCII):
      return named(found)
  return None


def is_timms(name: str) -> bool:
  """Whether a name has the form of timm's names of vision transformers."""
  return bool(re.fullmatch(_TIMM, name, re.ASCII)) or find(name) is not None
