"""All functions of `vit_jax.explore`: scanned layers, and calls in vain."""

import functools
import pathlib

import case_files
import mistakes
import numpy as np
import planted
import pytest

from vit_jax import explore

# What is asked -> whether a Mixer can be asked, too, and how near the answers
# are.
FUNCTIONS = {
  'attention_maps': (False, 1e-4),
  'attention_rollout': (False, 1e-4),
  'class_relevance': (False, 1e-4),
  'attention_distance': (False, 1e-4),
  'attention_entropy': (False, 1e-4),
  'token_norms': (True, 1e-3),
  'token_pca': (True, 1e-3),
  'patch_similarity': (True, 1e-3),
  'layer_cka': (True, 1e-4),
}


@pytest.mark.parametrize('name', FUNCTIONS)
def test_scanned_layers_give_the_same(name):
  ask, images = getattr(explore, name), planted.images()
  if name == 'patch_similarity':
    ask = functools.partial(ask, patch=(0, 3))
  has_mixer, atol = FUNCTIONS[name]
  models = [planted.tiny(), planted.tiny_mixer()][: 1 + has_mixer]
  for vit in map(planted.loaded, models):
    expected = ask(vit, images)
    actual = ask(planted.scanned(vit), images)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(
  ('model', 'call', 'pattern'),
  case_files.read(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(model, call, pattern):
  vit = planted.loaded(eval(f'planted.{model}'))
  names = {'vit': vit, 'x': planted.images(), 'np': np, 'planted': planted}
  with mistakes.told(pattern):
    eval(f'explore.{call}', names | {'explore': explore})
