"""Initialises and applies modules by compiled functions that tests share.

Op by op, a model takes seconds: each operation of each shape is compiled.
"""

from typing import Any

from flax import linen as nn
import jax

_STATIC = ('train', 'method', 'mutable')


def _init(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
  return module.init(*args, **kwargs)


def _apply(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
  return module.apply(*args, **kwargs)


# Called as the methods are, with the module before the other arguments.
init = jax.jit(_init, static_argnums=0, static_argnames=_STATIC)
apply = jax.jit(_apply, static_argnums=0, static_argnames=_STATIC)
