"""timm's VisionTransformer, also after a ResNet: ViT, DeiT, CLIP, DINOv2.

Its layers may have their parts beside each other (`timm_parallel`).
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from absl import logging

from vit_jax.models import vit
from vit_jax.models.zoo import vit as named_sizes
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import originals
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_clip
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import changed
from vit_jax.weights.formats.fields import check_gate
from vit_jax.weights.formats.fields import count
from vit_jax.weights.formats.fields import has
from vit_jax.weights.formats.fields import NULL
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

# Of all of timm's classes with layers of attention.
LAYERS = """
patch_embedding                        patch_embed.proj          conv*
class_token                            cls_token
distillation_token                     dist_token
register_tokens                        reg_token
mask_token                             mask_token
position_embedding                     pos_embed
blocks_#/norm1                         blocks.#.norm1            norm*
blocks_#/attention/qkv                 blocks.#.attn.qkv         dense*
blocks_#/attention/query_norm          blocks.#.attn.q_norm      norm*
blocks_#/attention/key_norm            blocks.#.attn.k_norm      norm*
blocks_#/attention/norm                blocks.#.attn.norm        norm*
blocks_#/attention/out                 blocks.#.attn.proj        dense2*
blocks_#/layer_scale1                  blocks.#.ls1.gamma
blocks_#/norm2                         blocks.#.norm2            norm*
blocks_#/mlp/up                        blocks.#.mlp.fc1          dense*
blocks_#/mlp/norm                      blocks.#.mlp.norm         norm*
blocks_#/mlp/down                      blocks.#.mlp.fc2          dense*
blocks_#/layer_scale2                  blocks.#.ls2.gamma
map_head/probe                         attn_pool.latent
map_head/query                         attn_pool.q               dense*
map_head/key_value                     attn_pool.kv              dense*
map_head/out                           attn_pool.proj            dense2*
map_head/norm                          attn_pool.norm            norm*
map_head/mlp/up                        attn_pool.mlp.fc1         dense*
map_head/mlp/down                      attn_pool.mlp.fc2         dense*
norm                                   fc_norm         norm*  ?pool.norm_after
norm                                   norm                      norm*
head                                   head                      dense*
"""
# Units of a ResNet; timm counts from 0, we from 1.
UNITS = tables.arrays("""
stage#/unit#/conv1/kernel     stages.#.blocks.#.conv1.weight            conv  -1
stage#/unit#/conv2/kernel     stages.#.blocks.#.conv2.weight            conv  -1
stage#/unit#/conv3/kernel     stages.#.blocks.#.conv3.weight            conv  -1
stage#/unit#/conv_proj/kernel stages.#.blocks.#.downsample.conv.weight  conv  -1
stage#/unit#/norm1            stages.#.blocks.#.norm1                   norm* -1
stage#/unit#/norm2            stages.#.blocks.#.norm2                   norm* -1
stage#/unit#/norm3            stages.#.blocks.#.norm3                   norm* -1
stage#/unit#/norm_proj        stages.#.blocks.#.downsample.norm         norm* -1
""")
_BACKBONE = 'patch_embed.backbone'
_STEM = tables.arrays("""
stem/conv/kernel  stem.conv.weight  conv   ?patches.stages
stem/norm         stem.norm         norm*  ?patches.stages
stem/conv/kernel  conv.weight       conv
stem/norm         norm              norm*
""")
_DIFFERENCE = 'blocks_#/attention/difference'
# AIMv2's layers have the halves of a gated MLP apart; a probe of MAE's code, a
# BatchNorm before its head.
_VIT = [
  *tables.arrays(f"""
