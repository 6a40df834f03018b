"""What fields of models say of themselves."""

import re

from flax import linen as nn
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import resuming
from vit_jax.models import describing
from vit_jax.models import fields
from vit_jax.models import igpt
from vit_jax.models import mixer
from vit_jax.models import registry
from vit_jax.models import resnet
from vit_jax.models import vit

# Families that are no ViT.
FAMILIES = (mixer.Mixer, resnet.BiT, igpt.IGPT)

# Fields that name a part.
NAMED = ('block', 'attention', 'mlp', 'positions', 'patches')


def names(module, *kinds):
  """Returns the names of a class's fields, of all or of some kinds."""
  options = registry.declared_options(module).values()
  return [x.name for x in options if not kinds or x.field.kind in kinds]


def test_the_config_has_a_key_for_each_field():
  """Or an option in the name; `dtype` is config.train.dtype."""
  assert {*config_lib.default().model} == {'name', *models.KEYS}
  for module in FAMILIES:
    options = {*models.family_options(module), 'dtype'}
    assert {*names(module)} - options <= {*models.KEYS}


def test_a_resumed_run_may_change_how_a_model_is_computed():
  for key in models.KEYS:
    is_resumable = re.fullmatch(resuming.RESUMABLE_KEYS, f'model.{key}')
    assert bool(is_resumable) == (key in models.EXECUTION), key
  for module in FAMILIES:
    assert {*names(module, fields.Kind.EXECUTION)} <= {*models.EXECUTION}


def test_kinds():
  assert {*names(mixer.Mixer, fields.Kind.SIZE)} == {'hidden_size', 'depth'}
  assert names(vit.ViT, fields.Kind.EXECUTION) == ['scan', 'remat', 'dtype']


@pytest.mark.parametrize('module', [vit.ViT, *FAMILIES])
def test_a_field_says_what_it_is(module):
  for name, option in registry.declared_options(module).items():
    assert option.field is not registry.PLAIN, name


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
  values = describing.key_values(model)
  assert values['block'] == text and values['attention'] is None
  keys = {key: x for key, x in values.items() if x is not None}
  assert models.create_model('ViT-Ti/4', **keys) == model
