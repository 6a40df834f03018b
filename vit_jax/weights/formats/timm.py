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

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import embedding
from vit_jax.models import flat
from vit_jax.models import igpt
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.models.zoo import bit
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
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
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats import timm_relpos
from vit_jax.weights.formats import timm_tables
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.tables import torch_norm as _norm

NAME = 'timm'
KINDS: tuple[Format, ...] = (timm_vit.VIT,)
# Arrays outside the model, which MAE, DINO and BEiT leave in their files.
IGNORED = (
  r'mask_token|decoder_.*|fc_norm\.unused'
  r'|(momentum_encoder|predictor|head\.\d+)\..*'  # MoCo v3
  rf'|{timm_beit.IGNORED}|{originals.IGNORED}|{dino_head.IGNORED}'
  rf'|{timm_clip.IGNORED}'
)

# Fields that arrays do not show, with the defaults of timm's classes.
_FIELDS = {'gelu': 'exact', 'layer_norm_epsilon': 1e-6}


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
    return base.Renamed(arrays, moco.as_timms, moco.stored)
  if timm_parallel.has_signs(arrays.shapes):
    return timm_parallel.as_vit(arrays)
  if timm_clip.recognises(arrays.shapes):
    return timm_clip.as_timm(arrays)
  if any(map(dino_head.is_whole, arrays.shapes)):
    arrays = base.Renamed(arrays, dino_head.as_timms)
  return originals.as_timm(arrays)


def rules(model: models.Flat) -> Sequence[tables.Rule]:
  """Returns the table for a model."""
  if isinstance(model, mixer.Mixer):
    return timm_tables.MIXER
  if isinstance(model, resnet.BiT):
    return timm_tables.BIT
  assert isinstance(model, flat.ViT)
  after = model.pool == 'gap' and model.norm_after_pool
  norm = _norm('norm', 'fc_norm' if after else 'norm')
  stem = timm_tables.STEM_ALONE
  if model.resnet_stages:
    stem = timm_tables.HYBRID
  special: Sequence[tables.Rule] = []
  if (model.mlp_norm or model.patch_norm) and model.gated_mlp:
    norm = [*norm, *timm_tables.HALVES]
  if timm_beit.is_kind(model):
    special = timm_beit.RULES
  elif timm_eva.is_kind(model):
    special = timm_eva.rules(model)
  elif timm_naflex.is_kind(model):
    special = timm_naflex.rules(model)
  elif timm_relpos.is_kind(model):
    special = timm_relpos.RULES
  elif timm_parallel.is_kind(model):
    special = timm_parallel.rules(model, timm_tables.VIT)
  if model.head_norm == 'batch':
    norm = [*norm, *timm_tables.HEAD_OF_PROBE]
  return [*norm, *special, *timm_tables.VIT, *stem]


def stored_name(model: models.Flat, name: str) -> str:
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
  elif timm_relpos.has_signs(shapes):
    family = 'relpos'
  elif timm_eva.has_signs(shapes, hints.config):
    family = 'eva'
  is_special = timm_beit.table(shapes) or timm_parallel.fields(shapes)
  if family == 'vit' and not is_special:
    timm_names.check_arrays(arrays.shapes)
    return timm_vit.VIT.describe(arrays, hints)
  timm_names.check(arrays.shapes, hints.config, family)
  found = read(shapes, hints)
  resize = '' if hints.config.content else originals.resize(arrays.shapes)
  return dataclasses.replace(found, resize=resize or found.resize)