blocks_#/norm1   blocks.#.in_norm          norm*    ?block=parallel
blocks_#/mlp/up  blocks.#.mlp.fc1_{{g,x}}  halves*  ?mlp=swiglu&patches=normed
head_norm/mean        head.0.running_mean
head_norm/var         head.0.running_var
head                  head.1                    dense*   ?head.norm=batch
{LAYERS}
norm_before           norm_pre                  norm*
patch_norm            patch_embed.norm          norm*
{_DIFFERENCE}/norm    blocks.#.attn.sub_norm    norm*
{_DIFFERENCE}/query1  blocks.#.attn.lambda_q1
{_DIFFERENCE}/key1    blocks.#.attn.lambda_k1
{_DIFFERENCE}/query2  blocks.#.attn.lambda_q2
{_DIFFERENCE}/key2    blocks.#.attn.lambda_k2
pre_logits            pre_logits.fc             dense*
head_distillation     head_dist                 dense*
"""),
  *tables.below(_STEM, '', f'{_BACKBONE}.'),
  *tables.below(UNITS, 'stem/', f'{_BACKBONE}.'),
]
_BRANCH = 'branch_{}'
_PATCH_BIAS = 'patch_embed.proj.bias'
_BRANCHES = [
  dataclasses.replace(
    x,
    ours=x.ours.replace('blocks_{}', f'blocks_{{}}/{_BRANCH}'),
    theirs=tuple(
      name.replace('blocks.{}', f'blocks.{{}}.{_BRANCH}') for name in x.theirs
    ),
  )
  for x in _VIT
  if x.ours.startswith('blocks_{}/')
]
ARRAYS = [*_VIT, *_BRANCHES]

A, B = 'model_args.', 'blocks.#.'
GELUS = {
  **timm_names.GELUS,
  'silu': 'none',  # that of a gated MLP is its gate
}
NORMS = {
  'layernorm': 'layer_norm',
  'layernormfp32': 'layer_norm',
  'rmsnorm': 'rms_norm',
}
POOLS = {'token': 'token', 'avg': 'mean', 'map': 'map'}


def mlp(file: Seen) -> str:
  """Returns which MLP the layers have: that of a gate is twice as wide."""
  hidden = file.size(B + 'mlp.fc2.weight', 1)
  is_wide = file.size(B + 'mlp.fc1.weight', 0) == 2 * hidden
  return 'swiglu' if is_wide or file.has(B + 'mlp.fc1_g.weight') else 'mlp'


def norm(file: Seen) -> str | None:
  """Returns which norm the layers have; None: the config tells."""
  if file.config.get(A + 'norm_layer', typed.TEXT):
    return None
  firsts = 'blocks.0.norm1.bias', 'blocks.0.in_norm.bias'
  return 'layer_norm' if any(map(file.has, firsts)) else 'rms_norm'


def pool(file: Seen) -> str:
  """Returns the pool.

  Raises:
    UserError: A norm follows the class token.
  """
  said_pool = file.config.get('global_pool', typed.one_of(*POOLS))
  if file.has('attn_pool.latent'):
    return 'map'
  if file.has('fc_norm.weight'):
    if said_pool == 'token':
      reason = 'a norm after the pool (fc_norm) is computed of avg alone'
      raise file.config.error('global_pool', said_pool, reason)
    return 'mean'
  reads_token = file.values['class_token'] and said_pool != 'avg'
  return 'token' if reads_token else 'mean'


def prefix(file: Seen) -> int:
  """Returns the number of tokens before the patches."""
  tokens = file.has('cls_token') + file.has('dist_token')
  return tokens + file.size('reg_token', 1)


def positioned(file: Seen) -> str:
  """Returns which tokens have learned positions.

  In timm all tokens have them, or only the patches (`no_embed_class`); in
  DINOv2 with registers, the class token and the patches.
  """
  rows, before = file.size('pos_embed', 1), prefix(file)
  tokens = {'all': rows - before}
  if before and not file.has('decoder_pos_embed'):  # MAE has them for all
    tokens = {'patches': rows} | tokens
  if file.has('cls_token') and before > 1:
    tokens['class'] = rows - 1
  pixels, default = (
    base.patch_pixels(file.values),
    timm_names.input_size(file.config),
  )

  def fits(name: str, *sizes: Size | None) -> bool:
    counts = (base.tokens_of(size, pixels) for size in sizes if size)
    return tokens[name] in counts

  stated = [x for x in tokens if fits(x, file.hints.stored_size, default)]
  square = [x for x in tokens if base.square_side(tokens[x])]
  asked = [x for x in tokens if fits(x, file.hints.image_size)]
  return [*stated, *square, *asked, 'all'][0]


def image_size(file: Seen) -> Size:
  """Returns (height, width) that the positions are for."""
  tokens = None
  if file.has('pos_embed'):
    counts = {'all': prefix(file), 'class': 1, 'patches': 0}
    tokens = file.size('pos_embed', 1)
    tokens -= counts[file.values['positions.learned.tokens']]
  default = timm_names.input_size(file.config)
  return base.image_size(
    tokens, base.patch_pixels(file.values), file.hints, default
  )


def heads(file: Seen) -> int:
  """Returns the number of heads, which a fused qkv does not show."""
  hidden = file.values['hidden_size']
  configured = timm_names.heads(file.config, hidden)
  if file.has('predictor.0.weight'):
    configured = moco.HEADS.get(hidden)
  if not configured and (channels := file.size(B + 'attn.q_norm.weight', 0)):
    configured = hidden // channels
  configured = configured or timm_clip.heads(file.shapes)
  return base.num_heads(file.values, configured)


def gelu(file: Seen) -> str:
  """Returns the GELU that the architecture's name stands for."""
  is_said = timm_names.architecture(file.config) or file.hints.stored_size
  if not is_said and (file.has('norm_pre.') or timm_clip.is_tower(file.shapes)):
    logging.warning(
      'warning: no file says which GELU it has; assumed: the exact one; for a'
      ' model of OpenAI give mlp="mlp(gelu=\'sigmoid\')" (on the command line'
      ' --model.mlp="mlp(gelu=\'sigmoid\')")'
    )
  return timm_names.gelu(timm_names.architecture(file.config))


