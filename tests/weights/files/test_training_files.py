"""Files of torch.save as training scripts write them: not weights alone."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import os
import pathlib
import random
import re
import uuid

from absl import logging
from foreign import read
from foreign import TORCH
import ml_collections
import numpy as np
import pytest
import torch_format
from torch_format import Call
from torch_format import Name
from torch_format import Pickled

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers

ARRAYS = {
  'blocks.0.norm1.weight': np.arange(3, dtype=np.float32),
  'cls_token': np.ones((1, 1, 3), np.float32),
}
OTHER_ARRAYS = {name: x + 7 for name, x in ARRAYS.items()}
RUN = []  # of what no file may run


def assert_same(arrays, expected=None):
  expected = ARRAYS if expected is None else expected
  assert arrays.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_array_equal(arrays[name], x, name)


def save(path, value):
  """Writes a file; dicts of arrays become state dicts."""

  def described(x):
    if isinstance(x, dict) and x and not isinstance(x, collections.Counter):
      if all(isinstance(y, np.ndarray) for y in x.values()):
        return torch_format.state_dict(x)
      return {key: described(y) for key, y in x.items()}
    return x

  torch_format.save(path, described(value))


class Loud:
  """An object whose methods would be seen if a file ran them."""

  def __init__(self, x=0):
    RUN.append('__init__')
    self.x = x

  def __setstate__(self, state):
    RUN.append('__setstate__')


def run():
  RUN.append('run')


class ByFunction:
  def __reduce__(self):
    return run, ()


class WithNames(tuple):
  """Pickled by NEWOBJ_EX, from protocol 4 on."""

  def __new__(cls, *, x=1):
    RUN.append('__new__')
    return super().__new__(cls, (x,))

  def __getnewargs_ex__(self):
    return (), {'x': 2}


class Slots:
  __slots__ = ('x', 'y')


class Options(dict):
  """As an attribute dict, or OmegaConf's DictConfig, with a state besides."""

  def __getattr__(self, key):
    return self[key]

  def __setattr__(self, key, value):
    self[key] = value

  def __reduce_ex__(self, protocol):
    state = {'_metadata': Loud(), '_content': dict(self), '_parent': None}
    return Options, (), state, None, iter(self.items())


class History(list):
  pass


class Phase(enum.Enum):
  TRAIN = 'train'


@dataclasses.dataclass(frozen=True)
class Recipe:
  lr: float = 0.1
  phase: Phase = Phase.TRAIN


def _slots():
  result = Slots()
  result.x = pathlib.Path('/data')
  return result


HARMLESS = {
  'namespace': lambda: argparse.Namespace(lr=0.1, out=pathlib.Path('x')),
  'path': lambda: pathlib.Path('/data/imagenet'),
  'date': lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
  'timedelta': lambda: datetime.timedelta(3),
  'enum': lambda: Phase.TRAIN,
  'dataclass': Recipe,
  'scalar': lambda: np.float64(0.5),
  'array': lambda: np.arange(5),
  'objects': lambda: np.array([None, 'x'], object),
  'dtype': lambda: np.dtype('float32'),
  'generator': lambda: np.random.default_rng(0),
  'random': lambda: random.Random(0).getstate(),
  'loud': Loud,
  'slots': _slots,
  'by names': WithNames,
  'by function': ByFunction,
  'attribute dict': lambda: Options(lr=0.1, model=Options(depth=2)),
  'config dict': lambda: ml_collections.ConfigDict({'a': {'b': 1}}),
  'list subclass': lambda: History([1, Recipe()]),
  'defaultdict': lambda: collections.defaultdict(list, x=[1]),
  'counter': lambda: collections.Counter('abca'),
  'deque': lambda: collections.deque([1, 2], 3),
  'ordered': lambda: collections.OrderedDict(x=Recipe()),
  'set': lambda: {1, 2},
  'frozenset': lambda: frozenset({1, (2, 3)}),
  'bytearray': lambda: bytearray(b'abc'),
  'complex': lambda: 1j,
  'range': lambda: range(3),
  'slice': lambda: slice(3),
  'decimal': lambda: decimal.Decimal('0.1'),
  'fraction': lambda: fractions.Fraction(1, 3),
  'uuid': lambda: uuid.UUID(int=3),
  'pattern': lambda: re.compile('a+'),
  'partial': lambda: functools.partial(max, 3),
  'class': lambda: Loud,
  'function': lambda: os.path.join,
  'error': lambda: ValueError('nan'),
  'in containers': lambda: [{'x': (Loud(), {'y': Phase.TRAIN})}, Loud],
  'as keys': lambda: {Phase.TRAIN: 3, pathlib.Path('x'): 4, (1, 2): 5},
}


