"""Tokenizers of CLIP and SigLIP."""

import hashlib
import html
import importlib.util
import json
import pathlib

import numpy as np

from vit_jax.data import tokenizers
from vit_jax.weights import download


def _texts(case):
  path = case.file('.json')
  return json.loads(path.read_text())['texts']


def _merges(case):
  """Returns the case's vocabulary: its own, open_clip's, or a download."""
  if path := case.file('.gz'):
    return path
  vocabulary = case.fields['dims']['vocabulary']
  spec = importlib.util.find_spec('open_clip')  # does not import it
  if spec:
    name = pathlib.Path(vocabulary['url']).name
    path = pathlib.Path(spec.origin).with_name(name)
  else:
    path = download.fetch(vocabulary['url'])
  if hashlib.sha256(path.read_bytes()).hexdigest() != vocabulary['sha256']:
    raise ValueError(f'{path} is not the vocabulary of this case')
  return path


def clip(case):
  """Tokens, and which texts need each part of the cleaning."""
  # Here, so that other cases need no extra [text].
  import ftfy
  from tokenizers import normalizers

  length = case.fields['dims']['context_length']
  tokenizer = tokenizers.Clip(_merges(case), length)
  texts = _texts(case)
  token_lists = [tokenizer.encode(text) for text in texts]

  def differs(clean):
    return np.array(
      [
        tokenizer.encode_clean(' '.join(clean(text).split()).lower()) != tokens
        for text, tokens in zip(texts, token_lists, strict=True)
      ]
    )

  normalizer = normalizers.Sequence(
    [normalizers.NFC(), normalizers.Lowercase()]
  )
  return {
    'ids': tokenizer(texts),
    'lengths': [len(tokens) for tokens in token_lists],
    'needs_ftfy': differs(lambda x: html.unescape(html.unescape(x))),
    'needs_html': differs(ftfy.fix_text),
    'hf_differs': differs(normalizer.normalize_str),
  }


def siglip(case):
  """Tokens of prompts, and of captions in training."""
  length = case.fields['dims']['max_len']
  path, texts = case.file('.model'), _texts(case)
  return {
    'hf_ids': tokenizers.SentencePiece(path, length)(texts),
    'bv_ids': tokenizers.SentencePiece(path, length, canonical=False)(texts),
  }


CHECKS = {
  'clip_tokenizer': clip,
  'clip_tokenizer_tiny': clip,
  'siglip_tokenizer_tiny': siglip,
}
