"""Texts to tokens: CLIP's BPE, SentencePiece, WordPiece, and plain words.

The libraries `tokenizers`, `sentencepiece` and `ftfy` do the work; here is what
each family does around them: cleaning, special tokens, truncation and padding.
`config.data.tokenizer` names one: 'words', 'KIND' of a published vocabulary, or
'KIND:FILE'.
"""

import abc
import collections
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import hashlib
import html
import pathlib
import re
import string
from typing import Any

import numpy as np

from vit_jax.config import explained
from vit_jax.config import import_package
from vit_jax.config import UserError
from vit_jax.data import vocabularies

# CLIP's vocabulary has 49,408 entries: 256 bytes, twice, the merges, and two
# special tokens; its file has more lines than that.
_MERGES = 49_408 - 2 * 256 - 2
_START, _END = '<|startoftext|>', '<|endoftext|>'
_PIECES = (
  r"(?i:<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d)"
  r'|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+'
)
_NO_PUNCTUATION = str.maketrans('', '', string.punctuation)

WORDS = 'words'
_WORDS_LENGTH = 32
_MOST_WORDS = 4096
_BYTES = 256


class Tokenizer(abc.ABC):
  """Maps texts to a fixed number of tokens."""

  pad: int = 0  # what follows the last token
  end: int | None = None  # ends a text that is cut; None: its last piece does

  def __init__(self, length: int, vocabulary: int):
    self.length = length  # L, tokens of a text with the special ones
    self.vocabulary = vocabulary  # number of different tokens

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Returns all tokens of a text with the special ones; nothing is cut."""

  @abc.abstractmethod
  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the text of tokens, cleaned and without special ones."""

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """Returns int32 [B, L]: longer texts are cut, shorter ones padded."""
    result = np.full((len(texts), self.length), self.pad, np.int32)
    for row, text in zip(result, texts, strict=True):
      tokens = self.encode(text)[: self.length]
      row[: len(tokens)] = tokens
      if self.end is not None and len(tokens) == self.length:
        row[-1] = self.end
    return result


class Clip(Tokenizer):
  """CLIP's byte pairs (arXiv:2103.00020, section 2.4, and its code).

  A text is start, pieces, end, zeros. Unicode is repaired and HTML unescaped
  before the text is lower-cased.
  """

  def __init__(self, path: str | pathlib.Path, length: int = 77):
    """Reads CLIP's merges, as bpe_simple_vocab_16e6.txt.gz."""
    library, self._ftfy = _library('tokenizers'), _library('ftfy')
    merges = _merges(pathlib.Path(path))
    symbols = _byte_symbols()
    names = [*symbols, *(f'{x}</w>' for x in symbols)]
    names += [''.join(pair) for pair in merges] + [_START, _END]
    ids = {name: i for i, name in enumerate(names)}
    super().__init__(length, len(names))
    self._start, self.end = ids[_START], ids[_END]
    self._names, self._bytes = names, symbols
    # The library raises no narrower class.
    with explained(f'{path} is no file of merges of CLIP', Exception):
      model = library.models.BPE(ids, merges, end_of_word_suffix='</w>')
    self._tokenizer = library.Tokenizer(model)
    cut = library.pre_tokenizers
    self._tokenizer.pre_tokenizer = cut.Sequence(
      [
        cut.Split(library.Regex(_PIECES), 'removed', invert=True),
        cut.ByteLevel(add_prefix_space=False, use_regex=False),
      ]
    )
    # As in CLIP's code, a special token that is spelled out is one.
    self._tokenizer.add_special_tokens([_START, _END])

  def clean(self, text: str) -> str:
    """Returns a text as the pieces are cut from it."""
    text = html.unescape(html.unescape(self._ftfy.fix_text(text)))
    return ' '.join(text.split()).lower()

  def encode(self, text: str) -> list[int]:
    """Returns start, the pieces, and end."""
    return self.encode_clean(self.clean(text))

  def encode_clean(self, text: str) -> list[int]:
    """Returns the same of a text that is clean."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return [self._start, *encoding.ids, self.end]

  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the text up to the first end token."""
    ids = list(tokens)
    ids = ids[: ids.index(self.end)] if self.end in ids else ids
    pieces = (self._names[i] for i in ids if i != self._start)
    text = ''.join(pieces).replace('</w>', ' ')
    stored = bytes(self._bytes.get(x, ord(' ')) for x in text)
    return stored.decode(errors='replace').strip()


