"""Which class of transformers holds a ViT, and what that class cannot hold."""

from vit_jax import models
from vit_jax.models import flat
from vit_jax.models import resnet
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_aimv2 as aimv2
from vit_jax.weights.formats import huggingface_beit as beit
from vit_jax.weights.formats import huggingface_bit as bit
from vit_jax.weights.formats import huggingface_dinov3 as dinov3
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import uncommon


def model_type(model: models.Flat) -> str:
  """Returns the `model_type` of config.json for a model."""
  if isinstance(model, resnet.BiT):
    return bit.KIND
  assert isinstance(model, flat.ViT)
  if aimv2.is_kind(model):
    return aimv2.KIND
  if dinov3.is_kind(model):
    return dinov3.KIND
  if tower := towers.kind_of(model):
    return tower
  if beit.is_kind(model):
    return beit.KIND
  if model.pool == 'token+gap' or model.layer_scale is not None:
    return 'dinov2_with_registers' if model.registers else 'dinov2'
  if model.pool == 'gap' and not model.prefix:
    return 'ijepa'
  return 'deit' if model.distillation_token else 'vit'


def mlp_ratio(model: flat.ViT) -> int | None:
  """Returns `mlp_ratio` of DINOv2's config.json; None: no value fits.

  transformers accepts only integers. Of a gated MLP's hidden layer it uses two
  thirds, rounded up to a multiple of 8.
  """
  d = model.hidden_size
  if not model.gated_mlp:
    return None if model.mlp_dim % d else model.mlp_dim // d
  near = range(1, 2 * model.mlp_dim // d + 2)
  sizes = {r: (int(d * r * 2 / 3) + 7) // 8 * 8 for r in near}
  return next((r for r, size in sizes.items() if size == model.mlp_dim), None)


# Pooling before the head, by model_type; 'token' for all others.
_POOLS = {
  'ijepa': 'gap',
  'dinov2': 'token+gap',
  'dinov2_with_registers': 'token+gap',
}
_CLASSES = (
  "transformers' classes read a class token alone (ViT, DeiT), the mean over"
  ' normalised patches where there is no other token (I-JEPA), or both beside'
  ' each other, with LayerScale (DINOv2)'
)


def _pooling(model: flat.ViT) -> str:
  text = f'the pool {model.pool!r}'
  if model.layer_scale is not None:
    return f'{text} with LayerScale'
  return f'{text} beside {", ".join(model.prefix)}' if model.prefix else text


def unsupported(model: flat.ViT, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  kind = model_type(model)
  if kind == beit.KIND:
    return beit.unsupported(model)
  if kind == aimv2.KIND:
    return aimv2.unsupported(model, image_size)
  if kind == dinov3.KIND:
    return dinov3.unsupported(model)
  if kind in towers.ARCHITECTURES:
    return towers.unsupported(model, image_size)
  is_dino = kind.startswith('dinov2')
  rare = uncommon.parts(model)
  if is_dino:
    del rare[uncommon.MASK_TOKEN]
  wrong = {
    'a ResNet stem': model.resnet_stages is not None,
    'normalised queries and keys': model.qk_norm,
    'a gated MLP without LayerScale': model.gated_mlp and not is_dino,
    'registers without LayerScale': model.registers and not is_dino,
    'a head that reads class token and mean without LayerScale': is_dino
    and model.layer_scale is None,
    'a distillation token beside LayerScale': is_dino
    and model.distillation_token,
    f'{_pooling(model)} ({_CLASSES})': model.pool != _POOLS.get(kind, 'token'),
    f'a LayerNorm after the mean ({_CLASSES})': model.pool == 'gap'
    and model.norm_after_pool,
    'a layer before the head': model.pre_logits
    and (is_dino or model.pool == 'gap' or model.num_classes),
    'the mean of two features': model.distillation_token
    and model.distillation_head
    and not model.num_classes,
    'a patch that is not square': model.patch_size[0] != model.patch_size[1],
    'LayerScale with positions of a grid that is not square': is_dino
    and image_size[0] != image_size[1],
    f'LayerScale with an MLP of {model.mlp_dim}': is_dino
    and mlp_ratio(model) is None,
    'a model without learned positions': model.position_embedding != 'learned',
    f'positions of {model.positioned_prefix} of the tokens before patches': (
      model.positioned_prefix != (1 if is_dino else model.prefix_length)
    ),
    **rare,
  }
  return base.first_of(wrong)


def unused(model: models.Flat) -> dict[str, tuple[int, ...]]:
  """Returns shapes of arrays that transformers expects but does not use."""
  if not isinstance(model, flat.ViT):
    return {}
  if dinov3.is_kind(model):
    return dinov3.unused(model)
  if model.mask_token or model_type(model) != 'dinov2_with_registers':
    return {}
  return {'embeddings.mask_token': (1, model.hidden_size)}
