"""What fields of models say of themselves."""

import re
import typing

from flax import linen as nn
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import keys
from vit_jax.models import encoder
from vit_jax.models import fields
from vit_jax.models import mixer
from vit_jax.models import vit

# Families that are no ViT.
FAMILIES = typing.get_args(models.Model)[1:]

# Fields that name a part.
NAMED = ('block', 'attention', 'mlp', 'positions', 'patches')


def test_the_config_has_a_key_for_each_field():
  """Or an option in the name; `dtype` is config.train.dtype."""
  assert {*config_lib.default().model} == {'name', *models.KEYS}
  for module in FAMILIES:
    options = {*models.family_options(module), 'dtype'}
    assert {*fields.of(module)} - options <= {*models.KEYS}


def test_a_resumed_run_may_change_how_a_model_is_computed():
  for key in models.KEYS:
    is_resumable = re.fullmatch(keys.RESUMABLE_KEYS, f'model.{key}')
    assert bool(is_resumable) == (key in models.EXECUTION), key
  for module in FAMILIES:
    names = fields.of_kind(module, fields.Kind.EXECUTION)
    assert {*names} <= {*models.EXECUTION}


def test_kinds():
  assert fields.of_kind(mixer.Mixer, fields.Kind.SIZE) == [
    'hidden_size',
    'depth',
  ]
  assert fields.of_kind(vit.ViT, fields.Kind.EXECUTION) == [
    'scan',
    'remat',
    'dtype',
  ]


def test_a_field_must_say_what_it_is():
  class Unsaid(encoder.Encoder):
    unsaid: bool = False

  with pytest.raises(TypeError, match=r'Unsaid\.unsaid does not say what it'):
    fields.of(Unsaid)


class Still(nn.Module):
  """A layer of a user's own, which has no attention."""

  def __call__(self, x, context):
    return x


class Wide(Still):
  """One that must be as wide as nothing else here."""

  def check_model(self, model):
    raise ValueError(f'a width of {model.hidden_size} is too small')


def test_a_part_of_ones_own_may_refuse_others():
  with pytest.raises(ValueError, match='a width of 192 is too small'):
    models.create_model('ViT-Ti/4', 3, block=f'{__name__}:Wide')


def test_a_model_with_a_block_of_ones_own_has_keys():
  text = f'{__name__}:Still'
  model = models.create_model('ViT-Ti/4', 3, block=text)
  values = models.key_values(model)
  assert values['block'] == text and values['attention'] is None
  keys = {key: x for key, x in values.items() if x is not None}
  assert models.create_model('ViT-Ti/4', **keys) == model
