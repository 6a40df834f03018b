"""The address that a server listens at; imports no server yet."""

import socket

from absl import flags
from absl import logging

from vit_jax.config import UserError

_EVERYWHERE = ('0.0.0.0', '::')


def define(
  flag_values: flags.FlagValues,
) -> tuple[flags.FlagHolder[str], flags.FlagHolder[int]]:
  """Defines and returns `--host` and `--port`, for `listen`."""
  host = flags.DEFINE_string(
    'host',
    '127.0.0.1',
    'Address to listen at. 0.0.0.0 lets other machines in.',
    flag_values=flag_values,
  )
  port = flags.DEFINE_integer(
    'port',
    8000,
    'Port to listen at. 0: any free port.',
    lower_bound=0,
    upper_bound=65535,
    flag_values=flag_values,
  )
  return host, port


def listen(host: str, port: int) -> socket.socket:
  """Returns a socket that listens at an address.

  Args:
    host: An address of this machine, or a name for one.
    port: Port; 0: any free port.
  """
  try:
    family, *_, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family)
  except (OSError, UnicodeError) as e:  # the latter for an invalid name
    reason = (
      e.strerror if isinstance(e, OSError) else 'that is no name of a host'
    )
    raise UserError(
      f'--host={host} --port={port} cannot be listened at: {reason}; give'
      ' another, or --port=0 for any that is free'
    ) from None


def public_name(host: str, subject: str) -> str:
  """Returns the name of this machine that others use for `--host`.

  Warns if others can reach it; `subject` is what they can use, as 'the page'.
  """
  if host not in _EVERYWHERE:
    return host
  logging.warning('everyone who reaches this machine can use %s', subject)
  return socket.gethostname()


def url(name: str, listener: socket.socket) -> str:
  """Returns the address of a listener, with a name of its machine."""
  name = f'[{name}]' if ':' in name else name
  return f'http://{name}:{listener.getsockname()[1]}/'
