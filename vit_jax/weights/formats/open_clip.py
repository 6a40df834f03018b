"""Files of open_clip, whose image towers get the names of timm's ViT.

They hold both towers; the image tower is in `visual`, under the names of
OpenAI's code, or in `visual.trunk`, where it is a model of timm. Under timm's
names CLIP's tower has a LayerNorm before its layers, and its patch embedding no
bias.

Beside the weights is open_clip_config.json: `model_cfg` describes the towers,
and `preprocess_cfg` how images are prepared. A field that is not there has the
default of open_clip 3.3.0 (`CLIPVisionCfg`, `PreprocessCfg`).
"""

from collections.abc import Collection
import re
from typing import Any

from vit_jax.config import UserError
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats.base import FileFacts

# Arrays of open_clip's files outside the image tower.
_UNUSED_PREFIX = 'outside.'
IGNORED = r'outside\..*'
# Widths of H, g and G, which have 16 heads; others have heads of 64 channels.
_WIDE = (1280, 1408, 1664)

_VISUAL, _TRUNK = 'visual.', 'visual.trunk.'
_SIGNS = {'visual.class_embedding', 'visual.ln_post.weight'}
_TIMMS = base.renaming("""
class_embedding           cls_token
positional_embedding      pos_embed
conv1.weight              patch_embed.proj.weight
ln_pre.                   norm_pre.
ln_post.                  norm.
transformer.resblocks.    blocks.
blocks.#.ln_              blocks.#.norm
blocks.#.ls_              blocks.#.ls
blocks.#.attn.in_proj_    blocks.#.attn.qkv.
blocks.#.attn.out_proj.   blocks.#.attn.proj.
blocks.#.mlp.c_fc.        blocks.#.mlp.fc1.
blocks.#.mlp.c_proj.      blocks.#.mlp.fc2.
""")
# Parts of open_clip's other towers.
_NOT_COMPUTED = r'visual\.(attn_pool|layer\d|head)\b.*'


def recognises(names: Collection[str]) -> bool:
  """Whether a file is open_clip's: both towers, or the image tower alone."""
  return set(names) >= _SIGNS or any(x.startswith(_TRUNK) for x in names)


def as_timm(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays of a file of open_clip under timm's names.

  The projection to the embedding and the text tower are outside.
  """
  is_timms = any(x.startswith(_TRUNK) for x in arrays.shapes)
  wrong = next((x for x in arrays.shapes if re.match(_NOT_COMPUTED, x)), None)
  if wrong and not is_timms:
    raise UserError(
      f'it has {wrong}: of open_clip the ViTs that read a class token, and'
      ' those of timm, can be computed'
    )

  def rename(name: str) -> str:
    inner = name.removeprefix(_TRUNK if is_timms else _VISUAL)
    if inner in (name, 'proj'):
      return _UNUSED_PREFIX + name
    return inner if is_timms else _TIMMS(inner)

  return base.Renamed(arrays, rename)


def is_tower(file: FileFacts) -> bool:
  """Whether arrays are open_clip's, as `as_timm` has them."""
  return file.has(_UNUSED_PREFIX)


def heads(file: FileFacts) -> int | None:
  """Returns the heads of open_clip's published towers; None: another file."""
  width = file.size('cls_token', -1) if is_tower(file) else 0
  return 16 if width in _WIDE else width // 64 or None


FILE = 'open_clip_config.json'
_TOWER, _IMAGES = 'model_cfg.vision_cfg', 'preprocess_cfg'

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
# timm's names of a pool, and of how images are resized.
_POOLS = {'tok': 'token', 'token': 'token', 'avg': 'avg', 'map': 'map'}
_TIMM_POOL = typed.choice('', *_POOLS)
_MODES = {'shortest': 'center', 'squash': 'squash', 'longest': 'border'}


def config_as_timm(config: typed.Json) -> typed.Json:
  """Returns what a config.json of timm would say of the image tower."""
  config.get('model_cfg', typed.OBJECT, {})
  config.check_known(_ACCEPTED_KEYS, _TOWER)
  size = preprocessing.pair(config.get(f'{_TOWER}.image_size', typed.SIZE, 224))
  content: dict[str, Any] = {'pretrained_cfg': _pretrained(config, size)}
  if named := config.get(f'{_TOWER}.timm_model_name', typed.TEXT, ''):
    pool = config.get(f'{_TOWER}.timm_pool', _TIMM_POOL, 'avg')
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
  width = config.get(f'{_TOWER}.width', typed.COUNT, 768)
  head_width = config.get(f'{_TOWER}.head_width', typed.COUNT, 64)
  if width % head_width:
    raise config.error(
      f'{_TOWER}.head_width', head_width, f'it must divide the width {width}'
    )
  pool = config.get(f'{_TOWER}.pool_type', typed.TEXT, 'tok')
  last = f'{_TOWER}.final_ln_after_pool'
  if pool == 'avg' and config.get(last, typed.TRUTH, False):
    raise config.error(last, True, 'with pool_type avg it is not computed here')
  norm, act = f'{_TOWER}.norm_kwargs', f'{_TOWER}.act_kwargs'
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
