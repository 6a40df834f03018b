"""Servers in memory that speak the protocols of S3 and of Google's storage."""

from collections.abc import Iterator
import contextlib
import logging

import pytest


@contextlib.contextmanager
def serving(scheme: str) -> Iterator[dict[str, str]]:
  """Yields the environment in which `SCHEME://` is in memory here."""
  yield from {'s3': _serve_s3, 'gs': _serve_gs}[scheme]()


def _serve_s3() -> Iterator[dict[str, str]]:
  pytest.importorskip('s3fs', reason='s3fs is not installed')
  moto = pytest.importorskip('moto.server', reason='moto is not installed')
  logging.getLogger('werkzeug').setLevel(logging.WARNING)
  server = moto.ThreadedMotoServer('127.0.0.1', 0, verbose=False)
  server.start()
  try:
    host, port = server.get_host_and_port()
    yield {
      'AWS_ENDPOINT_URL': f'http://{host}:{port}',
      'AWS_ACCESS_KEY_ID': 'nobody',
      'AWS_SECRET_ACCESS_KEY': 'nothing',
      'AWS_DEFAULT_REGION': 'us-east-1',
    }
  finally:
    server.stop()


def _serve_gs() -> Iterator[dict[str, str]]:
  pytest.importorskip('gcsfs', reason='gcsfs is not installed')
  emulator = pytest.importorskip(
    'gcp_storage_emulator.server', reason='gcp-storage-emulator is missing'
  )
  server = emulator.create_server('127.0.0.1', 0, in_memory=True)
  server.start()
  try:
    port = server._api._httpd.server_port
    yield {
      'STORAGE_EMULATOR_HOST': f'http://127.0.0.1:{port}',
      'NO_GCE_CHECK': 'true',  # no account is looked for in a network
    }
  finally:
    server.stop()
