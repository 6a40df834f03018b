"""Files of vocabularies: published ones are downloaded once, others are read.

A name is 'KIND', one of `PUBLISHED`, or 'KIND:FILE' with a file of that kind.
"""

from collections.abc import Mapping
import dataclasses
import gzip
import pathlib
import time
import zlib

from vit_jax.config import explained
from vit_jax.config import UserError
from vit_jax.downloads import places
from vit_jax.downloads import transfer
from vit_jax.runs import safe_io


@dataclasses.dataclass(frozen=True)
class Published:
  """A published vocabulary."""

  length: int  # tokens of a text, as its model was trained
  entries: int  # number of different tokens
  url: str  # address of the file; a path is one on the Hugging Face Hub
  sha256: str


# By kind of tokenizer. The digests let any mirror be used.
PUBLISHED: Mapping[str, Published] = {
  # CLIP's byte pairs.
  'clip': Published(
    77,
    49_408,
    'https://raw.githubusercontent.com/openai/CLIP/main/clip/'
    'bpe_simple_vocab_16e6.txt.gz',
    '924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a',
  ),
  # SigLIP's pieces, of English.
  'sentencepiece': Published(
    64,
    32_000,
    'google/siglip-base-patch16-224/resolve/main/spiece.model',
    '1e5036bed065526c3c212dfbe288752391797c4bb1a284aa18c9a0b23fcaf8ec',
  ),
  # BERT's pieces of lower-case English, which LiT has.
  'wordpiece': Published(
    16,
    30_522,
    'google-bert/bert-base-uncased/resolve/main/vocab.txt',
    '07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3',
  ),
}


def is_name(name: str) -> bool:
  """Whether this is 'KIND' or 'KIND:FILE'."""
  kind_name, colon, path = name.partition(':')
  return kind_name in PUBLISHED and bool(path) == bool(colon)


def kind(name: str) -> str:
  """Returns the kind of a name, a key of `PUBLISHED`."""
  return name.partition(':')[0]


def fetch(name: str) -> pathlib.Path:
  """Returns the file of a vocabulary; downloads a published one if needed."""
  kind_name, _, path = name.partition(':')
  if path:
    return places.expand(path)
  vocabulary = PUBLISHED[kind_name]
  url = vocabulary.url
  if '://' not in url:
    url = f'{places.hub()}/{url}'
  target = places.cache() / 'vocabularies' / pathlib.PurePosixPath(url).name
  copy_hint = f"name a copy of it, as config.data.tokenizer='{kind_name}:FILE'"
  file = transfer.File(
    url,
    target,
    by_hand=f'download it where there is a network and put it at {target}, or'
    f' {copy_hint}',
    refused=f'access was refused; {copy_hint}',
    missing=copy_hint,
    sha256=vocabulary.sha256,
  )
  return transfer.download(file, time.sleep)


def read(path: pathlib.Path) -> bytes:
  """Returns the content of a file, unpacked if it is compressed."""
  check_file(path)
  with explained(f'{path} cannot be read', OSError, EOFError, zlib.error):
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == '.gz' else content


def read_text(path: pathlib.Path) -> str:
  """Returns the same as text."""
  with explained(f'{path} cannot be read', UnicodeDecodeError):
    return safe_io.decoded(read(path))


def check_file(path: pathlib.Path) -> None:
  """Raises a UserError where there is no such file."""
  if not path.is_file():
    raise UserError(f'there is no vocabulary {path}')
