"""The README's Python, and what `load` refuses."""

import json
import logging
import re
import shutil

import commands
import numpy as np
import pytest
import stand_in
import tiny

import vit_jax
from vit_jax import data
from vit_jax import embed
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.explore import pictures
from vit_jax.predict import __main__ as predict
from vit_jax.summary import __main__ as summary
from vit_jax.train import loop


@pytest.mark.slow
def test_the_python_of_the_readme(tmp_path, monkeypatch):
  """Runs as it stands, on a run of configs/digits.py, shortened."""
  (tmp_path / 'runs').mkdir()
  assert loop.run(tiny.config(), str(tmp_path / 'runs' / 'digits')).status == 0
  monkeypatch.chdir(tmp_path)
  text = (tiny.ROOT / 'README.md').read_text()
  (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  scope = {}
  exec(code, scope)
  assert len(scope['names']) == 1
  assert scope['logits'].shape == (2, 10)
  shapes = [x.shape for x in scope['state']['intermediates'].values()]
  assert shapes == [(12, 2, 6, 197, 197), (12, 2, 197, 384)]
  assert len(repr(scope['vit'])) < 2500


def test_mistakes_are_named(tmp_path):
  (tmp_path / 'file').write_text('')
  for path in (tmp_path, tmp_path / 'file', tmp_path / 'missing'):
    with pytest.raises(UserError, match=str(path)):
      vit_jax.load(path)


VIT_GAP = tiny.ROOT / 'tests' / 'data' / 'golden' / 'google' / 'vit_gap.npz'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_heads': 'a'}, "num_heads is 'a': it must be of the type int"),
    ({'num_classes': 2.5}, 'num_classes is 2.5'),
    ({'scan': 'yes'}, 'type bool'),
    ({'depth': 1}, 'depth is 3 in the checkpoint, 1 in the model'),
    ({'dtype': 'int32'}, "dtype is 'int32': choose float32"),
    ({'image_size': 'q'}, "image_size is 'q': write one positive number"),
    ({'image_size': 10**9}, 'too large'),
    ({'image_size': 18}, 'do not divide into patches of 4 x 4'),
    ({'resize': 'cubic'}, 'choose one of corner'),
    ({'registrs': 2}, "did you mean 'registers'"),
  ],
)
def test_wrong_arguments_are_named(arguments, message):
  with pytest.raises(UserError, match=message) as error:
    vit_jax.load(VIT_GAP, **arguments)
  assert '\n' not in str(error.value)


DAMAGED = [
  ('preprocess.json', content)
  for content in (
    *('[1]', '{}', '{"classes": 5}'),
    *({'channels': None}, {'channels': 2**63}, {'mean': [10**400]}),
    *({'antialias': None}, {'resize': [1]}, {'bits': True}, {'fill': [3]}),
    *({'intensity': [1, 0]}, {'mean': [0.5, 0.5]}, {'spacing': [1, 1]}),
    *({'outputs': {'logits': {'feature': 'nothing'}}}, {'unknown': 1}),
    *({'trunk': 'head/kernel'}, {'trunk': 'student'}),
  )
] + [
  ('config.json', content)
  for content in (
    *({'train': {'ema_decay': None}}, {'data': {'channels': None}}),
    {'model': {'num_classes': 2**63}},
    {'model': {'layer_norm_epsilon': 2147483648}},
    *('"x"', '{"train": {"dtype": 5}}', '{"model": {"depth": 9}}'),
  )
]


@pytest.mark.parametrize(('name', 'content'), DAMAGED)
def test_a_damaged_work_directory_is_named(digits_run, tmp_path, name, content):
  shutil.copytree(digits_run, tmp_path / 'run')
  path, field = tmp_path / 'run' / name, ''
  if isinstance(content, dict):  # a field that is another
    stored = json.loads(path.read_text())
    for key, value in content.items():
      field = next(iter(value)) if isinstance(value, dict) else key
      stored[key] = stored[key] | value if isinstance(value, dict) else value
    content = json.dumps(stored)
  path.write_text(content)
  with pytest.raises(UserError, match=str(tmp_path)) as error:
    vit_jax.load(tmp_path / 'run')
  assert '\n' not in str(error.value) and field in str(error.value)


@pytest.mark.parametrize(
  ('name', 'place'),
  [
    ('ViT-B/16', 'vit_models/imagenet21k/ViT-B_16.npz'),
    ('BiT-R50x1', 'bit_models/BiT-M-R50x1.npz'),
  ],
)
def test_published_names_are_loaded(tmp_path, monkeypatch, name, place):
  """As if it were downloaded already."""
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path))
  path = tmp_path / 'downloads' / 'storage.googleapis.com' / place
  path.parent.mkdir(parents=True)
  shutil.copy(VIT_GAP, path)
  assert vit_jax.load(name).origin.path == str(path)


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('ViT-g/14', r'no published checkpoint .* known are ViT-B/16, ViT-B/32'),
    ('vit_base_patch16_224', r"write 'hf:timm/vit_base_patch16_224\.TAG'"),
    (
      'vit_base_patch16_224.dino',
      r"write 'hf:timm/vit_base_patch16_224\.dino'",
    ),
    ('google/vit-base-patch16-224', "write 'hf:google/vit-base-patch16-224'"),
  ],
)
def test_names_that_need_more_are_told_what(name, message):
  with pytest.raises(UserError, match=message) as error:
    vit_jax.load(name)
  assert '\n' not in str(error.value)