def block(file: Seen) -> str:
  """Returns which layers it has."""
  if file.has(B + 'in_norm.'):
    return 'parallel'
  return 'branches' if file.has(f'{B}branch_#.') else 'block'


def stages(file: Seen) -> tuple[int, ...] | None:
  """Returns the units in each stage of the ResNet; None: there is none."""
  if not file.has(f'{_BACKBONE}.'):
    return None
  units = file.shapes.stages(_BACKBONE + '.stages.{}.blocks.{}.', first=0)
  if file.hints.stored_size is None:  # otherwise our export wrote the file
    logging.warning(
      'warning: its ResNet is computed with the epsilons of the code that'
      " trained it, Google's (kernels 1e-5, GroupNorm 1e-6), not with timm's"
      ' (1e-8, 1e-5): logits differ from those of timm by some 1e-4'
    )
  return units


def width(file: Seen) -> int | None:
  """Returns the channels of the ResNet's stem."""
  return file.size(f'{_stem(file)}.weight', 0) or None


def _stem(file: Seen) -> str:
  """Returns the name of the ResNet's first layer."""
  has_stages = bool(file.values.get('patches.stages'))
  return f'{_BACKBONE}.{"stem." if has_stages else ""}conv'


def epsilon(file: Seen) -> float:
  """Returns the epsilon of norms that a file's kind of model has."""
  if file.values['block'] != 'block':
    return 1e-6
  # open_clip's own towers have no bias of patches; there are those of timm.
  is_own = timm_clip.is_tower(file.shapes)
  if file.has('norm_pre.') or (is_own and not file.has(_PATCH_BIAS)):
    return 1e-5
  is_aim = re.match('aimv2_|beit3_', timm_names.architecture(file.config))
  return 1e-5 if is_aim or file.has('patch_embed.norm.') else 1e-6


def mlp_ratio(values: Values) -> float:
  """Returns timm's `mlp_ratio`, of which it makes the hidden size."""
  is_packed = values['mlp'] == 'swiglu' and values['patches'] != 'normed'
  hidden, d = values['mlp_dim'] * (1 + is_packed), values['hidden_size']
  return base.ratio(hidden, d)


def init_values(values: Values) -> Any:
  """Returns timm's `init_values`, which that of the name is if nothing is said.

  Without LayerScale that is 0, or in a parallel block null.
  """
  nothing = NULL if values['block'] == 'parallel' else 0.0
  return values['block.layer_scale'] or nothing


def norm_word(values: Values) -> str | None:
  """Returns timm's `norm_layer`; None: that of the architecture's name."""
  if values['norm'] == 'layer_norm':
    return 'layernorm' if values['block'] == 'parallel' else None
  return None if values['patches'] == 'normed' else 'rmsnorm'


def patch_size(values: Values) -> int | list[int]:
  """Returns timm's `patch_size`: one number for both sides if they agree."""
  height, width = values['patch_size']
  return height if height == width else [height, width]


