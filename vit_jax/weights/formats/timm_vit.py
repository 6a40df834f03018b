"""timm's VisionTransformer, also after a ResNet: ViT, DeiT, CLIP, DINOv2.

Its layers may have their parts beside each other (`timm_parallel`).
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from absl import logging

from vit_jax.models import vit
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import open_clip
from vit_jax.weights.formats import originals
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Size
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.fields import NULL
from vit_jax.weights.formats.format import Format

# Of all of timm's classes with layers of attention. Authors have some of their
# arrays apart, or with a mask (`originals`).
LAYERS = """
blocks_#/attention/qkv                 blocks.#.attn.{q,k,v}_proj  parts*  <
blocks_#/attention/qkv/bias
  blocks.#.attn.qkv.bias@0/3|blocks.#.attn.qkv.bias@2/3  two  <
  ?!attention.key_bias
blocks_#/mlp/up                        blocks.#.mlp.fc1_{g,x}      halves* <
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
_VIT = f"""
{timm_parallel.LAYERS}
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
"""
ARRAYS = [
  *tables.arrays(_VIT),
  *tables.below(_STEM, '', f'{_BACKBONE}.'),
  *tables.below(UNITS, 'stem/', f'{_BACKBONE}.'),
  *tables.arrays(
    _VIT.replace('blocks_#', 'blocks_#/branch_#').replace(
      'blocks.#', 'blocks.#.branch_#'
    )
  ),
]

A, B = 'model_args.', 'blocks.#.'
NORMS = {
  'layernorm': 'layer_norm',
  'layernormfp32': 'layer_norm',
  'rmsnorm': 'rms_norm',
}
POOLS = {'token': 'token', 'avg': 'mean', 'map': 'map'}


def mlp(file: FileFacts) -> str:
  """Returns which MLP the layers have: that of a gate is twice as wide."""
  hidden = file.values['mlp_dim']
  is_wide = file.size(B + 'mlp.fc1.weight', 0) == 2 * hidden
  return 'swiglu' if is_wide or file.has(B + 'mlp.fc1_g.weight') else 'mlp'


def mlp_dim(file: FileFacts) -> int:
  """Returns the hidden size of the MLP.

  A parallel block may have one array after attention and the MLP.
  """
  joint_inputs = file.size(B + 'out_proj.weight', 1)
  if joint_inputs and file.has(B + 'in_norm.'):
    return max(joint_inputs - file.values['hidden_size'], 0)
  return file.shape(B + 'mlp.fc2.weight', 2)[1]


def block(file: FileFacts) -> str:
  """Returns which layers there are.

  No array shows whether norms follow attention and MLP.
  """
  if file.has(B + 'in_norm.'):
    return 'parallel'
  if file.has(B + 'branch_#.'):
    return 'branches'
  chosen_block = file.caller_values.get('block')
  if chosen_block in ('block', 'post_norm'):
    return str(chosen_block)
  is_after = re.match(r'vit_\w+_rpn_', timm_names.architecture(file.config))
  return 'post_norm' if is_after else 'block'


def pool(file: FileFacts) -> str:
  """Returns the pool; a norm cannot follow the class token."""
  said_pool = file.config.get('global_pool', typed.choice(*POOLS))
  if file.has('attn_pool.latent'):
    return 'map'
  if file.has('fc_norm.weight'):
    if said_pool == 'token':
      reason = 'a norm after the pool (fc_norm) is computed of avg alone'
      raise file.config.error('global_pool', said_pool, reason)
    return 'mean'
  reads_token = file.values['class_token'] and said_pool != 'avg'
  return 'token' if reads_token else 'mean'


def _prefix(file: FileFacts) -> int:
  tokens = file.has('cls_token') + file.has('dist_token')
  return tokens + file.size('reg_token', 1)


def positioned(file: FileFacts) -> str:
  """Returns which tokens have learned positions.

  In timm all tokens have them, or only the patches (`no_embed_class`); in
  DINOv2 with registers, the class token and the patches.
  """
  rows, before = file.size('pos_embed', -2), _prefix(file)
  tokens = {'all': rows - before}
  if before and not file.has('decoder_pos_embed'):  # MAE has them for all
    tokens = {'patches': rows} | tokens
  if file.has('cls_token') and before > 1:
    tokens['class'] = rows - 1
  pixels = base.patch_pixels(file.values)

  def fits(*sizes: Size | None) -> list[str]:
    counts = [base.count_patches(size, pixels) for size in sizes if size]
    return [name for name, count in tokens.items() if count in counts]

  stored_fits = fits(file.stored_size, timm_names.input_size(file.config))
  square = [x for x in tokens if base.square_side(tokens[x])]
  return [*stored_fits, *square, *fits(file.image_size), 'all'][0]


