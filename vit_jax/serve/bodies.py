"""Takes the images out of the body of a request, all of it in memory."""

import base64
import binascii
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from email import message
from email import parser
from email import utils
import json
from typing import NamedTuple

from starlette import exceptions

from vit_jax.config import UserError

_MOST_HEAD = 2**13  # bytes of the headers of a part of a form


class Upload(NamedTuple):
  """An image file of a request."""

  name: str  # for errors and in the reply
  file: bytes


def find_parser(
  content_type: str, most: int
) -> Callable[[bytes], list[Upload]] | None:
  """Returns the function that parses a body; None: the type is not taken.

  Args:
    content_type: The header Content-Type.
    most: Largest number of images. If a body has more, the function raises an
      HTTPException before it takes one of them.

  Raises:
    UserError: It is multipart, and has no boundary.
  """
  header = message.Message()
  header['content-type'] = content_type
  kind = header.get_content_type() if content_type else ''
  if kind.startswith('image/') or kind == 'application/octet-stream':
    return lambda body: [Upload('image 0', body)]
  if kind == 'application/json':
    return lambda body: _parse_json(body, most)
  if kind == 'multipart/form-data':
    try:
      boundary = header.get_boundary()
    except ValueError:  # a number of its parameter is too long
      boundary = None
    if not boundary:
      raise UserError('its Content-Type has no boundary')
    return lambda body: _parse_multipart(body, boundary, most)
  return None


def _check_count(count: int, most: int) -> None:
  if count > most:
    raise exceptions.HTTPException(
      413,
      f'there are {count} images, and a request may have {most}: ask again with'
      ' the others',
    )


def _parse_json(body: bytes, most: int) -> list[Upload]:
  """Returns the images of {"images": [base64, ...]}."""
  # base64 has no comma, so commas count the images. Millions of values never
  # become objects. A few more may be mistakes, which have errors of their own.
  if (commas := body.count(b',')) > 4 * most:
    _check_count(commas + 1, most)
  try:
    fields = json.loads(body)
  except (ValueError, RecursionError):
    raise UserError('the body is no JSON') from None
  images = fields.get('images') if isinstance(fields, Mapping) else None
  if not isinstance(images, list) or len(fields) > 1:
    raise UserError('the JSON must be {"images": [base64, ...]}')
  _check_count(len(images), most)
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


def _parse_multipart(body: bytes, boundary: str, most: int) -> list[Upload]:
  """Returns the files of a form (RFC 7578), whatever its fields are called.

  starlette's own parser would write larger files to the disk.
  """
  uploads = []
  for i, (headers, content) in enumerate(_parts(body, boundary, most)):
    try:
      name = headers.get_filename()
      field = utils.collapse_rfc2231_value(
        headers.get_param('name', '', 'content-disposition')
      )
      f'{name}{field}'.encode()  # charsets as UTF-7 may give half a character
    except ValueError:  # as of a charset that is none
      raise UserError('the headers of a part of the form are damaged') from None
    if name is None:
      raise UserError(f'the field {field} of the form is no file')
    uploads.append(Upload(name or f'image {i}', content))
  return uploads


def _parts(
  body: bytes, boundary: str, most: int
) -> Iterator[tuple[message.Message, bytes]]:
  """Yields headers and content of each part (RFC 2046, section 5.1)."""
  delimiter = b'\r\n--' + boundary.encode('latin-1', 'replace')
  body = b'\r\n' + body  # the first delimiter needs no line before it
  _check_count(body.count(delimiter) - 1, most)  # the last one ends the form
  _, *parts = body.split(delimiter)  # the text before the first is no part
  if not parts or not parts[-1].startswith(b'--'):
    raise UserError('the form has no end')
  for part in parts[:-1]:
    blank = part.find(b'\r\n\r\n', 0, _MOST_HEAD)
    if blank < 0:
      raise UserError(
        'a part of the form has no headers, or more than'
        f' {_MOST_HEAD >> 10} KiB of them'
      )
    headers = parser.HeaderParser().parsestr(
      part[:blank].decode(errors='replace').lstrip()
    )
    yield headers, part[blank + 4 :]
