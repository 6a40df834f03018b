"""Hostile inputs, each a function of its seed, and what has to answer them.

A case is a seed of a target: a config, a checkpoint, a work directory, an image
or a request that is damaged or means harm. It passes if it is accepted, or
refused by a UserError of one line; `scripts/fuzz.py` runs many.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import io
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
from typing import Any
import zipfile

import cv2
import foreign
import numpy as np
import page_server
import tiny
import torch_format

import vit_jax
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import resuming
from vit_jax.config import UserError
from vit_jax.explore import server
from vit_jax.explore import viewer
from vit_jax.runs import records
from vit_jax.train import experiment
from vit_jax.train import loop
from vit_jax.web import uploads

_HANGS_S = 100  # nothing here takes a tenth of it

INTS = (-1, 0, 1, 2, 3, 5, 17, 1000, 2**31 - 1, 2**31, 2**32, 2**63, 10**30)
FLOATS = (
  math.nan,
  math.inf,
  -math.inf,
  -1.0,
  0.0,
  1e-300,
  0.5,
  1.0,
  7.5,
  1e308,
)
TEXTS = (
  '',
  ' ',
  '\0',
  'a\nb',
  'caf\u00e9 \udcff \u2028',
  'x' * 10_000,
  '(',
  '[[[',
  '{}',
  '%s',
  '../../etc/passwd',
  'train[',
  'train[:50%]+train[99%:]',
  'train[' + '9' * 5000 + ':]',
  'csv:x',
  'folder:',
  'folder:\0',
  'folder:/dev',
  'hf:a/b',
  'percentiles(.,99)',
  'percentiles(1,99)',
  'val/accuracy',
  'val/',
  '1 epochs',
  '-1 steps',
  '1e5 steps',
  '1e999999999 steps',
  '1e-999999999 steps',
  '9' * 5000 + ' steps',
  '1/3 epochs',
  'nan steps',
  'randaugment(2,10)',
  'randaugment(99999999999,1)',
  'rand-m9-mstd0.5-inc1',
  'rand(m=9, n=99999999999)',
  'rand(mstd=1e999)',
  'ViT-B/' + '9' * 5000,
  'ViT-Ti/0',
  'Mixer-S/16',
  'BiT-R50x1',
  'R50+ViT-B/16',
  'init_from',
  'full',
)


class FailureError(Exception):
  """A case that was neither accepted nor refused as it should be."""


def case(target: 'Target', seed: int, folder: pathlib.Path) -> bool:
  """Runs a case; returns whether the input was accepted.

  Raises:
    FailureError: It ended in another way than it may.
  """
  rng = np.random.default_rng([seed, *target.__name__.encode()])
  target_folder = folder / f'{target.__name__}-{seed}'
  target_folder.mkdir()
  try:
    with _limit():
      target(rng, target_folder)
  except UserError as e:
    line = str(e)
    if not line or '\n' in line:
      raise FailureError(f'not one line: {line!r}') from e
    return False
  except BaseException as e:
    if isinstance(e, KeyboardInterrupt):
      raise
    raise FailureError(f'{type(e).__name__}: {e}'[:500]) from e
  finally:
    shutil.rmtree(target_folder)
  return True


@contextlib.contextmanager
def _limit() -> Iterator[None]:
  """Ends what hangs."""

  def stop(*_: object) -> None:
    raise TimeoutError(f'it took more than {_HANGS_S} s')

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(_HANGS_S)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


Target = Callable[[np.random.Generator, pathlib.Path], None]


def pick(rng: np.random.Generator, choices: Any) -> Any:
  """Returns one of them."""
  choices = tuple(choices)
  return choices[rng.integers(len(choices))]


# Configs.


def hostile_value(rng: np.random.Generator, kind: type) -> Any:
  """Returns a value of a type, which may be a hostile one."""
  if kind is bool:
    return bool(rng.integers(2))
  if kind is int:
    return pick(rng, INTS)
  if kind is float:
    return pick(rng, FLOATS)
  if kind is str:
    return pick(rng, TEXTS)
  if kind is tuple:
    if rng.random() < 0.1:
      return nested(int(pick(rng, (1, 2, 50))))
    count = int(pick(rng, (0, 1, 2, 3, 4, 5, 1000)))
    if rng.random() < 0.6:  # all of one kind, as they should be
      inner = pick(rng, (int, float, str, tuple))
      return tuple(hostile_value(rng, inner) for _ in range(min(count, 5)))
    return tuple(any_value(rng) for _ in range(min(count, 5)))
  return any_value(rng)


def any_value(rng: np.random.Generator) -> Any:
  """Returns a value of any type."""
  kind = pick(rng, (int, float, str, bool, tuple, None))
  return None if kind is None else hostile_value(rng, kind)


def nested(depth: int) -> Any:
  """Returns a tuple in a tuple in a tuple."""
  value: Any = (1,)
  for _ in range(depth):
    value = (value,)
  return value


def leaf_type(config: Any, key: str) -> type:
  """Returns the type that a leaf of a config must have."""
  *parents, leaf = key.split('.')
  for parent in parents:
    config = config[parent]
  return config.get_type(leaf)


def keys() -> list[str]:
  """Returns all leaves of a config."""
  return [key for key, _ in config_lib.flatten(config_lib.default())]


def set_and_check(changes: Mapping[str, Any]) -> None:
  """Checks the tiny config with changes, as a command does before it runs."""
  config = tiny.config()
  tiny.change(config, changes)
  experiment.check(config)
  again = config_lib.from_dict(json.loads(json.dumps(config.to_dict())))
  assert not resuming.differences(config, again) or 'nan' in str(changes)


def configs(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A config of which up to three leaves are hostile."""
  del folder
  config = tiny.config()
  changed = rng.choice(keys(), rng.integers(1, 4), replace=False)
  set_and_check(
    {key: hostile_value(rng, leaf_type(config, key)) for key in changed}
  )