@pytest.fixture(autouse=True)
def _nothing_runs():
  yield
  RUN.clear()


@pytest.mark.parametrize('name', HARMLESS)
def test_objects_beside_the_weights(tmp_path, name):
  """At each protocol, beside a state dict and beside its arrays."""
  for protocol in (2, 3, 4, 5):
    beside = Pickled(HARMLESS[name](), protocol)
    flat = torch_format.state_dict(ARRAYS).value
    save(tmp_path / 'x', {'args': beside, 'epoch': 3, 'model': dict(ARRAYS)})
    torch_format.save(tmp_path / 'y', {'args': beside, **flat})
    RUN.clear()
    assert_same(read(tmp_path / 'x'))
    assert_same(read(tmp_path / 'y'))
    assert not RUN


def test_files_of_torch_itself(tmp_path):
  """With an optimizer, a schedule, a scaler and states of random numbers."""
  torch = pytest.importorskip('torch', reason='torch is not installed')
  model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
  optimizer = torch.optim.AdamW(model.parameters())
  model(torch.ones(2, 3)).sum().backward()
  optimizer.step()
  schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
  average = torch.optim.swa_utils.AveragedModel(model)
  average.module[0].weight.data += 1
  value = {
    'model': model.state_dict(),
    'optimizer': optimizer.state_dict(),
    'lr_scheduler': schedule.state_dict(),
    'scaler': torch.amp.GradScaler('cpu').state_dict(),
    'rng_state': torch.get_rng_state(),
    'random': random.getstate(),
    'numpy': np.random.get_state(),
    'generator': torch.Generator().get_state(),
    'args': argparse.Namespace(device=torch.device('cpu'), dtype=torch.float16),
    'size': torch.Size([2, 3]),
    'best': torch.tensor(0.5),
    'float8': torch.ones(2).to(torch.float8_e4m3fn),
    'sparse': torch.eye(2).to_sparse(),
    'loss': torch.nn.CrossEntropyLoss(),
  }
  path = tmp_path / 'x.pth'
  expected = {k: x.numpy() for k, x in model.state_dict().items()}
  for protocol in (2, 4, 5):
    torch.save(value, path, pickle_protocol=protocol)
    assert_same(read(path), expected)
  averaged = {k: x.numpy() for k, x in average.module.state_dict().items()}
  torch.save(value | {'model_ema': average.state_dict()}, path)
  assert_same(read(path), averaged)
  assert_same(read(path, 'model'), expected)
  parameter = torch.nn.Parameter(torch.ones(3))
  parameter.no_weight_decay = True
  torch.save({'model': {'head.bias': parameter}}, path)
  assert_same(read(path), {'head.bias': np.ones(3, np.float32)})
  torch.save({'model': model, 'rng_state': torch.get_rng_state()}, path)
  with pytest.raises(UserError, match=r"'torch\.nn\.modules\.container\.Seq"):
    read(path)


def _call(module, name, *arguments):
  return Call(Name(module, name), arguments)


