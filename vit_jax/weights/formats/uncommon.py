"""Parts of ViTs that few formats have a place for."""

from vit_jax import models
from vit_jax.models import flat

NO_KEY_BIAS = 'queries and values with biases, and keys without'
ROTARY = 'rotary position embeddings'
MLP_NORM = 'a norm inside the MLP'
MASK_TOKEN = 'a mask token'
HEAD_NORM = 'a BatchNorm before the head'
RELATIVE = 'relative positions'
FLEXIBLE = 'positions that are resized for each image'
RMS = 'norms that only scale'
PRE_NORM = 'a LayerNorm before the layers'
NO_PATCH_BIAS = 'a patch embedding without a bias'
ATTENTION_NORM = 'a norm after the heads of attention'
POST_NORM = 'norms after attention and MLP'
PATCH_NORM = 'a norm after the patch embedding'
NO_LAST_NORM = 'layers without a norm after the last one'
NO_DENSE_BIAS = 'an MLP and an attention output without biases'
ROTARY_OFFSET = 'rotary positions with an offset'
MAP_PREFIX = 'attention pooling of the tokens before the patches'
MAP_SIZE = 'attention pooling with other heads or another MLP than the layers'
MAP_QUERY = 'attention pooling without a projection of its query, or biases'
QUICK_GELU = 'the GELU x * sigmoid(1.702 x)'
PARALLEL_MLP = 'an MLP beside attention'
BRANCHES = 'several attentions beside each other'
DIFFERENTIAL = 'differential attention'
FEWER_KEYS = 'fewer heads of keys than of queries'
ATTENTION_SCALE = 'LayerScale of attention alone'
# The activations of `block.GELUS` that formats have names for.
GELUS = {
  'exact': 'the exact GELU',
  'tanh': 'the tanh approximation of the GELU',
  'sigmoid': QUICK_GELU,
}
# Those of `parts` that CLIP's image tower has.
CLIPS = (PRE_NORM, NO_PATCH_BIAS, QUICK_GELU)
# Those of `parts` that BEiT has.
BEITS = (NO_KEY_BIAS, RELATIVE, MASK_TOKEN)


def activation(model: models.Flat) -> str | None:
  """Returns the activation of a model if no format has a name for it."""
  name = models.fields_of(model).get('gelu', 'exact')
  return None if name in GELUS else f'the activation {name!r}'


def is_flexible(model: flat.ViT) -> bool:
  """Whether only the names of timm's NaFlexViT have a place for positions."""
  is_factorized = model.position_embedding == 'factorized'
  return (
    is_factorized or model.position_resize != 'linear' or model.position_aspect
  )


def _has_other_map(model: flat.ViT) -> bool:
  """Whether attention pooling has other sizes than the layers."""
  heads = model.map_heads not in (None, model.num_heads)
  mlp = model.map_mlp_dim not in (None, model.mlp_dim)
  return model.pool == 'map' and (heads or mlp)


def named_part(model: models.Flat) -> str | None:
  """Returns the part of a model that its config names; None: there is none."""
  for kind in ('block', 'attention', 'mlp', 'positions', 'pool'):
    text = getattr(model, kind, '')
    if isinstance(text, str) and text and text not in flat.POOLS:
      return f'the {kind} {text!r}'
  return None


def parts(model: flat.ViT) -> dict[str, bool]:
  """Returns what few formats have a place for, and whether a model has it."""
  # What model.rotary_base and model.rotary_grid say goes with model.rotary;
  # model.crop_to_patches with the size of images;
  # model.full_key_layers with model.key_heads;
  # model.routing, model.expert_layers, model.expert_slots
  # and model.experts_per_token with model.experts.
  return {
    NO_KEY_BIAS: model.qkv_bias and not model.key_bias,
    ROTARY: model.rotary != 'none',
    MLP_NORM: model.mlp_norm,
    DIFFERENTIAL: model.differential,
    FEWER_KEYS: model.key_heads is not None,
    ATTENTION_SCALE: model.layer_scale is not None
    and not model.layer_scale_mlp,
    PARALLEL_MLP: model.parallel_mlp,
    BRANCHES: model.branches > 1,
    'causal attention': model.causal,
    ATTENTION_NORM: model.attention_norm,
    POST_NORM: model.post_norm,
    PATCH_NORM: model.patch_norm,
    NO_LAST_NORM: not model.last_norm,
    NO_DENSE_BIAS: not model.dense_bias,
    ROTARY_OFFSET: model.rotary_offset > 0,
    MAP_PREFIX: model.pool == 'map'
    and model.map_prefix
    and model.prefix_length > 0,
    MAP_SIZE: _has_other_map(model),
    MAP_QUERY: model.pool == 'map' and not (model.map_query and model.map_bias),
    PRE_NORM: model.pre_norm,
    NO_PATCH_BIAS: not model.patch_bias,
    RELATIVE: model.relative_positions != 'none',
    RMS: model.norm != 'layer',
    MASK_TOKEN: model.mask_token,
    HEAD_NORM: model.head_norm != 'none',
    'a gate that is no SiLU': model.gated_mlp and model.gate != 'silu',
    'experts': model.experts > 0,
    FLEXIBLE: is_flexible(model),
    QUICK_GELU: model.gelu == 'sigmoid',
  }
