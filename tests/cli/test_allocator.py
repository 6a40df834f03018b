"""Commands that compute on a CPU have mimalloc, and are otherwise the same.

The config of these commands is code that writes down its process, and ends it.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from commands import CPU_ENV
import pytest
import tiny

from vit_jax.parallel import allocator

LIBRARIES = [
  path
  for folder in sys.path
  if (path := pathlib.Path(folder, 'cmeel.prefix/lib/libmimalloc.so')).exists()
]
pytestmark = pytest.mark.skipif(
  not LIBRARIES or bool(os.environ.get('LD_PRELOAD')),
  reason='needs the wheel cmeel-mimalloc, and no other allocator',
)
STATUS = 7
FACTS = """
import json, os, sys

def get_config():
  with open('/proc/self/maps') as maps:
    files = {line.split()[-1] for line in maps if 'alloc' in line}
  print(json.dumps({
    'pid': os.getpid(),
    'files': sorted(files),
    'arguments': sys.argv[1:],
    'command': sys.orig_argv,
    'python': [sys.executable, sys.flags.optimize, sys.warnoptions],
    'environment': dict(os.environ),
    'stdin': sys.stdin.read(),
  }), flush=True)
  raise SystemExit(%d)
"""
# As from a user's shell: nothing that conftest.py would not set, too.
ENV = {k: x for k, x in CPU_ENV.items() if k != allocator.VARIABLE}


def write(folder, text):
  path = folder / 'facts.py'
  path.write_text(text)
  return f'--config={path}'


def start(command, **kwargs):
  return subprocess.Popen(
    [sys.executable, *command],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    errors='surrogateescape',
    **{'env': ENV, **kwargs},
  )


def facts(tmp_path, command, env=ENV):
  """Returns what the process of a command wrote, with its stderr."""
  config = write(tmp_path, FACTS % STATUS)
  process = start([*command, config], env=env, cwd=tmp_path)
  out, err = process.communicate('line 1\nline 2\n')
  assert process.returncode == STATUS, err
  lines = [line for line in out.splitlines() if line.startswith('{')]
  assert len(lines) == 1, out  # what a command does, it does once
  report = json.loads(lines[0])
  assert report['pid'] == process.pid
  assert report['stdin'] == 'line 1\nline 2\n'
  return report | {'stderr': err}


@pytest.mark.parametrize(
  'command',
  [
    ['-m', 'vit_jax.main', '--workdir=a b\n$X\\\udcff"\'', '--dry_run'],
    ['-OWerror::SyntaxWarning', '-X', 'faulthandler', '-umvit_jax.main'],
    ['vit-jax', 'train'],
  ],
  ids=['module', 'options', 'script'],
)
def test_a_command_has_mimalloc_and_all_else_as_before(command, tmp_path):
  (tmp_path / 'vit-jax').write_text(
    'from vit_jax.cli.verbs import run\nrun()\n'
  )
  process = facts(tmp_path, command)
  without = facts(tmp_path, command, ENV | {allocator.VARIABLE: 'none'})
  assert process['files'] == [str(LIBRARIES[0].resolve())]
  assert without['files'] == []
  for key in ('arguments', 'command', 'python', 'stderr'):
    assert process[key] == without[key]
  assert process['command'][: len(command) + 1] == [sys.executable, *command]
  # Other programs that it starts do not get the library.
  del without['environment'][allocator.VARIABLE]
  assert process['environment'] == without['environment']


def plugin(name):
  """A plugin of JAX, as the wheels for accelerators install them."""

  def write_plugin(folder):
    (folder / 'jax_plugins' / name).mkdir(parents=True)
    platforms = {'JAX_PLATFORMS': '', 'CUDA_VISIBLE_DEVICES': ''}
    return platforms | {'PYTHONPATH': f'{folder}:{tiny.ROOT}'}

  return write_plugin


def another_allocator(folder):
  path = shutil.copy(LIBRARIES[0].resolve(), folder / 'another_alloc.so')
  return {'LD_PRELOAD': str(path)}


@pytest.mark.parametrize(
  ('changes', 'file'),
  [
    (lambda _: {'JAX_PLATFORMS': 'cuda,cpu'}, None),
    (lambda _: {'JAX_PLATFORMS': '', 'JAX_PLATFORM_NAME': 'gpu'}, None),
    (lambda _: {'JAX_PLATFORMS': 'cpu,cuda'}, 'libmimalloc'),
    (plugin('neuron'), None),
    (plugin('xla_cuda12'), 'libmimalloc'),  # a GPU that is not there
    (lambda _: {'LD_PRELOAD': '/no/libjemalloc.so.2'}, None),
    (another_allocator, 'another_alloc'),
  ],
  ids=['cuda', 'gpu', 'cpu', 'plugin', 'no_gpu', 'missing', 'another'],
)
def test_it_is_for_cpus_and_replaces_no_other(changes, file, tmp_path):
  env = ENV | changes(tmp_path)
  process = facts(tmp_path, ['-m', 'vit_jax.main'], env)
  names = [os.path.basename(path) for path in process['files']]
  assert len(names) == (file is not None)
  assert all(name.startswith(str(file)) for name in names)
  assert process['environment'].get('LD_PRELOAD') == env.get('LD_PRELOAD')


@pytest.mark.parametrize(
  'command',
  [
    ['-c', 'import vit_jax.cli.verbs as x; x.run()', 'train'],
    ['launch.py', '-m', 'vit_jax.main'],
  ],
  ids=['code', 'script'],
)
def test_other_programs_are_not_started_again(command, tmp_path):
  """They have done something, or have a state, that would be lost."""
  (tmp_path / 'launch.py').write_text(
    'import runpy, sys\n'
    f'sys.path.insert(0, {str(tiny.ROOT)!r})\n'
    'print("once")\n'
    'del sys.argv[:2]\n'
    'runpy.run_module("vit_jax.main", run_name="__main__", alter_sys=True)\n'
  )
  assert facts(tmp_path, command)['files'] == []


@pytest.mark.parametrize(
  'tool', [['pdb', '-c', 'continue', '-c', 'quit'], ['cProfile']], ids=' '.join
)
def test_debuggers_and_profilers_keep_their_state(tool, tmp_path):
  config = write(tmp_path, FACTS % STATUS)
  process = start(['-m', *tool, '-m', 'vit_jax.main', config])
  out, err = process.communicate()
  assert process.returncode == 0, err
  assert out.count('"files": []') == 1


def test_a_library_that_cannot_be_loaded_is_left_out(tmp_path):
  folder = tmp_path / 'cmeel.prefix' / 'lib'
  folder.mkdir(parents=True)
  (folder / 'libmimalloc.so').write_bytes(b'\x7fELF of another machine')
  env = ENV | {'PYTHONPATH': f'{tmp_path}:{tiny.ROOT}'}
  process = facts(tmp_path, ['-m', 'vit_jax.main'], env)
  assert process['files'] == [] and 'LD_PRELOAD' not in process['environment']
  assert process['stderr'].count('\n') == 1  # a line that says why
  assert f'{folder}/libmimalloc.so' in process['stderr']


def test_an_unknown_choice_is_one_line():
  process = start(['-m', 'vit_jax.main'], env=ENV | {allocator.VARIABLE: 'no'})
  _, err = process.communicate()
  assert process.returncode == 1
  assert err.startswith(f'error: {allocator.VARIABLE}=no is unknown: choose')
  assert err.count('\n') == 1


@pytest.mark.parametrize(
  ('number', 'status'),
  [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)],
)
def test_signals_reach_a_command(number, status, tmp_path):
  """Before a run begins: tests/test_main.py has those that come later."""
  # A shell ignores it for what it starts in the background, as these tests.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  config = write(
    tmp_path, 'import signal\nprint("ready", flush=True)\nsignal.pause()\n'
  )
  process = start(['-m', 'vit_jax.main', config])
  signal.signal(signal.SIGINT, before)
  with contextlib.closing(process.stdout):
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(number)
    assert process.wait(timeout=60) == status


def test_too_little_memory_is_an_error_as_before(tmp_path):
  """The kernel would kill programs: mimalloc asks it not to say no."""
  config = write(tmp_path, 'bytes(2**50)\n')
  process = start(['-m', 'vit_jax.main', config])
  _, err = process.communicate()
  assert process.returncode == 1
  assert err.startswith('error: ') and 'MemoryError' in err


def test_programs_are_told_once_how_to_get_it():
  """Where it is seen; a command of its own, since a process is told once."""
  code = (
    'import vit_jax\n'
    'from absl import logging\n'
    'for level in (logging.WARNING, logging.INFO, logging.INFO):\n'
    '  logging.set_verbosity(level)\n'
    '  try: vit_jax.load("no/such/model")\n'
    '  except Exception as e: print(e)\n'
  )
  process = start(['-c', code])
  out, err = process.communicate()
  assert out.count('no/such/model') == 3
  assert err.count('LD_PRELOAD=') == 1
  assert f' LD_PRELOAD={LIBRARIES[0]} ' in err and ' python my.py ' in err
