"""Each activation is written by its true name, or refused, in each format."""

import dataclasses
import json

from foreign import random_model
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.models import block
from vit_jax.models import describing
from vit_jax.weights.formats import export

MODELS = {
  'vit': {},
  'dinov2': {'block': 'block(layer_scale=0.1)', 'pool': 'token_and_mean'},
  'clip': {
    'pre_norm': True,
    'patches': 'patches(bias=False)',
    'num_classes': 0,
  },
  'siglip': {
    **{'pool': 'map', 'class_token': False, 'num_classes': 0},
    'positions': "learned(tokens='patches')",
  },
  'beit': {
    **{'positions': 'relative_bias(shared=False)'},
    **{
      'attention': 'attention(key_bias=False)',
      'block': 'block(layer_scale=0.1)',
    },
    **{'pool': 'mean(norm_after=True)', 'class_token': True},
  },
  'parallel': {'block': 'parallel(layer_scale=0.1)'},
  'branches': {'block': 'branches(2)'},
  'rotary': {
    'positions': "learned + rope(kind='eva02')",
    'attention': 'attention(key_bias=False, out_norm=True)',
  },
  'relpos': {
    **{'positions': 'relative_mlp_bias(shared=False)'},
    **{'pool': 'mean', 'class_token': False},
  },
  'hybrid': {'name': 'R+ViT-Ti/16', 'num_classes': 5},
  'mixer': {'name': 'Mixer-S/32', 'num_classes': 5, 'depth': 1},
}


def written(path, model, form):
  """Writes a directory as others would, and returns the notes."""
  notes = export.write(model, path, form, 'here')
  config = json.loads((path / 'config.json').read_text())
  config.pop('vit_jax', None)
  (path / 'config.json').write_text(json.dumps(config))
  return ' '.join(notes)


@pytest.mark.parametrize('form', ['google', 'timm', 'huggingface'])
@pytest.mark.parametrize('name', MODELS)
def test_activations_are_written_or_refused(tmp_path, form, name):
  for gelu in block.GELUS:
    fields = {'mlp': f"mlp(gelu='{gelu}')"}
    if name == 'siglip':
      fields['pool'] = f"map(gelu='{gelu}')"
    model = random_model(**MODELS[name] | fields)
    path = tmp_path / gelu
    try:
      notes = written(path, model, form)
    except UserError as e:
      assert 'has no place for' in str(e)
      continue
    values = describing.key_values(model.model)
    heads = {'num_heads': values['num_heads']} if name != 'mixer' else {}
    if 'gelu' not in notes.lower():
      assert vit_jax.load(path, **heads).model.block.mlp.gelu == gelu


@pytest.mark.parametrize('form', ['google', 'timm', 'huggingface'])
@pytest.mark.parametrize('name', MODELS)
def test_a_new_activation_is_refused_by_its_name(tmp_path, form, name):
  """One that no format has a name for."""
  model = random_model(**MODELS[name])
  block = model.model.block
  block = block.clone(mlp=block.mlp.clone(gelu='mish'))
  model = dataclasses.replace(model, model=model.model.clone(block=block))
  with pytest.raises(UserError, match='has no place for'):
    export.write(model, tmp_path / 'x', form, 'here')
  assert not (tmp_path / 'x').exists()
