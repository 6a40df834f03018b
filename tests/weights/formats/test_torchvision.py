"""torchvision's VisionTransformer: its own outputs, both ways."""

from foreign import random_images
from foreign import random_model
from foreign import torch_outputs
import numpy as np
from other_libraries import imported
import pytest

import vit_jax
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export


def their_model(seed=0):
  torch = imported('torch')
  module = imported('torchvision.models.vision_transformer')
  torch.manual_seed(seed)
  model = module.VisionTransformer(32, 8, 2, 3, 24, 40, num_classes=5)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.1)
  return model.eval()


@pytest.mark.parametrize('is_old', [False, True])
def test_outputs_are_theirs(tmp_path, is_old):
  model = their_model()
  arrays = {name: x.numpy().copy() for name, x in model.state_dict().items()}
  if is_old:  # as the published checkpoints name them
    arrays = {
      name.replace('mlp.0.', 'mlp.linear_1.').replace(
        'mlp.3.', 'mlp.linear_2.'
      ): x
      for name, x in arrays.items()
    }
  path = tmp_path / 'vit.safetensors'
  containers.write_safetensors(path, arrays, {})
  loaded = vit_jax.load(path, num_heads=3)
  images = random_images(32, 32)
  np.testing.assert_allclose(
    loaded.model.apply({'params': loaded.params}, images),
    torch_outputs(model, images),
    atol=1e-5,
  )


def test_what_is_written_is_theirs(tmp_path):
  actual = random_model(num_classes=5, mlp="mlp(gelu='exact')")
  export.write(actual, tmp_path / 'x', 'torchvision', 'here')
  imported('torchvision.models.vision_transformer')
  text = (tmp_path / 'x' / 'README.md').read_text()
  code = text.partition('```python\n')[2].partition('```')[0]
  names = {}
  exec(code.replace("'x/", f"'{tmp_path}/x/"), names)
  images = random_images(*actual.position_size)
  np.testing.assert_allclose(
    torch_outputs(names['model'].eval(), images),
    actual.model.apply({'params': actual.params}, images),
    atol=1e-4,
  )