ATTACKS = {
  'posix.system': _call('posix', 'system', 'touch evil'),
  'os.system': _call('os', 'system', 'touch evil'),
  'builtins.eval': _call('builtins', 'eval', 'open("evil", "w")'),
  '__builtin__.eval': _call('__builtin__', 'eval', 'open("evil", "w")'),
  'builtins.exec': _call('builtins', 'exec', 'open("evil", "w")'),
  'builtins.open': _call('builtins', 'open', 'evil', 'w'),
  'builtins.getattr': _call('builtins', 'getattr', Name('os', 'x'), 'system'),
  'builtins.__import__': _call('builtins', '__import__', 'os'),
  'importlib.import_module': _call('importlib', 'import_module', 'antigravity'),
  'subprocess.Popen': _call('subprocess', 'Popen', ('touch', 'evil')),
  'runpy.run_path': _call('runpy', 'run_path', 'evil.py'),
  'pickle.loads': _call('pickle', 'loads', b'cposix\nsystem\n.'),
  'torch.load': _call('torch', 'load', 'evil'),
  'torch.hub.load': _call('torch.hub', 'load', 'evil/evil', 'evil'),
  'torch.storage._load_from_bytes': _call(
    'torch.storage', '_load_from_bytes', b'evil'
  ),
  'torch.serialization.load': _call('torch.serialization', 'load', 'evil'),
  'numpy.load': _call('numpy', 'load', 'evil'),
  'numpy._core.multiarray._reconstruct': torch_format.Pickled(
    np.arange(3, dtype=np.float32), 2
  ),
  'torch._utils._rebuild_qtensor': _call('torch._utils', '_rebuild_qtensor', 1),
  'torch.Subclass': _call(
    'torch._tensor',
    '_rebuild_from_type_v2',
    Name('torch._utils', '_rebuild_tensor_v2'),
    Name('torch', 'Subclass'),
    (1, 2),
    {},
  ),
  'os.path': Name('os', 'path'),
  'os.environ.clear': _call('os', 'environ.clear'),
}


@pytest.mark.parametrize('name', ATTACKS)
def test_code_in_a_file_is_not_run(tmp_path, monkeypatch, name):
  """Beside weights it is left out; in the place of weights it is refused."""
  monkeypatch.chdir(tmp_path)
  environment = dict(os.environ)
  path, evil = tmp_path / 'x.pth', ATTACKS[name]
  arrays = torch_format.state_dict(ARRAYS)
  for beside in (evil, [evil], {'x': (evil,)}):
    torch_format.save(path, {'args': beside, 'model': arrays})
    assert_same(read(path))
  flat = arrays.value
  for whole in (
    evil,
    {'model': evil},
    {'model': evil, 'rng_state': flat['cls_token']},
    {'model': flat | {'norm.weight': evil}},
    {'model': flat | {'x': evil}},
    {'state_dict': {'module.norm.weight': evil, **flat}},
    flat | {'norm.weight': evil},
    flat | {'pos_embed': evil},
  ):
    torch_format.save(path, whole)
    with pytest.raises(UserError, match=re.escape(name)) as e:
      read(path)
    assert '\n' not in str(e.value) and 'not run' in str(e.value)
  assert os.listdir(tmp_path) == ['x.pth'] and dict(os.environ) == environment


def test_a_call_whose_result_is_changed(tmp_path):
  """What stands for an object takes any state, items and elements."""
  call = Call(Name('evil', 'x'), ())
  value = {
    'args': torch_format.WithState(call, {'name': 3, '__class__': 4}),
    'model': torch_format.state_dict(ARRAYS),
  }
  torch_format.save(tmp_path / 'x', value)
  assert_same(read(tmp_path / 'x'))


