"""Numbers of attention heads, which the shape of a fused qkv does not show."""

from vit_jax.config import UserError
from vit_jax.models import vit
from vit_jax.weights.formats import base


def published_heads(hidden_size: int, mlp_dim: int, depth: int) -> int | None:
  """Returns the heads of the published ViT of these sizes, or None."""
  sizes = {'hidden_size': hidden_size, 'mlp_dim': mlp_dim, 'depth': depth}
  for published in vit.SIZES.values():
    if sizes.items() <= published.items():
      return published['num_heads']
  return None


def num_heads(hints: base.Hints, configured: int | None, **sizes: int) -> int:
  """Returns the number of heads; the shape of a fused qkv does not show it.

  Args:
    hints: The caller's number takes precedence.
    configured: Number from a config file, or None.
    **sizes: hidden_size, mlp_dim and depth, to find a published model.

  Raises:
    UserError: Nothing determines the number.
  """
  found = hints.overrides.get('num_heads')
  if found is None:
    found = configured or published_heads(**sizes)
  if found is None:
    raise UserError(
      f'its arrays do not say how many heads {sizes["hidden_size"]} channels'
      ' are divided into: give num_heads= (on the command line'
      ' --model.num_heads=; in a run --config.model.num_heads=)'
    )
  return found