# Which checkpoint.


@pytest.fixture(scope='module')
def steps_run(tmp_path_factory):
  """A run with the checkpoints 4, 8 and 12, and best/4; 4 to 12 are averages.

  Its metric stays the same, so that the first is the best.
  """
  path = tmp_path_factory.mktemp('steps') / 'run'
  config = tiny.config(
    train__ema_decay=0.5,
    evals__val__every='4 steps',
    checkpoint__best='val/examples',
    checkpoint__keep=3,
  )
  assert loop.run(config, str(path)).status == 0
  return path


def test_load_says_which_checkpoint_it_read(steps_run):
  def of(**choice):
    return vit_jax.load(steps_run, **choice)

  best = of()
  assert best.origin.to_dict() == {
    'path': str(steps_run / 'best' / '4'),
    'format': 'vit_jax',
    'step': 4,
    'kind': 'best',
    'averaged': True,
    'newest': 12,
  }
  assert (of(step='newest').origin.step, of(step=8).origin.kind) == (
    12,
    'earlier',
  )
  kernels = [
    np.asarray(each.params['head']['kernel'])
    for each in (best, of(step=4), of(step='8'), of(step='newest'))
  ]
  np.testing.assert_array_equal(kernels[0], kernels[1])
  assert (kernels[0] != kernels[2]).any() and (kernels[2] != kernels[3]).any()
  assert of(image_size=16).origin == best.origin
  file = vit_jax.load(VIT_GAP).origin
  assert (file.path, file.format, file.step) == (str(VIT_GAP), 'google', None)


@pytest.mark.parametrize(
  ('step', 'message'),
  [
    (7, r'no checkpoint 7 in .*: choose one of the steps 4, 8, 12, 4 \(the b'),
    ('last', "step is 'last': write the step of a checkpoint, 'best' or"),
    (-1, 'step is -1'),
    (True, 'step is True'),
  ],
)
def test_steps_that_are_not_there(steps_run, step, message):
  with pytest.raises(UserError, match=message):
    vit_jax.load(steps_run, step=step)


def test_steps_of_what_has_none(digits_run):
  with pytest.raises(UserError, match='no work directory, and has no steps'):
    vit_jax.load(VIT_GAP, step=3)
  with pytest.raises(UserError, match=r'no best checkpoint in .* steps 3'):
    vit_jax.load(digits_run, step='best')


@pytest.mark.parametrize(
  ('choice', 'step', 'kind'), [(None, 4, 'best'), ('newest', 12, 'newest')]
)
def test_commands_say_which_checkpoint_they_read(
  steps_run, tmp_path, capsys, caplog, choice, step, kind
):
  """On stderr and in JSON."""
  flags = [f'--from={steps_run}', *([f'--step={choice}'] if choice else [])]
  caplog.set_level(logging.INFO)
  split = ['--data=digits', '--split=train[:20]']
  image = stand_in.png(np.zeros((8, 8, 3), np.uint8))
  (tmp_path / 'x.png').write_bytes(image)

  def found(command, *args):
    caplog.clear()
    assert commands.run(command, *flags, *args) == 0
    folder = 'best' if kind == 'best' else 'checkpoints'
    path = f'{steps_run}/{folder}/{step}'
    assert (
      f'loaded {path}: step {step}, the {kind} checkpoint, av' in caplog.text
    )
    assert ('the newest is of step 12' in caplog.text) == (step == 4)
    return capsys.readouterr().out

  errors = [
    json.loads(found(evaluate, *split, '--format=json')),
    *json.loads(found(predict, tmp_path / 'x.png', '--format=json')),
    json.loads(found(summary, '--nomemory', '--format=json')),
  ]
  found(embed, *split, f'--out={tmp_path}/x.npz')
  with np.load(tmp_path / 'x.npz') as file:
    errors.append({'checkpoint': json.loads(str(file['checkpoint']))})
  out = tmp_path / 'inside'
  found(pictures, '--only=positions', f'--out={out}')
  errors.append(json.loads((out / 'numbers.json').read_text()))
  for error in errors:
    assert error['checkpoint']['step'] == step
    assert error['checkpoint']['kind'] == kind
    assert error['checkpoint']['averaged'] is True
  assert f'{step}, the {kind} checkpoint' in (out / 'report.html').read_text()


def test_no_images():
  preprocess = data.Preprocess(('a',), (8, 8), 1, (0.5,), (0.5,))
  with pytest.raises(UserError, match='there are no images'):
    preprocess([])
  with pytest.raises(UserError, match=r'\[h, w, 1 to 4\]'):
    preprocess(np.zeros((3, 80, 90), np.uint8))


def test_the_kernel_of_the_training_machine_is_not_kept(digits_run, tmp_path):
  """Also where the text of attention names it."""
  path = tmp_path / 'run'
  shutil.copytree(digits_run, path)
  config = json.loads((path / 'config.json').read_text())
  config['model']['attention'] = "attention(implementation='xla')"
  (path / 'config.json').write_text(json.dumps(config))
  assert vit_jax.load(path).model == vit_jax.load(digits_run).model
