"""Fields implied by the names of timm's architectures, as of timm 1.0.31."""

from collections.abc import Collection
import re

from vit_jax.config import UserError
from vit_jax.weights.files import typed

# Unsupported features that only names show: a pattern of names, the field of
# `model_args` and its value.
_NOT_COMPUTED = (
  (r'vit_base_patch16_rpn_', 'block_fn', 'ResPostBlock'),
  (r'test_vit3', 'pool_include_prefix', True),
  (r'vit_intern300m_|vit_.*_radio_v', 'final_norm', False),
)
# Arrays of unsupported features: a pattern, and the field of timm's classes.
_FOREIGN_ARRAYS = (
  (r'norm_pre\..*', 'pre_norm=True'),
  (r'patch_embed\.norm\..*', 'an embed_norm_layer'),
  (
    r'patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.).*',
    'another backbone than ResNetV2',
  ),
  (r'blocks\.\d+\.attn\.norm\..*', 'scale_attn_norm=True'),
  (r'blocks\.\d+\.attn\.lambda_.*', "attn_layer='diff'"),
  (r'blocks\.\d+\.(attns|ffns|in_proj|in_norm)\..*', 'another block_fn'),
  (r'blocks\.\d+\.(linear_tokens|mlp_channels\.gate)\b.*', 'a block_layer'),
  # MoCo v3 and the probes of MAE have others in their heads.
  (
    r'(?!(momentum_encoder|predictor|head\.\d+)\.)(.*\.)?num_batches_tracked',
    'a BatchNorm as norm_layer',
  ),
)
# The same of timm's ViT, which its class Eva has.
_EVAS_ARRAYS = (
  (r'blocks\.\d+\.mlp\.norm\..*', 'scale_mlp_norm=True'),
  (r'blocks\.\d+\.mlp\.fc1_[gx]\..*', 'mlp_layer=SwiGLU'),
)
# An array that exists, one that must then exist as well, and the unsupported
# field of timm's classes that leaves it out.
_NEEDED_ARRAYS = (
  ('blocks.{}.attn.proj.weight', 'blocks.{}.attn.proj.bias', 'proj_bias=False'),
  (
    'blocks.{}.norm1.weight',
    'blocks.{}.norm1.bias',
    'an RmsNorm as norm_layer',
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
_LAYER_NORM = typed.one_of('layernorm', 'layernormfp32')
_AVERAGE = typed.one_of('avg')
_ARGUMENTS = {
  'vit': _COMMON
  | dict.fromkeys(
    """
    act_layer attn_drop_rate class_token depth distilled dynamic_img_pad
    dynamic_img_size embed_dim fc_norm fix_init init_values mlp_ratio
    no_embed_class num_heads patch_drop_rate patch_size pos_drop_rate pos_embed
    head_init_scale qk_norm qkv_bias qkv_bias_separate reg_tokens
    use_abs_pos_emb use_fc_norm use_rel_pos_bias use_shared_rel_pos_bias
    weight_init
    """.split()
  )
  | {
    'attn_layer': typed.one_of('attn'),
    'final_norm': typed.one_of(True),
    'global_pool': typed.one_of('token', 'avg', 'map'),
    'norm_layer': _LAYER_NORM,
    'proj_bias': typed.one_of(True),
    'scale_mlp': typed.one_of(False),
    'swiglu_mlp': typed.one_of(False),
  },
  'eva': _COMMON
  | dict.fromkeys(
    """
    attn_drop_rate attn_type class_token depth dynamic_img_pad dynamic_img_size
    embed_dim head_init_scale init_values mlp_ratio no_embed_class
    num_heads num_reg_tokens patch_drop_rate patch_size pos_drop_rate qk_norm
    qkv_bias qkv_fused ref_feat_shape rope_grid_indexing rope_jitter_coords
    rope_rescale_coords rope_rotate_half rope_shift_coords rope_temperature
    rope_type scale_mlp swiglu_align_to swiglu_mlp use_abs_pos_emb use_fc_norm
    use_post_transformer_norm use_rot_pos_emb
    """.split()
  )
  | {
    'attn_head_dim': typed.one_of(None),
    'attn_only_layer_scale': typed.one_of(False),
    'global_pool': typed.one_of('token', 'avg'),
    'norm_layer': _LAYER_NORM,
    'num_kv_heads': typed.one_of(None),
    'rope_grid_offset': typed.one_of(0.0),
    'scale_attn_inner': typed.one_of(False),
    'use_post_norm': typed.one_of(False),
    'use_pre_transformer_norm': typed.one_of(False),
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
_ACTIVATIONS = {'gelu': 'exact', 'gelu_tanh': 'tanh'}
# Numbers of heads that differ from `_HEADS`, by name.
_HEADS_BY_NAME = {
  r'vit_giantopt_patch16_siglip_': 16,
  r'vit_base_patch16_gap_': 16,
}
# Numbers of heads by width: test_vit, vit_wee, little, medium, betwixt, so150m,
# so400m, ...
_HEADS = {
  64: 2,
  96: 3,
  192: 3,
  256: 4,
  320: 5,
  384: 6,
  512: 8,
  640: 10,
  768: 12,
  832: 13,
  896: 14,
  1024: 16,
  1152: 16,
  1280: 16,
  1408: 16,
  1536: 24,
  1664: 16,
}


def architecture(config: typed.Json) -> str:
  """Returns the name in config.json; '' if there is none."""
  return config.get('architecture', typed.TEXT, '')


def check(names: Collection[str], config: typed.Json, family: str) -> None:
  """Checks that this package supports the model of arrays and config.json.

  Args:
    names: Names of the arrays.
    config: Their config.json.
    family: 'vit', 'eva', 'mixer' or 'bit'.

  Raises:
    UserError: It does not; the message names the field of timm's class.
  """
  foreign = _FOREIGN_ARRAYS + (() if family == 'eva' else _EVAS_ARRAYS)
  for pattern, field in foreign:
    found = next((name for name in names if re.fullmatch(pattern, name)), None)
    if found:
      raise UserError(f'it has {found}, as in timm with {field}: {_SORRY}')
  for there, missing, field in _NEEDED_ARRAYS:
    if _has(names, there) and not _has(names, missing):
      lost = missing.format(0)
      raise UserError(f'it has no {lost}, as in timm with {field}: {_SORRY}')
  config.check_known(_ARGUMENTS[family], 'model_args')
  name = architecture(config)
  for pattern, field, value in _NOT_COMPUTED:
    given = config.get(f'model_args.{field}', typed.ANY, value)
    if re.match(pattern, name) and given == value:
      raise config.error(
        'architecture', name, f'its {field}={given!r} is not computed here'
      )


def _has(names: Collection[str], name: str) -> bool:
  pattern = re.escape(name).replace(r'\{\}', r'\d+')
  return any(re.fullmatch(pattern, x) for x in names)


def gelu(config: typed.Json) -> str:
  """Returns the kind of GELU of a ViT: 'exact' or 'tanh'.

  Raises:
    UserError: config.json names another activation.
  """
  key, is_tanh = 'model_args.act_layer', re.match(_TANH, architecture(config))
  name = config.get(key, typed.TEXT, 'gelu_tanh' if is_tanh else 'gelu')
  if name not in _ACTIVATIONS:
    known = ', '.join(_ACTIVATIONS)
    raise config.error(key, name, f'those that can be computed are {known}')
  return _ACTIVATIONS[name]


def check_gated(config: typed.Json) -> None:
  """Raises a UserError if a gated MLP has another gate than SiLU."""
  config.get('model_args.act_layer', typed.one_of('silu'))


def heads(config: typed.Json, hidden_size: int) -> int | None:
  """Returns the number of heads of a ViT; None: config.json does not tell."""
  name = architecture(config)
  found = [
    n for pattern, n in _HEADS_BY_NAME.items() if re.match(pattern, name)
  ]
  if not found and re.match('vit_|deit|beit|flexivit_|eva|test_vit', name):
    found = [n for width, n in _HEADS.items() if width == hidden_size]
  default = found[0] if found else None
  return config.get('model_args.num_heads', typed.COUNT, default)
