"""Plans ViTs on 8 to 1,024 devices, for the tables of docs/scaling.md.

  python scripts/scaling.py --hardware=H100,v5p >tables.md

For each model and number of devices, several meshes are planned as by `python
-m vit_jax.summary --devices=N --mesh=...`. Among those that fit, the one with
the shortest step (the mean of the best and the worst case) is shown. The global
batch size is always the same, with as many microbatches as memory requires.
Layers are scanned, and nothing is recomputed. A plan takes some seconds and
needs no accelerator.
"""

from collections.abc import Iterator
import json
import pathlib

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.ahead import plan as plan_lib
from vit_jax.ahead import roofline
from vit_jax.parallel import hardware as hardware_lib

# Images of a microbatch on one device, whose activations fit into 80 GB.
MODELS = {'ViT-B/16': 128, 'ViT-L/16': 64, 'ViT-H/14': 32, 'ViT-g/14': 16}

_MODELS = flags.DEFINE_list('models', list(MODELS), 'Models to plan.')
_DEVICES = flags.DEFINE_list(
  'devices', ['8', '64', '256', '1024'], 'Numbers of devices.'
)
_HARDWARE = flags.DEFINE_list('hardware', ['H100'], 'Hardware, one table each.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 4096, 'Images in a step.')
_KEEP = flags.DEFINE_string('keep', None, 'JSON file for all plans.')

_HEADER = (
  *('model', 'devices', 'images each', 'mesh', 'GiB', 'step, ms'),
  *('efficiency', 'images/s', 'most beside compute'),
)


def meshes(devices: int) -> Iterator[dict[str, int]]:
  """Yields plausible meshes that divide the devices."""
  splits = [(1, 1), (8, 1), (64, 1), (4, 2)]
  for fsdp, tensor in splits:
    if not devices % (fsdp * tensor):
      data = devices // (fsdp * tensor)
      yield {'data': data, 'fsdp': fsdp, 'tensor': tensor}


def plans(name: str, devices: int, batch_size: int) -> Iterator[plan_lib.Plan]:
  """Plans a model's step on all meshes that divide it."""
  for mesh in meshes(devices):
    config = config_lib.default()
    config.model.update(name=name, num_classes=1000, scan=True)
    config.train.update(dtype='bfloat16', batch_size=batch_size)
    config.mesh.update(mesh)
    parts = batch_size * mesh['tensor'] // (devices * MODELS[name])
    config.train.accumulation = max(parts, 1)
    logging.info('%s on %s', name, mesh)
    try:
      yield plan_lib.run(config, devices)
    except config_lib.UserError as e:
      logging.info('  not: %s', e)


def row(
  name: str,
  devices: str,
  found: list[plan_lib.Plan],
  hardware: hardware_lib.Hardware,
) -> tuple[str, ...]:
  """Returns the cells of a model on the best of its meshes."""
  estimates = [(roofline.estimate(plan, hardware), plan) for plan in found]
  fitting = [(e, plan) for e, plan in estimates if e is not None and e.fits]
  if not fitting:
    return (name, devices, 'none fits', *[''] * (len(_HEADER) - 3))
  e, plan = min(fitting, key=lambda pair: pair[0].best + pair[0].worst)
  axes = [f'{axis}={n}' for axis, n in plan.mesh.items() if n > 1]
  terms = {'update': e.update} | e.communication  # memory overlaps compute
  bound = max(terms, key=lambda term: terms[term])
  return (
    name,
    f'{plan.devices:,}',
    f'{plan.batch_size // (plan.mesh["data"] * plan.mesh["fsdp"])}',
    ', '.join(axes),
    f'{plan.memory["total"]:.1f}',
    f'{1e3 * e.best:,.1f} - {1e3 * e.worst:,.1f}',
    f'{e.efficiency[0]:.0%} - {e.efficiency[1]:.0%}',
    f'{e.images_per_second[0]:,.0f} - {e.images_per_second[1]:,.0f}',
    f'{bound}, {terms[bound] / e.compute:.0%}',
  )


def main(argv: list[str]) -> None:
  """Prints the tables."""
  del argv
  chosen = [hardware_lib.named(name) for name in _HARDWARE.value]
  found = {
    (name, devices): [*plans(name, int(devices), _BATCH_SIZE.value)]
    for name in _MODELS.value
    for devices in _DEVICES.value
  }
  if _KEEP.value:
    kept = [vars(plan) for of in found.values() for plan in of]
    text = json.dumps(kept, default=vars)
    pathlib.Path(_KEEP.value).write_text(text)
  for hardware in chosen:
    print(f'\n{hardware.name}, {_BATCH_SIZE.value:,} images a step:\n')
    rows = [row(name, n, of, hardware) for (name, n), of in found.items()]
    print(*tables.Table(_HEADER, rows).markdown(), sep='\n')


if __name__ == '__main__':
  cli.run(main, __doc__)
