"""What README.md and docs/ say is so: commands, flags, keys, files, Python."""

import ast
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import case_files
import cv2
import documented
import pytest
import stand_in
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax.ahead import plan
from vit_jax.cli import verbs
from vit_jax.parallel import hardware
from vit_jax.parallel import topologies
from vit_jax.sweep import space
from vit_jax.train import experiment
from vit_jax.weights.formats import foreign

# What runs a command, by how it begins.
HERE_MARK = 'here'
RUN_BY = {
  command: place
  for _, command, place in case_files.read(tiny.TESTS / 'run_by.txt')
}
# What makes training quick.
SMALLER = (
  '--config.train.batch_size=8',
  '--config.train.accumulation=1',
  '--config.train.duration=2 steps',
  '--config.train.steps_per_call=1',
  '--config.optim.warmup=1 steps',
)
SMALLER_MODEL = (
  '--config.model.hidden_size=16',
  '--config.model.mlp_dim=32',
  '--config.model.num_heads=2',
  '--config.model.depth=1',
)

PAGES = documented.PAGES
COMMANDS = list(
  dict.fromkeys(x for page in PAGES for x in documented.commands(page))
)
OUR_COMMANDS = [x for x in COMMANDS if documented.is_ours(x)]


@pytest.fixture(scope='module')
def folder(digits_run, tmp_path_factory):
  """A folder with all that the commands read: images, a table, two runs."""
  root = tmp_path_factory.mktemp('docs')
  for split, count in (('train', 6), ('val', 3)):
    for number, name in enumerate(('cat', 'dog')):
      (root / 'images' / split / name).mkdir(parents=True)
      for i in range(count):
        image = stand_in.pixels(10 * number + i + len(split), 40, 48)
        path = root / 'images' / split / name / f'{i}.jpg'
        assert cv2.imwrite(str(path), image)
  images = sorted((root / 'images').rglob('*.jpg'))
  rows = [x.relative_to(root).as_posix() for x in images]
  lines = [f'{x},{x.split("/")[2]},{x.split("/")[1]}' for x in rows]
  (root / 'images.csv').write_text('\n'.join(['path,label,split', *lines]))
  (root / 'shards').mkdir()
  for split in ('train', 'val'):
    stand_in.write_shard(
      root / 'shards' / f'{split}-000.tar',
      {
        f'{i}': {'jpg': x.read_bytes(), 'cls': x.parent.name.encode()}
        for i, x in enumerate(images)
        if x.parent.parent.name == split
      },
    )
  for name in ('images', 'masks'):
    (root / 'scenes' / name).mkdir(parents=True)
    for i in range(5):
      pixels = stand_in.pixels(i, 40, 48)
      pixels = pixels if name == 'images' else pixels[..., 0] % 2
      assert cv2.imwrite(str(root / 'scenes' / name / f'{i}.png'), pixels)
  (root / 'scenes' / 'classes.txt').write_text('ground\nfigure\n')
  (root / 'configs').symlink_to(tiny.ROOT / 'configs')
  method, config, *_, evaluator, _, _, _ = documented.blocks(
    'docs/methods.md', 'python'
  )
  (root / 'my_evaluator.py').write_text(evaluator)
  (root / 'my_method.py').write_text(method)
  (root / 'my_config.py').write_text(config)
  classes = documented.blocks('docs/own_parts.md', 'python')
  (root / 'my_parts.py').write_text(
    '\n\n'.join(x for x in classes if 'class ' in x)
  )
  shutil.copy(tiny.ROOT / 'tests' / 'my_objective.py', root)
  for name in ('digits', 'digits-2', 'images'):
    shutil.copytree(digits_run, root / 'runs' / name)
  return root


@pytest.fixture
def run_folder(folder, monkeypatch):
  monkeypatch.chdir(folder)
  monkeypatch.syspath_prepend(folder)
  return folder


def beginning(command):
  """Returns the longest key of RUN_BY that a command begins with."""
  return max((x for x in RUN_BY if command.startswith(x)), key=len, default='')


def test_each_command_is_run_or_its_page_says_why_not():
  listed = [x for x in COMMANDS if not x.startswith('pip ')]
  assert [x for x in listed if not beginning(x)] == []
  assert set(RUN_BY) == {beginning(x) for x in listed}
  for command in listed:
    place = RUN_BY[beginning(command)]
    path, _, test = place.partition('::')
    if test:
      assert f'\ndef {test}(' in (tiny.ROOT / path).read_text(), place
    elif place not in ('.ci/run', HERE_MARK):
      for page in PAGES:
        if command in documented.commands(page):
          assert place in ' '.join(documented.read(page).split()), page


