"""An image tower and a text tower, of a run or of a file, applied."""

import pathlib
from typing import Any
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.config import UserError
from vit_jax.data import text_kind
from vit_jax.data import tokenizers
from vit_jax.models import two_towers
from vit_jax.weights import quantized
from vit_jax.weights import two_towers as files

if TYPE_CHECKING:
  from vit_jax import weights

# Names of published vocabularies, and the tokenizers that read them.
_VOCABULARIES = {
  'merges.txt': 'clip',
  'bpe_simple_vocab_16e6.txt.gz': 'clip',
  'spiece.model': 'sentencepiece',
  'vocab.txt': 'wordpiece',
}
# Parameters of the towers; others say how their embeddings are compared.
_TOWERS = ('image', 'text')


class Towers:
  """Applies two towers.

  In comments: B images, C texts, T tokens, E the size of an embedding.

  Attributes:
    towers: The Linen module.
    text: The feature of texts.
  """

  towers: two_towers.TwoTowers
  text: text_kind.Text

  def outputs(
    self, params: Any, batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns `features` of images, and `text_features` of captions, [B, E].

    They have unit length.
    """
    outputs = {'features': self.embed(params, 'image', batch['image'])}
    if 'text' in batch:
      outputs |= self.text_outputs(params, batch['text'])
    return outputs

  def text_outputs(
    self, params: Any, tokens: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns `text_features` [C, E] of tokens, int32 [C, T]."""
    return {'text_features': self.embed(params, 'text', tokens)}

  def embed(
    self, params: Any, name: str, x: jax.Array, **kwargs: Any
  ) -> jax.Array:
    """Returns the embeddings [B, E] of images or tokens.

    `name` is 'image' or 'text', and `x` what that tower takes.
    """
    outputs: Any = self.towers.apply(
      {'params': params}, x, method=f'embed_{name}s', **kwargs
    )
    embedding: jax.Array = outputs['embedding']
    return embedding

  def probabilities(
    self, params: Any, images: jax.Array, texts: jax.Array
  ) -> jax.Array:
    """Returns the probability of each text for each image, float32 [B, C].

    With CLIP's softmax an image's add up to 1; with SigLIP's sigmoid each pair
    has its own. `images` and `texts` are `features` and
    `text_features`.
    """
    shared_params = {k: params[k] for k in params if k not in _TOWERS}
    logits: Any = self.towers.apply(
      {'params': shared_params}, images, texts, method='logits'
    )
    probabilities = jax.nn.sigmoid if self.towers.has_bias else jax.nn.softmax
    return jnp.asarray(probabilities(logits))


class _FileTowers(Towers):
  def __init__(self, read: files.Towers, text: text_kind.Text):
    self.towers, self.text = read.model, text


def from_loaded(loaded: 'weights.Loaded') -> tuple[Towers, Any] | None:
  """Returns both towers of the file that a model is from, and its parameters.

  None: the file has no text tower. `loaded` is the image tower, as it was read.
  """
  path = pathlib.Path(loaded.origin.path)
  if not path.exists() or not files.holds(path):
    return None
  if loaded.changes:
    raise UserError(
      f'{path} has two towers, which are used as they were trained: leave'
      ' --image_size and --model out'
    )
  read = files.load(path)
  if read.model.any_grid:
    raise UserError(
      f'{path} takes images as patches of any grid, which this command does'
      ' not make: choose a model for images of one size'
    )
  params = read.params
  if quantized.is_quantized(loaded.params):
    params = quantized.quantize(params)
  return _FileTowers(read, _text(path, read.model.text)), params


def _text(path: pathlib.Path, tower: Any) -> text_kind.Text:
  folder = path if path.is_dir() else path.parent
  paths = [folder / name for name in _VOCABULARIES if (folder / name).is_file()]
  if not paths:
    raise UserError(
      f'{folder} has no vocabulary for the texts of {path.name}: bring'
      f' {" or ".join(_VOCABULARIES)} of this checkpoint'
    )
  name = f'{_VOCABULARIES[paths[0].name]}:{paths[0]}'
  tokenizer = tokenizers.make(name, tower.length)
  if tokenizer.vocabulary != tower.vocabulary:
    raise UserError(
      f'{paths[0]} has {tokenizer.vocabulary:,} tokens, but'
      f' the text tower of {path} {tower.vocabulary:,}: bring the vocabulary'
      ' of this checkpoint'
    )
  return text_kind.Text(
    tokenizer.length, tokenizer.vocabulary, name, tokenizers.digest(name)
  )
