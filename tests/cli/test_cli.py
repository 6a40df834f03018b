"""What all commands share, each in a process of its own."""

import glob
import importlib.util
import pathlib
import re

from absl import flags
from commands import CPU_ENV
from commands import python
import pytest
import tiny

from vit_jax import cli
from vit_jax.cli import columns
from vit_jax.cli import help as help_lib
from vit_jax.cli import verbs
from vit_jax.config import UserError


def _commands():
  """Returns all modules that read flags, as `python -m` takes them."""
  actual = []
  packages = (tiny.ROOT / 'vit_jax', tiny.ROOT / 'benchmarks')
  for path in sorted(path for x in packages for path in x.rglob('*.py')):
    if 'cli.run(main,' in path.read_text():
      name = '.'.join(path.relative_to(tiny.ROOT).with_suffix('').parts)
      actual.append(name.removesuffix('.__main__'))
  return actual


# Processes that others start.
INTERNAL = {'benchmarks.worker'}
VERB_MODULES = {f'vit_jax.{module}' for module, _ in verbs.VERBS.values()}
COMMANDS = [[name] for name in _commands() if name not in INTERNAL]
COMMANDS += [['vit_jax.explore', *verb] for verb in ([], ['data'], ['serve'])]


def test_commands_are_found():
  names = {name for name, *_ in COMMANDS}
  for verb in ('main', 'predict', 'evaluate', 'convert', 'summary'):
    assert f'vit_jax.{verb}' in names
  assert {'benchmarks', 'benchmarks.growth'} <= names


@pytest.mark.parametrize('command', COMMANDS, ids='-'.join)
def test_help_is_quick_and_has_an_example(command):
  """Quick: nothing heavy is imported."""
  name, *verb = command
  code = (
    f'import sys, runpy; sys.argv = {["command", *verb, "--help"]}\n'
    f'try: runpy.run_module({name!r}, run_name="__main__", alter_sys=True)\n'
    'finally:\n'
    '  heavy = {"jax", "flax", "optax", "cv2", "grain", "orbax", "numpy"}\n'
    '  assert not heavy & set(sys.modules), heavy & set(sys.modules)'
  )
  result = python('-c', code)
  assert result.returncode == 0, result.stderr
  usage, *lines = result.stdout.splitlines()
  assert f'python -m {name}' in '\n'.join(lines)
  assert max(map(len, [usage, *lines])) <= 100
  assert '(default: ' not in result.stdout and 'None' not in result.stdout
  if name in VERB_MODULES:
    assert usage.startswith(f'usage: {" ".join(["python -m", *command])}')


def test_the_package_is_the_program():
  result = python('-m', 'vit_jax', '--help')
  assert result.returncode == 0 and 'vit-jax VERB' in result.stdout
  result = python('-m', 'vit_jax', 'trian')
  assert result.returncode == 1
  assert result.stderr == "error: 'trian' is no verb: did you mean train?\n"
  for module in ('vit_jax.train', 'vit_jax.nosuch'):
    result = python('-m', module, '--config=x.py')
    assert result.returncode == 1 and 'No module named' in result.stderr


def test_importing_has_no_side_effect():
  """Nothing of the process changes, and nothing heavy is imported."""
  code = (
    'import os, signal, sys\n'
    'sys.argv = ["-m", "x"]\n'
    'def hooks():\n'
    '  handlers = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))\n'
    '  return sys.unraisablehook, sys.excepthook, sys.argv, *handlers\n'
    'before, environ = hooks(), dict(os.environ)\n'
    'import vit_jax\n'
    'assert callable(vit_jax.train) and "jax" not in sys.modules\n'
    'assert dict(os.environ) == environ\n'
    'import vit_jax.train.loop\n'
    'assert callable(vit_jax.train) and hooks() == before'
  )
  result = python('-c', code)
  assert result.returncode == 0, result.stderr


def test_lazy_names_are_listed():
  """By a process that has used none of them; tab completion asks for these."""
  code = (
    'import vit_jax, vit_jax.explore\n'
    'for package in (vit_jax, vit_jax.explore):\n'
    '  missing = set(package.__all__) - set(dir(package))\n'
    '  assert not missing, missing\n'
    'assert {"load", "create_model", "explore"} <= set(dir(vit_jax))\n'
    'assert "attention_rollout" in dir(vit_jax.explore)'
  )
  python('-c', code).check_returncode()