def heads(file: FileFacts) -> int:
  """Returns the number of heads, which a fused qkv does not show."""
  hidden = file.values['hidden_size']
  configured = timm_names.heads(file.config, hidden)
  if file.has('predictor.0.weight'):
    configured = moco.HEADS.get(hidden)
  if not configured and (channels := file.size(B + 'attn.q_norm.weight', 0)):
    configured = hidden // channels
  return base.num_heads(file.values, configured or open_clip.heads(file))


def gelu(file: FileFacts) -> str:
  """Returns the GELU that the architecture's name stands for."""
  is_said = timm_names.architecture(file.config) or file.stored_size
  if not is_said and (file.has('norm_pre.') or open_clip.is_tower(file)):
    logging.warning(
      'warning: no file says which GELU it has; assumed: the exact one; for a'
      ' model of OpenAI give mlp="mlp(gelu=\'sigmoid\')" (on the command line'
      ' --model.mlp="mlp(gelu=\'sigmoid\')")'
    )
  return timm_names.gelu(timm_names.architecture(file.config))


def stages(file: FileFacts) -> tuple[int, ...] | None:
  """Returns the units in each stage of the ResNet; None: there is none."""
  if not file.has(f'{_BACKBONE}.'):
    return None
  if file.stored_size is None:  # otherwise our export wrote the file
    logging.warning(
      'warning: its ResNet is computed with the epsilons of the code that'
      " trained it, Google's (kernels 1e-5, GroupNorm 1e-6), not with timm's"
      ' (1e-8, 1e-5): logits differ from those of timm by some 1e-4'
    )
  return file.stages(_BACKBONE + '.stages.#.blocks.#.', first=0)


def epsilon(file: FileFacts) -> float:
  """Returns the epsilon of norms that a file's kind of model has."""
  if file.values['block'] != 'block':
    return 1e-6
  # open_clip's own towers have no bias of patches; it has timm's, too.
  is_own = open_clip.is_tower(file) and not file.has('patch_embed.proj.bias')
  is_aim = re.match('aimv2_|beit3_', timm_names.architecture(file.config))
  has_norm = file.has('norm_pre.') or file.has('patch_embed.norm.')
  return 1e-5 if is_own or is_aim or has_norm else 1e-6


def mlp_ratio(values: Values) -> float:
  """Returns timm's `mlp_ratio`, of which it makes the hidden size."""
  is_packed = values['mlp'] == 'swiglu' and values['patches'] != 'normed'
  return base.ratio(values['mlp_dim'] * (1 + is_packed), values['hidden_size'])


def norm(file: FileFacts) -> str | None:
  """Returns which norm the layers have; None: the config tells."""
  if file.config.get(A + 'norm_layer', typed.TEXT):
    return None
  has_bias = file.has('blocks.0.{norm1,in_norm}.bias')
  return 'layer_norm' if has_bias else 'rms_norm'


def has_mask_token(file: FileFacts) -> bool:
  """Whether there is a mask token of the trunk: MAE has one of its decoder."""
  width = file.size('mask_token', -1)
  has_decoder = file.has('decoder_embed.weight')
  return width == file.values['hidden_size'] and not has_decoder


def pool_width(file: FileFacts) -> int | None:
  """Returns the hidden size of attention pooling, unless it is the layers'."""
  hidden = file.size('attn_pool.mlp.fc1.weight', 0)
  return None if hidden == file.values['mlp_dim'] else hidden or None


def init_values(values: Values) -> Any:
  """Returns timm's `init_values`, which that of the name is if none is said.

  Without LayerScale it is 0, or in a parallel block null.
  """
  none = NULL if values['block'] == 'parallel' else 0.0
  return values['block.layer_scale'] or none


def pool_ratio(values: Values) -> float | None:
  """Returns timm's `attn_pool_mlp_ratio`; None: there is no such pool."""
  if values['pool'] != 'map':
    return None
  hidden = values.get('pool.mlp_dim', values['mlp_dim'])
  return base.ratio(hidden, values['hidden_size'])