@pytest.mark.parametrize(
  'program, message',
  [
    # 500,000 arguments, passed 100,000 times.
    (
      b'(' + b'N' * 500_000 + b'tq\0cx\ny\nq\1' + b'0h\1h\0R' * 100_000,
      "the Python object 'x.y'",
    ),
    # The same, of a function that is known here.
    (
      b'(' + b'N' * 500_000 + b'tq\0ctorch\nSize\nq\1' + b'0h\1h\0R' * 100_000,
      'pickle is damaged',
    ),
    # 300 dicts within each other that stand in each other 300 times.
    (
      b''.join(
        b'}q%c(' % (i + 1)
        + b''.join(b'X\2\0\0\0%02xh%c' % (j, i) for j in range(200) if i)
        + b'u0'
        for i in range(12)
      )
      + b'h\x0c',
      'no tensors under the names',
    ),
  ],
)
def test_files_that_take_time(tmp_path, program, message):
  pickled = b'\x80\x02' + program + b'.'
  torch_format.save(tmp_path / 'x', {}, pickled=pickled)
  with pytest.raises(UserError, match=message):
    read(tmp_path / 'x')


# Prefixes, and several states.

PREFIXES = [
  *('module.', '_orig_mod.', 'model.', 'net.', 'network.', 'base_model.'),
  *('encoder.', 'teacher.', 'student.', 'ema_model.', 'module.module.'),
  *('module._orig_mod.', '_orig_mod.module.', 'model._orig_mod.'),
  *('_forward_module.model._orig_mod.', 'model.module._orig_mod.'),
  *('model.model.', 'student._orig_mod.encoder.'),
  *('_fsdp_wrapped_module.', 'module.model.encoder.'),
]


@pytest.mark.parametrize('prefix', PREFIXES)
@pytest.mark.parametrize('key', ['', 'state_dict', 'model', 'checkpoint.model'])
def test_prefixes(tmp_path, prefix, key):
  value = {prefix + name: x for name, x in ARRAYS.items()}
  for part in reversed(key.split('.') if key else []):
    value = {part: value, 'epoch': 3}
  save(tmp_path / 'x', value)
  assert_same(read(tmp_path / 'x'))


def test_layers_that_are_wrapped(tmp_path):
  names = [
    'module.blocks.0._orig_mod.norm1.weight',
    'model.blocks.1._fsdp_wrapped_module._checkpoint_wrapped_module.norm1.bias',
  ]
  save(tmp_path / 'x', {names[0]: ARRAYS['cls_token']})
  assert list(read(tmp_path / 'x')) == ['blocks.0.norm1.weight']
  save(tmp_path / 'x', {names[1]: ARRAYS['cls_token']})
  assert list(read(tmp_path / 'x')) == ['blocks.1.norm1.bias']


def test_prefixes_of_safetensors(tmp_path):
  arrays = {f'_orig_mod.model.{name}': x for name, x in ARRAYS.items()}
  containers.write_safetensors(tmp_path / 'x', arrays, {})
  assert_same(read(tmp_path / 'x'))


def test_two_arrays_of_one_plain_name(tmp_path):
  value = {name: np.ones(2) for name in ('head.bias', 'module.head.bias')}
  value = {k: x.astype(np.float32) for k, x in value.items()}
  save(tmp_path / 'x', value)
  with pytest.raises(UserError, match=r"x: it holds array 'head\.bias' twice"):
    read(tmp_path / 'x')


def test_what_is_beside_the_model_of_lightning(tmp_path):
  value = {f'model.{name}': x for name, x in ARRAYS.items()}
  value['criterion.weight'] = np.ones(5, np.float32)
  lightning = {
    'state_dict': value,
    'callbacks': {'Checkpoint': {'score': Pickled(Recipe(), 2)}},
    'optimizer_states': [
      {'state': {0: dict(OTHER_ARRAYS)}, 'param_groups': []}
    ],
    'hyper_parameters': Pickled(Options(lr=0.1), 2),
  }
  save(tmp_path / 'x', lightning)
  assert_same(read(tmp_path / 'x'))


