"""Makes the config.json from which timm rebuilds a model.

timm has architectures by name, which `model_args` modify. If timm has no name
for a model, config.json has the most similar one, and a note says what differs.
"""

from collections.abc import Mapping
import itertools
import math
from typing import Any

from vit_jax import data
from vit_jax import models
from vit_jax.models import flat
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.models import values as values_lib
from vit_jax.models.zoo import bit
from vit_jax.models.zoo import mixer as mixers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_eva
from vit_jax.weights.formats import timm_naflex
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats import timm_relpos
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.format import Format

# timm's names of the paper's sizes.
_SIZES = {'Ti': 'tiny', 'S': 'small', 'L': 'large', 'H': 'huge', 'g': 'giant'}
_SIZES |= {'B': 'base'}
_VITS = (
  ('Ti', 16),
  ('S', 16),
  ('S', 32),
  ('B', 8),
  ('B', 16),
  ('B', 32),
  ('L', 16),
  ('L', 32),
  ('H', 14),
  ('g', 14),
)
_HYBRIDS: Mapping[tuple[int, ...], str] = {
  (): 'vit_tiny_r_s16_p8_224',
  (2, 2, 2, 2): 'vit_small_r26_s32_224',
  (3, 4, 9): 'vit_base_r50_s16_224',
  (3, 4, 6, 3): 'vit_large_r50_s32_224',
}
# timm's names of functions that are not its default.
_GELUS = {'tanh': 'gelu_tanh', 'sigmoid': 'quick_gelu'}
_MIXERS_GELUS = {
  'tanh': 'timm.layers.GELUTanh',
  'sigmoid': 'timm.layers.activations.QuickGELU',
}