@pytest.mark.slow
@pytest.mark.parametrize('command', OUR_COMMANDS)
def test_flags_and_keys_are_there(command, run_folder):
  with documented.parsed(documented.words(command)) as program:
    check(program)
  words = documented.words(command)
  if '--' in words:  # flags of the training command that is launched
    training = ['python', '-m', 'vit_jax.main', *words[words.index('--') + 1 :]]
    with documented.parsed(training) as program:
      check(program)


# These need a download, more than a line, or another order of their flags.
UNPARSED = re.compile(r'augreg|plain_start|data check configs')


@pytest.mark.slow
@pytest.mark.parametrize(
  'command',
  [x for x in documented.docstring_commands() if not UNPARSED.search(x)],
)
def test_flags_and_keys_in_docstrings_are_there(command, run_folder):
  with documented.parsed(documented.words(command)):
    pass


def _check_hardware(name):
  """Checks a kind of device, as H100, or a topology, as v5e:4x4."""
  parse = topologies.parse if ':' in name else hardware.named
  assert parse(name)


def check(program):
  """Checks the values of flags as the commands do before anything slow."""
  values = program.flags.flag_values_dict()
  if values.get('config') is not None:
    experiment.check(values['config'])
  names = values.get('hardware') or []
  for name in [names] if isinstance(names, str) else names:
    _check_hardware(name)
  if values.get('mesh'):
    plan.parse_mesh(values['mesh'], values['devices'])
  if values.get('sweep'):
    space.check(*program.names['_check_flags'](program.arguments))
  if isinstance(values.get('parts'), list):  # of the benchmark
    assert {*values['parts']} <= {*program.names['PARTS']}


@pytest.mark.slow
@pytest.mark.parametrize(
  'command', [x for x in OUR_COMMANDS if RUN_BY.get(beginning(x)) == HERE_MARK]
)
def test_commands_run(command, run_folder):
  """As they stand there, but for SMALLER."""
  words = documented.words(command)
  if 'vit_jax.main' in words:
    words += SMALLER
    if 'configs/finetune.py' not in command:
      words += SMALLER_MODEL
    if 'configs/digits.py' not in command:
      words.append('--config.data.image_size=16')
    if not any(x.startswith('--workdir=') for x in words):
      words.append('--workdir=runs/new')
    (workdir,) = [x[10:] for x in words if x.startswith('--workdir=')]
    shutil.rmtree(workdir, ignore_errors=True)
  words = [y for x in words for y in expanded(x)]
  with documented.parsed(words) as program:
    assert not program.names['main'](program.arguments)


def expanded(word):
  """Returns what a shell makes of a word."""
  if not word.startswith('runs/') or '*' not in word:
    return [word]
  actual = sorted(map(str, pathlib.Path().glob(word)))
  return [x for x in actual if pathlib.Path(x).is_dir()]


@pytest.mark.parametrize(('name', 'count'), [('transfer', 9), ('lora', 12)])
def test_the_script_of_transfer(name, count, run_folder):
  """Its commands parse; a stand-in for Python notes them."""
  note = run_folder / f'{name}.jsonl'
  (run_folder / 'bin').mkdir(exist_ok=True)
  python = run_folder / 'bin' / 'python'
  python.write_text(f"""#!{sys.executable}
import json, pathlib, sys
with open({str(note)!r}, 'a') as file:
  file.write(json.dumps(['python', *sys.argv[1:]]) + '\\n')
(path,) = [x[10:] for x in sys.argv if x.startswith('--workdir=')]
pathlib.Path(path).mkdir(parents=True)
pathlib.Path(path, 'DONE').write_text('{{"accuracy": 1}}')
""")
  python.chmod(0o755)
  script, runs = tiny.ROOT / 'scripts' / f'{name}.sh', f'runs/{name}'
  env = os.environ | {'PATH': f'{python.parent}:{os.environ["PATH"]}'}
  shutil.copytree('runs/digits', f'{runs}/pretrained/copy')
  shutil.rmtree(f'{runs}/pretrained')
  subprocess.run(['bash', script, 'images', runs], env=env, check=True)
  commands = [json.loads(line) for line in note.read_text().splitlines()]
  assert len(commands) == count
  shutil.rmtree(f'{runs}/pretrained')
  shutil.copytree('runs/digits', f'{runs}/pretrained')
  for command in commands:
    with documented.parsed(command) as program:
      check(program)