SIZES = (
  shape('hidden_size', 'patch_embed.proj.weight', 0, A + 'embed_dim', axes=4),
  shape(
    'patch_size',
    'patch_embed.proj.weight',
    (2, 3),
    A + 'patch_size',
    write=patch_size,
  ),
  shape('mlp_dim', B + 'mlp.fc2.weight', 1, axes=2),
  told(A + 'mlp_ratio', mlp_ratio),
  count('depth', B, A + 'depth'),
  told(A + 'img_size', lambda values: list(values['image_size'])),
  told(A + 'in_chans', lambda values: values['image_channels']),
)
FIELDS = (
  *SIZES,
  seen('block', block),
  seen('block.count', lambda file: file.count(f'blocks.0.{_BRANCH}.') or None),
  seen('mlp', mlp),
  has('mlp.hidden_norm', B + 'mlp.norm.', A + 'scale_mlp_norm'),
  said(
    'mlp.gelu', A + 'act_layer', gelu, GELUS, check=check_gate(A + 'act_layer')
  ),
  has('mlp.bias', B + 'mlp.fc2.bias'),
  has(
    'attention',
    B + 'attn.lambda_q1',
    A + 'attn_layer',
    yes='differential',
    no='attention',
    words={'attn': 'attention', 'diff': 'differential'},
    default='attention',
  ),
  has(
    'attention.qkv_bias', B + 'attn.qkv.bias', A + 'qkv_bias', is_stated=True
  ),
  has(
    'attention.out_bias', B + 'attn.proj.bias', A + 'proj_bias', default=True
  ),
  has('attention.qk_norm', B + 'attn.q_norm.', A + 'qk_norm', is_stated=True),
  has('attention.out_norm', B + 'attn.norm.', A + 'scale_attn_norm'),
  said('num_heads', A + 'num_heads', heads, kind=typed.COUNT, is_stated=True),
  has('block.layer_scale', B + 'ls1.gamma', yes=1e-5, no=None),
  told(A + 'init_values', init_values),
  seen(
    'norm',
    norm,
    A + 'norm_layer',
    words=NORMS,
    default='layer_norm',
    write=norm_word,
    is_stated=True,
  ),
  said(
    'layer_norm_epsilon',
    'norm_kwargs.eps',  # open_clip's: timm's classes have one each
    epsilon,
    kind=typed.POSITIVE,
    write=lambda values: None,
    is_noted=True,
  ),
  has('class_token', 'cls_token', A + 'class_token', is_stated=True),
  has('distillation_token', 'dist_token'),
  shape('registers', 'reg_token', 1, A + 'reg_tokens', is_stated=True),
  seen(
    'mask_token',
    lambda file: (
      file.size('mask_token', -1) == file.values['hidden_size']
      and not file.has('decoder_embed.weight')
    ),
    is_read_only=True,
  ),
  seen(
    'patches',
    lambda file: (
      'normed'
      if file.has('patch_embed.norm.')
      else 'hybrid'
      if file.has(f'{_BACKBONE}.')
      else 'patches'
    ),
  ),
  seen('patches.stages', stages),
  seen('patches.width', width),
  has('patches.bias', _PATCH_BIAS),
  has('pre_norm', 'norm_pre.', A + 'pre_norm'),
  seen(
    'last_norm',
    lambda file: file.has('norm.weight') or file.has('fc_norm.weight'),
    A + 'final_norm',
    default=True,
  ),
  has(
    'positions.learned',
    'pos_embed',
    A + 'pos_embed',
    words={'none': False, '': False, 'learn': True},
    default=True,
  ),
  seen('positions.learned.tokens', positioned),
  told(
    A + 'no_embed_class',
    lambda values: values.get('positions.learned.tokens') == 'patches',
  ),
)


# Of timm's other classes: their layers have fewer options.
PLAIN = changed(
  FIELDS,
  always('mlp.bias', True),
  always('attention.out_bias', True),
  always('norm', 'layer_norm'),
  always('layer_norm_epsilon', 1e-6, is_noted=True),
  always('patches', 'patches'),
  always('patches.bias', True),
  without=(
    'block block.count mlp mlp.hidden_norm attention attention.out_norm'
    ' distillation_token patches.stages patches.width pre_norm'
    f' {A}no_embed_class'
  ),
)


def pooled_prefix(file: Seen) -> bool:
  """Returns whether attention pooling reads the tokens before the patches."""
  return timm_names.architecture(file.config) == 'test_vit3'


def pool_width(file: Seen) -> int | None:
  """Returns the hidden size of attention pooling, unless it is the layers'."""
  hidden = file.size('attn_pool.mlp.fc1.weight', 0)
  return None if hidden == file.values['mlp_dim'] else hidden or None


