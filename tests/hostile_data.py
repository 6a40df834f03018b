"""Hostile data sets, texts of parts and bodies of requests, for `hostile`."""

import base64
import contextlib
import json
import pathlib
from typing import Any

import hostile
import numpy as np
import page_server
import stand_in
from starlette import exceptions
import tiny

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.serve import bodies
from vit_jax.train import experiment

_PICTURES = [page_server.picture(seed=i) for i in range(4)]


def _read_all(name: str, **keys: Any) -> None:
  """Opens a data set, and reads all of its examples."""
  config = tiny.config(data__name=name, data__split='train', **keys)
  data.check(config)
  source = data.open_source(config, 'train')
  for _ in data.eval_batches(source, config, batch_size=2):
    pass


def tables(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A damaged table of images."""
  lines = ['path,label,split']
  for i, picture in enumerate(_PICTURES):
    (folder / f'{i}.png').write_bytes(picture)
    lines.append(f'{i}.png,{"ab"[i % 2]},train')
  content = '\n'.join(lines).encode()
  path = folder / hostile.pick(rng, ('all.csv', 'all.tsv'))
  path.write_bytes(hostile.damaged(rng, content))
  _read_all(f'table:{path}', data__channels=3)


def shards(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A damaged shard of WebDataset; its index may be of another one."""
  samples = {
    f'{i:04}': {'png': picture, 'cls': b'%d' % (i % 2), 'json': b'{"a": 1}'}
    for i, picture in enumerate(_PICTURES)
  }
  path = folder / 'train-000.tar'
  stand_in.write_shard(path, samples)
  if rng.random() < 0.3:
    with contextlib.suppress(UserError):
      _read_all(f'tar:{folder}', data__channels=3)
  path.write_bytes(hostile.damaged(rng, path.read_bytes()))
  _read_all(f'tar:{folder}', data__channels=3)


def folders(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """Folders of classes with an odd name, and a damaged image."""
  for i, name in enumerate(('a', hostile.pick(rng, _NAMES))):
    path = folder / 'train' / name
    path.mkdir(parents=True, exist_ok=True)
    for picture in _PICTURES:
      content = picture if rng.random() < 0.8 else hostile.damaged(rng, picture)
      (path / f'{i}{hostile.pick(rng, _NAMES)}.png').write_bytes(content)
  _read_all(f'folder:{folder}', data__channels=3)


_NAMES = ('b', ' ', '\n', '\u2028', 'caf\u00e9', '\udcff', '%s', '{}', '-', '~')


def scans(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """Volumes of which one file is damaged."""
  (folder / 'classes.txt').write_text('background\norgan\n')
  paths = []
  for kind in ('images', 'masks'):
    for i in range(2):
      path = folder / kind / 'train' / f'{i}.npy'
      path.parent.mkdir(parents=True, exist_ok=True)
      np.save(path, np.full((9, 8, 10), i, np.uint8))
      paths.append(path)
  path = hostile.pick(rng, paths)
  path.write_bytes(hostile.damaged(rng, path.read_bytes()))
  _read_all(f'folder:{folder}', data__image_size=(8, 8, 8), data__channels=1)


def sounds(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """Sounds of which one file is damaged."""
  import soundfile

  paths = []
  for name in 'ab':
    path = folder / 'train' / name / '0.wav'
    path.parent.mkdir(parents=True)
    wave = np.sin(np.arange(8000) / 10).astype(np.float32)
    soundfile.write(path, wave, 16_000)
    paths.append(path)
  path = hostile.pick(rng, paths)
  path.write_bytes(hostile.damaged(rng, path.read_bytes()))
  sizes = {'data__image_size': (32, 64), 'model__patch_size': (8, 16)}
  _read_all(f'audio:{folder}', data__channels=1, **sizes)


# Texts of parts.

_TEXTS = {
  'model.attention': 'attention(qk_norm=True, norm=rms_norm)',
  'model.mlp': 'experts(8, mlp=swiglu, layers=(1,), slots=1)',
  'model.positions': 'learned(grid=(2, 3)) + rope(base=100.0)',
  'model.block': 'merging(2, decreasing=True)',
  'optim.name': 'adamw(b1=0.9, eps=1e-8)',
  'optim.schedule': "wsd(cooldown='10 steps')",
  'data.crop': 'random_resized(scale=(0.08, 1.0), ratio=(3/4, 4/3))',
  'augment.policy': 'randaugment(2, 10)',
}
_PIECES = (
  *'()[]{},=+-*/:.\'"\\\n\0#@',
  '(' * 5000,
  '-' * 5000,
  '9' * 5000,
  '9**9**9**9',
  '1e999',
  '0x',
  'lambda: 0',
  '__import__("os")',
  '*a',
  '**a',
  'nan',
  'None',
  '\udcff',
  'os:system',
)


def parts(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A text of the language of parts with odd pieces in it."""
  del folder
  key = hostile.pick(rng, _TEXTS)
  text = _TEXTS[key if rng.random() < 0.8 else hostile.pick(rng, _TEXTS)]
  for _ in range(rng.integers(3)):
    at, piece = int(rng.integers(len(text) + 1)), hostile.pick(rng, _PIECES)
    text = text[:at] + piece + text[at + int(rng.integers(3)) :]
  config = tiny.config()
  tiny.change(config, {key: text})
  experiment.check(config)


# Bodies of requests.


def forms(rng: np.random.Generator, folder: pathlib.Path) -> None:
  """A body of images that is damaged, as the served model takes it apart."""
  del folder
  kind, body = hostile.pick(rng, _bodies())
  if rng.random() < 0.8:
    body = hostile.damaged(rng, body)
  if rng.random() < 0.4:
    kind = hostile.damaged(rng, kind.encode()).decode('latin-1')
  try:
    parse = bodies.find_parser(kind, 4)
    if parse is None:
      raise UserError(f'{kind!r} is not taken')
    for upload in parse(body):
      upload.name.encode()  # as the reply has it
  except exceptions.HTTPException as e:
    assert e.status_code < 500
    raise UserError(e.detail) from None


def _bodies() -> tuple[tuple[str, bytes], ...]:
  form = b''.join(
    b'--b\r\nContent-Disposition: form-data; name="x"; %s\r\n\r\n%s\r\n'
    % (name, picture)
    for name, picture in zip(
      (b'filename="a.png"', b"filename*=utf-8''%e2%82%ac.png"),
      _PICTURES,
      strict=False,
    )
  )
  texts = [base64.b64encode(picture).decode() for picture in _PICTURES]
  return (
    ('multipart/form-data; boundary=b', form + b'--b--\r\n'),
    ("multipart/form-data; boundary*=utf-8''b", form + b'--b--\r\n'),
    ('application/json', json.dumps({'images': texts}).encode()),
  )


TARGETS: tuple[hostile.Target, ...] = (
  tables,
  shards,
  folders,
  scans,
  sounds,
  parts,
  forms,
)
