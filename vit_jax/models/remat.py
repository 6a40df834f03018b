"""Which values of a layer the backward pass recomputes."""

from typing import Any

from flax import linen as nn
import jax

from vit_jax.models import fields

# Names of results that the backward pass does not recompute: of dense layers,
# attention and kernels with remat='products', and of activation functions with
# remat='activations'.
PRODUCTS, ACTIVATED = 'kept', 'activated'
# 'none'; 'activations', those within the MLP's activation function, and its
# dropout; 'products', all but the results of dense layers and of attention;
# 'full', all of them; or a name of `jax.checkpoint_policies`. 'auto' is one of
# these by the platform, see `on_platform`.
POLICIES = (
  'auto',
  'none',
  'activations',
  'products',
  'full',
  'dots_saveable',
  'dots_with_no_batch_dims_saveable',
)
FIELD = fields.Field(fields.Kind.EXECUTION, choices=POLICIES)


def on_platform(platform: str, scan: bool, remat: str) -> str:
  """Returns the policy that 'auto' stands for on 'cpu', 'tpu' or 'gpu'.

  A compiler keeps every value that the backward pass takes out of a scan. Where
  layers are unrolled, TPUs' compiler recomputes elementwise functions by
  itself; that of GPUs does not, and would keep several values of [B, T, M]
  within the activation function. On CPUs memory is plentiful, and to compute
  is slow.
  """
  if remat != 'auto':
    return remat
  if platform == 'cpu':
    return 'none'
  if scan:
    return 'products'
  return 'none' if platform == 'tpu' else 'activations'


def recomputed(layer: Any, policy: str, scan: bool) -> Any:
  """Returns a layer that recomputes in the backward pass what it shall."""
  if policy in ('none', 'activations'):  # `Mlp` does the latter
    return layer
  if policy == 'products':
    # Unlike `dots_saveable` this keeps results after their bias is added, which
    # the compiler does in the same operation, and the results of kernels.
    saveable = jax.checkpoint_policies.save_only_these_names(PRODUCTS)
  else:
    saveable = getattr(jax.checkpoint_policies, policy, None)
  # Inside a scan, XLA cannot merge the recomputation with the forward pass
  # anyway (CSE), so nothing has to prevent that.
  return nn.remat(layer, policy=saveable, prevent_cse=not scan)


def activations(finish: Any) -> Any:
  """Returns the second half of an MLP that recomputes its activation function.

  The argument and the result of the activation function are kept, since one
  product of the forward pass writes both. What its derivative needs is
  recomputed. To recompute the result as well would read and write [B, T, M]
  four more times.
  """
  policy = jax.checkpoint_policies.save_only_these_names(ACTIVATED)
  return nn.remat(finish, policy=policy)
