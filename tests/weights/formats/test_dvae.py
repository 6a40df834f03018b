"""DALL-E's encoder in the files of its authors, and of transformers."""

import dvae_file
import jax.numpy as jnp
import numpy as np
import other_libraries
import pytest
from safetensors.numpy import save_file

from vit_jax.config import UserError
from vit_jax.weights.formats import dvae

_REASON = 'torch and transformers are not installed'


def authors(state):
  """Returns the arrays of FLAVA's copy under the names of DALL-E's authors."""
  endings = {'weight': 'w', 'bias': 'b'}
  actual = {}
  for name, x in state.items():
    name, end = name.rsplit('.', 1)
    name = name.replace('.group.', '.').replace('.path.', '.')
    actual[f'{name}.{endings[end]}'] = x
  return actual


@pytest.mark.parametrize('blocks', [1, 2])
@pytest.mark.parametrize('size', [(16, 24), (32, 16)])
def test_the_tokens_of_transformers(tmp_path, blocks, size):
  torch = pytest.importorskip('torch', reason=_REASON)
  transformers = other_libraries.imported('transformers', _REASON)
  config = transformers.FlavaImageCodebookConfig(
    hidden_size=8, vocab_size=24, num_blocks_per_group=blocks
  )
  torch.manual_seed(0)
  theirs = transformers.FlavaImageCodebook(config).eval()
  with torch.no_grad():  # biases start at zeros
    for x in theirs.parameters():
      x.add_(0.1 * torch.randn(x.shape))
  theirs.save_pretrained(tmp_path / 'flava')
  torch.save(authors(theirs.state_dict()), tmp_path / 'encoder.pth')
  pixels = np.random.default_rng(0).random((2, *size, 3), np.float32)
  mapped = torch.tensor(0.8 * pixels + 0.1).permute(0, 3, 1, 2)
  with torch.no_grad():
    expected = theirs(mapped).permute(0, 2, 3, 1).numpy()
  for name in ('flava', 'encoder.pth'):
    module, params = dvae.read(tmp_path / name)
    assert (module.tokens, module.hidden, module.blocks) == (24, 8, blocks)
    actual = module.apply({'params': params}, jnp.asarray(pixels))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_files_that_are_refused(tmp_path):
  path = tmp_path / 'x.safetensors'
  dvae_file.write(path, drop='blocks.group_2.block_1.id_path.w')
  with pytest.raises(UserError, match=r'group_2\.block_1\.id_path\.w.*8, 4'):
    dvae.read(path)
  save_file({'a': np.zeros(1)}, path)
  with pytest.raises(UserError, match="no encoder of DALL-E's"):
    dvae.read(path)
