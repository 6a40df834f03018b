"""What names of timm's architectures say; as of timm 1.0.31."""

import re

from vit_jax.weights import typed

# Those whose blocks have the arrays of others: with ResPostBlock.
_POST_NORM = r'vit_base_patch16_rpn_'
# Those with act_layer='gelu_tanh'.
_TANH = (
  r'vit_base_patch32_siglip_'
  r'|vit_large_patch16_siglip_(gap_)?512'
  r'|vit_so400m_patch16_siglip_'
  r'|vit_giantopt_patch16_siglip_'
)
_ACTIVATIONS = {'gelu': 'exact', 'gelu_tanh': 'tanh'}
# Heads where the width does not tell them.
_HEADS_BY_NAME = {
  r'vit_giantopt_patch16_siglip_': 16,
  r'vit_base_patch16_gap_': 16,
}
# By width: vit_wee, little, medium, betwixt, so150m, so400m, ...
_HEADS = {
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
  """Returns the name in config.json; '' where there is none."""
  return config.get('architecture', typed.TEXT, '')


def check(config: typed.Json) -> None:
  """Raises a UserError where a ViT cannot compute what the name says."""
  name = architecture(config)
  if re.match(_POST_NORM, name):
    raise config.error(
      'architecture', name, 'norms after attention and MLP are not computed'
    )


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


def heads(config: typed.Json, hidden_size: int) -> int | None:
  """Returns the heads of a ViT; None: config.json does not tell."""
  name = architecture(config)
  found = [
    n for pattern, n in _HEADS_BY_NAME.items() if re.match(pattern, name)
  ]
  if not found and re.match('vit_|deit', name):
    found = [n for width, n in _HEADS.items() if width == hidden_size]
  default = found[0] if found else None
  return config.get('model_args.num_heads', typed.COUNT, default)
