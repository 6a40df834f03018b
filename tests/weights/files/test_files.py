"""Files of arrays: what is read and written, and what is refused."""

import argparse
import gzip
import io
import json
import os
import pathlib
import pickle
import resource
import shutil
import struct
import tracemalloc
from typing import Any
import zipfile

import foreign
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch_format
from torch_format import Call
from torch_format import Name

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers

DTYPES = [
  *(np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64),
  *(np.int8, np.int32, np.int64, np.uint8, np.uint16, np.uint64, np.bool_),
]
SHAPES = [(), (1,), (0,), (3, 0, 2), (5,), (2, 3), (4, 1, 3), (2, 3, 4, 5)]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)


def many(dtype: Any = np.float32) -> dict[str, np.ndarray]:
  """Arrays of every shape, with the memory layouts that arrays can have."""
  plain = {f'x/{i}.w': numbers(s, dtype, i) for i, s in enumerate(SHAPES)}
  base = numbers((6, 8, 3), dtype)
  return {
    **plain,
    'fortran': np.asfortranarray(numbers((3, 4, 5), dtype)),
    'transposed': base.transpose(2, 0, 1),
    'strided': base[::2, 1::3],
    'a name, with ünïcode': base,
  }


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  with containers.open_arrays(path) as arrays:
    result = {name: arrays.read(name) for name in arrays.shapes}
    assert {k: x.shape for k, x in result.items()} == arrays.shapes
  return result