FIELDS = fields.table(
  f"""
hidden_size          patch_embed.proj.weight[0]    .embed_dim   axes=4
patch_size           patch_embed.proj.weight[2,3]  .patch_size  square
mlp_dim              mlp_dim()  .mlp_ratio>  write=mlp_ratio()
depth                blocks.#.[#]                  .depth
>                    .img_size   image_size
>                    .in_chans   image_channels
block                block()                       -  named
block.count          blocks.0.branch_#.[#]         -  else=None
mlp                  mlp()                         -  named
mlp.hidden_norm      blocks.#.mlp.norm.?           .scale_mlp_norm
mlp.gelu             -  .act_layer  GELUS default=gelu() check=gate()
mlp.bias             blocks.#.{{mlp.fc2,out_proj}}.bias?
                     .proj_bias   default=True
attention            blocks.#.attn.lambda_q1?differential:attention  .attn_layer
                     attn:attention,diff:differential default=attention
attention.qkv_bias   blocks.#.{{attn.qkv,attn.q_proj,in_proj}}.bias?
                     .qkv_bias!
attention.out_bias   blocks.#.{{attn.proj,out_proj}}.bias?
                     .proj_bias   default=True
attention.qk_norm    blocks.#.attn.q_norm.?        .qk_norm!
attention.out_norm   blocks.#.attn.norm.?          .scale_attn_norm
num_heads            -  .num_heads!  COUNT default=heads()
block.layer_scale    blocks.#.ls1.gamma?1e-5:None  .init_values>
                     write=init_values()
norm                 norm()
                     .norm_layer!  NORMS default=layer_norm write=norm_word()
layer_norm_epsilon   -  norm_kwargs.eps?  POSITIVE default=epsilon() noted
class_token          cls_token?                    .class_token!
distillation_token   dist_token?                   -  named
registers            reg_token[1]                  .reg_tokens!
mask_token           has_mask_token()              -  read_only
patches              patch_embed.norm.?normed:{_BACKBONE}.?hybrid:patches
                     -  named
patches.stages       stages()
patches.width        {_BACKBONE}.{{stem.conv,conv}}.weight[0]  -  else=None
patches.bias         patch_embed.proj.bias?        .pre_norm
                     True:False,False:True default=True
pre_norm             norm_pre.?                    .pre_norm
last_norm            {{norm,fc_norm}}.weight?      .final_norm  default=True
positions.learned    pos_embed?  .pos_embed
                     none:False,:False,learn:True  default=True
positions.learned.tokens  positioned()  .no_embed_class
                     True:patches,False:all
pool                 pool()                        .global_pool!  POOLS
>                    global_pool  pool  POOLS
pool.norm_after      fc_norm.weight?  .fc_norm!  write=pool.norm_after=True
pool.prefix          -  .pool_include_prefix  default=~test_vit3$?
pool.query           =True
pool.bias            =True
pool.mlp_dim         pool_width()                  -  named
pool.gelu            @mlp.gelu
head.norm            head.0.running_mean?batch:none  -  named
num_classes          num_classes()
head.pre_logits      pre_logits.fc.weight[0]       -  named
head.distillation    has_two_heads()
!  patches=normed  norm=rms_norm&mlp=swiglu
!  pool=map  norm=layer_norm&mlp=mlp
!  mlp=swiglu  !mlp.hidden_norm
!  distillation_token  !registers&positions.learned.tokens=all&head.distillation
!  distillation_token&head.distillation  !head.pre_logits
!  !block=block
   mlp=mlp&!mlp.hidden_norm&!attention.out_norm&mlp.bias&attention.out_bias
   &!distillation_token&patches=patches
!  block=post_norm  !block.layer_scale
""",
  *(block, mlp_ratio, mlp_dim, init_values, mlp, gelu, norm, heads, epsilon),
  *(has_mask_token, stages, positioned, pool, pool_width),
  below='model_args',
  gate=fields.check_gate(A + 'act_layer'),
  num_classes=lambda file: file.size(
    'head.1.weight' if file.values['head.norm'] == 'batch' else 'head.weight', 0
  ),
  # Whether a distillation token, if there is one, has a head.
  has_two_heads=lambda file: (
    file.has('head_dist.weight')
    or not (file.has('dist_token') and file.has('head.weight'))
  ),
  # None: that of the architecture's name.
  norm_word=tables.chosen("""
norm=layer_norm&block=parallel          layernorm
norm=rms_norm&!patches=normed           rmsnorm
"""),
  # That of a gated MLP is its gate.
  GELUS={**timm_names.GELUS, 'silu': 'none'},
  NORMS=NORMS,
  POOLS=POOLS,
)
# Of timm's other classes: their layers have fewer options.
PLAIN_FIELDS = fields.table(
  """
mlp.bias            =True
attention.out_bias  =True
norm                =layer_norm
layer_norm_epsilon  =1e-6  -  noted
patches             =patches
patches.bias        =True
num_classes         head.weight[0]
positions.learned.tokens  positioned()
pool.mlp_dim        pool_width()  .attn_pool_mlp_ratio>  write=pool_ratio()
-  block block.count mlp mlp.hidden_norm attention attention.out_norm
   distillation_token patches.stages patches.width pre_norm
   head.norm head.pre_logits head.distillation !patches=normed !pool=map
   !mlp=swiglu !distillation_token !distillation_token&head.distillation
   !!block=block
""",
  *(positioned, pool_ratio, pool_width),
  changes=FIELDS,
  below='model_args',
)
# Of those without attention pooling.
TOKEN_OR_MEAN = fields.table(
  """
pool  pool()  .global_pool!  token:token,avg:mean
-     pool.prefix pool.query pool.bias pool.mlp_dim pool.gelu
""",
  pool,
  changes=PLAIN_FIELDS,
  below='model_args',
)