def _look(folder, *flags):
  """Draws a batch of digits, for which something is compiled."""
  command = ['vit_jax.explore', 'data']
  command += [f'--config={tiny.ROOT}/configs/digits.py']
  command += [f'--out={folder}/batch.png', '--count=1', *flags]
  env = CPU_ENV | {'VIT_JAX_CACHE': str(folder / 'default')}
  # Those that conftest.py sets, too.
  env = {k: x for k, x in env.items() if not re.match('JAX.*_CACHE_', k)}
  env.pop('JAX_ENABLE_COMPILATION_CACHE', None)
  return python('-m', *command, env=env)


def holds_files(folder: pathlib.Path):
  return folder.exists() and any(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['default', 'there', 'nowhere'])
def test_what_is_compiled_is_kept(kind, tmp_path):
  """By default, where it is said, or nowhere."""
  flags = {
    'default': [],
    'there': [f'--compile_cache={tmp_path}/new/there'],
    'nowhere': ['--compile_cache='],
  }[kind]
  result = _look(tmp_path, *flags)
  assert result.returncode == 0, result.stderr
  assert holds_files(tmp_path / 'default' / 'xla') == (kind == 'default')
  assert holds_files(tmp_path / 'new' / 'there') == (kind == 'there')


def test_a_compile_cache_that_cannot_be_written(tmp_path):
  """One line where it was asked for; by default there is just none."""
  (tmp_path / 'file').write_text('')
  result = _look(tmp_path, f'--compile_cache={tmp_path}/file/cache')
  assert result.returncode == 1 and 'Traceback' not in result.stderr
  assert result.stderr.startswith('error: ')
  assert f'{tmp_path}/file/cache' in result.stderr


def test_too_little_memory_is_one_line(digits_run):
  """On the host: no machine has room for a batch of so many images."""
  result = python(
    *('-m', 'vit_jax.evaluate', f'--from={digits_run}', '--data=digits'),
    *('--split=train[80%:]', '--batch_size=1000000000000'),
  )
  assert result.returncode == 1 and not result.stdout
  assert 'Traceback' not in result.stderr
  last = result.stderr.splitlines()[-1]
  assert last.startswith('error: there is too little memory')
  assert '--batch_size' in last


def test_what_jax_says_of_memory_is_one_line():
  """As its CPU says it, in the middle of any command."""
  code = (
    'from vit_jax import cli\n'
    'def main(argv):\n'
    '  import jax\n'
    '  import jax.numpy as jnp\n'
    '  jax.jit(lambda x: jnp.zeros(2**44) + x)(1.0).block_until_ready()\n'
    'cli.run(main, "")\n'
  )
  result = python('-c', code)
  assert result.returncode == 1
  assert 'Traceback' not in result.stderr
  last = result.stderr.splitlines()[-1]
  assert last.startswith('error: there is too little memory (')
  assert 'Out of memory allocating 70368744177664 bytes' in last


@pytest.mark.parametrize('platform', ['cuda', 'nothing'])
def test_devices_that_are_not_there_are_one_line(platform):
  """JAX fails in its own ways, deep inside of a command."""
  if platform == 'cuda' and glob.glob('/dev/nvidia*'):
    pytest.skip('there is a GPU')
  code = (
    'from vit_jax import cli\n'
    'def main(argv):\n'
    '  import jax\n'
    '  jax.jit(lambda key: key)(jax.random.key(0))\n'
    'cli.run(main, "")\n'
  )
  result = python('-c', code, env=CPU_ENV | {'JAX_PLATFORMS': platform})
  assert result.returncode == 1 and 'Traceback' not in result.stderr
  last = result.stderr.splitlines()[-1]
  assert last.startswith(f'error: JAX_PLATFORMS={platform}, but JAX finds no')


def vit_jax(*args):
  """Runs the console script, as its entry point does."""
  code = (
    f'import sys; sys.argv = {["vit-jax", *args]}\n'
    'from vit_jax.cli import verbs\n'
    'try: verbs.run()\n'
    'finally: assert "jax" not in sys.modules'
  )
  return python('-c', code)


