"""Reads open_clip_config.json, beside the weights of open_clip.

`model_cfg` describes the towers, and `preprocess_cfg` how images are prepared.
A field that is not there has the default of open_clip 3.3.0 (`CLIPVisionCfg`,
`PreprocessCfg`).
"""

from typing import Any

from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields

FILE = 'open_clip_config.json'
_VISION, _IMAGES = 'model_cfg.vision_cfg', 'preprocess_cfg'

# Fields of the image tower that arrays show, that are read below, or that do
# not affect a trained model. All others must be off.
_ACCEPTED_KEYS = fields.unread_keys("""
act_kwargs attn_pooler_heads attn_pooler_queries attentional_pool
block_type=default final_ln_after_pool=True|False head_width image_size layers
ls_init_value mlp_ratio no_ln_pre=True|False norm_kwargs output_tokens
patch_dropout patch_size pool_type=tok|avg pos_embed_type width

timm_drop timm_drop_path timm_model_name timm_model_pretrained timm_pool
timm_proj timm_proj_bias
""")
_APPROXIMATE = typed.choice('none', 'tanh')
# timm's names: of a function, of a pool and of how images are resized.
_POOLS = {'tok': 'token', 'token': 'token', 'avg': 'avg', 'map': 'map'}
_TIMM_POOL = typed.choice('', *_POOLS)
_MODES = {'shortest': 'center', 'squash': 'squash', 'longest': 'border'}


def as_timm(config: typed.Json) -> typed.Json:
  """Returns what a config.json of timm would say of the image tower."""
  config.get('model_cfg', typed.OBJECT, {})
  config.check_known(_ACCEPTED_KEYS, _VISION)
  size = preprocessing.pair(
    config.get(f'{_VISION}.image_size', typed.SIZE, 224)
  )
  content = {'pretrained_cfg': _pretrained(config, size)}
  if named := config.get(f'{_VISION}.timm_model_name', typed.TEXT, ''):
    pool = config.get(f'{_VISION}.timm_pool', _TIMM_POOL, 'avg')
    content |= {
      'architecture': named,
      'global_pool': _POOLS.get(pool),
      'model_args': {'img_size': list(size)},
    }
  else:
    content |= _own_tower(config, size)
  return typed.Json(FILE, content)


def _own_tower(config: typed.Json, size: tuple[int, int]) -> dict[str, Any]:
  """Returns what timm's file would say of open_clip's own ViT."""
  width = config.get(f'{_VISION}.width', typed.COUNT, 768)
  head_width = config.get(f'{_VISION}.head_width', typed.COUNT, 64)
  if width % head_width:
    raise config.error(
      f'{_VISION}.head_width', head_width, f'it must divide the width {width}'
    )
  pool = config.get(f'{_VISION}.pool_type', typed.TEXT, 'tok')
  last = f'{_VISION}.final_ln_after_pool'
  if pool == 'avg' and config.get(last, typed.TRUTH, False):
    raise config.error(last, True, 'with pool_type avg it is not computed here')
  norm, act = f'{_VISION}.norm_kwargs', f'{_VISION}.act_kwargs'
  config.check_known({'eps': typed.POSITIVE}, norm)
  gelu = 'gelu'
  if config.get('model_cfg.quick_gelu', typed.TRUTH, False):
    gelu = 'quick_gelu'
    config.check_known({}, act)
  config.check_known({'approximate': _APPROXIMATE}, act)
  if config.get(f'{act}.approximate', _APPROXIMATE) == 'tanh':
    gelu = 'gelu_tanh'
  return {
    'global_pool': _POOLS[pool],
    'model_args': {
      'img_size': list(size),
      'act_layer': gelu,
      'num_heads': width // head_width,
    },
    # No argument of timm's classes, which have one epsilon each.
    'norm_kwargs': {'eps': config.get(f'{norm}.eps', typed.POSITIVE, 1e-5)},
  }


def _pretrained(config: typed.Json, size: tuple[int, int]) -> dict[str, Any]:
  """Returns timm's `pretrained_cfg`; the file's `size` is that of the model."""
  config.get(f'{_IMAGES}.mode', typed.choice('RGB'))
  mode = config.get(f'{_IMAGES}.resize_mode', typed.choice(*_MODES), 'shortest')
  interpolation = config.get(
    f'{_IMAGES}.interpolation',
    typed.choice('bilinear', 'bicubic', 'random'),
    'bicubic',
  )
  # 'random' is of training alone; and open_clip has no choice for such sizes.
  if interpolation == 'random' or (mode == 'shortest' and size[0] != size[1]):
    interpolation = 'bicubic'
  mean, std = preprocessing.CLIP
  means = config.channel_values(f'{_IMAGES}.mean', 3, mean)
  stds = config.channel_values(f'{_IMAGES}.std', 3, std, typed.is_positive)
  return {
    'input_size': [3, *size],
    'mean': base.per_channel(means, 3),
    'std': base.per_channel(stds, 3),
    'interpolation': interpolation,
    'crop_pct': 1.0,
    'crop_mode': _MODES[mode],
    preprocessing.FILL: config.get(
      f'{_IMAGES}.fill_color', preprocessing.LEVEL, 0
    ),
  }
