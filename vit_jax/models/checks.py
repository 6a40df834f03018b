"""Checks of whether the fields of a model fit together."""

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import flat
from vit_jax.models import heads
from vit_jax.models import igpt
from vit_jax.models import initializers
from vit_jax.models import registry
from vit_jax.models import rotary


def _check_heads(model: flat.ViT | igpt.IGPT) -> None:
  d = model.hidden_size
  if d % model.num_heads:
    raise ValueError(
      f'num_heads={model.num_heads} does not divide'
      f' hidden_size={d}: change one of them'
    )


def check_igpt(model: igpt.IGPT) -> None:
  """Raises a ValueError if the fields of an iGPT do not fit together."""
  _check_heads(model)
  _check_named(model)
  if model.read > model.depth:
    raise ValueError(
      f'feature_layer is {model.feature_layer}: it must be at most the depth,'
      f' {model.depth}'
    )
  if not model.causal:
    raise ValueError('an iGPT predicts the next pixel: leave causal at True')
  wrong = {
    f'experts={model.experts}: an iGPT has one MLP in each layer': (
      model.experts
    ),
    'attention_norm=True: an iGPT has no such norm': model.attention_norm,
    'post_norm=True: the norms of an iGPT precede its layers': model.post_norm,
    'parallel_mlp=True: the MLP of an iGPT follows attention': (
      model.parallel_mlp
    ),
    f'branches={model.branches}: an iGPT has one': model.branches > 1,
    'differential=True: an iGPT has one softmax': model.differential,
    f'key_heads={model.key_heads}: its keys have as many as its queries': (
      model.key_heads is not None
    ),
    f'full_key_layers={model.full_key_layers}: all of its layers have them': (
      model.full_key_layers
    ),
    f'rotary={model.rotary!r}: an iGPT has learned positions alone': (
      model.rotary != 'none'
    ),
  }
  fields.refuse(wrong)
  _check_scales(model)
  if model.relative_positions != 'none':
    raise ValueError(
      'an iGPT knows no distances between patches: leave relative_positions at'
      " 'none'"
    )


def _check_merge(model: flat.ViT) -> None:
  """Raises a ValueError if tokens are merged that cannot be."""
  if not model.merge:
    return
  rotates, relates = model.rotary, model.relative_positions
  wrong = {
    'scan=True: its layers have equal numbers of tokens': model.scan,
    f'rotary={rotates!r}, the position of one patch': rotates != 'none',
    f'relative_positions={relates!r}, of one patch': relates != 'none',
    "pool='map', which counts a token once": model.pool == 'map',
    'causal=True, since merged tokens have no order': model.causal,
  }
  fields.refuse(wrong, f'merge={model.merge} does not go with {{}}')


def _check_experts(model: flat.ViT) -> None:
  """Raises a ValueError if layers cannot have experts as the fields say."""
  if not model.experts:
    return
  wrong = {
    'scan=True, since its layers differ': model.scan,
    'mlp_norm=True': model.mlp_norm,
    'dense_bias=False': not model.dense_bias,
    f'merge={model.merge}, which changes the tokens of an image': model.merge,
    'causal=True, since all tokens are routed together': model.causal,
  }
  fields.refuse(wrong, f'experts={model.experts} do not go with {{}}')
  numbers = model.expert_layers
  if len(set(numbers)) < len(numbers) or max(numbers, default=0) > model.depth:
    raise ValueError(
      f'expert_layers is {numbers}: write different numbers from 1 to the'
      f' depth, {model.depth}'
    )
  if not model.experts_part().routed_layers(model.depth):
    raise ValueError(
      f'experts={model.experts}: every second layer would have them, and the'
      f' depth is {model.depth}; choose layers with expert_layers=(1,)'
    )


def _check_parallel(model: flat.ViT) -> None:
  """Raises a ValueError if parts beside each other do not fit the others."""
  wrong = {
    'merge, between attention and MLP': model.merge > 0,
    'experts': model.experts > 0,
  }
  branches, positions = f'branches={model.branches}', model.relative_positions
  if model.parallel_mlp:
    wrong_beside = wrong | {
      branches: model.branches > 1,
      'post_norm=True': model.post_norm,
      'layer_scale_mlp=False: they have one scale': not model.layer_scale_mlp,
    }
    fields.refuse(wrong_beside, 'parallel_mlp=True does not go with {}')
  if model.branches > 1:
    of_one = positions.startswith('layers')
    wrong[f'relative_positions={positions!r}, of one attention'] = of_one
    fields.refuse(wrong, f'{branches} does not go with {{}}')


def _check_differential(model: flat.ViT) -> None:
  """Raises a ValueError if differential attention does not fit the others."""
  if not model.differential:
    return
  positions, width = model.relative_positions, model.hidden_size
  wrong = {
    f'rotary={model.rotary!r}': model.rotary != 'none',
    f'relative_positions={positions!r}': positions != 'none',
    f'heads of {width // model.num_heads} channels, which have no halves': (
      width // model.num_heads % 2
    ),
  }
  fields.refuse(wrong, 'differential=True does not go with {}')


def _check_keys(model: flat.ViT) -> None:
  """Raises a ValueError if heads of keys do not fit those of queries."""
  heads, keys, full = model.num_heads, model.key_heads, model.full_key_layers
  if keys is None:
    if full:
      raise ValueError(
        f'full_key_layers={full} has no effect without key_heads: leave it out'
      )
    return
  if keys == heads or heads % keys:
    raise ValueError(
      f'key_heads is {keys}: it must divide num_heads={heads} and be smaller;'
      ' None stands for as many'
    )
  if 2 * full >= model.depth:
    raise ValueError(
      f'full_key_layers={full}, first and last, are all layers of'
      f' depth={model.depth}: choose fewer, or leave key_heads out'
    )
  wrong = {
    'key_bias=False': not model.key_bias,
    f'scan=True and full_key_layers={full}, since its layers differ': (
      model.scan and full
    ),
  }
  fields.refuse(wrong, f'key_heads={keys} does not go with {{}}')


