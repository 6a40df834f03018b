"""The table of published checkpoints."""

import pytest

import vit_jax
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.weights import published


def test_checkpoints_are_listed_and_filtered():
  table = vit_jax.list_models(pretrained=True)
  assert len({(x.model, x.tag, x.image_size) for x in table}) == len(table)
  for name in {x.model for x in table}:
    vit_jax.create_model(name)
  at_384 = vit_jax.list_models('ViT-S/*', pretrained='*_in1k', image_size=384)
  assert [(x.model, x.tag) for x in at_384] == [
    ('ViT-S/16', 'augreg_in21k_ft_in1k'),
    ('ViT-S/16', 'augreg_in1k'),
    ('ViT-S/32', 'augreg_in21k_ft_in1k'),
  ]
  lines = str(at_384).splitlines()
  assert lines[0].split() == ['model', 'pretrained', 'image_size', 'address']
  assert lines[1].endswith('vit_small_patch16_384.augreg_in21k_ft_in1k')
  assert len(lines) == 4


def test_a_tag_is_loaded(digits_run, monkeypatch):
  asked = []

  def fetch(path, step=None):
    del step
    asked.append(path)
    return digits_run

  monkeypatch.setattr(weights.download, 'fetch', fetch)
  tag = 'augreg_in21k_ft_in1k'
  vit_jax.load('ViT-B/16', pretrained=tag)
  vit_jax.load('ViT-B/16', pretrained=tag, image_size=(384, 384))
  vit_jax.load('ViT-B/16', pretrained=published.AUTHORS)
  assert asked == [
    f'hf:timm/vit_base_patch16_224.{tag}',
    f'hf:timm/vit_base_patch16_384.{tag}',
    'gs://vit_models/imagenet21k/ViT-B_16.npz',
  ]
  with pytest.raises(UserError, match=r"='none' here: choose of augreg_in21k,"):
    vit_jax.load('ViT-B/16', pretrained='none')
