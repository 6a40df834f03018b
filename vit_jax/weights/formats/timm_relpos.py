"""timm's class VisionTransformerRelPos: MLPs that compute relative positions.

Its arrays have the names of timm's ViT but for these MLPs. No array shows
whether the norms of a layer follow attention and MLP: that comes from the name
in config.json, or from the caller.
"""

from typing import Any

from vit_jax.models import flat
from vit_jax.models.parts import relative
from vit_jax.weights.formats import base
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import torch_dense as _dense

_SHARED, _OF_LAYERS = 'shared_rel_pos.mlp', 'blocks.{}.attn.rel_pos.mlp'
_OURS = 'blocks_{}/attention/relative_mlp'
RULES = [
  *_dense('relative_mlp/up', f'{_SHARED}.fc1'),
  *_dense('relative_mlp/down', f'{_SHARED}.fc2'),
  *_dense(f'{_OURS}/up', f'{_OF_LAYERS}.fc1'),
  *_dense(f'{_OURS}/down', f'{_OF_LAYERS}.fc2'),
]
# Those of `uncommon.parts` that this class has.
HOLDS = (uncommon.RELATIVE, uncommon.POST_NORM)


def is_kind(model: flat.ViT) -> bool:
  """Whether only this class can hold a model."""
  return model.relative_positions in relative.MLPS


def has_signs(shapes: base.Shapes) -> bool:
  """Whether a file is of this class."""
  shared = f'{_SHARED}.fc1.weight' in shapes
  return shared or shapes.count(f'{_OF_LAYERS}.fc1.weight') > 0


def _last(shapes: base.Shapes) -> tuple[int, ...]:
  """Returns the shape of an MLP's last kernel, [H, hidden]."""
  shared = f'{_SHARED}.fc2.weight'
  return shapes.get(
    shared if shared in shapes else f'{_OF_LAYERS}.fc2.weight', 2
  )


def heads(shapes: base.Shapes) -> int | None:
  """Returns the number of heads; None: the file is of another class."""
  return _last(shapes)[0] if has_signs(shapes) else None


def fields(shapes: base.Shapes) -> dict[str, Any]:
  """Returns the fields in which a model differs from timm's ViT."""
  is_shared = f'{_SHARED}.fc1.weight' in shapes
  return {
    'relative_positions': 'shared_mlp' if is_shared else 'layers_mlp',
    'relative_mlp_dim': _last(shapes)[1],
  }


def arguments(model: flat.ViT) -> dict[str, Any]:
  """Returns `model_args` that timm's ViT does not have."""
  return {
    'rel_pos_type': 'mlp',
    'rel_pos_dim': model.relative_mlp_dim,
    'shared_rel_pos': model.relative_positions == 'shared_mlp',
  }


def unsupported(model: flat.ViT) -> dict[str, Any]:
  """Returns what this class has no place for, and whether a model has it."""
  beside = 'beside MLPs of relative positions'
  return {
    f'tokens other than a class token {beside}': (
      model.prefix not in ((), ('class_token',))
    ),
    f'position embeddings {beside}': model.position_embedding != 'none',
    f'attention pooling {beside}': model.pool == 'map',
    f'a ResNet stem {beside}': model.resnet_stages is not None,
    f'a gated MLP {beside}': model.gated_mlp,
    f'a layer before the head {beside}': model.pre_logits,
    f'approximations of the GELU {beside}': model.gelu != 'exact',
    f'norms after attention and MLP with LayerScale {beside}': (
      model.post_norm and model.layer_scale is not None
    ),
  }
