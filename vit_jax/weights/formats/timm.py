"""State dicts of timm (PyTorch Image Models): ViT, Eva, hybrids, Mixer, BiT.

DeiT, MAE, BEiT and MoCo v3 publish ViTs under these names, and DINO, DINOv2,
DINOv3 and EVA-02 under similar ones (`originals`).
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any
from typing import cast

from absl import logging
from flax import linen as nn

from vit_jax import models
from vit_jax.models import embedding
from vit_jax.models import igpt
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.models import vit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import dino_head
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import originals
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_clip
from vit_jax.weights.formats import timm_eva
from vit_jax.weights.formats import timm_naflex
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

NAME = 'timm'
# Arrays outside the model, which MAE, DINO and BEiT leave in their files.
IGNORED = (
  r'mask_token|decoder_.*|fc_norm\.unused'
  r'|(momentum_encoder|predictor|head\.\d+)\..*'  # MoCo v3
  rf'|{timm_beit.IGNORED}|{originals.IGNORED}|{dino_head.IGNORED}'
  rf'|{timm_clip.IGNORED}'
)

# Fields that arrays do not show, with the defaults of timm's classes.
_FIELDS = {'gelu': 'exact', 'layer_norm_epsilon': 1e-6}


def _patch(theirs: str) -> list[tables.Rule]:
  return [
    rule('patch_embedding/kernel', f'{theirs}.weight', tables.CONV),
    rule('patch_embedding/bias', f'{theirs}.bias'),
  ]


def _units(ours: str, theirs: str, norm_proj: bool) -> list[tables.Rule]:
  """Returns rules of bottleneck units; timm counts from 0, we from 1."""
  ours, theirs = f'{ours}stage{{}}/unit{{}}', f'{theirs}stages.{{}}.blocks.{{}}'
  table = [
    rule(f'{ours}/conv{n}/kernel', f'{theirs}.{name}.weight', tables.CONV, -1)
    for n, name in (
      ('1', 'conv1'),
      ('2', 'conv2'),
      ('3', 'conv3'),
      ('_proj', 'downsample.conv'),
    )
  ]
  for n in ('1', '2', '3'):
    table += _norm(f'{ours}/norm{n}', f'{theirs}.norm{n}', -1)
  if norm_proj:
    table += _norm(f'{ours}/norm_proj', f'{theirs}.downsample.norm', -1)
  return table


_VIT = [
  *_patch('patch_embed.proj'),
  rule('class_token', 'cls_token'),
  rule('distillation_token', 'dist_token'),
  rule('register_tokens', 'reg_token'),
  rule('mask_token', 'mask_token'),
  rule('position_embedding', 'pos_embed'),
  *timm_clip.RULES,
  *_norm('blocks_{}/norm1', 'blocks.{}.norm1'),
  *_dense('blocks_{}/attention/qkv', 'blocks.{}.attn.qkv'),
  *_norm('blocks_{}/attention/query_norm', 'blocks.{}.attn.q_norm'),
  *_norm('blocks_{}/attention/key_norm', 'blocks.{}.attn.k_norm'),
  *_dense('blocks_{}/attention/out', 'blocks.{}.attn.proj', inputs=2),
  rule('blocks_{}/layer_scale1', 'blocks.{}.ls1.gamma'),
  *_norm('blocks_{}/norm2', 'blocks.{}.norm2'),
  *_dense('blocks_{}/mlp/up', 'blocks.{}.mlp.fc1'),
  *_dense('blocks_{}/mlp/down', 'blocks.{}.mlp.fc2'),
  rule('blocks_{}/layer_scale2', 'blocks.{}.ls2.gamma'),
  rule('map_head/probe', 'attn_pool.latent'),
  *_dense('map_head/query', 'attn_pool.q'),
  *_dense('map_head/key_value', 'attn_pool.kv'),
  *_dense('map_head/out', 'attn_pool.proj', inputs=2),
  *_norm('map_head/norm', 'attn_pool.norm'),
  *_dense('map_head/mlp/up', 'attn_pool.mlp.fc1'),
  *_dense('map_head/mlp/down', 'attn_pool.mlp.fc2'),
  *_dense('pre_logits', 'pre_logits.fc'),
  *_dense('head', 'head'),
  *_dense('head_distillation', 'head_dist'),
]
_BACKBONE = 'patch_embed.backbone.'
# The linear probes of MAE's code: a BatchNorm before the layer.
HEAD_OF_PROBE = [
  rule('head_norm/mean', 'head.0.running_mean'),
  rule('head_norm/var', 'head.0.running_var'),
  *_dense('head', 'head.1'),
]
_HYBRID = [
  rule('stem/conv/kernel', f'{_BACKBONE}stem.conv.weight', tables.CONV),
  *_norm('stem/norm', f'{_BACKBONE}stem.norm'),
  *_units('stem/', _BACKBONE, norm_proj=True),
]
_STEM_ALONE = [
  rule('stem/conv/kernel', f'{_BACKBONE}conv.weight', tables.CONV),
  *_norm('stem/norm', f'{_BACKBONE}norm'),
]
_MIXER = [
  *_patch('stem.proj'),
  *_norm('blocks_{}/norm1', 'blocks.{}.norm1'),
  *_dense('blocks_{}/token_mlp/up', 'blocks.{}.mlp_tokens.fc1'),
  *_dense('blocks_{}/token_mlp/down', 'blocks.{}.mlp_tokens.fc2'),
  *_norm('blocks_{}/norm2', 'blocks.{}.norm2'),
  *_dense('blocks_{}/channel_mlp/up', 'blocks.{}.mlp_channels.fc1'),
  *_dense('blocks_{}/channel_mlp/down', 'blocks.{}.mlp_channels.fc2'),
  *_norm('norm', 'norm'),
  *_dense('head', 'head'),
]
_BIT = [
  rule('stem/conv/kernel', 'stem.conv.weight', tables.CONV),
  *_units('', '', norm_proj=False),
  *_norm('norm', 'norm'),
  rule('head/kernel', 'head.fc.weight', tables.CONV_1X1),
  rule('head/bias', 'head.fc.bias'),
]
_SIGNS = (
  'patch_embed.proj.weight',
  'stem.proj.weight',
  'stem.conv.weight',
  'pos_embed',
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  names = {dino_head.as_timms(moco.as_timms(name)) for name in names}
  return (
    timm_naflex.has_signs(names)
    or timm_clip.recognises(names)
    or any(sign in names for sign in _SIGNS)
    or any(re.match(r'blocks\.\d+\.(attn|mlp)', name) for name in names)
  )


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if any('base_encoder.' in name for name in arrays.shapes):
    return moco.as_timm(arrays)
  if timm_clip.recognises(arrays.shapes):
    return timm_clip.as_timm(arrays)
  if any(map(dino_head.is_whole, arrays.shapes)):
    arrays = base.Renamed(arrays, dino_head.as_timms)
  return originals.as_timm(arrays)


def rules(model: nn.Module) -> Sequence[tables.Rule]:
  """Returns the table for a model."""
  if isinstance(model, mixer.Mixer):
    return _MIXER
  if isinstance(model, resnet.BiT):
    return _BIT
  assert isinstance(model, vit.ViT)
  after = model.pool == 'gap' and model.norm_after_pool
  norm = _norm('norm', 'fc_norm' if after else 'norm')
  stem = _HYBRID if model.resnet_stages else _STEM_ALONE
  special: Sequence[tables.Rule] = []
  if timm_beit.is_kind(model):
    special = timm_beit.RULES
  elif timm_eva.is_kind(model):
    special = timm_eva.rules(model)
  elif timm_naflex.is_kind(model):
    special = timm_naflex.rules(model)
  if model.head_norm == 'batch':
    norm = [*norm, *HEAD_OF_PROBE]
  return [*norm, *special, *_VIT, *stem]


def stored_name(model: nn.Module, name: str) -> str:
  """Returns the name in a file for a name in the rules."""
  del model
  return name


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes."""
  shapes = base.Shapes(arrays)
  family, read = 'vit', _vit
  if 'stem.proj.weight' in shapes or shapes.count('blocks.{}.mlp_tokens.'):
    family, read = 'mixer', _mixer
  elif 'stem.conv.weight' in shapes:
    family, read = 'bit', _bit
  elif timm_naflex.has_signs(shapes):
    family, shapes = 'naflex', timm_naflex.seen(arrays, hints.config)
  elif timm_eva.has_signs(shapes, hints.config):
    family = 'eva'
  timm_names.check(arrays.shapes, hints.config, family)
  found = read(shapes, hints)
  resize = '' if hints.config.content else originals.resize(arrays)
  return dataclasses.replace(found, resize=resize or found.resize)


