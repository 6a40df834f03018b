"""Measures `vit_jax.serve`: clients of this machine, against the bare model.

The server is a process of its own, and so are its clients, in threads of this
one. The bare model applies to full batches that are decoded already. All share
the same cores, and take turns.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any
import urllib.parse

import jax
import ml_collections
import numpy as np
import psutil

from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.data import features as features_lib
from vit_jax.evaluation import loaded as loaded_lib
from vit_jax.weights.formats import export

Entry = dict[str, Any]

CLIENTS = (1, 8, 64)
_BARE = 'bare'
_FILES = 64  # different images that are sent
_LEAST_IMAGES = 128  # of a block: two of each client
_MEAN, _STD = (0.5,), (0.5,)


class _Lost(Exception):
  """A request has no answer."""


def measure(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Returns an entry for each number of clients.

  Beside the rates of images, each has the median and the 99th percentile of a
  request's milliseconds, and the memory of the server after the blocks.

  Args:
    config: The config of a plain ViT, whose data are a folder. The largest
      batch is `train.batch_size`.
    blocks: Number of timed blocks.

  Raises:
    RuntimeError: The server did not start.
  """
  loaded, files = _model(config), _files(config)
  size = config.train.batch_size
  run_bare = _bare(loaded, files, size)
  steps = max(timing.steps_per_block([run_bare]), -(-_LEAST_IMAGES // size))
  latencies: dict[int, list[float]] = {count: [] for count in CLIENTS}
  with _serving(loaded, size) as (address, process):

    def run_clients(count: int) -> None:
      latencies[count] += _ask(address, files, count, steps * size)

    functions: dict[str, Callable[[], Any]] = {_BARE: lambda: run_bare(steps)}
    for count in CLIENTS:
      functions[_name(count)] = functools.partial(run_clients, count)
    times = timing.in_turns(functions, blocks)
    memory = psutil.Process(process.pid).memory_info().rss / 2**20
  entry: Entry = {}
  for count in CLIENTS:
    measured = latencies[count][steps * size :]  # after the warm-up
    entry[_name(count)] = {
      **timing.compare(times[_name(count)], times[_BARE], steps * size),
      'against': 'the bare model',
      'milliseconds': 1e3 * float(np.median(measured)),
      'milliseconds_p99': 1e3 * float(np.percentile(measured, 99)),
      'memory_mb': memory,
    }
  return entry


def _name(clients: int) -> str:
  return config_lib.counted(clients, 'client')


def _model(config: ml_collections.ConfigDict) -> weights.Loaded:
  """Returns the model of a config, with initial parameters."""
  count = config.model.num_classes or 10
  model = models.from_config(config.model, count, config.train.dtype)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  channels = config.data.channels
  params = models.init_params(model, jax.random.key(0), (*size, channels))
  preprocess = data.Preprocess((), size, channels, _MEAN, _STD, min(size))
  return weights.Loaded(model, params, preprocess, size, 'corner')


def _bare(
  loaded: weights.Loaded, files: Sequence[bytes], batch_size: int
) -> Callable[[int], None]:
  """Returns a function that applies the model to batches, as often as it says.

  It normalises images that are decoded and cropped, as the server does.
  """
  config = loaded.preprocess.to_config()
  config.train.batch_size = batch_size
  chosen = [*itertools.islice(itertools.cycle(files), batch_size)]
  batch = {'image': loaded.preprocess.pixels(chosen)}
  trunk = loaded_lib.Trunk(loaded.model)
  applied = loaded_lib.Applied(trunk, loaded.params, config)
  features = {'image': features_lib.Image(None)}

  def logits(objective: Any, params: Any, batch: Any) -> jax.Array:
    result: jax.Array = objective.model.apply(
      {'params': params}, batch['image']
    )
    return result

  def run(steps: int) -> None:
    for _ in range(steps):
      list(applied(logits, features, [(None, batch)]))

  return run


def _files(config: ml_collections.ConfigDict) -> list[bytes]:
  folder = pathlib.Path(config.data.name.removeprefix('folder:'))
  paths = itertools.islice(sorted(folder.rglob('*.jpg')), _FILES)
  return [path.read_bytes() for path in paths]


@contextlib.contextmanager
def _serving(
  loaded: weights.Loaded, batch_size: int
) -> Iterator[tuple[str, 'subprocess.Popen[str]']]:
  """Yields the address of a server of a model, and its process."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'model')
    export.write(loaded, path, 'timm', 'initial parameters')
    command = [sys.executable, '-m', 'vit_jax.serve', f'--from={path}']
    command += ['--port=0', f'--batch_size={batch_size}']
    with subprocess.Popen(
      command, stdout=subprocess.PIPE, text=True
    ) as process:
      try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
          raise RuntimeError(f'{command!r} ended')
        yield address, process
      finally:
        process.terminate()


def _ask(
  address: str, files: Sequence[bytes], clients: int, images: int
) -> list[float]:
  """Sends images, one a request; returns the seconds of the requests.

  Args:
    address: Of the server.
    files: What is sent, in turns.
    clients: Number of clients, each with a connection of its own.
    images: Number of requests of all clients together.

  Raises:
    _Lost: A request is not answered.
  """
  host = urllib.parse.urlsplit(address).netloc

  def run(number: int) -> list[float]:
    seconds = []
    with contextlib.closing(http.client.HTTPConnection(host)) as connection:
      for i in range(number, images, clients):
        start = time.perf_counter()
        connection.request(
          'POST',
          '/predict',
          files[i % len(files)],
          {'Content-Type': 'image/jpeg'},
        )
        response = connection.getresponse()
        body = response.read()
        if response.status != 200 or len(json.loads(body)['results']) != 1:
          raise _Lost(f'{response.status}: {body[:200]!r}')
        seconds.append(time.perf_counter() - start)
    return seconds

  with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    return [x for part in pool.map(run, range(clients)) for x in part]
