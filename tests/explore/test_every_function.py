"""All functions of `vit_jax.explore`: scanned layers, and calls in vain."""

import pathlib

import case_files
import mistakes
import numpy as np
import planted
import pytest

from vit_jax import explore

# Whether a Mixer can be asked, too, by what is asked.
FUNCTIONS = {
  'attention_maps': False,
  'attention_rollout': False,
  'class_relevance': False,
  'attention_distance': False,
  'attention_entropy': False,
  'token_norms': True,
  'token_pca': True,
  'layer_cka': True,
}


@pytest.mark.parametrize('name', FUNCTIONS)
def test_scanned_layers_give_the_same(name):
  ask, images = getattr(explore, name), planted.images()
  models = [planted.tiny(), planted.tiny_mixer()][: 1 + FUNCTIONS[name]]
  for vit in map(planted.loaded, models):
    expected = ask(vit, images)
    actual = ask(planted.scanned(vit), images)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  ('model', 'call', 'pattern'),
  case_files.read(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(model, call, pattern):
  vit = planted.loaded(eval(f'planted.{model}'))
  names = {'vit': vit, 'x': planted.images(), 'np': np, 'planted': planted}
  with mistakes.told(pattern):
    eval(f'explore.{call}', names | {'explore': explore})
