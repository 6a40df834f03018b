"""Texts to tokens: CLIP's BPE, SentencePiece and WordPiece.

The libraries `tokenizers`, `sentencepiece` and `ftfy` do the work; here is what
each family does around them: cleaning, special tokens, truncation and padding.
"""

import abc
from collections.abc import Sequence
import functools
import gzip
import html
import importlib
import pathlib
import string
from typing import Any

import numpy as np

from vit_jax.config import UserError

# CLIP's vocabulary has 49,408 entries: 256 bytes, twice, the merges, and two
# special tokens; its file has more lines than that.
_MERGES = 49_408 - 2 * 256 - 2
_START, _END = '<|startoftext|>', '<|endoftext|>'
_PIECES = (
  r"(?i:<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d)"
  r'|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+'
)
_WORDS = 2**16  # remembered with their tokens
_NO_PUNCTUATION = str.maketrans('', '', string.punctuation)


class Tokenizer(abc.ABC):
  """Maps texts to a fixed number of tokens.

  Attributes:
    length: L, tokens of a text with the special ones.
    vocabulary: Number of different tokens.
    pad: What follows the last token.
    end: What a text that is cut ends with; None: with its last piece.
  """

  pad: int = 0
  end: int | None = None

  def __init__(self, length: int, vocabulary: int):
    self.length = length
    self.vocabulary = vocabulary

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Returns all tokens of a text with the special ones; nothing is cut."""

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
    """Reads the merges.

    Args:
      path: File of CLIP's merges, as bpe_simple_vocab_16e6.txt.gz: a line with
        a header, then a merge each.
      length: L.

    Raises:
      UserError: The file cannot be read, or a library is missing.
    """
    library, self._ftfy = _library('tokenizers'), _library('ftfy')
    merges = _merges(pathlib.Path(path))
    symbols = _byte_symbols()
    names = [*symbols, *(f'{x}</w>' for x in symbols)]
    names += [''.join(pair) for pair in merges] + [_START, _END]
    ids = {name: i for i, name in enumerate(names)}
    super().__init__(length, len(names))
    self._special = {name: ids[name] for name in (_START, _END)}
    self.end = ids[_END]
    try:
      self._model = library.models.BPE(ids, merges, end_of_word_suffix='</w>')
    except Exception as e:  # the library raises no narrower class
      raise UserError(f'{path} is no file of merges of CLIP: {e}') from None
    cut = library.pre_tokenizers
    self._split = cut.Sequence(
      [
        cut.Split(library.Regex(_PIECES), 'removed', invert=True),
        cut.ByteLevel(add_prefix_space=False, use_regex=False),
      ]
    )
    self._of_word = functools.lru_cache(_WORDS)(self._tokens)

  def clean(self, text: str) -> str:
    """Returns a text as the pieces are cut from it."""
    text = html.unescape(html.unescape(self._ftfy.fix_text(text)))
    return ' '.join(text.split()).lower()

  def encode(self, text: str) -> list[int]:
    """Returns start, the pieces, and end."""
    return self.encode_clean(self.clean(text))

  def encode_clean(self, text: str) -> list[int]:
    """Returns the same of a text that is clean."""
    tokens = [self._special[_START]]
    for word, _ in self._split.pre_tokenize_str(text):
      tokens += self._of_word(word)
    return [*tokens, self._special[_END]]

  def _tokens(self, word: str) -> list[int]:
    # As in CLIP's code, a special token that is spelled out is one.
    if word in self._special:
      return [self._special[word]]
    return [token.id for token in self._model.tokenize(word)]


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
    pad: int | None = None,
  ):
    """Reads a vocabulary.

    Args:
      path: A SentencePiece model, as spiece.model of google/siglip-*.
      length: L.
      canonical: Whether punctuation is removed, as in transformers and in
        prompts; captions in training are only lower-cased.
      pad: What follows the end token; None: the end token.

    Raises:
      UserError: The file cannot be read, or the library is missing.
    """
    library = _library('sentencepiece')
    _check_file(pathlib.Path(path))
    try:
      self._model = library.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as e:
      raise UserError(f'{path} is no SentencePiece model: {e}') from None
    super().__init__(length, self._model.get_piece_size())
    self._canonical = canonical
    end: int = self._model.eos_id()
    self.end = end
    self.pad = end if pad is None else pad

  def encode(self, text: str) -> list[int]:
    """Returns the pieces and the end token."""
    text = text.lower()
    if self._canonical:
      text = ' '.join(text.translate(_NO_PUNCTUATION).split())
    return [*self._model.encode(text), self._model.eos_id()]


class WordPiece(Tokenizer):
  """BERT's pieces, as LiT has them (arXiv:2111.07991).

  A text is [CLS], its pieces, and zeros; no [SEP] follows.
  """

  def __init__(self, path: str | pathlib.Path, length: int = 16):
    """Reads a vocabulary.

    Args:
      path: BERT's vocab.txt, with one piece a line.
      length: L.

    Raises:
      UserError: The file cannot be read, or the library is missing.
    """
    library = _library('tokenizers')
    lines = _text(pathlib.Path(path)).splitlines()
    ids = {piece: i for i, piece in enumerate(lines)}
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
    found = self._tokenizer.encode(text, add_special_tokens=False)
    return [self._first, *found.ids]


def _library(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError:
    raise UserError(
      f"texts need {name}: run pip install -e '.[text]'"
    ) from None


def _merges(path: pathlib.Path) -> list[tuple[str, str]]:
  """Returns the pairs of symbols that are merged, in order."""
  lines = _text(path).splitlines()[1 : _MERGES + 1]
  pairs = [tuple(line.split()) for line in lines if line.strip()]
  if not pairs or any(len(pair) != 2 for pair in pairs):
    raise UserError(
      f'{path} is no file of merges of CLIP: after the first line, each line'
      ' has two symbols'
    )
  return [(pair[0], pair[1]) for pair in pairs]


def _text(path: pathlib.Path) -> str:
  _check_file(path)
  try:
    read = path.read_bytes()
    return (gzip.decompress(read) if path.suffix == '.gz' else read).decode()
  except (OSError, EOFError, UnicodeDecodeError) as e:
    raise UserError(f'{path} cannot be read: {e}') from None


def _check_file(path: pathlib.Path) -> None:
  if not path.is_file():
    raise UserError(f'there is no vocabulary {path}')


def _byte_symbols() -> list[str]:
  """Returns a printable character for each byte, in CLIP's order.

  Bytes that are printable in Latin-1 come first and stand for themselves; the
  others are characters from U+0100 on.
  """
  shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = 256 - len(shown)
  return [chr(x) for x in [*shown, *range(256, 256 + others)]]
