"""The recorded figures of compiled steps; a stand-in compiles them."""

import dataclasses
import json

import pytest

from benchmarks import compiled
from vit_jax.ahead import collectives
from vit_jax.ahead import compiled as compiled_lib
from vit_jax.ahead import step
from vit_jax.config import UserError
from vit_jax.parallel import topologies

FIGURES = {'temporary_gib': 4.0, 'traffic_gb': 30.0, 'all-gather_gb': 0.5}


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
  """Replaces the compiler, and the file; returns what is found."""
  actual = {name: dict(FIGURES) for name in compiled.PROGRAMS}
  names = {id(program): name for name, program in compiled.PROGRAMS.items()}
  monkeypatch.setattr(compiled, 'PATH', tmp_path / 'figures.json')
  monkeypatch.setattr(compiled, 'measure', lambda x: actual[names[id(x)]])
  monkeypatch.setattr(topologies, 'missing_extra', lambda _: None)
  versions = {'jax': '0.10.2', 'libtpu': '0.0.52'}
  monkeypatch.setattr(compiled.importlib.metadata, 'version', versions.get)
  return actual


def run(*args):
  compiled.FLAGS.unparse_flags()
  return compiled.main(compiled.FLAGS(['compiled', *args]))


@pytest.fixture
def recorded(stand_in):
  assert run('--all', '--write') == 0
  return stand_in


def test_all_are_recorded(recorded):
  written = json.loads(compiled.PATH.read_text())
  assert written['versions'] == {'jax': '0.10.2', 'libtpu': '0.0.52'}
  assert written['figures'] == recorded and len(recorded) == 12
  assert run('--all') == 0


def test_the_usual_ones_have_every_chip(recorded, capsys):
  capsys.readouterr()
  assert run() == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 3 and all(line.startswith('ok') for line in lines)
  assert {line.split(':')[0][-3:] for line in lines} == {'v5e', 'v5p', 'v6e'}
  assert 'temporary_gib 4.0, traffic_gb 30.0' in lines[0]


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'traffic_gb': 33.1}, 'traffic_gb is 33.1, was 30 (+10%)'),
    ({'traffic_gb': 26.9}, 'traffic_gb is 26.9, was 30 (-10%)'),
    ({'all-gather_gb': 0.0}, 'all-gather_gb is 0, was 0.5 (-100%)'),
    ({'all-reduce_gb': 0.1}, 'all-reduce_gb is 0.1, was 0'),
    ({'traffic_gb': 32.9, 'temporary_gib': 3.61}, ''),
  ],
)
def test_what_is_off(recorded, capsys, caplog, change, said):
  capsys.readouterr()
  recorded['l16_fsdp_v5p'].update(change)
  assert run('--only=l16_fsdp_v5p,b16_v5e') == (1 if said else 0)
  first, second = capsys.readouterr().out.splitlines()
  assert first.startswith('off l16_fsdp_v5p: ' if said else 'ok  l16_fsdp_v5p')
  assert said in first and second.startswith('ok  b16_v5e')
  assert ('more than 10% off' in caplog.text) == bool(said)


def test_one_that_is_new(stand_in, capsys):
  assert run('--only=b16_v5e') == 1
  assert 'not recorded yet: temporary_gib 4.0' in capsys.readouterr().out


def test_other_versions_are_named(recorded, monkeypatch, capsys):
  newer = {'jax': '0.10.2', 'libtpu': '0.0.99'}
  monkeypatch.setattr(compiled.importlib.metadata, 'version', newer.get)
  capsys.readouterr()
  assert run() == 0
  line = capsys.readouterr().out.splitlines()[0]
  assert 'libtpu 0.0.52' in line and 'libtpu 0.0.99' in line
  with pytest.raises(UserError, match='record all of them, with --all'):
    run('--only=b16_v5e', '--write')


def test_mistakes(stand_in, monkeypatch):
  with pytest.raises(UserError, match='--only=b16: choose from b16_v5e'):
    run('--only=b16')
  with pytest.raises(UserError, match='unexpected'):
    run('x')
  monkeypatch.setattr(topologies, 'missing_extra', lambda _: 'compile-tpu')
  with pytest.raises(UserError, match=r"install -e '\.\[compile-tpu\]'"):
    run()


def test_figures_of_a_step():
  cost = compiled_lib.Cost(
    temporary_gib=4.6349,
    argument_gib=1.0,
    accessed_gb=69.5,
    traffic_gb=31.0,
    tflop=12.0,
    copies=3,
    transposes=0,
    moved_gb=0.1,
    seconds=0.1,
    slowest=[],
    unknown_loops=[],
  )
  gathers = [
    collectives.Collective('all-gather', ('fsdp',), 8, 1, 3, nbytes, nbytes)
    for nbytes in (3_000_000_000, 1_000_000)
  ]
  ahead = step.Ahead(
    topology='v5e:2x4',
    devices=8,
    mesh={'fsdp': 8},
    batch_size=8,
    accumulation=1,
    limit_gib=16.0,
    problem='',
    total_gib=5.6,
    model_flops=1,
    compile_seconds=1.0,
    cost=cost,
    collectives=gathers,
  )
  assert compiled.figures_of(ahead) == {
    'temporary_gib': 4.6349,
    'traffic_gb': 31.0,
    'all-gather_gb': 3.001,
  }
  lost = dataclasses.replace(cost, unknown_loops=['while.1'])
  ahead = dataclasses.replace(ahead, cost=lost)
  assert compiled.figures_of(ahead)['unknown_loops'] == 1


def test_recorded_figures_are_of_all_programs():
  recorded = json.loads(
    compiled.pathlib.Path(compiled.__file__)
    .with_name('compiled_figures.json')
    .read_text()
  )
  assert [*recorded['figures']] == [*compiled.PROGRAMS]
  assert recorded['versions'].keys() == {'jax', 'libtpu'}
