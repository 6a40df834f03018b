"""What 'auto' of a model's keys stands for on a platform that is not here."""

from typing import Any

from vit_jax import models
from vit_jax.config import parts
from vit_jax.models import stack
from vit_jax.models.parts import kernels


def choose(config: Any, platform: str) -> Any:
  """Returns a full config with the layers that suit 'cpu', 'tpu' or 'gpu'."""
  model: Any = models.from_config(config.model, 0)
  if not hasattr(model, 'block'):
    return config
  result = without_kernel(config)
  result.model.remat = stack.on_platform(platform, model.scan, model.remat)
  attention = models.attention_part(model)
  implementation = getattr(attention, 'implementation', None)
  if implementation is not None:
    implementation = kernels.on_platform(platform, implementation)
    result.model.attention_implementation = implementation
  return result


def without_kernel(config: Any) -> Any:
  """Returns a full config that leaves the choice of a kernel to the platform.

  The text of `config.model.attention` may name one, too.
  """
  result = config.copy_and_resolve_references()
  with result.ignore_type():
    result.model.attention_implementation = None
  if text := result.model.attention:
    part = parts.parse(text, 'model.attention')
    part.options.pop('implementation', None)
    result.model.attention = str(part)
  return result
