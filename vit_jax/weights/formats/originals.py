"""Files of the authors of DINO, DINOv2, DINOv3 and EVA-02, under timm's names.

Their arrays are those of timm's models, but some have other names. Some are
apart that timm joins, which its table knows (`timm_vit.LAYERS`).
"""

from collections.abc import Mapping
import re

from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import dino_head

# Arrays that hold no parameters: angles of rotary embeddings, in EVA-02 and
# DINOv3, and which biases are zero; and parts of DINOv3 for its training alone.
IGNORED = (
  r'rope_embed\.periods|(.*\.)?rope\.freqs_(cos|sin)|local_cls_norm\..*'
  r'|.*\.qkv\.bias_mask'
)

_TIMMS = base.renaming("""
register_tokens                 reg_token
storage_tokens                  reg_token
blocks.#.mlp.w12.               blocks.#.mlp.fc1.
blocks.#.mlp.w1.                blocks.#.mlp.fc1_g.
blocks.#.mlp.w2.                blocks.#.mlp.fc1_x.
blocks.#.mlp.w3.                blocks.#.mlp.fc2.
blocks.#.mlp.ffn_ln.            blocks.#.mlp.norm.
blocks.#.attn.inner_attn_ln.    blocks.#.attn.norm.
""")
_TIMMS_WITHOUT_KEY_BIAS = base.renaming("""
blocks.#.attn.q_proj.bias       blocks.#.attn.q_bias
blocks.#.attn.v_proj.bias       blocks.#.attn.v_bias
""")
_TIMMS_OF_DINOV3 = base.renaming('blocks.#.ls#.gamma blocks.#.gamma_#')
# DINOv2's blocks in chunks: its training keeps the count of whole models.
_CHUNK = r'^blocks\.\d+\.(?=\d+\.)'


def as_timm(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays of a file under timm's names."""
  is_chunked = any(re.match(_CHUNK + r'\d+\.norm1\.', x) for x in arrays.shapes)
  has_key_bias = any(x.endswith('.attn.k_proj.bias') for x in arrays.shapes)

  def rename(name: str) -> str:
    if is_chunked:
      name = re.sub(_CHUNK, 'blocks.', name)
    name = _TIMMS(name)
    if not has_key_bias:
      name = _TIMMS_WITHOUT_KEY_BIAS(name)
    return _TIMMS_OF_DINOV3(name) if 'storage_tokens' in arrays.shapes else name

  return base.Renamed(arrays, rename)


def resize(all_shapes: Mapping[str, base.Shape]) -> str:
  """Returns how the authors' code resizes positions; '' if timm's does.

  DINO's files are encoders with a class token and positions, and nothing else.
  Those of DINOv2 have a mask token besides; with registers, its code smooths.
  The shapes are of the arrays of a file without a config.json, by the names of
  `as_timm`.
  """
  names = (x for x in all_shapes if not re.match(dino_head.IGNORED, x))
  shapes = {name: all_shapes[name] for name in names}
  if len(shapes.get('mask_token', ())) == 2:  # [1, D]; MAE's has three axes
    return 'bicubic_antialias' if 'reg_token' in shapes else 'dino'
  extra_pattern = (
    r'(head|fc_norm|attn_pool|dist_token|reg_token|mask_token|pre_logits)'
  )
  extra_pattern += r'|decoder_|.*(gamma|q_norm|q_bias)'
  is_plain = not any(re.match(extra_pattern, name) for name in shapes)
  needed = {'cls_token', 'pos_embed', 'norm.weight', 'patch_embed.proj.weight'}
  return 'dino' if is_plain and needed <= shapes.keys() else ''
