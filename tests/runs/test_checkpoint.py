"""Checkpoints: saved, kept, damaged, restored; and disks that are full."""

from collections.abc import Collection
from fractions import Fraction
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import ml_collections
import numpy as np
import optax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import checkpoint
from vit_jax.runs import restoring

_EVERYWHERE = P()


@flax.struct.dataclass
class State:
  step: jax.Array
  params: Any
  opt_state: Any
  ema_params: Any = None


@flax.struct.dataclass
class WithExtra(State):
  extra: Any = None


def options(keep: int = 2, best: str = '') -> ml_collections.ConfigDict:
  config = config_lib.default().checkpoint
  config.keep, config.best = keep, best
  return config


def sharding(
  spec: P = _EVERYWHERE, shape: tuple[int, int] = (2, 2)
) -> NamedSharding:
  devices = jax.devices()
  while shape[0] * shape[1] > len(devices):
    shape = (1, 1)
  mesh = jax.make_mesh(
    shape,
    ('a', 'b'),
    axis_types=(AxisType.Auto,) * 2,
    devices=devices[: shape[0] * shape[1]],
  )
  return NamedSharding(mesh, spec)


def make_state(step: int, ema: bool = False) -> State:
  rng = np.random.default_rng(step)
  params = {
    'dense': {
      'kernel': rng.normal(size=(64, 32)).astype(np.float32),
      'bias': jnp.asarray(rng.normal(size=32), jnp.bfloat16),
    }
  }
  opt_state = {
    'adam': optax.adam(1e-3).init(params),
    'flags': np.array([True, False, True]),
    'counts': np.arange(5, dtype=np.uint32) << 29,
    'scale': np.float32(0.5),
  }
  state = State(
    step=np.int32(step),
    params=params,
    opt_state=opt_state,
    ema_params=jax.tree.map(lambda x: x * 2, params) if ema else None,
  )
  return jax.device_put(state, sharding())


def abstract(state: State) -> State:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    state,
  )


def state_for(names: Collection[str]) -> State:
  del names
  return abstract(make_state(0))


def assert_same_bits(actual: Any, expected: Any) -> None:
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for x, y in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    assert x.dtype == y.dtype
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def save(workdir: pathlib.Path, steps: list[int], **kwargs: Any) -> None:
  with checkpoint.Checkpointer(workdir, options(**kwargs)) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_state(step), {'val/accuracy': step / 100})


def restore(workdir: pathlib.Path) -> Any:
  with checkpoint.Checkpointer(workdir, options()) as checkpoints:
    return checkpoints.restore(state_for)


def saved_steps(workdir: pathlib.Path, name: str = 'checkpoints') -> list[int]:
  return sorted(int(p.name) for p in (workdir / name).iterdir())


def biggest_file(path: pathlib.Path) -> pathlib.Path:
  files = [p for p in path.rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def test_restores_every_bit(tmp_path):
  state = make_state(3)
  assert restore(tmp_path) is None
  with checkpoint.Checkpointer(str(tmp_path), options()) as checkpoints:
    checkpoints.save(3, state, {'val/accuracy': 0.5, 'val/loss': float('nan')})
    checkpoints.save(3, make_state(9))  # has one already
  restored, step, metrics = restore(tmp_path)
  assert_same_bits(restored, state)
  assert step == 3
  assert metrics['val/accuracy'] == 0.5
  assert np.isnan(metrics['val/loss'])


def test_metrics_that_are_still_missing(tmp_path):
  with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
    checkpoints.save(1, make_state(1))
  assert restore(tmp_path)[2] is None


def test_relative_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  save(pathlib.Path('run'), [1])
  assert saved_steps(tmp_path / 'run') == [1]
  assert restoring.restore_params('run')[1] == 1


def test_saved_state_may_be_donated(tmp_path):
  step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
  state = jax.device_put(
    State(np.int32(0), {'w': np.ones((512, 512), np.float32)}, ()), sharding()
  )
  like = abstract(state)
  with checkpoint.Checkpointer(tmp_path, options(keep=3)) as checkpoints:
    for k in range(1, 4):
      state = step(state)
      checkpoints.save(k, state)
      for _ in range(3):  # while it is on its way to the disk
        state = step(state)
    restored, _, _ = checkpoints.restore(lambda _: like)
  assert np.asarray(restored.params['w']).tolist() == [[10.0] * 512] * 512


@pytest.mark.parametrize('spec', [P('a'), P(('a', 'b')), P(None)])
def test_restores_to_another_mesh(tmp_path, spec):
  kernel = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
  written = sharding(P('a', 'b'))
  state = State(jnp.int32(1), {'w': jax.device_put(kernel, written)}, ())
  state = state.replace(step=jax.device_put(state.step, sharding()))
  target = sharding(spec, (4, 2))
  like = State(
    jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding(_EVERYWHERE, (4, 2))),
    {'w': jax.ShapeDtypeStruct((8, 6), jnp.float32, sharding=target)},
    (),
  )
  with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
    checkpoints.save(1, state)
    restored, _, _ = checkpoints.restore(lambda _: like)
  assert restored.params['w'].sharding == target
  assert_same_bits(restored.params['w'], kernel)


