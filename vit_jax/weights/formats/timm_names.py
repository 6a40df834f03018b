"""Fields implied by the names of timm's architectures, as of timm 1.0.31."""

from collections.abc import Collection
import re
from typing import Any

from vit_jax.config import UserError
from vit_jax.weights.files import typed

# Fields that no array shows, by patterns of names.
_FIELDS_BY_NAME: tuple[tuple[str, dict[str, Any]], ...] = (
  (r'aimv2_|beit3_', {'layer_norm_epsilon': 1e-5}),
  (r'vit_\w+_rpn_', {'post_norm': True}),
)
# Arrays of unsupported features: a pattern, and the field of timm's classes.
_FOREIGN_ARRAYS = (
  (
    r'patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.).*',
    'another backbone than ResNetV2',
  ),
  (r'blocks\.\d+\.attn\.lambda_[ab]', 'another attn_layer'),
  (r'blocks\.\d+\.attn\.rel_pos_[hw]', 'windows of attention, as samvit'),
  (r'blocks\.\d+\.(attns|ffns|in_proj|out_proj)\..*', 'another block_fn'),
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
_SORRY = 'that is not computed here'
# `model_args` of timm's classes -> supported kind of value; None: any, since
# arrays show it, it is read elsewhere, or it does not affect a trained model.
_COMMON: dict[str, typed.Kind | None] = dict.fromkeys(
  """
  drop_path_rate drop_rate img_size in_chans num_classes proj_drop_rate
  """.split()
)
# Of timm's VisionTransformer, what does not affect a trained model, or is read
# of the arrays.
IGNORED: dict[str, typed.Kind | None] = _COMMON | dict.fromkeys(
  """
  attn_drop_rate distilled dynamic_img_pad dynamic_img_size fix_init
  head_init_scale patch_drop_rate pos_drop_rate qkv_bias_separate
  use_abs_pos_emb use_fc_norm use_rel_pos_bias
  use_shared_rel_pos_bias weight_init
  """.split()
)
_LAYER_NORM = typed.one_of('layernorm', 'layernormfp32')
_AVERAGE = typed.one_of('avg')
_ARGUMENTS = {
  'vit': _COMMON
  | dict.fromkeys(
    """
    act_layer attn_drop_rate class_token depth distilled dynamic_img_pad
    dynamic_img_size embed_dim fc_norm fix_init init_values mlp_ratio
    no_embed_class num_heads patch_drop_rate patch_size pos_drop_rate pos_embed
    final_norm head_init_scale pool_include_prefix pre_norm proj_bias qk_norm
    qkv_bias qkv_bias_separate reg_tokens scale_attn_norm scale_mlp_norm
    use_abs_pos_emb use_fc_norm use_rel_pos_bias use_shared_rel_pos_bias
    weight_init
    """.split()
  )
  | {
    'attn_layer': typed.one_of('attn', 'diff'),
    'global_pool': typed.one_of('token', 'avg', 'map'),
    'norm_layer': typed.one_of('layernorm', 'layernormfp32', 'rmsnorm'),
    'scale_mlp': typed.one_of(False),
    'swiglu_mlp': typed.one_of(False),
  },
  'eva': _COMMON
  | dict.fromkeys(
    """
    attn_drop_rate attn_only_layer_scale attn_pool_mlp_ratio attn_pool_num_heads
    attn_type class_token depth dynamic_img_pad dynamic_img_size embed_dim
    head_init_scale init_values mlp_ratio no_embed_class num_heads num_kv_heads
    num_reg_tokens patch_drop_rate patch_size pos_drop_rate qk_norm qkv_bias
    qkv_fused ref_feat_shape rope_grid_indexing rope_grid_offset
    rope_jitter_coords rope_rescale_coords rope_rotate_half rope_shift_coords
    rope_temperature rope_type scale_attn_inner scale_mlp swiglu_align_to
    swiglu_mlp use_abs_pos_emb use_fc_norm use_post_norm
    use_post_transformer_norm use_pre_transformer_norm use_rot_pos_emb
    """.split()
  )
  | {
    'attn_head_dim': typed.one_of(None),
    'global_pool': typed.one_of('token', 'avg', 'map'),
    'norm_layer': _LAYER_NORM,
  },
  'relpos': _COMMON
  | dict.fromkeys(
    """
    attn_drop_rate class_token depth embed_dim fc_norm fix_init init_values
    mlp_ratio num_heads patch_size qk_norm qkv_bias rel_pos_dim shared_rel_pos
    weight_init
    """.split()
  )
  | {
    'act_layer': typed.one_of('gelu'),
    'global_pool': typed.one_of('token', 'avg'),
    'norm_layer': _LAYER_NORM,
    'rel_pos_type': typed.one_of('mlp'),
  },
  'naflex': _COMMON
  | dict.fromkeys(
    """
    act_layer class_token depth embed_dim enable_patch_interpolator fc_norm
    final_norm fix_init init_values mlp_ratio num_heads patch_size
    pool_include_prefix pos_embed_align_corners pos_embed_antialias
    pos_embed_ar_preserving pos_embed_grid_size pos_embed_interp_mode qk_norm
    qkv_bias reg_tokens weight_init
    """.split()
  )
  | {
    'embed_proj_type': typed.one_of('linear'),
    'global_pool': typed.one_of('token', 'avg', 'map'),
    'norm_layer': _LAYER_NORM,
    'patchify_channels_last': typed.one_of(True),
    'pos_embed': typed.one_of('learned', 'factorized', 'none'),
    'pos_embed_use_grid_sample': typed.one_of(False),
  },
  'mixer': _COMMON
  | dict.fromkeys('embed_dim mlp_ratio nlhb num_blocks patch_size'.split())
  | {
    'act_layer': typed.one_of('gelu'),
    'global_pool': _AVERAGE,
    'norm_layer': _LAYER_NORM,
  },
  'bit': _COMMON
  | dict.fromkeys(
    'channels layers stem_chs stem_type width_factor zero_init_last'.split()
  )
  | {
    'act_layer': typed.one_of('relu'),
    'bottle_ratio': typed.one_of(0.25),
    'global_pool': _AVERAGE,
    'output_stride': typed.one_of(32),
    'preact': typed.one_of(True),
  },
}
_ACTIVATIONS = {'gelu': 'exact', 'gelu_tanh': 'tanh', 'quick_gelu': 'sigmoid'}
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


def check(names: Collection[str], config: typed.Json, family: str) -> None:
  """Checks that this package supports the model of arrays and config.json.

  Args:
    names: Names of the arrays.
    config: Their config.json.
    family: 'vit', 'eva', 'relpos', 'naflex', 'mixer' or 'bit'.

  Raises:
    UserError: It does not; the message names the field of timm's class.
  """
  check_arrays(names)
  norms = (re.fullmatch(r'blocks\.\d+\.norm1\.(weight|bias)', x) for x in names)
  if family not in ('vit', 'eva') and {m[1] for m in norms if m} == {'weight'}:
    raise UserError(
      'it has no blocks.0.norm1.bias, as in timm with an RmsNorm as norm_layer:'
      f' {_SORRY}'
    )
  config.check_known(_ARGUMENTS[family], 'model_args')


def check_arrays(names: Collection[str]) -> None:
  """Raises a UserError that names what is not computed of arrays' names."""
  for pattern, field in _FOREIGN_ARRAYS:
    name = next((x for x in names if re.fullmatch(pattern, x)), None)
    if name:
      raise UserError(f'it has {name}, as in timm with {field}: {_SORRY}')


def gelu(config: typed.Json) -> str:
  """Returns the kind of GELU of a ViT: 'exact', 'tanh' or 'sigmoid'.

  Raises:
    UserError: config.json names another activation.
  """
  key, named = 'model_args.act_layer', architecture(config)
  usual = 'gelu_tanh' if re.match(_TANH, named) else 'gelu'
  if '_quickgelu_' in named:
    usual = 'quick_gelu'
  name = config.get(key, typed.TEXT, usual)
  if name not in _ACTIVATIONS:
    known = ', '.join(_ACTIVATIONS)
    raise config.error(key, name, f'those that can be computed are {known}')
  return _ACTIVATIONS[name]


def norm(names: Collection[str], config: typed.Json) -> str:
  """Returns the kind of norm of a ViT with these arrays: 'layer' or 'rms'."""
  firsts = (f'blocks.0.{x}.bias' for x in ('norm1', 'in_norm'))
  usual = 'layernorm' if any(x in names for x in firsts) else 'rmsnorm'
  said = config.get('model_args.norm_layer', typed.TEXT, usual)
  return 'rms' if said == 'rmsnorm' else 'layer'


def fields(config: typed.Json) -> dict[str, Any]:
  """Returns the fields of a ViT that its architecture's name stands for."""
  found: dict[str, Any] = {}
  for pattern, implied in _FIELDS_BY_NAME:
    if re.match(pattern, architecture(config)):
      found |= implied
  return found


def heads(config: typed.Json, hidden_size: int) -> int | None:
  """Returns the number of heads of a ViT; None: config.json does not tell."""
  name = architecture(config)
  found = [
    n for pattern, n in _HEADS_BY_NAME.items() if re.match(pattern, name)
  ]
  if name.startswith('aimv2_'):
    found = [hidden_size // 128]
  if not found and re.match(
    '(naflex)?vit_|deit|beit|flexivit_|eva|test_vit', name
  ):
    found = [n for width, n in _HEADS.items() if width == hidden_size]
  default = found[0] if found else None
  return config.get('model_args.num_heads', typed.COUNT, default)


def pool(names: Collection[str], config: typed.Json) -> dict[str, Any]:
  """Returns the fields of a ViT with these arrays that say how it pools.

  Raises:
    UserError: A norm follows the class token.
  """
  said = config.get('global_pool', _POOL)
  if 'attn_pool.latent' in names:
    includes = architecture(config) == 'test_vit3'
    key = 'model_args.pool_include_prefix'
    return {
      'pool': 'map',
      'map_prefix': config.get(key, typed.TRUTH, includes),
      'map_query': 'attn_pool.q.weight' in names,
      'map_bias': 'attn_pool.kv.bias' in names,
    }
  if 'fc_norm.weight' in names:
    if said == 'token':
      wrong = 'a norm after the pool (fc_norm) is computed of avg alone'
      raise config.error('global_pool', said, wrong)
    return {'pool': 'gap', 'norm_after_pool': True}
  has_class = 'cls_token' in names and said != 'avg'
  return {'pool': 'token' if has_class else 'gap'}


_POOL = typed.one_of('token', 'avg', 'map')
_INPUT_SIZE = typed.Kind(
  'three whole numbers above 0: channels, height, width',
  lambda x: typed.are_counts(x, 3),
)


def input_size(config: typed.Json) -> tuple[int, int] | None:
  """Returns (height, width) of the images in config.json, or None."""
  size = config.get('pretrained_cfg.input_size', _INPUT_SIZE)
  return (size[1], size[2]) if size else None


def labels(config: typed.Json, classes: int) -> tuple[str, ...]:
  """Returns the class names in config.json; () if there are none."""
  names = config.labels('label_names', classes)
  names = names or config.labels('pretrained_cfg.label_names', classes)
  descriptions = config.get('label_descriptions', typed.OBJECT, {})
  return tuple(str(descriptions.get(name, name)) for name in names)