def _vit(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  hidden, channels, *patch = shapes.get('patch_embed.proj.weight', 4)
  mlp_dim = shapes.get('blocks.{}.mlp.fc2.weight', 2)[1]
  up, scale = 'blocks.{}.mlp.fc1.weight', 'blocks.{}.ls1.gamma'
  is_probe = 'head.0.running_mean' in shapes
  fields: dict[str, Any] = {
    **_FIELDS,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'mlp_dim': mlp_dim,
    'gated_mlp': shapes.count(up) > 0 and shapes.get(up, 2)[0] == 2 * mlp_dim,
    'depth': shapes.count('blocks.{}.'),
    'num_classes': shapes.size(f'head{".1" * is_probe}.weight', 0),
    'head_norm': 'batch' if is_probe else 'none',
    'pre_logits': shapes.size('pre_logits.fc.weight', 0),
    'class_token': 'cls_token' in shapes,
    'distillation_token': 'dist_token' in shapes,
    'distillation_head': 'head_dist.weight' in shapes
    or not ('dist_token' in shapes and 'head.weight' in shapes),
    'registers': shapes.size('reg_token', 1),
    'mask_token': shapes.size('mask_token', -1) == hidden
    and 'decoder_embed.weight' not in shapes,
    'qkv_bias': shapes.count('blocks.{}.attn.qkv.bias') > 0,
    'qk_norm': shapes.count('blocks.{}.attn.q_norm.') > 0,
    'layer_scale': 1e-5 if shapes.count(scale) else None,
    'norm': timm_names.norm('blocks.0.norm1.bias' in shapes, hints.config),
    **timm_clip.fields(shapes, hints),
    **timm_names.pool(shapes.names, hints.config),
  }
  if timm_beit.table(shapes):
    fields |= timm_beit.fields(shapes)
  elif timm_eva.has_signs(shapes, hints.config):
    fields |= timm_eva.fields(shapes, hints)
  stride = 1
  stages = shapes.stages(_BACKBONE + 'stages.{}.blocks.{}.', first=0)
  stem = f'{_BACKBONE}{"stem." if stages else ""}conv.weight'
  if stem in shapes:
    width, channels, *_ = shapes.get(stem, 4)
    fields |= {'resnet_stages': stages, 'resnet_width': width}
    stride = 4 * 2 ** max(len(stages) - 1, 0)
    if hints.stored_size is None:  # otherwise our export wrote the file
      logging.warning(
        'warning: its ResNet is computed with the epsilons of the code that'
        " trained it, Google's (kernels 1e-5, GroupNorm 1e-6), not with timm's"
        ' (1e-8, 1e-5): logits differ from those of timm by some 1e-4'
      )
  if fields['gated_mlp']:
    timm_names.check_gated(hints.config)
  else:
    fields['gelu'] = timm_names.gelu(hints.config)
  fields['num_heads'] = _num_heads(shapes, hints, fields)
  positions, size = _positions(shapes, [stride * p for p in patch], hints)
  if timm_naflex.has_signs(shapes):
    positions, size = timm_naflex.fields(shapes, tuple(patch), hints)
  model = cast(vit.ViT, base.build(vit.ViT, fields | positions, hints))
  # DeiT, MAE and DINO use ImageNet's mean; hybrids, SigLIP and BEiT Google's.
  is_google = model.resnet_stages is not None or model.pool == 'map'
  is_google |= timm_beit.is_kind(model)
  usual = preprocessing.TIMM_OF_GOOGLE if is_google else preprocessing.TIMM
  found = _description(model, size, channels, hints, usual)
  resize = 'geometric' if timm_beit.is_kind(model) else found.resize
  return dataclasses.replace(found, resize=resize)


def _num_heads(
  shapes: base.Shapes, hints: base.Hints, fields: Mapping[str, Any]
) -> int:
  """Returns the number of heads, which a fused qkv does not show."""
  hidden = fields['hidden_size']
  configured = timm_names.heads(hints.config, hidden)
  if 'predictor.0.weight' in shapes:
    configured = moco.HEADS.get(hidden)
  if fields['qk_norm'] and not configured:
    norm = shapes.get('blocks.{}.attn.q_norm.weight', 1)
    configured = hidden // norm[0]
  if table := timm_beit.table(shapes):
    configured = table[1]
  configured = configured or timm_clip.heads(shapes)
  sizes = {k: fields[k] for k in ('hidden_size', 'mlp_dim', 'depth')}
  return base.num_heads(hints, configured, **sizes)


def _positions(
  shapes: base.Shapes, pixels: Sequence[int], hints: base.Hints
) -> tuple[dict[str, Any], tuple[int, int]]:
  """Returns which tokens have positions, and the image size of these.

  In timm all tokens have them, or only the patches (`no_embed_class`); in
  DINOv2 with registers, the class token and the patches.
  """
  default = timm_names.input_size(hints.config)
  if 'pos_embed' not in shapes:
    if table := timm_beit.table(shapes):
      size = base.relative_size(table[0], pixels, hints, default)
    else:
      size = base.image_size(None, pixels, hints, default)
    return {'position_embedding': 'none'}, size
  rows = shapes.get('pos_embed', 3)[1]
  prefix = ('cls_token' in shapes) + ('dist_token' in shapes)
  prefix += shapes.size('reg_token', 1)
  which = {'all': rows - prefix}
  if prefix and 'decoder_pos_embed' not in shapes:  # MAE has them for all
    which = {'patches': rows} | which
  if 'cls_token' in shapes and prefix > 1:
    which['class'] = rows - 1

  def are_of(tokens: int, *sizes: tuple[int, int] | None) -> bool:
    return any(s and base.tokens_of(s, pixels) == tokens for s in sizes)

  known = [n for n in which if are_of(which[n], hints.stored_size, default)]
  square = [n for n in which if base.square_side(which[n])]
  asked = [n for n in which if are_of(which[n], hints.image_size)]
  name = [*known, *square, *asked, 'all'][0]
  size = base.image_size(which[name], pixels, hints, default)
  return {'position_tokens': name}, size


def _mixer(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  hidden, channels, *patch = shapes.get('stem.proj.weight', 4)
  tokens_dim, tokens = shapes.get('blocks.{}.mlp_tokens.fc1.weight', 2)
  fields: dict[str, Any] = {
    **_FIELDS,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'tokens_mlp_dim': tokens_dim,
    'mlp_dim': shapes.get('blocks.{}.mlp_channels.fc1.weight', 2)[0],
    'depth': shapes.count('blocks.{}.'),
    'num_classes': shapes.size('head.weight', 0),
  }
  size = base.image_size(
    tokens, patch, hints, timm_names.input_size(hints.config)
  )
  model = base.build(mixer.Mixer, fields, hints)
  return _description(model, size, channels, hints)


def _bit(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  width, channels, *_ = shapes.get('stem.conv.weight', 4)
  stages = shapes.stages('stages.{}.blocks.{}.', first=0)
  outputs = tuple(
    shapes.get(f'stages.{stage}.blocks.0.conv3.weight', 4)[0]
    for stage in range(len(stages))
  )
  published = {
    (size['stages'], 64 * size['width_factor'])
    for size in resnet.BIT_SIZES.values()
  }
  fields: dict[str, Any] = {
    'num_classes': shapes.size('head.fc.weight', 0),
    'stages': stages,
    'stem_width': width,
    'channels': outputs,
    # BiT, known by its name or sizes, pads with zeros; other models of timm's
    # class use its own padding.
    'zero_padded_pool': '_bit' in timm_names.architecture(hints.config)
    or (stages, width) in published,
  }
  default = timm_names.input_size(hints.config) or (224, 224)
  size = base.image_size(None, (32, 32), hints, default)
  model = base.build(resnet.BiT, fields, hints)
  return _description(model, size, channels, hints)


def _description(
  model: models.Model,
  size: tuple[int, int],
  channels: int,
  hints: base.Hints,
  usual: preprocessing.Usual = preprocessing.TIMM_OF_GOOGLE,
) -> base.Description:
  preprocess, silent = preprocessing.of_timm(
    hints.config, size, channels, usual
  )
  classes = timm_names.labels(
    hints.config, models.fields_of(model)['num_classes']
  )
  return base.Description(
    model,
    size,
    {'classes': classes, **preprocess},
    'bicubic_antialias',
    silent,
  )


def unsupported(model: nn.Module, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  del image_size
  if isinstance(model, igpt.IGPT):
    return 'an iGPT'
  if not isinstance(model, vit.ViT):
    return None
  wrong = {
    'a head that reads class token and mean': model.pool == 'token+gap',
    'positions of class token and patches alone': (
      model.position_embedding == 'learned'
      and model.positioned_prefix not in (0, model.prefix_length)
    ),
    'fixed positions': model.position_embedding in embedding.SINCOS,
    'a distillation token that nothing reads': model.distillation_token
    and not model.distillation_head,
    'registers beside a distillation token': model.distillation_token
    and model.registers,
    'a distillation token without a position': model.distillation_token
    and (model.position_embedding, model.position_tokens) != ('learned', 'all'),
    'a layer before two heads': model.pre_logits and model.has_two_heads,
    'attention pooling with a gated MLP in its layers': model.pool == 'map'
    and model.gated_mlp,
    **base.uncommon(model),
    base.HEAD_NORM: False,  # a probe's
  }
  others = any(x.is_kind(model) for x in (timm_beit, timm_eva, timm_naflex))
  is_vit = not others and model.resnet_stages is None
  wrong |= timm_clip.unsupported(model, is_vit)
  if is_vit and model.pool != 'map' and not model.qk_norm:
    wrong[base.RMS] = False
  if timm_beit.is_kind(model):
    for part in base.BEITS:
      del wrong[part]
    wrong |= timm_beit.unsupported(model)
  elif timm_naflex.is_kind(model):
    del wrong[base.FLEXIBLE]
    wrong |= timm_naflex.unsupported(model)
  elif timm_eva.is_kind(model):
    del wrong[base.NO_KEY_BIAS], wrong[base.ROTARY], wrong[base.MLP_NORM]
    wrong |= timm_eva.unsupported(model)
  return base.first_of(wrong)