@pytest.mark.parametrize(
  'taken, other',
  [
    *(('model_ema', 'model'), ('state_dict_ema', 'state_dict')),
    *(('teacher', 'student'), ('model_state_dict', 'student')),
    *(('ema', 'model_state_dict'), ('target_encoder', 'encoder')),
  ],
)
@pytest.mark.parametrize('is_prefix', [False, True])
def test_one_of_several_states(tmp_path, monkeypatch, taken, other, is_prefix):
  lines = []
  monkeypatch.setattr(
    logging, 'info', lambda line, *args: lines.append(line % args)
  )
  value = {other: dict(OTHER_ARRAYS), taken: dict(ARRAYS)}
  if is_prefix:
    if taken not in ('teacher', 'ema'):
      pytest.skip('no attribute of a model')
    other = 'student'
    value = {f'{taken}.{name}': x for name, x in ARRAYS.items()}
    value |= {f'{other}.{name}': x for name, x in OTHER_ARRAYS.items()}
  save(tmp_path / 'x', value)
  assert_same(read(tmp_path / 'x'))
  (line,) = [x for x in lines if '--state' in x]
  assert f'read the state {taken} of' in line and f'--state={other}' in line
  assert_same(read(tmp_path / 'x', other), OTHER_ARRAYS)
  assert_same(read(tmp_path / 'x', taken))
  with pytest.raises(UserError, match="no state 'nothing': those that"):
    read(tmp_path / 'x', 'nothing')


@pytest.mark.parametrize(
  'prefix',
  [
    *('vit.', 'image_encoder.vit.', 'module.a._orig_mod.b.', 'trunk.'),
    *('backbone.', 'model.backbone.', 'student._orig_mod.backbone.encoder.'),
  ],
)
def test_prefixes_of_any_name(tmp_path, prefix):
  """They are known by the names behind them; what is beside is left out."""
  arrays = read(TORCH / 'vit_registers_layerscale.safetensors')
  value = {f'{prefix}{k}': x for k, x in arrays.items()}
  if not prefix.startswith('backbone.'):  # as DINO has it, beside its heads
    value['text.embedding.weight'] = ARRAYS['cls_token']
  save(tmp_path / 'x.pth', {'state_dict': value})
  loaded = vit_jax.load(tmp_path / 'x.pth', num_heads=3)
  head = loaded.params['head']['bias']
  np.testing.assert_array_equal(head, arrays['head.bias'])


def test_several_models_in_one_state(tmp_path):
  arrays = read(TORCH / 'vit_registers_layerscale.safetensors')
  value = {f'a.b.{k}': x for k, x in arrays.items()}
  value |= {f'other.{k}': x for k, x in arrays.items()}
  save(tmp_path / 'x.pth', {'state_dict': value})
  with pytest.raises(UserError, match='name one, as --state'):
    vit_jax.load(tmp_path / 'x.pth', num_heads=3)
  vit_jax.load(tmp_path / 'x.pth', num_heads=3, state='other')


def test_a_model_of_a_training_file(tmp_path):
  """Through `load`, with the state that is asked for."""
  arrays = read(TORCH / 'vit_registers_layerscale.safetensors')
  student = {k: x + 1 if k == 'head.bias' else x for k, x in arrays.items()}
  save(
    tmp_path / 'x.pth',
    {
      'teacher': {f'module.{k}': x for k, x in arrays.items()},
      'student': {f'module._orig_mod.{k}': x for k, x in student.items()},
      'args': Pickled(argparse.Namespace(arch='vit_small'), 2),
    },
  )
  loaded = vit_jax.load(tmp_path / 'x.pth', num_heads=3)
  other = vit_jax.load(tmp_path / 'x.pth', num_heads=3, state='student')
  bias = arrays['head.bias']
  np.testing.assert_array_equal(loaded.params['head']['bias'], bias)
  np.testing.assert_array_equal(other.params['head']['bias'], bias + 1)
