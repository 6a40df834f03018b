"""Finds a checkpoint in the table of "How to train your ViT?".

The paper is arXiv:2106.10270. Its table has one row for each fine-tuned model,
and so several rows for each pre-trained model.
"""

import csv
import io
import re

from vit_jax.config import UserError
from vit_jax.runs import safe_io
from vit_jax.weights import download

ROOT = 'gs://vit_models/augreg'
INDEX = f'{ROOT}/index.csv'
_PRETRAINED = 'i21k'


def find(model: str) -> tuple[str, str]:
  """Returns the name and the address of the checkpoint of a model.

  `B/16`, `R26+S/32`, ... is the ImageNet-21k checkpoint with the best
  final_val, which the authors recommend; or it is a file name in the table,
  with or without .npz.
  """
  if '-' in model:
    filename = model.removesuffix('.npz')
    return _name(filename.split('-')[0]), f'{ROOT}/{filename}.npz'
  name = _name(model)
  path = download.fetch(INDEX)
  candidates = []
  try:
    with io.StringIO(safe_io.read_text(path), newline='') as file:
      table = csv.DictReader(file)
      if 'final_val' not in (table.fieldnames or ()):
        raise ValueError('it has no column final_val')
      for row in table:
        if row['ds'] == _PRETRAINED and _name(row['name']) == name:
          candidates.append((float(row['final_val']), row['filename']))
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(
      f'{path} is not the table of AugReg ({e}): remove it, and it is'
      ' downloaded again'
    ) from None
  if not candidates:
    raise UserError(
      f'{path} has no model {model!r} pre-trained on ImageNet-21k'
    )
  return name, f'{ROOT}/{max(candidates)[1]}.npz'


def _name(model: str) -> str:
  """Returns `R26+ViT-S/32` for `R26+S/32` and for `R26_S_32`."""
  match = re.fullmatch(r'(?:(R\d*)[+_])?(Ti|S|B|L)[/_](\d+)', model)
  if match is None:
    raise UserError(
      f'{model!r} is no model of AugReg: write one as B/16 or R26+S/32, or a'
      ' file name of its index.csv'
    )
  stem = f'{match[1]}+' if match[1] else ''
  return f'{stem}ViT-{match[2]}/{match[3]}'