@pytest.mark.parametrize('page', PAGES)
def test_pages_name_files_that_are_there(page):
  text = documented.read(page)
  folder = (tiny.ROOT / page).parent
  for name in re.findall(r'\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)', text):
    assert (folder / name).exists(), name
  for name in re.findall(r'--\w+=(configs/[\w/]+\.py)', text):
    assert (tiny.ROOT / name).exists(), name
  for name in re.findall(r'\b(?:scripts|tests)/[\w/]+\.\w+', text):
    assert (tiny.ROOT / name).exists(), name
  for name in re.findall(r'-m (vit_jax\.\w+|benchmarks(?:\.\w+)?)', text):
    module = tiny.ROOT / name.replace('.', '/')
    is_command = (module / '__main__.py').exists()
    assert is_command or module.with_suffix('.py').exists(), name


@pytest.mark.parametrize('page', PAGES)
def test_extras_are_there(page):
  setup = (tiny.ROOT / 'setup.py').read_text()
  for names in re.findall(r'\.\[([\w,]+)\]', documented.read(page)):
    for name in names.split(','):
      assert f"'{name}': [" in setup, name


@pytest.fixture(scope='module')
def known_flags(digits_run):
  """Names of the flags of all programs that the pages start."""
  names = set()
  for command in OUR_COMMANDS:
    if command.startswith('python -m') or 'slurm' in command:
      words = documented.words(command)
      start = 4 if words[3:4] == ['serve'] or words[3:4] == ['data'] else 3
      with documented.parsed(words[: start if '-m' in words else 2]) as program:
        names |= set(program.flags)
  for command in COMMANDS:
    if command.startswith('bash scripts/'):
      script = tiny.ROOT / documented.words(command)[1]
      names |= {*re.findall(r'^  --(\w+)', script.read_text(), re.MULTILINE)}
  return names


@pytest.mark.parametrize('page', PAGES)
def test_flags_in_the_text_are_there(page, known_flags, monkeypatch):
  monkeypatch.chdir(tiny.ROOT)
  for span in documented.spans(page):
    for word in re.findall(r'(?:^|(?<= ))--[a-z]\w*(?:\.[\w.]+)?=?\S*', span):
      name = re.split('[.=]', word.removeprefix('--'))[0]
      assert name in known_flags | {'help', 'helpfull', 'numprocesses'}, span
    if span.startswith('--config.') and 'KEY' not in span:
      config = '--config=configs/digits.py'
      words = ['python', '-m', 'vit_jax.main', config]
      value = documented.words(span)
      if '=' not in span:  # a key alone
        value = []
        assert span.removeprefix('--config.') in keys(), span
      with documented.parsed([*words, *value]) as program:
        assert program.flags['config'].value is not None


def keys():
  """Returns the keys of a config, and the groups of keys."""
  leaves = [key for key, _ in config_lib.flatten(config_lib.default())]
  leaves += [
    f'evals.val.{key}' for key, _ in config_lib.flatten(config_lib.evaluation())
  ]
  return {
    '.'.join(parts[: i + 1])
    for parts in (key.split('.') for key in leaves)
    for i in range(len(parts))
  }


@pytest.mark.parametrize('page', PAGES)
def test_keys_in_the_text_are_there(page):
  groups = '|'.join(x for x in config_lib.default() if x != 'seed')
  pattern = re.compile(
    rf'(?:config\.)?((?:{groups})\.[a-z]\w*(?:\.\w+)*)(?:=.*)?'
  )
  for span in documented.spans(page):
    match = pattern.fullmatch(span)
    if match is None or match[1] in ('data.checks', 'train.log'):
      continue
    key = match[1]
    if not key.startswith('objective.options'):
      assert key in keys(), span


def test_the_readme_is_short():
  assert len(documented.read('README.md').splitlines()) <= 140


def test_the_core_is_read_in_an_afternoon():
  section = documented.read('README.md').partition('## Read the code')[2]
  files = re.findall(r'\[\w+\.py\]\(([\w/.]+)\)', section)
  assert 5 <= len(files) <= 8
  assert sum(len(documented.read(x).splitlines()) for x in files) <= 2_500


def test_badges_are_true():
  setup = (tiny.ROOT / 'setup.py').read_text()
  badges = [
    (tiny.ROOT / 'docs' / 'pictures' / f'{name}.svg').read_text()
    for name in ('python', 'jax', 'license')
  ]
  (jax_version,) = re.findall(r"'jax>=([\d.]+)'", setup)
  assert "python_requires='>=3.11,<3.14'" in setup
  assert 'Python: 3.11 | 3.12 | 3.13' in badges[0]
  assert f'JAX: ≥ {jax_version}' in badges[1]
  assert "license='Apache-2.0'" in setup and 'license: Apache-2.0' in badges[2]


