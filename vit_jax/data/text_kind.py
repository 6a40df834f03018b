"""The kind of feature that captions are."""

from collections.abc import Sequence
import dataclasses
from typing import ClassVar

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import tokenizers
from vit_jax.data.features import Target


@dataclasses.dataclass(frozen=True)
class Text(Target):
  """A caption as tokens, int32 [T].

  A source has the captions of an example as strings, at least one. Training
  draws one of them at each step; evaluation takes the first, and retrieval all.
  """

  length: int = 0  # T; 0: there is no tokenizer yet
  vocabulary: int = 0  # number of different tokens
  tokenizer: str = ''  # as `config.data.tokenizer`
  digest: str = ''  # of the vocabulary, from `tokenizers.digest`
  words: tuple[str, ...] = ()  # words that the tokenizer 'words' knows
  cuts: bool = True  # whether longer captions are cut; False: they are refused
  dtype: ClassVar[np.dtype] = np.dtype(np.int32)
  plural: ClassVar[str] = 'captions'
  can_mix: ClassVar[bool] = False

  @property
  def shape(self) -> tuple[int, ...]:
    """One number for each token."""
    return (self.length,)

  def draw(
    self, value: Sequence[str], key: tuple[int, ...] | None
  ) -> Sequence[str]:
    """Returns one of the captions, as a sequence."""
    if key is None or len(value) < 2:
      return value[:1]
    return [value[int(np.random.default_rng(key).integers(len(value)))]]

  def encode(self, value: Sequence[str], origin: str) -> np.ndarray:
    """Returns the tokens of the first caption."""
    text = value[0] if len(value) else ''
    if not text.strip():
      raise UserError(
        f'{origin}: the caption is empty: write one, or leave the example out'
      )
    return self.encode_all([text], origin)[0]

  def encode_all(self, texts: Sequence[str], origin: str) -> np.ndarray:
    """Returns the tokens of texts, int32 [B, T]."""
    tokenizer = self._tokenizer()
    if not all(text.strip() for text in texts):
      raise UserError(f'{origin}: a text is empty: write it, or leave it out')
    if not self.cuts:
      for text in texts:
        count = len(tokenizer.encode(text))
        if count > self.length:
          raise UserError(
            f'{origin}: {text[:40]!r} has {count} tokens, and the text tower'
            f' {self.length}: shorten it, or set config.data.text_length or'
            " config.data.text_too_long='cut'"
          )
    return tokenizer(texts)

  def decode(self, tokens: np.ndarray) -> str:
    """Returns the text of tokens, int32 [T]."""
    return self._tokenizer().decode(tokens.tolist())

  def _tokenizer(self) -> tokenizers.Tokenizer:
    return tokenizers.make(self.tokenizer, self.length, self.words)

  def show(self, value: np.ndarray) -> list[str]:
    """Returns the caption."""
    return [self.decode(value)]

  def check_vocabulary(self) -> None:
    """Checks that the vocabulary is the one that this feature was made with."""
    file_digest = tokenizers.digest(self.tokenizer, self.words)
    if file_digest != self.digest:
      raise UserError(
        f'{self.tokenizer} is not the vocabulary of the model: its hash is'
        f' {file_digest}, and was {self.digest}; bring that file back'
      )