def test_checksums_see_every_change():
  values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
  base = checkpoint.checksums({'x': values})['x']
  for byte in range(values.nbytes):
    changed = bytearray(values.tobytes())
    changed[byte] ^= 1 << byte % 8
    flipped = np.frombuffer(changed, np.float32).reshape(4, 3)
    assert checkpoint.checksums({'x': flipped})['x'] != base
  assert checkpoint.checksums({'x': values[::-1]})['x'] != base
  split = jax.device_put(values, sharding(P('a')))
  assert checkpoint.checksums({'x': split})['x'] == base


@pytest.mark.parametrize('shape', [(), (5,), (3, 4), (2, 3, 4)])
def test_checksums_of_numpy_are_those_of_devices(shape, monkeypatch):
  values = 50 * np.random.default_rng(0).normal(size=shape)
  arrays = {
    dtype: jax.numpy.asarray(values).astype(dtype)
    for dtype in ('float32', 'bfloat16', 'int32', 'uint8', 'bool')
  }
  by_numpy = checkpoint.checksums(arrays)
  monkeypatch.setattr(checkpoint, '_SMALL', -1)
  assert checkpoint.checksums(arrays) == by_numpy


def test_keeps_the_newest_and_one_of_each_period(tmp_path):
  with checkpoint.Checkpointer(tmp_path, options(), Fraction(7)) as checkpoints:
    for step in (3, 6, 9, 12, 15, 18, 21):
      checkpoints.save(step, make_state(step))
  assert saved_steps(tmp_path) == [9, 15, 18, 21]


@pytest.mark.parametrize(
  ('steps', 'keep', 'every', 'expected'),
  [
    ([10, 20, 30, 40], 2, None, {30, 40}),
    ([10, 20, 30, 40, 50], 2, Fraction(20), {20, 40, 50}),
    ([10], 3, Fraction(25, 2), {10}),
    ([10, 20, 30, 40, 50], 2, Fraction(25, 2), {20, 30, 40, 50}),
  ],
)
def test_steps_to_keep(steps, keep, every, expected):
  assert checkpoint.steps_to_keep(steps, keep, every) == expected


@pytest.mark.parametrize(
  ('metric', 'values', 'best'),
  [
    ('val/accuracy', [0.1, 0.3, 0.2, float('nan'), 0.3], 2),
    ('val/loss', [0.1, 0.3, 0.05, float('nan'), 0.05], 3),
  ],
)
def test_keeps_the_best(tmp_path, metric, values, best):
  for step, value in enumerate(values, 1):  # each in a run of its own
    with checkpoint.Checkpointer(
      tmp_path, options(best=metric), lower_is_better=metric == 'val/loss'
    ) as checkpoints:
      checkpoints.save(step, make_state(step, ema=True), {metric: value})
      checkpoints.save(step + 100, make_state(step + 100), {'test/loss': 0.0})
  assert saved_steps(tmp_path, 'best') == [best]
  params, step, where = restoring.restore_params(tmp_path)
  assert (step, where) == (best, tmp_path / 'best' / str(best))
  assert_same_bits(params, jax.device_get(make_state(best, True).ema_params))
  assert 'opt_state/flags' not in (where / 'state/_METADATA').read_text()


def test_makes_up_for_a_best_that_was_not_written(tmp_path):
  save(tmp_path, [1, 2], best='val/accuracy')
  shutil.rmtree(tmp_path / 'best/2')
  with checkpoint.Checkpointer(
    tmp_path, options(best='val/accuracy')
  ) as checkpoints:
    checkpoints.restore(state_for)
  assert saved_steps(tmp_path, 'best') == [2]


def test_params_come_from_the_newest_where_there_is_no_best(tmp_path):
  save(tmp_path, [1, 2])
  params, step, where = restoring.restore_params(tmp_path)
  assert (step, where) == (2, tmp_path / 'checkpoints/2')
  assert_same_bits(params, jax.device_get(make_state(2).params))
  for file in where.rglob('d/*'):  # the largest may lack the parameters
    file.unlink()
  assert restoring.restore_params(tmp_path)[1] == 1
  assert saved_steps(tmp_path) == [1, 2]  # nothing is changed


