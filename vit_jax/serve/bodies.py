"""Takes the images out of the body of a request, all of it in memory."""

import base64
import binascii
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from email import message
from email import parser
import json
from typing import NamedTuple

from vit_jax.config import UserError


class Upload(NamedTuple):
  """An image file of a request."""

  name: str  # for errors and in the reply
  file: bytes


def find_parser(content_type: str) -> Callable[[bytes], list[Upload]] | None:
  """Returns the function that parses a body; None: the type is not taken.

  Args:
    content_type: The header Content-Type.

  Raises:
    UserError: It is multipart, and has no boundary.
  """
  header = message.Message()
  header['content-type'] = content_type
  kind = header.get_content_type() if content_type else ''
  if kind.startswith('image/') or kind == 'application/octet-stream':
    return lambda body: [Upload('image 0', body)]
  if kind == 'application/json':
    return _parse_json
  if kind == 'multipart/form-data':
    boundary = header.get_boundary()
    if not boundary:
      raise UserError('its Content-Type has no boundary')
    return lambda body: _parse_multipart(body, boundary)
  return None


def _parse_json(body: bytes) -> list[Upload]:
  """Returns the images of {"images": [base64, ...]}."""
  try:
    fields = json.loads(body)
  except (ValueError, RecursionError):
    raise UserError('the body is no JSON') from None
  images = fields.get('images') if isinstance(fields, Mapping) else None
  if not isinstance(images, list) or len(fields) > 1:
    raise UserError('the JSON must be {"images": [base64, ...]}')
  return [
    Upload(f'image {i}', _decoded(image, f'image {i}'))
    for i, image in enumerate(images)
  ]


def _decoded(image: object, name: str) -> bytes:
  try:
    if isinstance(image, str):
      return base64.b64decode(image, validate=True)
  except (binascii.Error, ValueError):
    pass
  raise UserError(f'{name} is no base64')


def _parse_multipart(body: bytes, boundary: str) -> list[Upload]:
  """Returns the files of a form (RFC 7578), whatever its fields are called.

  starlette's own parser would write larger files to the disk.
  """
  uploads = []
  for i, (headers, content) in enumerate(_parts(body, boundary)):
    name = headers.get_filename()
    if name is None:
      field = headers.get_param('name', header='content-disposition')
      raise UserError(f'the field {field} of the form is no file')
    uploads.append(Upload(name or f'image {i}', content))
  return uploads


def _parts(
  body: bytes, boundary: str
) -> Iterator[tuple[message.Message, bytes]]:
  """Yields headers and content of each part (RFC 2046, section 5.1)."""
  delimiter = b'\r\n--' + boundary.encode('latin-1', 'replace')
  # The first delimiter needs no line before it, and what is before is no part.
  _, *parts = (b'\r\n' + body).split(delimiter)
  if not parts or not parts[-1].startswith(b'--'):
    raise UserError('the form has no end')
  for part in parts[:-1]:
    head, blank, content = part.partition(b'\r\n\r\n')
    if not blank:
      raise UserError('a part of the form has no headers')
    headers = parser.HeaderParser().parsestr(
      head.decode(errors='replace').lstrip()
    )
    yield headers, content