def test_the_verbs_of_the_console_script():
  help_text = vit_jax('--help')
  assert help_text.returncode == 0 and 'vit-jax train' in help_text.stdout
  assert help_text.stdout.startswith('usage: vit-jax VERB')
  listed = re.findall(r'^  ([a-z]+)  ', help_text.stdout, re.M)
  assert listed == list(verbs.VERBS)


def test_the_console_script_finds_modules_where_it_runs(tmp_path):
  script = tmp_path / 'bin' / 'vit-jax'
  script.parent.mkdir()
  script.write_text('from vit_jax.cli import verbs\nverbs.run()\n')
  (tmp_path / 'my_module.py').write_text('raise ValueError("imported")\n')
  env = CPU_ENV | {'PYTHONPATH': str(tiny.ROOT)}
  name = '--config.objective.name=my_module:Mine'
  args = str(script), 'summary', '--config=digits', name, '--keys=seed'
  result = python(*args, env=env, cwd=tmp_path)
  assert 'importing my_module failed: ValueError: imported' in result.stderr


def test_help_is_written_as_the_command_was_started(tmp_path):
  script = tmp_path / 'vit-jax'
  script.write_text('from vit_jax.cli import verbs\nverbs.run()\n')
  env = CPU_ENV | {'PYTHONPATH': str(tiny.ROOT)}
  out = python(str(script), 'train', '--help', env=env).stdout
  assert out.startswith('usage: vit-jax train --config=FILE.py')
  assert '\n  vit-jax train --config=configs/digits.py' in out
  assert 'python -m' not in out


def test_flags_are_in_groups_with_their_defaults():
  values = flags.FlagValues()
  cli.define_from(values)
  cli.define_format(values)
  flags.DEFINE_integer('top', 5, 'Classes to print.', flag_values=values)
  groups = help_lib.grouped(values, 'predict --from=PATH [--top=N]')
  assert list(groups) == ['What to read', 'What to do', 'Output']
  first = groups['What to read'][0]
  assert first.text == '--from=PATH' and first.required
  assert '--model.KEY=VALUE' in {x.text for x in groups['What to read']}
  (top,) = groups['What to do']
  assert top == help_lib.Option('--top=N', 'Classes to print.', '5', False)
  assert groups['Output'][0].text == '--format=table|json'
  # convert's --whole is another one than evaluate's.
  flags.DEFINE_bool('whole', False, 'All parameters.', flag_values=values)
  assert 'Segmentation' in help_lib.grouped(values, 'evaluate --from=PATH')
  assert 'Segmentation' not in help_lib.grouped(values, 'convert SRC DST')


def test_a_wrong_model_is_the_first_mistake():
  result = python('-m', 'vit_jax.evaluate', '--from=runs/nosuch', '--data=x')
  assert result.returncode == 1
  assert "'runs/nosuch': there is no such file" in result.stderr


def test_an_empty_path_is_a_mistake():
  with pytest.raises(UserError, match=r'^--workdir is empty: name a path'):
    values = flags.FlagValues()
    cli.define_path('workdir', None, 'Folder.', flag_values=values)
    cli.parse_flags(['command', '--workdir='], values)


def test_what_follows_two_dashes_is_for_another_command():
  """As scripts/soak.py passes it on."""
  values = flags.FlagValues()
  others = ['--config.mesh.fsdp=2', '--config.objective.options.width=64']
  actual = cli.parse_flags(['soak', '--', *others], values)
  assert actual == ['soak', *others]


def test_an_error_in_a_package_names_the_line_of_the_user(tmp_path):
  packages = tmp_path / 'dist-packages'
  packages.mkdir()
  (packages / 'theirs.py').write_text('def fail(argv):\n  raise KeyError(1)\n')
  mine = tmp_path / 'mine.py'
  mine.write_text(
    'import sys\n'
    'from vit_jax import cli\n'
    f'sys.path.append({str(packages)!r})\n'
    'import theirs\n'
    'cli.run(lambda argv: theirs.fail(argv), "")\n'
  )
  result = python(str(mine))
  assert result.returncode == 1
  last = result.stderr.splitlines()[-1]
  assert last.startswith(f'in your file {mine}, line 5: cli.run(')


def test_only_a_table_needs_pyarrow(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
  path = f'{tmp_path}/x.parquet'
  assert str(columns.check_path('--out', path)) == path
  with pytest.raises(UserError, match=r'pyarrow, or name a \.csv file$'):
    columns.check_path('--out', path, ['.csv', '.parquet'])
