"""Modern parts against the plain ViT, and packing against padding."""

import pytest
import tiny

from benchmarks import modern
from benchmarks import report as report_lib
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import describing


def config(**overrides):
  return tiny.config(model__name='ViT-Ti/2', model__depth=2, **overrides)


def test_each_part_is_a_model():
  plain = modern._plain(config())
  parts = modern.fields(plain, 16)
  assert parts.pop('plain') == {}
  assert {*parts} == {
    'rope',
    'registers',
    'swiglu',
    'qk_norm',
    'rms_norm',
    'layer_scale',
    'merging',
    'experts',
  }
  for changes in parts.values():
    model = describing.with_keys(plain, **changes)
    assert models.abstract_params(model, (8, 8, 1))


def test_each_part_has_a_ratio_to_the_plain_vit(monkeypatch):
  some = {
    'plain': {},
    'swiglu': {'mlp': 'swiglu'},
    'merging': {'block': 'merging(4)'},
  }
  monkeypatch.setattr(modern, 'fields', lambda *_: some)
  rows = modern.modern(config(), 2)
  assert {*rows} == {'swiglu', 'merging'}
  for entry in rows.values():
    assert entry['against'] == 'plain' and entry['ratio'] > 0
    low, high = entry['ratio_range']
    assert low <= entry['ratio'] <= high
  table = report_lib.table({'modern': rows})
  assert 'modern swiglu' in table


def test_packed_images_have_the_loss_of_padded_ones(monkeypatch):
  row = modern.packing(config(), 2)
  assert row['sequences'] < 16
  assert row['filled'] > row['filled_padded']
  assert row['ratio'] > 0 and row['against'] == 'padded'
  monkeypatch.setattr(modern, '_EXACT', -1)
  with pytest.raises(UserError, match='what is not the same is not timed'):
    modern.packing(config(), 1)


def test_it_needs_a_vit():
  other = tiny.config()
  other.model.update(
    name='Mixer-S/4', pool=None, num_heads=None, initializers=None
  )
  with pytest.raises(UserError, match='are for a ViT'):
    modern.modern(other, 1)