def num_classes(file: Seen) -> int:
  """Returns the size of the head's output."""
  is_probe = file.values['head.norm'] == 'batch'
  return file.size(f'head{".1" * is_probe}.weight', 0)


POOL = (
  seen('pool', pool, A + 'global_pool', words=POOLS, is_stated=True),
  told('global_pool', lambda values: _word(values['pool'])),
  has(
    'pool.norm_after',
    'fc_norm.weight',
    A + 'fc_norm',
    write=lambda values: bool(values.get('pool.norm_after')),
    is_stated=True,
  ),
  said('pool.prefix', A + 'pool_include_prefix', pooled_prefix),
  always('pool.query', True),
  always('pool.bias', True),
  seen('pool.mlp_dim', pool_width),
  seen('pool.gelu', lambda file: file.values['mlp.gelu']),
)
# Of classes without attention pooling.
TOKEN_OR_MEAN = changed(
  POOL,
  seen(
    'pool',
    pool,
    A + 'global_pool',
    words={'token': 'token', 'avg': 'mean'},
    is_stated=True,
  ),
  without='pool.prefix pool.query pool.bias pool.mlp_dim pool.gelu',
)
HEAD = (
  has('head.norm', 'head.0.running_mean', yes='batch', no='none'),
  seen('num_classes', num_classes),
  shape('head.pre_logits', 'pre_logits.fc.weight', 0),
  seen(
    'head.distillation',
    lambda file: (
      file.has('head_dist.weight')
      or not (file.has('dist_token') and file.has('head.weight'))
    ),
  ),
)


def _word(pool_name: str) -> str | None:
  """Returns timm's word for a pool."""
  return next((x for x, name in POOLS.items() if name == pool_name), None)


def is_of_size(values: Values, size: str) -> bool:
  """Whether a model has one of the paper's sizes."""
  return all(values[key] == x for key, x in named_sizes.SIZES[size].items())


