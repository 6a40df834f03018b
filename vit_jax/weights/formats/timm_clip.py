"""CLIP's image tower under timm's names, and in files of open_clip.

It has a LayerNorm before its layers, and its patch embedding no bias.
open_clip's files hold both towers; the image tower is in `visual`, under the
names of OpenAI's code, or in `visual.trunk`, where it is a model of timm.
"""

from collections.abc import Collection
import re

from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats.fields import FileFacts

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