# Files of other programs.


def damaged(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns a file with some bytes changed, lost or added."""
  content_bytes = bytearray(content)
  for _ in range(rng.integers(1, 4)):
    size = len(content_bytes)
    # Headers are at the start; the directory of a ZIP file is at its end.
    begin = int(pick(rng, (0, 0, max(size - 2000, 0))))
    at = begin + int(rng.integers(max(min(2000, size - begin), 1)))
    if rng.random() < 0.3:
      at = int(rng.integers(max(size, 1)))
    length = int(pick(rng, (1, 2, 4, 8, 100, 10_000)))
    match int(rng.integers(6)):
      case 0:
        del content_bytes[at:]
      case 1:
        del content_bytes[at : at + length]
      case 2:
        content_bytes[at : at + length] = rng.bytes(length)
      case 3:
        content_bytes[at:at] = content_bytes[at : at + length]
      case 4:
        number = pick(rng, (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
        content_bytes[at : at + 8] = int(number).to_bytes(8, 'little')
      case _:
        if content_bytes:
          content_bytes[min(at, size - 1)] ^= 1 << rng.integers(8)
  return bytes(content_bytes)


def json_value(rng: np.random.Generator) -> Any:
  """Returns what may stand in a JSON file, though nobody expects it."""
  value = any_value(rng)
  if rng.random() < 0.1:
    return {str(x): value for x in range(3)}
  return value


def json_changed(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns JSON of which some values are others."""
  value = json.loads(content)
  for _ in range(rng.integers(1, 4)):
    node = value
    while True:
      children = list(node) if isinstance(node, dict) else range(len(node))
      if not children:
        break
      key = pick(rng, children)
      child = node[key]
      if isinstance(child, dict | list) and child and rng.random() < 0.8:
        node = child
        continue
      if isinstance(node, dict) and rng.random() < 0.2:
        node.pop(key)
      else:
        node[key] = json_value(rng)
      break
  text = json.dumps(value).encode()
  if rng.random() < 0.03:
    depth = int(pick(rng, (100, 5000, 200_000)))
    text = b'{"a": ' * depth + b'1' + b'}' * depth
  return text


def rezipped(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns a ZIP file with good checksums, of which one member is damaged."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    members = {x: archive.read(x) for x in archive.infolist()}
  chosen = pick(rng, [x.filename for x in members])
  if rng.random() < 0.5 and any(x.filename.endswith('.pkl') for x in members):
    chosen = next(x.filename for x in members if x.filename.endswith('.pkl'))
  result = io.BytesIO()
  with zipfile.ZipFile(result, 'w') as archive:
    for info, member in members.items():
      if info.filename == chosen:
        member = damaged(rng, member[:300]) + member[300:]
      archive.writestr(info.filename, member, info.compress_type)
  return result.getvalue()


def reheaded(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns a safetensors file whose header holds something else."""
  size = int.from_bytes(content[:8], 'little')
  header = json_changed(rng, content[8 : 8 + size])
  return len(header).to_bytes(8, 'little') + header + content[8 + size :]


def npz(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A file of Google's."""
  name = pick(rng, ('vit_gap', 'mixer', 'vit_token_prelogits'))
  content = (foreign.GOOGLE / f'{name}.npz').read_bytes()
  change = pick(rng, (damaged, rezipped))
  _load(folder / 'x.npz', change(rng, content))


def packed_npz(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """The same, compressed."""
  result = io.BytesIO()
  np.savez_compressed(result, **foreign.read(foreign.GOOGLE / 'vit_gap.npz'))
  change = pick(rng, (damaged, rezipped))
  _load(folder / 'x.npz', change(rng, result.getvalue()))


def safetensors(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A file of timm's, or of ours."""
  names = ('vit_registers_layerscale', 'mixer', 'deit_distilled', 'bit_tiny')
  path = foreign.TORCH / f'{pick(rng, names)}.safetensors'
  change = pick(rng, (damaged, reheaded))
  _load(folder / 'x.safetensors', change(rng, path.read_bytes()))


def pth(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A file of torch.save."""
  path = folder / 'x.pth'
  params = foreign.read(foreign.TORCH / 'vit_registers_layerscale.safetensors')
  torch_format.save(path, torch_format.state_dict(params))
  change = pick(rng, (damaged, rezipped))
  _load(path, change(rng, path.read_bytes()))


def _load(path: pathlib.Path, content: bytes) -> None:
  path.write_bytes(content)
  overrides = {'num_heads': 3} if path.suffix != '.npz' else {}
  vit_jax.load(path, **overrides)


def spoil(rng: np.random.Generator, path: pathlib.Path) -> None:
  """Damages a file, or puts something else in its place."""
  content = path.read_bytes()
  if rng.random() < 0.85:
    is_json = path.suffix == '.json' and rng.random() < 0.8
    path.write_bytes((json_changed if is_json else damaged)(rng, content))
    return
  path.unlink()
  match int(rng.integers(6)):
    case 0:
      path.symlink_to('/dev/zero')
    case 1:
      os.mkfifo(path)
    case 2:
      path.mkdir()
    case 3:
      path.symlink_to(path.name)
    case 4:
      path.write_bytes(b'')
    case _:
      path.symlink_to('/dev/urandom')


def hf_directory(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A directory of Hugging Face, of which one file is spoiled."""
  directory = folder / 'model'
  shutil.copytree(foreign.TORCH / 'hf_vit', directory)
  preprocessor = {
    'do_normalize': True,
    'image_mean': [0.5, 0.5, 0.5],
    'image_std': [0.5, 0.5, 0.5],
    'size': {'height': 32, 'width': 32},
    'resample': 2,
    'do_rescale': True,
    'rescale_factor': 1 / 255,
  }
  (directory / 'preprocessor_config.json').write_text(json.dumps(preprocessor))
  spoil(rng, pick(rng, sorted(directory.iterdir())))
  vit_jax.load(directory)


def timm_directory(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A directory of timm's Hub, likewise."""
  directory = folder / 'model'
  directory.mkdir()
  name = 'vit_registers_layerscale.safetensors'
  shutil.copy(foreign.TORCH / name, directory / 'model.safetensors')
  config = {
    'architecture': 'vit_small_patch16_224',
    'num_classes': 5,
    'num_features': 24,
    'global_pool': 'token',
    'model_args': {'img_size': [32, 32], 'num_heads': 3, 'reg_tokens': 2},
    'pretrained_cfg': {
      'input_size': [3, 32, 32],
      'interpolation': 'bicubic',
      'crop_pct': 0.9,
      'crop_mode': 'center',
      'mean': [0.5, 0.5, 0.5],
      'std': [0.5, 0.5, 0.5],
      'num_classes': 5,
      'label_names': ['a', 'b', 'c', 'd', 'e'],
    },
  }
  (directory / 'config.json').write_text(json.dumps(config))
  spoil(rng, pick(rng, (directory / 'config.json', *directory.iterdir())))
  vit_jax.load(directory)


def our_directory(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """What `convert` writes, with all of our fields in its config.json."""
  directory = folder / 'model'
  shutil.copytree(_MODELS['converted'], directory)
  spoil(
    rng, pick(rng, (directory / 'config.json', *sorted(directory.glob('*.*'))))
  )
  vit_jax.load(directory)


def work_directory(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A run of which one file is spoiled; it is loaded, and shown."""
  workdir = folder / 'run'
  shutil.copytree(_MODELS['run'], workdir)
  described = ('config.json', 'preprocess.json', 'run.json', 'metrics.jsonl')
  stored = [x for x in sorted(workdir.rglob('*')) if x.is_file()]
  if rng.random() < 0.7:
    stored = [workdir / name for name in described]
  spoil(rng, pick(rng, stored))
  refused = None
  for read in (records.read, vit_jax.load):
    try:
      read(workdir)
    except UserError as e:
      refused = refused or e
  if refused:
    raise refused


_MODELS: dict[str, pathlib.Path] = {}  # by `make`


def make(folder: pathlib.Path) -> None:
  """Makes what the targets start from: a run, and the same for timm."""
  run = folder / 'finished'
  config = tiny.config(train__duration='2 steps', optim__warmup='0 steps')
  assert loop.run(config, str(run)).status == 0
  from vit_jax.weights.formats import export

  loaded = vit_jax.load(run)
  export.write(loaded, folder / 'converted', 'timm', 'a run')
  _MODELS.update(run=run, converted=folder / 'converted')


# Images, and requests of the page.


def pictures() -> Iterator[bytes]:
  """Yields the files of small images of all kinds."""
  colours = page_server.picture((30, 40))
  yield colours
  pixels = cv2.imdecode(np.frombuffer(colours, np.uint8), cv2.IMREAD_COLOR)
  for ending in ('.jpg', '.webp', '.bmp', '.png', '.tiff', '.gif'):
    yield cv2.imencode(ending, pixels)[1].tobytes()
  yield cv2.imencode('.png', pixels.astype(np.uint16) * 257)[1].tobytes()
  for name in ('colour.jpg', 'grey.jpg', 'turned.jpg'):
    yield (tiny.ROOT / 'tests' / 'data' / name).read_bytes()


def images(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A damaged image, as bytes and as a file."""
  content = damaged(rng, pick(rng, pictures()))
  channels = int(pick(rng, (1, 3, 4)))
  preprocess = data.Preprocess((), (8, 8), channels, (0.5,), (0.5,), resize=9)
  path = folder / 'x.jpg'
  path.write_bytes(content)
  refused = None
  for read in (
    lambda: uploads.check(content),
    lambda: preprocess(content),
    lambda: preprocess(path),
  ):
    try:
      read()
    except UserError as e:
      refused = refused or e
  if refused:
    raise refused


def requests(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A request that no browser makes; what fails is answered by 500."""
  del folder
  paths = ('/', '/api/models', '/api/look/0', '/api/look/7', '/api/look/-1')
  paths += (
    '/api/look/' + '9' * 5000,
    '/..%2f..%2fetc/passwd',
    '/page.js',
    '//',
  )
  paths += ('/\0', '/api/look/0/', '/caf\u00e9', '/' + 'x' * 5000)
  headers = [
    (b'host', pick(rng, (b'localhost', b'[::1]:80', b'a.b', b'\xff[')))
  ]
  for name in (b'origin', b'content-length', b'content-type', b'range'):
    if rng.random() < 0.3:
      texts = (b'http://localhost', b'-1', b'9' * 5000, b'\xff\0', b'bytes=9-')
      headers.append((name, pick(rng, (b'', *texts))))
  body = pick(rng, (b'', rng.bytes(500), damaged(rng, pick(rng, pictures()))))
  status = asyncio.run(
    _request(
      pick(rng, ('GET', 'POST', 'POST', 'HEAD', 'PUT', '\u00e9')),
      pick(rng, (*paths, *['/api/look/0'] * 12)),
      headers,
      [body[i : i + 1000] for i in range(0, len(body), 1000)] or [b''],
    )
  )
  assert status < 500, f'status {status}'
  if status >= 400:
    raise UserError(f'status {status}')


async def _request(
  method: str,
  path: str,
  headers: list[tuple[bytes, bytes]],
  parts: list[bytes],
) -> int:
  """Returns the status of an answer."""
  sent: list[dict[str, Any]] = []
  numbers = itertools.count(1)
  scope = {
    'type': 'http',
    'asgi': {'version': '3.0'},
    'http_version': '1.1',
    'method': method,
    'path': path,
    'raw_path': path.encode('utf-8'),
    'root_path': '',
    'scheme': 'http',
    'query_string': b'',
    'headers': headers,
    'client': ('127.0.0.1', 1),
    'server': ('127.0.0.1', 80),
  }

  async def receive() -> dict[str, Any]:
    number = next(numbers)
    if number > len(parts):
      await asyncio.Event().wait()  # who asks is still there
    return {
      'type': 'http.request',
      'body': parts[number - 1],
      'more_body': number < len(parts),
    }

  async def send(message: dict[str, Any]) -> None:
    sent.append(message)

  await _application()(scope, receive, send)
  return next(x['status'] for x in sent if x['type'] == 'http.response.start')


_APPLICATION: list[Any] = []


def _application() -> Any:
  if not _APPLICATION:
    model = viewer.Viewer(page_server.load(), 'small')
    _APPLICATION.append(server.application([model]))
  return _APPLICATION[0]


TARGETS: tuple[Target, ...] = (
  configs,
  npz,
  packed_npz,
  safetensors,
  pth,
  hf_directory,
  timm_directory,
  our_directory,
  work_directory,
  images,
  requests,
)