# timm's names of the paper's sizes.
SIZE_NAMES = {
  'Ti': 'tiny',
  'S': 'small',
  'B': 'base',
  'L': 'large',
  'H': 'huge',
  'g': 'giant',
}
_HYBRIDS: Mapping[tuple[int, ...], str] = {
  (): 'vit_tiny_r_s16_p8_224',
  (2, 2, 2, 2): 'vit_small_r26_s32_224',
  (3, 4, 9): 'vit_base_r50_s16_224',
  (3, 4, 6, 3): 'vit_large_r50_s32_224',
}
_JOINT = 'dpwee_patch16_reg1_gap_256'
_PATCHES = (
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


def architecture(values: Values) -> str:
  """Returns timm's name of the most similar architecture."""
  if values['patches'] == 'hybrid':
    return _HYBRIDS.get(values['patches.stages'], _HYBRIDS[3, 4, 9])
  if values['patches'] == 'normed':
    return 'aimv2_large_patch14_224'
  if values['block'] == 'parallel':
    is_apart = values['attention'] == 'attention'
    return f'vit_{"base_patch16_xp_224" if is_apart else _JOINT}'
  if values['block'] == 'branches':
    return 'vit_base_patch16_18x2_224'
  if values['mlp'] == 'swiglu':
    return f'vit_giant_patch14{"_reg4" * bool(values["registers"])}_dinov2'
  if values['pre_norm']:
    return 'vit_base_patch16_clip_224'  # of its norm's epsilon
  if values['distillation_token']:
    sizes = [x for x in ('Ti', 'S', 'B') if is_of_size(values, x)]
    return f'deit_{SIZE_NAMES[(*sizes, "B")[0]]}_distilled_patch16_224'
  for size, patch in _PATCHES:
    if is_of_size(values, size) and values['patch_size'] == (patch, patch):
      return f'vit_{SIZE_NAMES[size]}_patch{patch}_224'
  return 'vit_base_patch16_224'


def lacks(values: Values) -> str | None:
  """Returns what timm's class has no place for, though its arrays have."""
  norm, mlp, pool = (values[key] for key in ('norm', 'mlp', 'pool'))
  is_distilled = values['distillation_token']
  positions = values.get('positions.learned.tokens')
  bias, pre_norm = values['patches.bias'], values['pre_norm']
  wrong = {
    'a norm after the patch embedding, unless as in AIMv2': (
      values['patches'] == 'normed' and (norm, mlp) != ('rms_norm', 'swiglu')
    ),
    f'attention pooling beside norm={norm!r} and mlp={mlp!r}': (
      pool == 'map' and (norm, mlp) != ('layer_norm', 'mlp')
    ),
    'swiglu(hidden_norm=True)': mlp == 'swiglu' and values['mlp.hidden_norm'],
    'pre_norm=True after a patch embedding with a bias': bias and pre_norm,
    'patches(bias=False)': not bias and not pre_norm,
    "learned(tokens='class')": positions == 'class',
    'a distillation token beside registers, or without a position or a head': (
      is_distilled
      and (
        values['registers']
        or positions != 'all'
        or not values['head.distillation']
      )
    ),
    'linear(pre_logits=...) before two heads': (
      is_distilled and values['head.pre_logits']
    ),
  }
  reason = next((x for x, is_so in wrong.items() if is_so), None)
  return reason or timm_parallel.lacks(values)


def obstacle(values: Values) -> str | None:
  """Returns the part of a model that no timm name has; None: a name has all."""
  if values['head.pre_logits']:  # older versions of timm had it
    return 'a layer before the head'
  if values.get('block.count', 2) != 2:
    return f'block(count={values["block.count"]})'
  if timm_parallel.has_one_output(values) and not values['block.layer_scale']:
    return 'differential attention beside an MLP, without LayerScale'
  is_gated = values['mlp'] == 'swiglu'
  if values['patches'] != 'hybrid':
    has_both = is_gated and values['distillation_token']
    return 'a gated MLP with a distillation token' if has_both else None
  is_known = values['patches.stages'] in _HYBRIDS
  if not is_known or values['patches.width'] != 64:
    return 'a ResNet stem of this size'
  if is_gated or values['distillation_token']:
    return 'such layers or tokens after a ResNet stem'
  return None


def preprocess(
  file: Seen, size: Size, channels: int
) -> tuple[dict[str, Any], str]:
  """Returns the preprocessing that the config says, or the usual one."""
  # DeiT, MAE and DINO use ImageNet's mean; hybrids and SigLIP Google's.
  is_google = file.values.get('patches') == 'hybrid'
  is_google |= file.values['pool'] == 'map'
  usual = preprocessing.TIMM_OF_GOOGLE if is_google else preprocessing.TIMM
  return timm_names.preprocess(file, size, channels, usual)


def resize(file: Seen) -> str:
  """Returns how timm, or the authors' code, resizes positions."""
  own = '' if file.config.content else originals.resize(file.shapes.all)
  return own or 'bicubic_antialias'


def header(values: Values) -> dict[str, Any]:
  """Returns what timm's config.json says of the architecture."""
  first = 'patch_embed.proj'
  if values['patches'] == 'hybrid':
    stem = 'stem.' if values['patches.stages'] else ''
    first = f'{_BACKBONE}.{stem}conv'
  heads = ['head', 'head_dist'] if values['distillation_token'] else 'head'
  return named(values, architecture(values), first, heads)


def named(
  values: Values,
  name: str,
  first: str = 'patch_embed.proj',
  heads: str | list[str] = 'head',
) -> dict[str, Any]:
  """Returns what timm's config.json says beside `model_args`.

  Args:
    values: Those of the model.
    name: timm's name of the architecture.
    first: Name of the first layer.
    heads: Name of the head, or of both.
  """
  return {
    'architecture': name,
    'num_features': values['hidden_size'],
    'pretrained_cfg': {'first_conv': first, 'classifier': heads},
  }


def channels(file: Seen) -> int:
  """Returns the number of channels of the images."""
  first = _stem(file) if file.has(_stem(file)) else 'patch_embed.proj'
  return file.size(f'{first}.weight', 1)


VIT = Format(
  title="timm's VisionTransformer",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=(*FIELDS, *POOL, *HEAD),
  matches=lambda file: True,
  image_size=image_size,
  channels=channels,
  preprocess=preprocess,
  resize=resize,
  scope='model_args',
  known={
    **timm_names.IGNORED,
    'scale_mlp': typed.one_of(False),
    'swiglu_mlp': typed.one_of(False),
  },
  header=header,
  finish=timm_parallel.as_timm,
  lacks=lacks,
  obstacle=obstacle,
)
