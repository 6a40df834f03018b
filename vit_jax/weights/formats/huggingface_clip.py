"""CLIP and SigLIP in the format of Hugging Face transformers.

Both have a `vision_model`, a `text_model` and a `logit_scale`; config.json has
what arrays do not show of either tower.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import cast

import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import whole

CLIP, SIGLIP, SIGLIP2 = 'clip', 'siglip', 'siglip2'
FORMAT = 'huggingface'
IGNORED = r'.*\.position_ids'
# What the published configs of CLIP say of the end of a text, before they were
# corrected; transformers then reads the largest token.
_LEGACY_END = 2
_WORDS = 'text_model.'
_IMAGE = tables.below(towers.ARRAYS, 'image/', '')
_TEXT = [
  *tables.below(towers.layers(_WORDS), 'text/', ''),
  *tables.arrays(f"""
text/token_embedding/embedding  {_WORDS}embeddings.token_embedding.weight
text/norm                       {_WORDS}final_layer_norm  norm*
"""),
]
_CLIP = tables.arrays("""
image_projection                visual_projection         dense*
text/head                       text_projection           dense*
log_scale                       logit_scale
""")
_SIGLIP = tables.arrays(
  f"""
text/head                       {_WORDS}head              dense*
log_scale                       logit_scale               number
logit_bias                      logit_bias                number
""",
  number=tables.padded(0),
)
# Of patches that are cut already.
_CUT = tables.arrays(
  f'image/patch_embedding/kernel  {towers.PATCH}  cut', cut=tables.linear(3)
)
_OF_KIND = {CLIP: _CLIP, SIGLIP: _SIGLIP, SIGLIP2: [*_CUT, *_SIGLIP]}


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  known = set(names)
  return {'logit_scale', f'{_WORDS}final_layer_norm.weight'} <= known


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  return base.Renamed(towers.unpacked(arrays))


def describe(
  arrays: base.Renamed, config: typed.Json, text_heads: int | None = None
) -> tuple[two_towers.TwoTowers, tuple[int, int]]:
  """Infers both towers, as `google_towers.describe`.

  config.json has the numbers of heads: `text_heads` is not used.

  Raises:
    UserError: There is no config.json, or it says what cannot be computed.
  """
  del text_heads
  kind = config.get('model_type', typed.TEXT)
  if kind not in _OF_KIND:
    raise UserError(
      f'its config.json says model_type {kind!r}: two towers of'
      f' {", ".join(map(repr, _OF_KIND))} can be read'
    )
  nothing = dataclasses.replace(config, content={})
  hints = base.Hints({}, towers.tower_config(config), nothing, None)
  image = format_lib.describe(towers.KINDS, towers.prepare(arrays), hints)
  shapes = base.Shapes(arrays)
  tower = _text(shapes, config, kind)
  projection = shapes.size('visual_projection.weight', 0)
  return two_towers.TwoTowers(
    cast(vit.ViT, image.model), tower, projection, kind != CLIP, kind == SIGLIP2
  ), image.image_size


def _text(shapes: base.Shapes, config: typed.Json, kind: str) -> text.TextTower:
  table = f'{_WORDS}embeddings.token_embedding.weight'
  fields = _layers(shapes, config, kind)
  fields['vocabulary'] = shapes.get(table, 2)[0]
  fields['length'] = shapes.get(
    f'{_WORDS}embeddings.position_embedding.weight', 2
  )[0]
  if kind != CLIP:
    fields['out_dim'] = shapes.get(f'{_WORDS}head.weight', 2)[0]
    return registry.build_model(text.TextTower, **fields)
  end = config.get('text_config.eos_token_id', typed.COUNT, _LEGACY_END)
  return registry.build_model(
    text.TextTower,
    **fields,
    out_dim=shapes.get('text_projection.weight', 2)[0],
    has_head_bias=False,
    causal=True,
    pool='largest' if end == _LEGACY_END else 'end',
    end_token=end,
  )


def _layers(
  shapes: base.Shapes, config: typed.Json, kind: str
) -> dict[str, Any]:
  """Returns the fields of the layers of a text tower."""
  layer = f'{_WORDS}encoder.layers.{{}}.'
  up = shapes.get(f'{layer}mlp.fc1.weight', 2)
  is_clip = kind == CLIP

  def say(key: str, kind: typed.Kind, default: Any) -> Any:
    # A config leaves out the defaults of transformers' class.
    return config.get(f'text_config.{key}', kind, default)

  usual = 'quick_gelu' if is_clip else 'gelu_pytorch_tanh'
  gelu = say('hidden_act', typed.one_of(*common.GELUS), usual)
  return {
    'hidden_size': up[1],
    'mlp_dim': up[0],
    'depth': shapes.count(layer),
    'num_heads': say('num_attention_heads', typed.COUNT, 8 if is_clip else 12),
    'gelu': common.GELUS[gelu],
    'layer_norm_epsilon': say(
      'layer_norm_eps', typed.POSITIVE, 1e-5 if is_clip else 1e-6
    ),
  }


def kind_of(model: two_towers.TwoTowers) -> str:
  """Returns the model_type of a model."""
  if model.projection:
    return CLIP
  return SIGLIP2 if model.any_grid else SIGLIP


def rules(model: two_towers.TwoTowers) -> list[tables.Rule]:
  """Returns the table for a model."""
  return [*_OF_KIND[kind_of(model)], *_IMAGE, *_TEXT]


def write(model: two_towers.TwoTowers, params: Any) -> Mapping[str, np.ndarray]:
  """Returns the arrays of a file of parameters whose layers are unrolled.

  Raises:
    KeyError: The format has no place for a parameter.
  """
  arrays = dict(tables.write(rules(model), jax.device_get(params)))
  return towers.packed({}, arrays)


def beside(
  model: two_towers.TwoTowers, shape: tuple[int, ...]
) -> whole.Whole | None:
  """Returns how a file of both towers stores what is beside the image tower.

  Args:
    model: Both towers.
    shape: (height, width, channels) of an image.

  Returns:
    None: transformers has no class for these towers.
  """
  image, tower = model.image.clone(scan=False), model.text
  size = shape[0], shape[1]
  kind = format_lib.storing(towers.KINDS, image, size)
  if not isinstance(tower, text.TextTower) or kind is None:
    return None
  is_clip = kind is towers.CLIP
  pools = ('largest', 'end') if is_clip else ('last',)
  fits = (
    tower.block.attention.causal == is_clip
    and common.activation({'mlp.gelu': tower.block.mlp.gelu}) is not None
    and tower.pool in pools
    and tower.has_head_bias != is_clip
    and bool(model.projection) == is_clip
    and model.has_bias != is_clip
  )
  if not fits:
    return None
  name = CLIP if is_clip else SIGLIP
  words = {'model_type': f'{name}_text_model', **_text_config(tower)}
  if is_clip:
    # By this number transformers reads the largest token.
    words['eos_token_id'] = 2 if tower.pool == 'largest' else tower.end_token
    words['projection_dim'] = model.projection
  else:
    words['projection_size'] = tower.out_dim
  values = values_lib.model_values(image)
  values |= {'image_size': size, 'image_channels': shape[2]}
  content = {
    'model_type': name,
    'architectures': ['CLIPModel' if is_clip else 'SiglipModel'],
    'text_config': words,
    'vision_config': kind.config(values),
    **({'projection_dim': model.projection} if is_clip else {}),
  }
  return whole.Whole([*_OF_KIND[name], *_TEXT], config=content)


def _text_config(tower: text.TextTower) -> dict[str, Any]:
  """Returns what a config says of the sizes of a text tower."""
  return {
    'hidden_size': tower.hidden_size,
    'intermediate_size': tower.block.mlp.hidden_dim,
    'num_hidden_layers': tower.depth,
    'num_attention_heads': tower.block.attention.num_heads,
    'hidden_act': common.activation({'mlp.gelu': tower.block.mlp.gelu}),
    'layer_norm_eps': tower.norm.epsilon,
    'vocab_size': tower.vocabulary,
    'max_position_embeddings': tower.length,
  }