def check_initializers(
  model: flat.ViT | igpt.IGPT | heads.Classifier,
) -> None:
  """Raises a ValueError if the initial values are those of other layers."""
  if model.initializers != initializers.MIMETIC:
    return
  wrong = {
    'layers without attention': not isinstance(model, flat.ViT | igpt.IGPT),
    'key_heads': getattr(model, 'key_heads', None) is not None,
    'differential=True': getattr(model, 'differential', False),
  }
  fields.refuse(wrong, "initializers='mimetic' does not go with {}")


def _check_scales(model: flat.ViT | igpt.IGPT) -> None:
  """Raises a ValueError if a LayerScale is described that is not there."""
  if not model.layer_scale_mlp and model.layer_scale is None:
    raise ValueError(
      'layer_scale_mlp=False has no effect without layer_scale: leave it out'
    )


def _check_rotary(model: flat.ViT) -> None:
  """Raises a ValueError if fields of rotary positions do not fit."""
  width = model.hidden_size // model.num_heads
  if model.rotary != 'none' and width % 4:
    raise ValueError(
      f'rotary={model.rotary!r} needs heads with a multiple of 4 channels, not'
      f' {width}: change num_heads or hidden_size'
    )
  grid = model.rotary_grid
  if grid is not None and len(grid) != 2:
    raise ValueError(f'rotary_grid is {grid}: write (rows, columns) of patches')
  of_indices = {
    'rotary_grid': grid is not None,
    'rotary_offset': model.rotary_offset > 0,
  }
  for name, is_given in of_indices.items():
    if is_given and not rotary.is_scaled(model.rotary):
      raise ValueError(
        f'{name} has no effect with rotary={model.rotary!r}, which scales'
        ' no indices: leave it out'
      )


def _check_pool(model: flat.ViT) -> None:
  """Raises a ValueError if fields of the pooling do not fit."""
  name = model.pool.partition('(')[0]
  names = registry.PARTS['pool']
  if ':' not in name and name not in (*heads.POOLS, *names):
    raise ValueError(
      f'pool is {model.pool!r}: choose one of {", ".join(names)}, or a class of'
      " your own, as 'my_parts:MyPool'"
    )
  reads_class_token = getattr(model.pool_part(), 'reads_class_token', False)
  if reads_class_token and 'class_token' not in model.prefix:
    raise ValueError(
      f'pool={model.pool!r} reads the class token, but class_token is False'
    )
  if model.map_heads and model.hidden_size % model.map_heads:
    raise ValueError(
      f'map_heads={model.map_heads} does not divide'
      f' hidden_size={model.hidden_size}: change one of them'
    )
  if model.norm_after_pool and not model.last_norm:
    raise ValueError(
      'norm_after_pool has no effect with last_norm=False: leave it out'
    )


def _check_named(model: flat.ViT | igpt.IGPT) -> None:
  """Raises a ValueError if a part is both named and described by fields."""
  described: dict[str, dict[str, object]] = {
    'attention': {
      'differential=True': model.differential,
      f'key_heads={model.key_heads}': model.key_heads,
    },
    'mlp': {
      f'experts={model.experts}': model.experts,
      'gated_mlp=True': model.gated_mlp,
    },
    'block': {
      'post_norm=True': model.post_norm,
      'parallel_mlp=True': model.parallel_mlp,
      f'branches={model.branches}': model.branches > 1,
    },
  }
  if isinstance(model, flat.ViT):
    described['block'][f'merge={model.merge}'] = model.merge
    position, relation = model.position_embedding, model.relative_positions
    described['positions'] = {
      f'position_embedding={position!r}': position != 'learned',
      f'rotary={model.rotary!r}': model.rotary != 'none',
      f'relative_positions={relation!r}': relation != 'none',
    }
  for kind, wrong in described.items():
    if text := getattr(model, kind):
      fields.refuse(wrong, f'{kind}={text!r} does not go with {{}}: choose one')


def check_vit(model: flat.ViT) -> None:
  """Raises a ValueError if the fields of a ViT do not fit together."""
  d = model.hidden_size
  _check_heads(model)
  _check_named(model)
  of_jax = model.attention_implementation in ('xla', 'cudnn')
  if of_jax and model.attention_dropout_rate:
    raise ValueError(
      f'attention_implementation={model.attention_implementation!r} has no'
      " attention_dropout_rate: set it to 0, or take 'plain'"
    )
  if model.position_embedding in embedding.SINCOS and d % 4:
    raise ValueError(
      f'position_embedding={model.position_embedding!r} needs a hidden_size'
      f' that is a multiple of 4, not {d}'
    )
  _check_rotary(model)
  _check_pool(model)
  _check_merge(model)
  _check_experts(model)
  _check_parallel(model)
  _check_differential(model)
  _check_keys(model)
  _check_scales(model)
  if model.crop_to_patches and model.resnet_stages is not None:
    raise ValueError(
      'crop_to_patches=True is of patches of pixels, and the convolutions of'
      ' resnet_stages pad: leave it out'
    )
  if model.distillation_token and model.pool != 'token':
    raise ValueError(
      "a distillation_token needs pool='token', as DeiT has it, not"
      f' {model.pool!r}'
    )
