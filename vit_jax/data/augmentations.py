"""What single keys of `config.augment` name, with their options."""

from collections.abc import Mapping
from typing import Any

from vit_jax import config as config_lib

CHOICES: Mapping[str, Mapping[str, str]] = {
  'augment.jitter': {'jitter': 'vit_jax.data.device.jitter:Jitter'},
  'augment.erase': {'erase': 'vit_jax.data.device.erasing:Erase'},
}


def make(text: str, key: str) -> Any:
  """Returns a change of a batch of images: (images, keys [B]) -> images.

  Args:
    text: Value of the key, as 'erase(0.25)'.
    key: A key of `CHOICES`.

  Returns:
    The change; None if the text is ''.

  Raises:
    UserError: There is no such option, or its value does not do.
  """
  if not text:
    return None
  return config_lib.build(text, key, CHOICES[key])
