"""The attention kernel, compiled for TPUs that are not here."""

import importlib.util
import json
import os

import commands
import pytest

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason='needs libtpu: vit_jax[compile-tpu]',
  ),
]

# Prints a JSON object; libtpu wants variables before jax is imported.
START = """
import json, os
from vit_jax.parallel import topologies
chips = {'v4': (1, 1, 1), 'v5e': (2, 2), 'v5p': (1, 1, 1), 'v6e': (1, 1)}
found = {
  name: topologies.parse(f'{name}:' + 'x'.join(map(str, shape)))
  for name, shape in chips.items()
}
os.environ.update(topologies.environment(found['v5e']))
import jax, jax.numpy as jnp, numpy as np
from vit_jax import models
from vit_jax.models.parts import fused_attention
from vit_jax.parallel import mesh as mesh_lib
devices = {name: topologies.devices(x) for name, x in found.items()}

def finish(answer):
  print(json.dumps(answer), flush=True)
  os._exit(0)  # the compiler's threads may never end
"""
ALONE = """
kernels = {
  'plain': fused_attention.Kernel(17, 128, 2, 'bfloat16'),
  'float32': fused_attention.Kernel(17, 128, 2, 'float32'),
  'rope and norms': fused_attention.Kernel(
    17, 640, 8, 'bfloat16', rotates_halves=False, centers=True
  ),
}
answer = {
  f'{chip} {name}': fused_attention.compile_problem(kernel, devices[chip][0])
  for chip in chips for name, kernel in kernels.items()
}
fused_attention._LONG = 4
kernel = fused_attention.Kernel(
  16, 256, 4, 'bfloat16', rotates_halves=True, centers=False
)
answer['loop'] = fused_attention.compile_problem(kernel, devices['v5e'][0])
fused_attention._limit = lambda *_: 2**16
fused_attention.compile_problem.cache_clear()
answer['too little memory'] = fused_attention.compile_problem(
  kernel, devices['v5e'][0]
)
finish(answer)
"""
# As predict, evaluate and embed split batches.
SPLIT = """
mesh = jax.sharding.Mesh(
  np.reshape(devices['v5e'], (4, 1, 1)), ('data', 'fsdp', 'tensor')
)
model = models.create_model(
  'ViT-Ti/4', 5, hidden_size=128, num_heads=2, depth=2,
  attention="attention(implementation='fused')",
)
replicated, split = mesh_lib.replicated(mesh), mesh_lib.batch_sharding(mesh)
params = jax.tree.map(
  lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
  models.abstract_params(model, (8, 8, 3)),
)
images = jax.ShapeDtypeStruct((8, 8, 8, 3), jnp.float32, sharding=split)
apply = mesh_lib.in_context(
  lambda params, x: model.apply({'params': params}, x), mesh
)
compiled = jax.jit(apply).lower(params, images).compile()
finish('tpu_custom_call' in compiled.as_text())
"""


def answer(code):
  result = commands.python(
    '-c', START + code, env=os.environ | {'JAX_PLATFORMS': 'cpu'}
  )
  assert result.stdout, result.stderr[-2000:]
  return json.loads(result.stdout.splitlines()[-1])


def test_kernels_compile_alone():
  problems = answer(ALONE)
  refusal = problems.pop('too little memory')
  assert refusal.startswith('the compiler refuses it: ')
  assert 'vmem' in refusal.lower()
  assert not any(problems.values()), problems


def test_a_split_batch_has_the_kernel():
  assert answer(SPLIT)