def test_the_newest_of_at_most_a_step(tmp_path, caplog):
  assert restoring.restore_at_most(tmp_path, 9, state_for) is None
  assert not list(tmp_path.iterdir())
  save(tmp_path, [2, 4, 6], keep=3)
  assert restoring.restore_at_most(tmp_path, 1, state_for) is None
  for at_most, expected in ((2, 2), (5, 4), (6, 6), (99, 6)):
    state, step = restoring.restore_at_most(tmp_path, at_most, state_for)
    assert step == expected
    assert_same_bits(state, make_state(expected))
  biggest_file(tmp_path / 'checkpoints/4').unlink()
  assert restoring.restore_at_most(tmp_path, 5, state_for)[1] == 2
  assert 'checkpoints/4 is damaged' in caplog.text
  assert saved_steps(tmp_path) == [2, 4, 6]  # nothing is set aside


def test_params_of_nothing(tmp_path):
  with pytest.raises(UserError, match='there is no checkpoint in'):
    restoring.restore_params(tmp_path)


def truncate(path: pathlib.Path) -> None:
  os.truncate(path, path.stat().st_size // 2)


def blank(path: pathlib.Path) -> None:
  path.write_bytes(bytes(path.stat().st_size))


def flip(path: pathlib.Path) -> None:
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 4
  path.write_bytes(data)


def replace_by_device(path: pathlib.Path) -> None:
  path.unlink()
  path.symlink_to('/dev/zero')  # which has no end


def largest(path: pathlib.Path) -> pathlib.Path:
  return biggest_file(path / 'state')


def manifest(path: pathlib.Path) -> pathlib.Path:
  return path / 'state/manifest.ocdbt'


def info(path: pathlib.Path) -> pathlib.Path:
  return path / 'info/metadata'


@pytest.mark.slow
@pytest.mark.parametrize(
  'harm', [pathlib.Path.unlink, truncate, blank, flip, replace_by_device]
)
@pytest.mark.parametrize('file', [largest, manifest, info])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
  tmp_path, caplog, capfd, harm, file
):
  save(tmp_path, [1, 2, 3], keep=3)
  harm(file(tmp_path / 'checkpoints/3'))
  caplog.clear()
  restored, step, _ = restore(tmp_path)
  assert step == 2
  assert_same_bits(restored, make_state(2))
  warnings = [r.getMessage() for r in caplog.records if r.levelname != 'INFO']
  assert len(warnings) == 2
  assert f'{tmp_path}/checkpoints/3 is damaged: ' in warnings[0]
  assert 'Traceback' not in capfd.readouterr().err
  # Its step is free again, and nothing is lost.
  assert (tmp_path / 'checkpoints/3.damaged').is_dir()
  save(tmp_path, [3])
  assert restore(tmp_path)[1] == 3