def named(text: str) -> Callable[[], Sequence[tuple[str, str]]]:
  """Returns `Format.names`: a line has a condition, or `-`, and a name."""
  rows = [line.split() for line in tables.joined_lines(text)]
  return lambda: [(condition.strip('-'), name) for condition, name in rows]


VIT = Format(
  title="timm's VisionTransformer",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: True,
  preprocess=timm_names.preprocess,
  stated_size=lambda file: timm_names.input_size(file.config),
  # As the authors' code does, or timm.
  resize=lambda file: (
    ('' if file.config.content else originals.resize(file.shapes))
    or 'bicubic_antialias'
  ),
  scope='model_args',
  unread_keys=fields.unread_keys(timm_names.IGNORED),
  names=named("""
patches=hybrid&patches.width=64&patches.stages=()         vit_tiny_r_s16_p8_224
patches=hybrid&patches.width=64&patches.stages=(2,2,2,2)  vit_small_r26_s32_224
patches=hybrid&patches.width=64&patches.stages=(3,4,6,3)  vit_large_r50_s32_224
patches=hybrid&patches.width=64&patches.stages=(3,4,9)    vit_base_r50_s16_224
patches=hybrid&patches.stages=()         vit_tiny_r_s16_p8_224
patches=hybrid&patches.stages=(2,2,2,2)  vit_small_r26_s32_224
patches=hybrid&patches.stages=(3,4,6,3)  vit_large_r50_s32_224
patches=hybrid                           vit_base_r50_s16_224
patches=normed&mlp=swiglu                aimv2_large_patch14_224
block=parallel&attention=attention       vit_base_patch16_xp_224
block=parallel&block.layer_scale         vit_dpwee_patch16_reg1_gap_256
block=parallel                           vit_dpwee_patch16_reg1_gap_256
block=post_norm                          vit_base_patch16_rpn_224
block=branches&block.count=2             vit_base_patch16_18x2_224
block=branches                           vit_base_patch16_18x2_224
mlp=swiglu&registers                     vit_giant_patch14_reg4_dinov2
mlp=swiglu                               vit_giant_patch14_dinov2
pre_norm                                 vit_base_patch16_clip_224
distillation_token&hidden_size=192       deit_tiny_distilled_patch16_224
distillation_token&hidden_size=384       deit_small_distilled_patch16_224
distillation_token                       deit_base_distilled_patch16_224
hidden_size=192                          vit_tiny_patch16_224
hidden_size=384&patch_size=(32,32)       vit_small_patch32_224
hidden_size=384                          vit_small_patch16_224
hidden_size=1024&patch_size=(32,32)      vit_large_patch32_224
hidden_size=1024                         vit_large_patch16_224
hidden_size=1280                         vit_huge_patch14_224
hidden_size=1408                         vit_giant_patch14_224
patch_size=(8,8)                         vit_base_patch8_224
patch_size=(32,32)                       vit_base_patch32_224
-                                        vit_base_patch16_224
"""),
  stored=timm_parallel.stored,
)
# What timm's other classes with layers of attention share.
PLAIN = dataclasses.replace(
  VIT,
  unread_keys=fields.unread_keys(timm_names.IGNORED + timm_names.LAYER_NORM),
)
