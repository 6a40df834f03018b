"""The kinds of features by name, as preprocess.json stores them."""

from collections.abc import Mapping
from typing import Any

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data.features import Feature

_KINDS = {
  'Image': 'vit_jax.data.features:Image',
  'Volume': 'vit_jax.data.input_kinds:Volume',
  'Video': 'vit_jax.data.input_kinds:Video',
  'Audio': 'vit_jax.data.input_kinds:Audio',
  'Label': 'vit_jax.data.features:Label',
  'MultiLabel': 'vit_jax.data.target_kinds:MultiLabel',
  'Number': 'vit_jax.data.target_kinds:Number',
  'SegmentationMap': 'vit_jax.data.target_kinds:SegmentationMap',
  'Text': 'vit_jax.data.text_kind:Text',
}


def from_dict(stored: Mapping[str, Any]) -> Feature:
  """Returns the inverse of `Feature.to_dict`."""
  fields = {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in stored.items()
    if key != 'kind'
  }
  try:
    feature: Feature = config_lib.wing(_KINDS[stored['kind']])(**fields)
    return feature
  except (KeyError, TypeError):
    raise UserError(
      f'{stored!r} describes no feature: its kind must be one of'
      f' {", ".join(_KINDS)}'
    ) from None