def _vit(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  hidden, channels, *patch = shapes.get('patch_embed.proj.weight', 4)
  mlp_dim = shapes.get('blocks.{}.mlp.fc2.weight', 2)[1]
  up, half = 'blocks.{}.mlp.fc1.weight', 'blocks.{}.mlp.fc1_g.weight'
  is_wide = shapes.count(up) > 0 and shapes.get(up, 2)[0] == 2 * mlp_dim
  is_probe = 'head.0.running_mean' in shapes
  fields: dict[str, Any] = {
    **_FIELDS,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'mlp_dim': mlp_dim,
    'gated_mlp': is_wide or shapes.count(half) > 0,
    'mlp_norm': shapes.count('blocks.{}.mlp.norm.') > 0,
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
    'layer_scale': 1e-5 if shapes.count('blocks.{}.ls1.gamma') else None,
    'attention_norm': shapes.count('blocks.{}.attn.norm.') > 0,
    'differential': shapes.count(f'{timm_tables.LAMBDA}q1') > 0,
    'patch_norm': 'patch_embed.norm.weight' in shapes,
    'dense_bias': shapes.count('blocks.{}.attn.proj.bias') > 0,
    **timm_names.fields(hints.config),
    'norm': timm_names.norm(shapes.names, hints.config),
    **timm_clip.fields(shapes, hints),
    **timm_parallel.fields(shapes),
    **timm_names.pool(shapes.names, hints.config),
    'last_norm': 'norm.weight' in shapes or 'fc_norm.weight' in shapes,
  }
  pooling = shapes.size('attn_pool.mlp.fc1.weight', 0)
  if fields['pool'] == 'map' and pooling != mlp_dim:
    fields['map_mlp_dim'] = pooling
  if timm_relpos.has_signs(shapes):
    fields |= timm_relpos.fields(shapes)
  elif timm_beit.table(shapes):
    fields |= timm_beit.fields(shapes)
  elif timm_eva.has_signs(shapes, hints.config):
    fields |= timm_eva.fields(shapes, hints)
  stride = 1
  stages = shapes.stages(timm_tables.BACKBONE + 'stages.{}.blocks.{}.', first=0)
  stem = f'{timm_tables.BACKBONE}{"stem." if stages else ""}conv.weight'
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
    hints.config.get('model_args.act_layer', typed.one_of('silu'))
  else:
    fields['gelu'] = timm_names.gelu(hints.config)
  fields['num_heads'] = _num_heads(shapes, hints, fields)
  fields |= timm_eva.key_heads(shapes, fields)
  positions, size = _positions(shapes, [stride * p for p in patch], hints)
  if timm_naflex.has_signs(shapes):
    positions, size = timm_naflex.fields(shapes, tuple(patch), hints)
  model = cast(flat.ViT, base.build(flat.ViT, fields | positions, hints))
  # DeiT, MAE and DINO use ImageNet's mean; hybrids, SigLIP and BEiT Google's.
  is_google = model.resnet_stages is not None or model.pool == 'map'
  is_google |= timm_beit.is_kind(model)
  usual = preprocessing.TIMM_OF_GOOGLE if is_google else preprocessing.TIMM
  found = _description(model, size, channels, hints, usual)
  resize = 'geometric' if timm_beit.is_kind(model) else found.resize
  if timm_naflex.has_signs(shapes):
    resize = timm_naflex.resize(model)
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
  configured = timm_relpos.heads(shapes) or configured
  configured = configured or timm_clip.heads(shapes)
  return base.num_heads(hints, configured, fields)


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
  if shapes.get('blocks.{}.mlp_tokens.fc2.weight', 2)[1] != tokens_dim:
    raise UserError(
      'it has gated MLPs, as in timm with mlp_layer=GluMlp: those of a Mixer'
      ' are not computed here'
    )
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
    (size['stages'], 64 * size['width_factor']) for size in bit.SIZES.values()
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
  model: models.Flat,
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


def _unsupported_of_vit(model: flat.ViT) -> dict[str, bool]:
  """Returns what timm's ViT has, unless other parts are beside it."""
  is_rms = model.norm == 'rms'
  return {
    uncommon.NO_LAST_NORM: False,
    uncommon.MAP_PREFIX: False,
    uncommon.NO_DENSE_BIAS: False,
    uncommon.DIFFERENTIAL: False,
    uncommon.RMS: is_rms
    and (
      model.pool == 'map'
      or (model.qk_norm and not timm_parallel.is_kind(model))
    ),
    # As AIMv2 has it.
    uncommon.PATCH_NORM: model.patch_norm and not (is_rms and model.gated_mlp),
  }


def unsupported(model: models.Flat, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  del image_size
  if isinstance(model, igpt.IGPT):
    return 'an iGPT'
  if not isinstance(model, flat.ViT):
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
    **uncommon.parts(model),
    uncommon.HEAD_NORM: False,  # a probe's
  }
  is_parallel = timm_parallel.is_kind(model)
  kinds = timm_beit, timm_relpos, timm_naflex, timm_eva
  kind = next((x for x in kinds if x.is_kind(model)), None)
  is_vit = kind is None and model.resnet_stages is None
  wrong |= timm_clip.unsupported(model, is_vit)
  if is_vit:
    wrong |= _unsupported_of_vit(model)
    wrong |= dict.fromkeys(timm_parallel.HOLDS, False)
    wrong |= timm_parallel.unsupported(model) if is_parallel else {}
  elif kind is not None:
    wrong |= dict.fromkeys(kind.HOLDS, False) | kind.unsupported(model)
  return base.first_of(wrong)