class SentencePiece(Tokenizer):
  """SigLIP's pieces (arXiv:2303.15343, its code in big_vision).

  A text is its pieces and an end token, which also fills the rest. The towers
  attend to all of them.
  """

  def __init__(
    self,
    path: str | pathlib.Path,
    length: int = 64,
    *,
    canonical: bool = True,
  ):
    """Reads a SentencePiece model, as spiece.model of google/siglip-*.

    `canonical` removes punctuation, as in transformers and in prompts; captions
    in training are only lower-cased.
    """
    library = _library('sentencepiece')
    vocabularies.check_file(pathlib.Path(path))
    with explained(f'{path} is no SentencePiece model', OSError, RuntimeError):
      self._model = library.SentencePieceProcessor(model_file=str(path))
    super().__init__(length, self._model.get_piece_size())
    self._canonical = canonical
    end: int = self._model.eos_id()
    self.end = self.pad = end

  def encode(self, text: str) -> list[int]:
    """Returns the pieces and the end token."""
    text = text.lower()
    if self._canonical:
      text = ' '.join(text.translate(_NO_PUNCTUATION).split())
    return [*self._model.encode(text), self._model.eos_id()]

  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the pieces without end tokens."""
    ids = [int(i) for i in tokens if i != self.end]
    return self._model.decode(ids)


class WordPiece(Tokenizer):
  """BERT's pieces, as LiT has them (arXiv:2111.07991).

  A text is [CLS], its pieces, and zeros; no [SEP] follows.
  """

  def __init__(self, path: str | pathlib.Path, length: int = 16):
    """Reads BERT's vocab.txt, with one piece a line."""
    library = _library('tokenizers')
    # A piece may be a character at which `splitlines` cuts, as U+2028.
    lines = vocabularies.read_text(pathlib.Path(path)).split('\n')
    if not lines[-1]:
      lines.pop()
    ids = {piece.removesuffix('\r'): i for i, piece in enumerate(lines)}
    for name in ('[PAD]', '[UNK]', '[CLS]'):
      if name not in ids:
        raise UserError(f'{path} is no vocabulary of BERT: it has no {name}')
    super().__init__(length, len(ids))
    self.pad, self._first = ids['[PAD]'], ids['[CLS]']
    model = library.models.WordPiece(ids, unk_token='[UNK]')
    self._tokenizer = library.Tokenizer(model)
    self._tokenizer.normalizer = library.normalizers.BertNormalizer()
    self._tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()

  def encode(self, text: str) -> list[int]:
    """Returns [CLS] and the pieces."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return [self._first, *encoding.ids]

  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the pieces; pieces of one word are joined."""
    special = (self.pad, self._first)
    pieces = [
      self._tokenizer.id_to_token(i) for i in tokens if i not in special
    ]
    return ' '.join(pieces).replace(' ##', '')


