"""What fields of models say of themselves."""

import dataclasses
import pathlib
import re
import typing

from flax import linen as nn
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import keys
from vit_jax.models import fields
from vit_jax.models import flat
from vit_jax.models import mixer
from vit_jax.models import spec
from vit_jax.weights.formats import foreign

FAMILIES = typing.get_args(models.Flat)

# Fields that name a part.
NAMED = ('block', 'attention', 'mlp', 'positions', 'patches')


def test_the_config_has_a_key_for_each_field():
  """Or an option in the name; `dtype` is config.train.dtype."""
  assert {*config_lib.default().model} == {'name', *models.KEYS}
  for module in FAMILIES[1:]:
    options = {*models.family_options(module), 'dtype'}
    assert {*fields.of(module)} - options <= {*models.KEYS}


def test_a_resumed_run_may_change_how_a_model_is_computed():
  for module in FAMILIES:
    for name, field in fields.of(module).items():
      if name in models.KEYS:
        is_resumable = re.fullmatch(keys.RESUMABLE_KEYS, f'model.{name}')
        is_execution = field.kind == fields.Kind.EXECUTION
        assert bool(is_resumable) == is_execution, name


def test_kinds():
  assert fields.of_kind(mixer.Mixer, fields.Kind.SIZE) == [
    'hidden_size',
    'mlp_dim',
    'depth',
    'tokens_mlp_dim',
  ]
  assert fields.of_kind(flat.ViT, fields.Kind.EXECUTION) == [
    'scan',
    'remat',
    'dtype',
    'attention_implementation',
  ]
  assert set(foreign.UNSEEN) == {
    'num_heads',
    'gelu',
    'layer_norm_epsilon',
    'causal',
    'gate',
    'rotary',
    'rotary_base',
    'rotary_grid',
    'rotary_offset',
    'crop_to_patches',
    'post_norm',
    'map_heads',
    'map_prefix',
    'num_groups',
    'zero_padded_pool',
    'experts_per_token',
    'position_aspect',
    'position_grid',
    'position_resize',
    'distillation_head',
  }


def test_a_field_must_say_what_it_is():
  @dataclasses.dataclass
  class Spec(spec.LayerSpec):
    unsaid: bool = False

  with pytest.raises(TypeError, match=r'Spec\.unsaid does not say what it is'):
    fields.of(Spec)


def test_layers_are_given_the_fields_of_their_model():
  model = models.create_model(
    'ViT-Ti/4', depth=3, attention='attention(qk_norm=True)'
  )
  layers = spec.EncoderSpec.take(models.flattened(model))
  assert (layers.depth, layers.qk_norm, layers.num_heads) == (3, True, 3)
  other = models.flattened(model.clone(num_classes=7))
  assert hash(layers) == hash(spec.EncoderSpec.take(other))
  with pytest.raises(dataclasses.FrozenInstanceError):
    layers.depth = 4


@pytest.mark.parametrize('name', ['huggingface', 'timm'])
def test_formats_know_all_fields_that_change_the_function(name):
  """One that they did not know would be lost without a word."""
  folder = pathlib.Path(foreign.__file__).parent
  code = ''.join(path.read_text() for path in folder.glob(f'{name}*.py'))
  if 'uncommon.parts(model)' in code:
    code += (folder / 'uncommon.py').read_text()
  for field in fields.of_kind(flat.ViT, fields.Kind.FUNCTION):
    if field in NAMED:
      continue  # no format of others stores them, see tests/test_own_parts.py
    assert f'model.{field}' in code, field


class Still(nn.Module):
  """A layer of a user's own, which has no attention."""

  def __call__(self, x, context):
    return x


def test_a_model_with_a_block_of_ones_own_has_keys():
  text = f'{__name__}:Still'
  model = models.create_model('ViT-Ti/4', 3, block=text)
  values = models.key_values(model)
  assert values['block'] == text and values['attention'] is None
  keys = {key: x for key, x in values.items() if x is not None}
  assert models.create_model('ViT-Ti/4', **keys) == model
