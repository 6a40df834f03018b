"""Compares a file with what is known of its content."""

import hashlib
import os
import pathlib


def mismatch(
  path: pathlib.Path, size: int | None, algorithm: str, digest: str
) -> str:
  """Returns how a file differs from its announced version; '' if it does not.

  `size` may be None; `algorithm` is as hashlib names it, or '', and `digest`
  hexadecimal.
  """
  with path.open('rb') as content:
    stored = os.fstat(content.fileno()).st_size
    if size not in (None, stored):
      return f'wrong size: {stored:,} bytes, not {size:,}'
    if not algorithm:
      return ''
    computed = hashlib.file_digest(
      content, lambda: hashlib.new(algorithm, usedforsecurity=False)
    ).hexdigest()
  if computed == digest:
    return ''
  return f'wrong {algorithm}: {computed}, not {digest}'
