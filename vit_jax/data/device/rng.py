"""Random keys for the rows of a global batch."""

import flax
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Rng:
  """Random key of a step, for some rows of the global batch.

  An example's random numbers depend only on the key and its row, and neither on
  the mesh nor on the split into microbatches.
  """

  key: jax.Array  # A threefry key, the same for all rows
  rows: jax.Array  # int32 [B], positions in the global batch

  def fold(self, purpose: int) -> 'Rng':
    """Returns the randomness for one purpose."""
    return Rng(jax.random.fold_in(self.key, purpose), self.rows)

  def repeat(self, count: int) -> 'Rng':
    """Returns the randomness of `count` images of each row, side by side.

    The images of B rows are [B * count, H, W, C].
    """
    images = jnp.arange(count, dtype=jnp.int32)
    rows = self.rows[:, None] * count + images
    return Rng(self.key, rows.reshape(-1))

  def per_row(self) -> jax.Array:
    """Returns a key for each row, [B]."""
    return jax.vmap(jax.random.fold_in, (None, 0))(self.key, self.rows)


def for_purpose(purpose: int, keys: jax.Array) -> jax.Array:
  """Returns the keys [B] of examples for one purpose, from their keys [B]."""
  return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def uniform(
  key: jax.Array, purpose: int, shape: tuple[int, ...] = ()
) -> jax.Array:
  """Draws numbers in [0, 1) for one purpose, from an example's key."""
  return jax.random.uniform(jax.random.fold_in(key, purpose), shape)


def corner(
  key: jax.Array, purpose: int, sides: tuple[int, ...], size: tuple[int, ...]
) -> jax.Array:
  """Draws the first place of a crop, int32 [axes]; all are equally likely."""
  free = jnp.array(sides) - jnp.array(size)
  offsets = uniform(key, purpose, free.shape) * (free + 1)
  return jnp.minimum(offsets.astype(jnp.int32), free)