def companions(
  model: models.Flat, preprocess: data.Preprocess, image_size: tuple[int, int]
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  parts = _parts(model, (preprocess.channels, *image_size))
  channels = preprocess.channels
  pretrained = {
    'input_size': [channels, *image_size],
    'fixed_input_size': not isinstance(model, resnet.BiT),
    'interpolation': preprocess.interpolation,
    'crop_pct': _crop_pct(preprocess),
    'crop_mode': _crop_mode(preprocess),
    'mean': base.per_channel(preprocess.mean, channels),
    'std': base.per_channel(preprocess.std, channels),
    'num_classes': model.num_classes,
    'pool_size': None,
    'first_conv': parts['first_conv'],
    'classifier': parts['classifier'],
  }
  if preprocess.classes:
    pretrained['label_names'] = list(preprocess.classes)
  config = {
    'architecture': parts['architecture'],
    'num_classes': model.num_classes,
    'num_features': parts['num_features'],
    'global_pool': parts['global_pool'],
    'model_args': parts['model_args'],
    'pretrained_cfg': pretrained,
  }
  return {'config.json': config}


def companions_of_kind(
  kind: Format,
  model: models.Model,
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  channels = preprocess.channels
  values = values_lib.model_values(model)
  values |= {'image_size': image_size, 'image_channels': channels}
  config = kind.config(values)
  pretrained = {
    'input_size': [channels, *image_size],
    'fixed_input_size': not isinstance(model, resnet.BiT),
    'interpolation': preprocess.interpolation,
    'crop_pct': _crop_pct(preprocess),
    'crop_mode': _crop_mode(preprocess),
    'mean': base.per_channel(preprocess.mean, channels),
    'std': base.per_channel(preprocess.std, channels),
    'num_classes': model.num_classes,
    'pool_size': None,
    **config.pop('pretrained_cfg', {}),
  }
  if preprocess.classes:
    pretrained['label_names'] = list(preprocess.classes)
  config |= {'num_classes': model.num_classes, 'pretrained_cfg': pretrained}
  return {'config.json': config}


def notes_of_kind(kind: Format, model: models.Model) -> list[str]:
  """Returns notes on where timm's code differs or does not suffice."""
  values = values_lib.model_values(model)
  notes = []
  if obstacle := kind.obstacle(values):
    notes.append(
      f'timm has no architecture for {obstacle}: `create_model` alone does not'
      ' rebuild this model; construct its class, and load the state dict'
    )
  if values.get('patches') == 'hybrid':
    notes.append(
      'the epsilons of the ResNet stem: GroupNorm has 1e-6 here and 1e-5 in'
      ' timm'
    )
  return notes


def usage_of_kind(
  kind: Format, model: models.Model, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  values = values_lib.model_values(model)
  if values.get('head.pre_logits'):
    return 'timm', _usage_with_pre_logits(values, directory, file)
  if kind.obstacle(values):
    return 'timm', (
      'import safetensors.torch\n'
      f"state_dict = safetensors.torch.load_file('{directory}/{file}')"
    )
  return 'timm', (
    f"import timm\nmodel = timm.create_model('local-dir:{directory}',"
    ' pretrained=True)'
  )


def _crop_mode(preprocess: data.Preprocess) -> str:
  if preprocess.fill is not None:
    return 'border'
  return 'squash' if isinstance(preprocess.resize, tuple) else 'center'


def _crop_pct(preprocess: data.Preprocess) -> float:
  """Returns a fraction f with floor(side / f) = the resized side.

  Unless one is stored, it is that with the fewest digits, as people write it.
  """
  if preprocess.crop_pct is not None:
    return preprocess.crop_pct
  side, resize = min(preprocess.image_size), preprocess.resize
  resized = min(resize) if isinstance(resize, tuple) else resize
  resized = max(resized or side, side)
  for digits in itertools.count(1):
    most = side * 10**digits // resized
    for numerator in (most, most - 1):
      fraction = numerator / 10**digits
      if fraction > 0 and math.floor(side / fraction) == resized:
        return fraction
  raise AssertionError


def notes(model: models.Flat) -> list[str]:
  """Returns notes on where timm's code differs or does not suffice."""
  found = []
  obstacle = _obstacle(model)
  if obstacle:
    found.append(
      f'timm has no architecture for {obstacle}: `create_model` alone does not'
      ' rebuild this model; construct its class, and load the state dict'
    )
  if isinstance(model, resnet.BiT):
    return found
  if timm_parallel.has_one_output(model):
    found.append(
      'the biases of the layers after attention and after the MLP are added:'
      ' timm has one layer for both'
    )
  has_pre_norm = getattr(model, 'pre_norm', False)
  is_clip = has_pre_norm and not timm_parallel.is_kind(model)
  is_eva = isinstance(model, flat.ViT) and timm_eva.is_kind(model)
  only_scales = is_eva and model.norm == 'rms'
  is_dino = getattr(model, 'rotary', '') == 'dinov3'
  is_aim = getattr(model, 'patch_norm', False)
  is_other = (is_clip or is_dino) and not only_scales
  usual = 1e-5 if is_aim or is_other else 1e-6
  # model.layer_norm_epsilon, or an option of its norm.
  epsilon = models.fields_of(model)['layer_norm_epsilon']
  if epsilon != usual:
    found.append(
      f'LayerNorm: this model has epsilon {epsilon:g}, timm has {usual:g}'
    )
  if isinstance(model, mixer.Mixer):
    if (gelu := model.block.mlp.gelu) in _MIXERS_GELUS:
      found.append(
        f'GELU: this model has {uncommon.GELUS[gelu]}; timm computes the exact'
        f' function unless `MlpMixer` is given act_layer={_MIXERS_GELUS[gelu]}'
      )
  elif model.resnet_stages is not None:
    found.append(
      'the epsilons of the ResNet stem: GroupNorm has 1e-6 here and 1e-5 in'
      ' timm'
    )
  return found


def usage(model: models.Flat, directory: str, file: str) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  if _obstacle(model):
    return 'timm', (
      'import safetensors.torch\n'
      f"state_dict = safetensors.torch.load_file('{directory}/{file}')"
    )
  return 'timm', (
    f"import timm\nmodel = timm.create_model('local-dir:{directory}',"
    ' pretrained=True)'
  )


def _usage_with_pre_logits(
  values: Mapping[str, Any], directory: str, file: str
) -> str:
  """Returns Python code that makes both layers the head of timm's class."""
  d, n = values['hidden_size'], values['head.pre_logits']
  classes = values['num_classes']
  last = f',\n    torch.nn.Linear({n}, {classes})' if classes else ''
  return f"""\
import json
import safetensors.torch
import timm
import torch

with open('{directory}/config.json') as file:
  config = json.load(file)
model = timm.create_model(config['architecture'], **config['model_args'])
model.head = torch.nn.Sequential(
    torch.nn.Linear({d}, {n}), torch.nn.Tanh(){last})
arrays = safetensors.torch.load_file('{directory}/{file}')
model.load_state_dict({{
    name.replace('head.', 'head.2.').replace('pre_logits.fc.', 'head.0.'): array
    for name, array in arrays.items()}})"""


def _parts(model: models.Flat, shape: tuple[int, ...]) -> dict[str, Any]:
  """Returns the fields of a family; `shape` is (C, height, width)."""
  if isinstance(model, mixer.Mixer):
    return {
      'architecture': _mixer_name(model) or 'mixer_b16_224',
      'num_features': model.hidden_size,
      'global_pool': 'avg',
      'model_args': {'img_size': list(shape[1:]), 'in_chans': shape[0]},
      'first_conv': 'stem.proj',
      'classifier': 'head',
    }
  if isinstance(model, resnet.BiT):
    return {
      'architecture': _bit_name(model) or 'resnetv2_50x1_bit',
      'num_features': model.channels[-1] * model.width_factor,
      'global_pool': 'avg',
      'model_args': {'in_chans': shape[0]},
      'first_conv': 'stem.conv',
      'classifier': 'head.fc',
    }
  first_conv = 'patch_embed.proj'
  if model.resnet_stages is not None:
    stem = 'stem.' if model.resnet_stages else ''
    first_conv = f'patch_embed.backbone.{stem}conv'
  assert isinstance(model, flat.ViT)
  if timm_naflex.is_kind(model):
    first_conv = 'embeds.proj'
  arguments = _vit_arguments(model, shape)
  if timm_eva.is_kind(model):
    arguments = _eva_arguments(model, arguments)
  elif timm_relpos.is_kind(model):
    arguments = _relpos_arguments(model, arguments)
  if timm_naflex.is_kind(model):
    grid = [n // p for n, p in zip(shape[1:], model.patch_size, strict=True)]
    arguments |= {'pos_embed_grid_size': grid, **timm_naflex.arguments(model)}
    del arguments['no_embed_class']
  return {
    'architecture': _vit_name(model),
    'num_features': model.hidden_size,
    'global_pool': arguments['global_pool'],
    'model_args': arguments,
    'first_conv': first_conv,
    'classifier': ['head', 'head_dist'] if model.distillation_token else 'head',
  }


def _vit_arguments(model: flat.ViT, shape: tuple[int, ...]) -> dict[str, Any]:
  patch = model.patch_size
  is_packed = model.gated_mlp and not model.patch_norm
  d, wide = model.hidden_size, model.mlp_dim * (1 + is_packed)
  arguments: dict[str, Any] = {
    'img_size': list(shape[1:]),
    'in_chans': shape[0],
    'patch_size': patch[0] if patch[0] == patch[1] else list(patch),
    'embed_dim': d,
    'depth': model.depth,
    'num_heads': model.num_heads,
    'mlp_ratio': base.ratio(wide, d),
    'qkv_bias': model.qkv_bias,
  }
  if timm_beit.is_kind(model):
    return arguments | _beit_arguments(model)
  arguments |= {
    'qk_norm': model.qk_norm,
    'init_values': model.layer_scale,
    'class_token': 'class_token' in model.prefix,
    'reg_tokens': model.registers,
    'no_embed_class': bool(model.prefix) and model.positioned_prefix == 0,
    'global_pool': {'gap': 'avg'}.get(model.pool, model.pool),
    'fc_norm': model.pool == 'gap' and model.norm_after_pool,
  }
  if model.position_embedding == 'none':
    arguments['pos_embed'] = 'none'
  if model.gelu in _GELUS and not model.gated_mlp:
    arguments['act_layer'] = _GELUS[model.gelu]
  if model.pre_norm:
    arguments['pre_norm'] = True
  if model.norm == 'rms' and not model.patch_norm:
    arguments['norm_layer'] = 'rmsnorm'
  if not model.dense_bias:
    arguments['proj_bias'] = False
  if not model.last_norm:
    arguments['final_norm'] = False
  if model.differential and not model.parallel_mlp:
    arguments['attn_layer'] = 'diff'
  if model.pool == 'map' and model.map_prefix:
    arguments['pool_include_prefix'] = True
  if timm_parallel.is_kind(model):
    arguments |= _parallel_arguments(model)
  return arguments


def _parallel_arguments(model: flat.ViT) -> dict[str, Any]:
  """Returns arguments that the names of parallel layers change."""
  if not model.parallel_mlp:  # timm drops None
    return {'init_values': model.layer_scale or 0.0}
  norm = 'rmsnorm' if model.norm == 'rms' else 'layernorm'
  return {'pre_norm': model.pre_norm, 'norm_layer': norm}


def _eva_arguments(
  model: flat.ViT, arguments: dict[str, Any]
) -> dict[str, Any]:
  """Returns the arguments of timm's class Eva for those of its ViT."""
  others = 'reg_tokens fc_norm pos_embed pre_norm final_norm act_layer'
  for key in (*others.split(), 'norm_layer', 'pool_include_prefix'):
    arguments.pop(key, None)
  arguments['mlp_ratio'] = base.ratio(model.mlp_dim, model.hidden_size)
  return arguments | timm_eva.arguments(model)


def _beit_arguments(model: flat.ViT) -> dict[str, Any]:
  """Returns arguments of timm's class of BEiT that its ViT does not share."""
  return {
    'init_values': model.layer_scale or 0.0,  # timm drops None
    'global_pool': {'gap': 'avg'}.get(model.pool, model.pool),
    'use_fc_norm': model.norm_after_pool,
    'use_abs_pos_emb': model.position_embedding == 'learned',
    'use_rel_pos_bias': model.relative_positions == 'layers',
    'use_shared_rel_pos_bias': model.relative_positions == 'shared',
  }


def _relpos_arguments(
  model: flat.ViT, arguments: dict[str, Any]
) -> dict[str, Any]:
  """Returns the arguments of timm's class with MLPs of relative positions."""
  for key in ('reg_tokens', 'no_embed_class', 'pos_embed'):
    arguments.pop(key, None)
  # timm's default is a factor, and None stands for the default.
  arguments['init_values'] = model.layer_scale or 0.0
  return arguments | timm_relpos.arguments(model)


def _vit_name(model: flat.ViT) -> str:
  if timm_beit.is_kind(model):
    return f'beit_{"large" if _is_size(model, "L") else "base"}_patch16_224'
  if model.resnet_stages is not None:
    return _HYBRIDS.get(model.resnet_stages, _HYBRIDS[3, 4, 9])
  if timm_naflex.is_kind(model):
    return f'naflexvit_base_patch16_{"map" if model.pool == "map" else "gap"}'
  if timm_relpos.is_kind(model):
    after = 'rpn_' if model.post_norm else ''
    return f'vit_relpos_base_patch16_{after}224'
  if model.patch_norm:
    return 'aimv2_large_patch14_224'
  if timm_eva.is_kind(model) and model.norm == 'rms':
    return 'vit_base_patch16_sapiens2'
  if timm_eva.is_kind(model) and model.pre_norm and model.rotary_grid:
    return 'vit_pe_core_base_patch16_224'
  if timm_eva.is_kind(model):
    is_dino = model.rotary == 'dinov3'
    return 'vit_base_patch16_dinov3' if is_dino else 'eva02_base_patch14_224'
  if timm_parallel.has_one_output(model):
    return 'vit_dpwee_patch16_reg1_gap_256'
  if model.parallel_mlp:
    return 'vit_base_patch16_xp_224'
  if model.branches > 1:
    return 'vit_base_patch16_18x2_224'
  if model.gated_mlp:
    registers = '_reg4' if model.registers else ''
    return f'vit_giant_patch14{registers}_dinov2'
  if model.pre_norm:
    return 'vit_base_patch16_clip_224'  # of its norm's epsilon
  sizes = [s for s in ('Ti', 'S', 'B') if _is_size(model, s)]
  if model.distillation_token:
    return f'deit_{_SIZES[(*sizes, "B")[0]]}_distilled_patch16_224'
  for size, patch in _VITS:
    if _is_size(model, size) and model.patch_size == (patch, patch):
      return f'vit_{_SIZES[size]}_patch{patch}_224'
  return 'vit_base_patch16_224'


def _is_size(model: flat.ViT, size: str) -> bool:
  fields = models.fields_of(model)
  return all(fields[key] == x for key, x in flat.SIZES[size].items())


def _mixer_name(model: mixer.Mixer) -> str | None:
  """Returns timm's name; None: its names' sizes cannot be changed."""
  fields = models.fields_of(model)
  for size, patch in (('S', 16), ('S', 32), ('B', 16), ('B', 32), ('L', 16)):
    sizes = {'patch_size': (patch, patch), **mixers.SIZES[size]}
    if all(fields[key] == x for key, x in sizes.items()):
      return f'mixer_{size.lower()}{patch}_224'
  return None


def _bit_name(model: resnet.BiT) -> str | None:
  """Returns timm's name; None: its names' sizes cannot be changed."""
  if model.num_groups != 32 or not model.zero_padded_pool:
    return None
  wide = [c * model.width_factor for c in (model.stem_width, *model.channels)]
  for size, fields in bit.SIZES.items():
    factor = fields['width_factor']
    if model.stages == fields['stages'] and wide == [
      factor * c for c in (64, 256, 512, 1024, 2048)
    ]:
      return f'resnetv2_{size[1:]}_bit'
  return None


_BRANCHES = 2  # of timm's names
# Older versions of timm had such a layer; its arrays get the same names.
_PRE_LOGITS = 'a layer before the head'


def _obstacle(model: models.Flat) -> str | None:
  """Returns the part of a model that no timm name has; None: a name has all."""
  if isinstance(model, mixer.Mixer):
    return None if _mixer_name(model) else 'a Mixer of this size'
  if isinstance(model, resnet.BiT):
    return None if _bit_name(model) else 'a BiT of this size'
  if model.pre_logits:
    return _PRE_LOGITS
  if model.branches not in (1, _BRANCHES):
    return f'{model.branches} attentions beside each other'
  if timm_parallel.has_one_output(model) and model.layer_scale is None:
    return 'differential attention beside an MLP, without LayerScale'
  if model.resnet_stages is None:
    both = model.gated_mlp and model.distillation_token
    return 'a gated MLP with a distillation token' if both else None
  if model.resnet_stages not in _HYBRIDS or model.resnet_width != 64:
    return 'a ResNet stem of this size'
  if model.gated_mlp or model.distillation_token:
    return 'such layers or tokens after a ResNet stem'
  return None