def test_a_flipped_bit_is_noticed_wherever_it_matters(tmp_path):
  save(tmp_path, [1])
  file = largest(tmp_path / 'checkpoints/1')
  good = file.read_bytes()
  noticed = 0
  for position in range(0, len(good), len(good) // 12):
    bad = bytearray(good)
    bad[position] ^= 1 << position % 8
    file.write_bytes(bad)
    try:
      assert_same_bits(restore(tmp_path)[0], make_state(1))
    except UserError as e:
      assert 'all checkpoints are damaged: ' in str(e)
      noticed += 1
  assert noticed >= 8  # the rest of the file is of no use to anyone


def test_lists_all_damaged_checkpoints(tmp_path):
  save(tmp_path, [1, 2])
  for step in (1, 2):
    flip(info(tmp_path / f'checkpoints/{step}'))
  with pytest.raises(UserError, match=r'checkpoints/2: .*checkpoints/1: '):
    restore(tmp_path)
  with pytest.raises(UserError, match=r'checkpoints/2: .*checkpoints/1: '):
    restoring.restore_params(tmp_path)
  assert saved_steps(tmp_path) == [1, 2]


def test_lists_every_difference(tmp_path):
  save(tmp_path, [1, 2])
  other = abstract(make_state(0))
  struct = jax.ShapeDtypeStruct
  other.params['dense'] = {
    'kernel': struct((64, 10), jnp.float32, sharding=sharding()),
    'bias': struct((32,), jnp.float32, sharding=sharding()),
    'scale': struct((), jnp.float32, sharding=sharding()),
  }
  del other.opt_state['flags']
  with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
    with pytest.raises(UserError) as error:
      checkpoints.restore(lambda _: other)
  for difference in (
    'checkpoints/2 does not fit',
    'params/dense/kernel: stored float32[64, 32], expected float32[64, 10]',
    'params/dense/bias: stored bfloat16[32], expected float32[32]',
    'params/dense/scale: stored nothing, expected float32[]',
    'opt_state/flags: stored bool[3], expected nothing',
  ):
    assert difference in str(error.value)
  assert '\n' not in str(error.value)
  assert saved_steps(tmp_path) == [1, 2]


def test_a_newer_format_is_not_damage(tmp_path, monkeypatch):
  newer = checkpoint.FORMAT + 1
  monkeypatch.setattr(checkpoint, 'FORMAT', newer)
  save(tmp_path, [1, 2])
  monkeypatch.undo()
  for read in (restore, restoring.restore_params):
    with pytest.raises(UserError, match=f'format {newer}, and this version'):
      read(tmp_path)
  with pytest.raises(UserError, match=f'format {newer}, and this version'):
    restoring.restore_extra(tmp_path / 'checkpoints/2')


def test_state_beside_parameters_is_read_alone(tmp_path):
  extra = {'teacher': {'kernel': np.arange(6.0)}, 'updates': np.int32(3)}
  state = WithExtra(**vars(make_state(1)), extra=extra)
  with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
    checkpoints.save(1, state)
    checkpoints.save(2, make_state(2))
  assert_same_bits(restoring.restore_extra(tmp_path / 'checkpoints/1'), extra)
  assert restoring.restore_extra(tmp_path / 'checkpoints/2') == {}
  shutil.rmtree(tmp_path / 'checkpoints/1/state')
  with pytest.raises(UserError, match=r'1 is damaged: .*--step') as error:
    restoring.restore_extra(tmp_path / 'checkpoints/1')
  assert '\n' not in str(error.value)


def test_a_run_of_an_older_format_is_refused_and_its_parameters_load(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(checkpoint, 'FORMAT', 1)
  save(tmp_path, [1, 2])
  monkeypatch.undo()
  with pytest.raises(UserError, match=r'format 1, of an older.*init_from'):
    restore(tmp_path)
  params, step, _ = restoring.restore_params(tmp_path)
  assert step == 2
  assert_same_bits(params, jax.device_get(make_state(2).params))


def test_the_first_error_is_the_one_that_is_raised(tmp_path):
  with pytest.raises(KeyError):
    with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
      checkpoints.save(1, make_state(1))
      raise KeyError
  assert restore(tmp_path)[1] == 1


def test_a_directory_that_cannot_be_made(tmp_path):
  (tmp_path / 'checkpoints').write_text('')
  with pytest.raises(UserError, match='cannot write checkpoint'):
    save(tmp_path, [1])


def test_a_directory_that_is_gone(tmp_path):
  with checkpoint.Checkpointer(tmp_path, options()) as checkpoints:
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    shutil.rmtree(tmp_path / 'checkpoints')
    (tmp_path / 'checkpoints').write_text('')
    with pytest.raises(UserError, match='/2: Not a directory;'):
      checkpoints.save(2, make_state(2))


# Saves for ever, and says so before each; the first argument is what for.
_CHILD = """
import resource, sys
import jax, numpy as np
from vit_jax import config
from vit_jax.runs import checkpoint
sys.path[:0] = ['tests', 'tests/runs']
import test_checkpoint as t
purpose, workdir = sys.argv[1:]
try:
  with checkpoint.Checkpointer(workdir, t.options()) as checkpoints:
    restored = checkpoints.restore(t.state_for)
    step = restored[1] if restored else 0
    while True:
      step += 1
      state = t.make_state(step)
      print(step, flush=True)
      checkpoints.save(step, state)
      if purpose == 'full' and step == 2:
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
except config.UserError as e:
  sys.exit(f'error: {e}')
"""


def child(purpose: str, workdir: pathlib.Path) -> subprocess.Popen[str]:
  return subprocess.Popen(
    [sys.executable, '-c', _CHILD, purpose, str(workdir)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=tiny.ROOT,
  )


def test_killed_at_any_moment(tmp_path):
  for saves in (3, 6):
    process = child('killed', tmp_path)
    assert process.stdout is not None
    for _ in range(saves):
      said = int(process.stdout.readline())
    process.kill()
    process.communicate()
    state, step, _ = restore(tmp_path)
    assert step >= said - 2  # it waits for each before it writes the next
    assert_same_bits(state, make_state(step))
  save(tmp_path, [step + 1])
  names = os.listdir(tmp_path / 'checkpoints')
  assert all(name.isdecimal() for name in names)  # nothing half-written


def test_a_full_disk(tmp_path):
  _, errors = child('full', tmp_path).communicate(timeout=120)
  assert errors.startswith(
    f'error: cannot write checkpoint {tmp_path}/checkpoints/3: File too large;'
    ' earlier checkpoints are intact'
  )
  assert errors.count('\n') == 1  # and no traceback
  assert restore(tmp_path)[1] == 2


def test_the_format_is_documented(tmp_path):
  save(tmp_path, [1])
  stored = json.loads(info(tmp_path / 'checkpoints/1').read_text())
  names = {'format', 'step', 'metrics', 'counts', 'arrays', 'crc32'}
  assert stored.keys() == names
  assert stored['arrays']['params/dense/kernel']['shape'] == [64, 32]