class Words(Tokenizer):
  """Whole words, for small sets of captions; unknown words are bytes.

  A text is its words in lower case and an end token. Numbers: 0 is padding, 1
  to 256 are bytes, then come the words; the last one ends a text, so that a
  tower which reads the largest token reads the end.
  """

  def __init__(self, words: Sequence[str] = (), length: int = _WORDS_LENGTH):
    first = 1 + _BYTES
    super().__init__(length, first + len(words) + 1)
    self._ids = {word: first + i for i, word in enumerate(words)}
    self._names = {i: word for word, i in self._ids.items()}
    self.end = first + len(words)

  def encode(self, text: str) -> list[int]:
    """Returns the tokens of the words, and the end token."""
    tokens: list[int] = []
    for word in _words(text):
      token = self._ids.get(word)
      if token is None:
        tokens += [1 + byte for byte in word.encode()]
      else:
        tokens.append(token)
    return [*tokens, self.vocabulary - 1]

  def decode(self, tokens: Sequence[int]) -> str:
    """Returns the words, with spaces between them."""
    parts: list[bytes] = []
    for i in tokens:
      if 1 <= i <= _BYTES:
        parts.append(bytes([i - 1]))
      elif i in self._names:
        parts.append(b' ' + self._names[i].encode() + b' ')
    return ' '.join(b''.join(parts).decode(errors='replace').split())


def common_words(texts: Iterable[str]) -> tuple[str, ...]:
  """Returns the words of texts for `Words`, the most frequent first."""
  counts = collections.Counter(word for text in texts for word in _words(text))
  order = sorted(counts, key=lambda word: (-counts[word], word))
  return tuple(order[:_MOST_WORDS])


def _words(text: str) -> list[str]:
  return re.findall(r'\w+|[^\w\s]', text.lower())


def check_name(name: str) -> None:
  """Checks a value of `config.data.tokenizer`, without opening a file."""
  if name != WORDS and not vocabularies.is_name(name):
    published = ', '.join(map(repr, vocabularies.PUBLISHED))
    raise UserError(
      f'config.data.tokenizer is {name!r}: write {WORDS!r} (the words of the'
      f' captions), a published vocabulary ({published}), or a file of one of'
      " these kinds, as in 'clip:FILE'"
    )


def sizes(name: str, length: int | None) -> tuple[int, int]:
  """Returns the tokens of a text and a vocabulary, without opening a file."""
  if name == WORDS:
    return length or _WORDS_LENGTH, 1 + _BYTES + _MOST_WORDS + 1
  published = vocabularies.PUBLISHED[vocabularies.kind(name)]
  return length or published.length, published.entries


@functools.lru_cache(maxsize=8)
def make(
  name: str, length: int | None = None, words: tuple[str, ...] = ()
) -> Tokenizer:
  """Returns a tokenizer by its name; 'words' knows the `words`."""
  check_name(name)
  if name == WORDS:
    return Words(words, length or _WORDS_LENGTH)
  kind, path = vocabularies.kind(name), vocabularies.fetch(name)
  length = sizes(name, length)[0]
  family: Any = {
    'clip': Clip,
    'sentencepiece': SentencePiece,
    'wordpiece': WordPiece,
  }[kind]
  return family(path, length)


@functools.lru_cache(maxsize=8)
def digest(name: str, words: tuple[str, ...] = ()) -> str:
  """Returns a digest of a vocabulary, 16 hexadecimal digits."""
  result = hashlib.blake2b(digest_size=8)
  if name == WORDS:
    result.update('\n'.join(words).encode())
  else:
    result.update(vocabularies.read(vocabularies.fetch(name)))
  return result.hexdigest()


def _library(name: str) -> Any:
  return import_package('a text', name, 'text')


def _merges(path: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the pairs of symbols that are merged, in order."""
  lines = vocabularies.read_text(path).splitlines()[1 : _MERGES + 1]
  pairs = [tuple(line.split()) for line in lines if line.strip()]
  if not pairs or any(len(pair) != 2 for pair in pairs):
    raise UserError(
      f'{path} is no file of merges of CLIP: after the first line, each line'
      ' has two symbols'
    )
  return [(pair[0], pair[1]) for pair in pairs]


def _byte_symbols() -> dict[str, int]:
  """Returns the byte of each printable character, in CLIP's order.

  Bytes that are printable in Latin-1 come first and stand for themselves; the
  others are characters from U+0100 on.
  """
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  hidden = sorted(set(range(256)) - set(printable))
  symbols = [*printable, *range(256, 256 + len(hidden))]
  return dict(zip(map(chr, symbols), [*printable, *hidden], strict=True))