def test_each_extra_is_explained():
  _, setup = (tiny.ROOT / 'setup.py').read_text().split('extras_require=')
  extras = re.findall(r"^    '([\w-]+)': \[", setup, re.MULTILINE)
  table = documented.read('docs/install.md')
  rows = re.findall(r'^\| (`.*?) \|', table, re.MULTILINE)
  explained = [name for row in rows for name in re.findall(r'`([\w-]+)`', row)]
  assert sorted(explained) == sorted(extras)


def test_the_words_of_the_glossary_are_sorted():
  rows = re.findall(
    r'^\| (\w.*?) \|', documented.read('docs/glossary.md'), re.M
  )
  assert rows[1:] == sorted(rows[1:])


def test_the_sweep_of_the_page(tmp_path, run_folder):
  (text,) = documented.blocks('docs/sweeps.md', 'python')
  (tmp_path / 'sweep.py').write_text(text)
  sweep = space.load(str(tmp_path / 'sweep.py'))
  space.check(sweep, ['--config=configs/digits.py'])
  assert sweep.total() == 40


def test_functions_of_the_readme(digits_run, run_folder, monkeypatch):
  """Those that look inside run; training starts with the config as it says."""
  scope = {
    'vit_jax': vit_jax,
    'vit': vit_jax.load(digits_run),
    'images': [stand_in.pixels(0, 8, 8)],
  }
  trained = []
  monkeypatch.setattr(
    vit_jax, 'train', lambda *args: trained.append(args), raising=False
  )
  for line in documented.indented('README.md'):
    ast.parse(line)
    exec(line, scope)
  ((config, workdir),) = trained
  assert config.train.duration == '3 epochs' and workdir == 'runs/python'
  monkeypatch.undo()
  inspect.signature(vit_jax.train).bind(config, workdir)


def test_the_python_of_the_first_hour(run_folder):
  (code,) = documented.blocks('docs/first_hour.md', 'python')
  scope = {}
  exec(code, scope)
  assert len(scope['maps']) == len(scope['images']) == 3


def test_the_model_zoo_has_the_sizes_of_all_models():
  page = documented.read('docs/model_zoo.md')
  rows = re.findall(r'^\| (\S+) \| [\d.]+M \|$', page, re.MULTILINE)
  names = {x.model for x in vit_jax.list_models(pretrained=True)}
  assert names == {*rows}


def test_the_evaluation_of_the_page(run_folder):
  (text,) = [
    x
    for x in documented.blocks('docs/look_inside.md', 'python')
    if x.startswith('config.evals')
  ]
  config = config_lib.load('configs/digits.py')
  exec(text, {'config': config, 'config_lib': config_lib})
  experiment.check(config)
  assert config.evals.knn.kind == "knn(train_split='train[:80%]')"


def test_every_key_has_its_meaning_and_its_readers_on_the_site(monkeypatch):
  """In the page that docs/generated.py makes, as objects that search finds."""
  pytest.importorskip('sphinx')
  monkeypatch.syspath_prepend(str(tiny.ROOT / 'docs'))
  import generated

  page = generated.config_keys()
  entries = dict(
    re.findall(r'^````\{configkey\} (\S+): (.*?)^````', page, re.M | re.S)
  )
  keys = {key for key, _ in config_lib.flatten(config_lib.default())}
  keys = {re.sub(r'^evals\.\w+', 'evals.NAME', key) for key in keys}
  assert keys <= set(entries)
  rate = entries['optim.learning_rate']
  assert rate.startswith('float = 0.001\nThe learning rate after the warm-up')
  assert '`optim/schedules.py`' in rate
  assert '`evaluation/base.py`' in entries['evals.NAME.kind']
  assert "| `knn` | `train_split`, `features='head'`, `k=20` |" in page
  assert all('Read by' in text for text in entries.values())


def test_every_kind_of_file_is_on_the_site(monkeypatch):
  pytest.importorskip('sphinx')
  monkeypatch.syspath_prepend(str(tiny.ROOT / 'docs'))
  import generated

  page = generated.formats()
  for form in foreign.FORMATS:
    assert all(
      f'| {kind.title} |' in page for kind in getattr(form, 'KINDS', ())
    )
  (row,) = [x for x in page.splitlines() if x.startswith("| Google's ViT |")]
  assert row.endswith('`pool.gelu` | `pool=token` if `class_token` |')
  (row,) = [x for x in page.splitlines() if x.startswith('| mmsegmentation |')]
  assert '`num_heads` (its code is told)' in row and 'None' not in row


def test_every_flag_is_on_the_site(monkeypatch):
  pytest.importorskip('sphinx')
  monkeypatch.syspath_prepend(str(tiny.ROOT / 'docs'))
  import generated

  page = generated.command_line()
  for verb in verbs.VERBS:
    assert f'## vit-jax {verb}\n' in page
  assert '{option} --from=PATH' in page and 'python -m' not in page