def refused(path: pathlib.Path, message: str = '.') -> str:
  """Asserts that a file is refused, in one line, without taking memory."""
  tracemalloc.start()
  try:
    with pytest.raises(UserError, match=message) as e:
      read(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
  finally:
    tracemalloc.stop()
  assert '\n' not in str(e.value) and str(path) in str(e.value)
  return str(e.value)


def assert_same(
  actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
  assert actual.keys() == expected.keys()
  for name, x in expected.items():
    assert actual[name].dtype == x.dtype and actual[name].shape == x.shape
    assert actual[name].flags.c_contiguous and actual[name].flags.writeable
    assert actual[name].tobytes() == x.tobytes()


def write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> pathlib.Path:
  if path.suffix == '.npz':
    containers.write_npz(path, arrays.items())
  elif path.suffix == '.safetensors':
    containers.write_safetensors(path, arrays, {'format': 'pt'})
  else:
    torch_format.save(path, torch_format.state_dict(arrays))
  return path


@pytest.mark.parametrize('dtype', DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize('name', ['x.npz', 'x.safetensors'])
def test_a_round_trip(tmp_path, name, dtype):
  path = write(tmp_path / name, many(dtype))
  assert_same(read(path), many(dtype))
  assert os.listdir(tmp_path) == [name]


def test_npz_keeps_the_order_and_aligns(tmp_path):
  path = write(tmp_path / 'x.npz', many())
  with containers.open_arrays(path) as arrays:
    assert list(arrays.shapes) == list(many())
    # jax uses such memory without a copy.
    result = [arrays.read(name) for name in arrays.shapes]
    assert all(x.ctypes.data % 64 == 0 for x in result if x.size)


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_reads_npz_of_numpy(tmp_path, save):
  arrays = {
    **many(),
    'big': numbers((3, 4), '>f4'),
    'text': np.array(['a', 'bc']),
    'deflated in pieces': np.random.default_rng(0).random(300_000),
  }
  save(tmp_path / 'x', **arrays, brain=numbers((2, 3), ml_dtypes.bfloat16))
  arrays['big'] = arrays['big'].astype('f4')
  arrays['brain'] = numbers((2, 3), ml_dtypes.bfloat16)
  assert_same(read(tmp_path / 'x.npz'), arrays)


def test_numpy_reads_npz_of_ours(tmp_path):
  with np.load(write(tmp_path / 'x.npz', many())) as file:
    assert_same(dict(file), many())


def test_safetensors_of_the_package_and_ours(tmp_path):
  arrays = {k: np.asarray(x, order='C') for k, x in many().items()}
  safetensors.numpy.save_file(arrays, tmp_path / 'x', {'who': 'they'})
  assert_same(read(tmp_path / 'x'), arrays)  # whatever its name
  path = write(tmp_path / 'x.safetensors', many())
  assert_same(safetensors.numpy.load_file(path), arrays)
  with safetensors.safe_open(path, 'np') as file:
    assert file.metadata() == {'format': 'pt'}


def test_a_type_that_numpy_lacks(tmp_path):
  entry = {'dtype': 'F8_E4M3', 'shape': [2], 'data_offsets': [0, 2]}
  header = json.dumps({'x': entry}).encode()
  content = struct.pack('<Q', len(header)) + header + b'ab'
  (tmp_path / 'x.safetensors').write_bytes(content)
  refused(tmp_path / 'x.safetensors', "cannot read array 'x' of .*float8_e4m3")


def test_one_array_is_held_at_a_time(tmp_path):
  def arrays():
    for i in range(8):
      yield f'{i}', np.full((1 << 20,), i, np.float32)

  tracemalloc.start()
  try:
    containers.write_npz(tmp_path / 'x.npz', arrays())
    with containers.open_arrays(tmp_path / 'x.npz') as opened:
      assert sum(float(opened.read(name)[-1]) for name in opened.shapes) == 28
    assert tracemalloc.get_traced_memory()[1] < 14 << 20  # of 32
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize('name', ['x.npz', 'x.safetensors'])
def test_a_full_disk_loses_nothing(tmp_path, name):
  path = write(tmp_path / name, {'x': np.zeros(3)})
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
  try:
    with pytest.raises(UserError, match=f'cannot write .*{name}: .*make room'):
      write(path, {'x': np.ones(3000)})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert_same(read(path), {'x': np.zeros(3)})
  assert os.listdir(tmp_path) == [name]


# Files of torch.save.


def test_pth(tmp_path):
  path = tmp_path / 'x.pth'
  for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_):
    arrays = {k: np.asarray(x, order='C') for k, x in many(dtype).items()}
    torch_format.save(path, torch_format.state_dict(arrays))
    assert_same(read(path), arrays)


def test_pth_views_of_one_storage(tmp_path):
  base = np.arange(60, dtype=np.float32)
  cube = base.reshape(3, 4, 5)

  def view(x: np.ndarray) -> Call:
    offset = x.ctypes.data - base.ctypes.data
    return torch_format.tensor(base, x.shape, x.strides, offset)

  views = {
    'all': cube,
    'row': cube[1],
    'transposed': cube.transpose(2, 0, 1),
    'steps': cube[1:, ::3, 1::2],
    'last': cube[2, 3, 4:],
    'scalar': cube[2, 1, 3],
    'repeated': np.broadcast_to(cube[1, 2], (3, 2, 5)),
    'none': cube[:, 4:],
  }
  views['scalar'] = np.ndarray((), np.float32, base, offset=4 * 48)
  torch_format.save(tmp_path / 'x', {k: view(x) for k, x in views.items()})
  assert_same(read(tmp_path / 'x'), views)


@pytest.mark.parametrize(
  'keys, best',
  [
    (['model', 'optimizer'], 'model'),
    (['state_dict', 'model_ema', 'model'], 'model_ema'),
    (['state_dict', 'state_dict_ema'], 'state_dict_ema'),
    (['state_dict', 'model'], 'state_dict'),
  ],
)
def test_pth_of_training(tmp_path, keys, best):
  arrays = {k: np.full(3, i, np.float32) for i, k in enumerate(keys)}
  value: dict[Any, Any] = {
    k: torch_format.state_dict({'module.head.bias': x})
    for k, x in arrays.items()
  }
  value |= {'epoch': 3, 'args': None, 'loss': 0.5, 0: [1, 'x', True]}
  value['state_dict_ema'] = value.get('state_dict_ema', {})  # empty
  torch_format.save(tmp_path / 'x.pth', value)
  assert_same(read(tmp_path / 'x.pth'), {'head.bias': arrays[best]})


def test_pth_of_torch_itself(tmp_path):
  torch = pytest.importorskip('torch', reason='torch is not installed')
  base = torch.arange(24.0).reshape(2, 3, 4)
  layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
  value = {
    **layer.state_dict(),
    'view': base[1].T,
    'parameter': torch.nn.Parameter(base),
    'empty': base[:0],
  }
  for protocol in (2, 3, 4, 5):
    torch.save({'model': value}, tmp_path / 'x.pth', pickle_protocol=protocol)
    expected = {k: x.detach().numpy().copy() for k, x in value.items()}
    assert_same(read(tmp_path / 'x.pth'), expected)
  old = tmp_path / 'old.pth'
  checkpoint = {'model': value, 'args': argparse.Namespace(lr=0.1)}
  torch.save(checkpoint, old, _use_new_zipfile_serialization=False)
  exec(refused(old).split('python -c ')[1].strip('"'))
  assert_same(read(tmp_path / 'old-new.pth'), expected)


X = np.arange(12, dtype=np.float32)


def bad_tensor(*arguments: Any) -> dict[str, Any]:
  return {'x': torch_format.tensor(X, *arguments)}


@pytest.mark.parametrize(
  'value, message',
  [
    (bad_tensor((3, 4), (16, 4), 4), 'pickle is damaged'),
    (bad_tensor((13,), (4,)), 'pickle is damaged'),
    (bad_tensor((2,), (-4,), 4), 'pickle is damaged'),
    (bad_tensor((2,), (4,), -4), 'pickle is damaged'),
    (bad_tensor((2, 2), (4,)), 'pickle is damaged'),
    (bad_tensor((1 << 40,), (0,)), 'expand to 4,398,046,511,104'),
    (bad_tensor((0, 1 << 47, 1 << 47), (4, 4, 4)), 'pickle is damaged'),
    ({'x': 3}, "no tensors under the names it has \\('x'\\)"),
    ([1, 2], 'no dict of tensors'),
    ({'x': Name('torch', 'QInt8Storage')}, "the Python object 'torch.QInt8St"),
    ({'x': Call(Name('collections', 'OrderedDict'), (3,))}, 'is damaged'),
    ({'x': Call('y', ())}, 'pickle is damaged'),
  ],
)
def test_pth_that_is_wrong(tmp_path, value, message):
  torch_format.save(tmp_path / 'x.pth', value)
  refused(tmp_path / 'x.pth', message)


class _Evil:
  def __reduce__(self) -> Any:
    return os.system, ('touch evil',)


@pytest.mark.parametrize('protocol', [0, 1, 2, 3, 4, 5])
def test_pth_that_would_run_code(tmp_path, monkeypatch, protocol):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / 'x.pth'
  evil = pickle.dumps({'model': _Evil(), 'y': 3}, protocol)
  torch_format.save(path, {}, pickled=evil)
  message = 'posix.system' if protocol > 1 else 'posix.system|instruction'
  assert 'not run' in refused(path, message) or protocol < 2
  path.write_bytes(evil)  # alone
  refused(path)
  assert not (tmp_path / 'evil').exists()


def _nested_key(depth: int) -> bytes:
  """Returns a dict whose key takes 2**depth steps to hash."""
  return b'}N' + b'0)' + b'q\0h\0\x86' * depth + b'Ns'


@pytest.mark.parametrize(
  'program, message',
  [
    (b'Nr\xff\xff\xff\x7f', 'no dict of tensors'),  # 16 GB of memo
    (b'X\xff\xff\xff\x7fabc', 'pickle is damaged'),
    (b'\x8d' + b'\xff' * 7 + b'\x7f', 'pickle is damaged'),
    (b'\x8a\xff' + b'1' * 10, 'pickle is damaged'),
    (b'\x82\x01', 'the instruction EXT1'),
    (b'ctorch\nSize\n)\x81', 'pickle is damaged'),
    (b'\x96' + b'\xff' * 7 + b'\x0f', 'damaged|the instruction BYTEARRAY8'),
    (b'ctorch\nFloatStorage\n)R', "object 'torch.FloatStorage'"),
    (b'ctorch\nSize\n}X\4\0\0\0nameK\1sb', 'pickle is damaged'),
    (b'N}X\1\0\0\0aK\1sb', 'pickle is damaged'),
    (_nested_key(500), 'no tensors under the names it has'),
    (_nested_key(500)[1:-2] + b'X\1\0\0\0a\x93', 'pickle is damaged'),
    (b'})' + b'\x85' * 50_000 + b'Ns', 'no tensors under the names it has'),
    (b'\x8f(' + b')q\0h\0\x86q\0h\0\x86' + b'\x90', 'no dict of tensors'),
  ],
)
def test_pth_that_wants_memory_or_time(tmp_path, program, message):
  program = b'\x80\x02' + program + b'.'
  torch_format.save(tmp_path / 'x.pth', {}, pickled=program)
  refused(tmp_path / 'x.pth', message)


def test_pth_whose_tensor_is_changed_after_its_checks(tmp_path):
  tensor = torch_format.tensor(X, (3,), (4,))
  value = {'x': torch_format.WithState(tensor, {'offset': 1 << 40})}
  torch_format.save(tmp_path / 'x.pth', value)
  refused(tmp_path / 'x.pth', 'pickle is damaged')


def test_pth_with_other_members(tmp_path):
  path = tmp_path / 'x.pth'
  good = torch_format.state_dict({'x': X})
  torch_format.save(path, good, byteorder='big')
  refused(path, 'written on a big-endian machine')
  torch_format.save(path, good, {'archive/constants.pkl': b''})
  refused(path, 'is a TorchScript program')
  torch_format.save(path, good, compression=zipfile.ZIP_DEFLATED)
  refused(path, 'is packed, which torch.save does not do')
  torch_format.save(path, good, {'archive/data/0': b'1234'})
  refused(path, "the numbers of array 'x' are missing or cut short")
  torch_format.save(path, good, pickled=b'\x80\x02' + b'N' * (5 << 20) + b'.')
  refused(path, 'more than a state dict needs')


def test_pth_of_the_old_format(tmp_path):
  (tmp_path / 'x.pth').write_bytes(torch_format.LEGACY + b'...')
  assert refused(tmp_path / 'x.pth').endswith(
    """python -c "import argparse, torch;"""
    """ torch.serialization.add_safe_globals([argparse.Namespace]);"""
    f""" torch.save(torch.load('{tmp_path}/x.pth',"""
    f""" map_location='cpu', weights_only=True), '{tmp_path}/x-new.pth')\""""
  )


# What is no checkpoint at all.


@pytest.mark.parametrize(
  'data, message',
  [
    (b'', 'is empty'),
    (b'<!DOCTYPE html><html>', 'is a web page or an error message'),
    (b'\n <?xml version="1.0"?><Error>AccessDenied', 'is a web page or an er'),
    (b'version https://git-lfs.github.com/spec/v1\noid', 'Git LFS pointer'),
    (pickle.dumps({'x': 3}), 'bare pickle, which could run any code'),
    (gzip.compress(b'x', mtime=0), 'packed by gzip'),
    (b'\x89HDF\r\n\x1a\n', 'an HDF5 file'),
    (b'{"architecture": "vit"}', 'neither a checkpoint nor the index of one'),
    (b'{' * 100_000, 'neither a checkpoint nor the index of one'),
    (b'PK\x03\x04', 'its table of contents cannot be read'),
    (b'PK\x05\x06' + bytes(18), 'is a ZIP file without arrays'),
    (b'\0' * 100, 'neither npz, safetensors nor pth: its first bytes'),
    (struct.pack('<Q', 50) + b'{"x":3}', 'damaged or incomplete'),
    (struct.pack('<Q', 1 << 50) + b'{"x":3}', 'neither npz'),
  ],
)
def test_not_a_checkpoint(tmp_path, data, message):
  (tmp_path / 'x.npz').write_bytes(data)
  refused(tmp_path / 'x.npz', message)


def test_no_file(tmp_path):
  refused(tmp_path / 'x.npz', 'there is no file')
  refused(tmp_path, 'is no regular file')
  np.save(tmp_path / 'x', X)
  refused(tmp_path / 'x.npy', 'is a single array')


# ZIP files that lie.


def test_npz_with_objects(tmp_path):
  np.savez(tmp_path / 'x.npz', a=X, b=np.array([_Evil()], object))
  refused(tmp_path / 'x.npz', r"holds pickled objects \(array 'b'\)")
  parts = np.zeros(3, [('a', np.float32), ('b', np.int8)])
  np.savez(tmp_path / 'x.npz', parts=parts)
  refused(tmp_path / 'x.npz', "array 'parts' is of a type that is not read")


def set_size(path: pathlib.Path, size: int) -> None:
  """Changes how long the members of a ZIP file say that they are."""
  data = bytearray(path.read_bytes())
  at = -1
  while (at := data.find(b'PK\x01\x02', at + 1)) >= 0:
    struct.pack_into('<I', data, at + 24, size)
  path.write_bytes(data)


def test_a_zip_bomb(tmp_path):
  path = tmp_path / 'x.npz'
  np.savez_compressed(path, **{f'{i}': np.zeros(1 << 20) for i in range(4)})
  assert path.stat().st_size < 1 << 16
  assert len(read(path)) == 4  # a head of zeros is none
  set_size(path, (1 << 32) - 2)
  refused(path, 'bytes say that they expand to 17,179,869,176')
  for size in (1 << 20, (1 << 23) + 127, 1 << 26):
    set_size(path, size)
    refused(path, "array '0' has another length than its shape says")
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    file = io.BytesIO()
    np.save(file, X)
    archive.writestr('x.npy', file.getvalue() + bytes(20 << 20))
  set_size(path, len(file.getvalue()))
  refused(path, "'x.npy' cannot be read")


def test_members_twice_or_within_another(tmp_path):
  path = tmp_path / 'x.npz'
  with zipfile.ZipFile(path, 'w') as archive:
    with pytest.warns(UserWarning, match='Duplicate'):
      for _ in range(2):
        archive.writestr('x.npy', b'...')
  refused(path, "it holds 'x.npy' twice")
  inner = write(tmp_path / 'y.npz', {'y': X}).read_bytes()
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('x.npy', inner)
    (info,) = zipfile.ZipFile(io.BytesIO(inner)).infolist()
    info.header_offset = 30 + len('x.npy')
    archive.filelist.append(info)
  refused(path, "'y.npy' overlaps what is before it")


def test_other_zip_files(tmp_path):
  path = tmp_path / 'x.npz'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('read\nme', 'x')
  refused(path, r"without arrays \('read\\nme'\)")
  np.savez(path, x=X)
  data = bytearray(path.read_bytes())
  data[data.find(b'PK\x01\x02') + 8] |= 1
  path.write_bytes(data)
  refused(path, 'is encrypted')


# Damage.


def small(path: pathlib.Path) -> pathlib.Path:
  arrays = {'b/w': X.reshape(3, 4), 'n': np.arange(3), 's': np.float32(1)}
  if path.name == 'packed.npz':
    np.savez_compressed(path, **arrays)
    return path
  return write(path, {k: np.asarray(x) for k, x in arrays.items()})


@pytest.mark.parametrize(
  'name', ['x.npz', 'packed.npz', 'x.pth', 'x.safetensors']
)
def test_truncated_anywhere(tmp_path, name):
  path = small(tmp_path / name)
  data = path.read_bytes()
  for size in [*range(0, len(data), 9), len(data) - 1]:
    path.write_bytes(data[:size])
    with pytest.raises(UserError) as e:
      read(path)
    assert str(path) in str(e.value) and '\n' not in str(e.value)


@pytest.mark.parametrize('name', ['x.npz', 'packed.npz', 'x.pth'])
def test_a_flipped_bit_anywhere(tmp_path, name):
  path = small(tmp_path / name)
  data = bytearray(path.read_bytes())
  expected = read(path)
  errors = set()
  for i in range(0, len(data), 3):
    data[i] ^= 1 << i % 7
    path.write_bytes(data)
    try:
      assert_same(read(path), expected)  # a date, or the like
    except UserError as e:
      errors.add(str(e))
      assert str(path) in str(e) and '\n' not in str(e)
    data[i] ^= 1 << i % 7
  assert any('b/w' in x and 'Bad CRC-32' in x for x in errors)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
  for name in ('x.npz', 'x.pth', 'x.safetensors'):
    path = write(tmp_path / name, {'x': np.zeros(1 << 20, np.float32)})
    with containers.open_arrays(path) as arrays:
      os.truncate(path, 1 << 20)
      with pytest.raises(UserError, match=name):
        _ = [arrays.read(x) for x in arrays.shapes]


# Checkpoints in several files.


def sharded(
  tmp_path: pathlib.Path, ending: str = 'safetensors', **changes: str
) -> pathlib.Path:
  arrays = {f'x{i}': np.full(3, i) for i in range(4)}
  file_names = {k: f'{int(k[1]) // 2}.{ending}' for k in arrays}
  for shard in sorted(set(file_names.values())):
    held = {k: x for k, x in arrays.items() if file_names[k] == shard}
    if ending == 'bin':
      torch_format.save(tmp_path / shard, torch_format.state_dict(held))
    else:
      write(tmp_path / shard, held)
  stem = 'pytorch_model' if ending == 'bin' else 'model'
  index = tmp_path / f'{stem}.{ending}.index.json'
  index.write_text(json.dumps({'weight_map': file_names | changes}))
  return index


@pytest.mark.parametrize('ending', ['safetensors', 'bin'])
def test_shards(tmp_path, ending):
  index = sharded(tmp_path, ending)
  assert_same(read(index), {f'x{i}': np.full(3, i) for i in range(4)})


@pytest.mark.parametrize('ending', ['safetensors', 'bin'])
@pytest.mark.parametrize(
  'name, file, message',
  [
    ('x0', '2.{}', r'there is no file .*/2\.{}'),
    ('x0', '../0.{}', r"the file '../0\.{}', which is not one"),
    ('x0', '/etc/passwd', "the file '/etc/passwd', which is not one"),
    ('x0', '..', 'which is not one of'),
    ('x9', '0.{}', r"array 'x9', which 0\.{} does not hold"),
    ('x0', 'INDEX', r'\.index\.json., which is not one of'),
    ('x0', 'index.{}', 'neither npz, safetensors nor pth'),
  ],
)
def test_shards_that_are_wrong(tmp_path, name, file, message, ending):
  """Also through a directory, whose index is found."""
  index = sharded(tmp_path, ending).name
  (tmp_path / f'index.{ending}').write_text('{"weight_map": {}}')
  file = file.format(ending).replace('INDEX', index)
  path = sharded(tmp_path, ending, **{name: file})
  for there in (path, path.parent):
    with pytest.raises(UserError, match=message.format(ending)) as e:
      vit_jax.load(there)
    assert '\n' not in str(e.value) and str(tmp_path) in str(e.value)


def test_a_directory_of_torchs_shards(tmp_path):
  """As `save_pretrained` wrote large models of Hugging Face."""
  source = foreign.TORCH / 'hf_vit'
  arrays = foreign.read(source / 'model.safetensors')
  where = {name: f'{i % 3}.bin' for i, name in enumerate(arrays)}
  for shard in ('0.bin', '1.bin', '2.bin'):
    held = {k: x for k, x in arrays.items() if where[k] == shard}
    torch_format.save(tmp_path / shard, torch_format.state_dict(held))
  index = tmp_path / 'pytorch_model.bin.index.json'
  index.write_text(json.dumps({'metadata': {}, 'weight_map': where}))
  shutil.copy(source / 'config.json', tmp_path)
  foreign.assert_same(vit_jax.load(tmp_path), vit_jax.load(source))
