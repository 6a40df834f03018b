"""Makes the model card, the README.md of converted weights."""

from collections.abc import Sequence
import math
from typing import Any

import jax

from vit_jax import models
from vit_jax import weights
from vit_jax.models import describing
from vit_jax.models import values as values_lib
from vit_jax.models import vit

_MOST_NAMES = 20
_SIZES_OF_VITS = ('patch_size', 'hidden_size', 'depth', 'num_heads', 'mlp_dim')
# What the name of a published model says.
_SIZES = (
  *_SIZES_OF_VITS,
  *('patches', 'patches.stages', 'patches.width'),
  'block.tokens_mlp_dim',
  *('stages', 'stem_width', 'channels'),
)


def text(
  loaded: weights.Loaded,
  *,
  title: str,
  source: str,
  address: str,
  usage: Sequence[tuple[str, str]],
  notes: Sequence[str] = (),
) -> str:
  """Returns a model card in Markdown.

  Args:
    loaded: The model.
    title: Its heading.
    source: Path or address of the checkpoint that was converted.
    address: The path that `vit_jax.load` takes.
    usage: (name of a program, Python code that loads the model in it).
    notes: Warnings about differences, one sentence each.
  """
  lines = [f'# {title}', '', f'An image classifier, converted from `{source}`.']
  if not loaded.model.num_classes:
    lines[-1] = f'A model of image features, converted from `{source}`.'
  for note in notes:
    lines += ['', f'**Mind:** {note}.']
  lines += ['', '| | |', '|---|---|']
  lines += [f'| {key} | {value} |' for key, value in _facts(loaded)]
  loading_code = f"import vit_jax\nvit = vit_jax.load('{address}')"
  for program, code in (*usage, ('vit_jax', loading_code)):
    lines += ['', f'## With {program}', '', '```python', code, '```']
  lines += ['', '## Architecture', '', '| key | value |', '|---|---|']
  lines += [
    f'| {key} | {value} |' for key, value in _values(loaded.model).items()
  ]
  return '\n'.join(lines) + '\n'


def _facts(loaded: weights.Loaded) -> list[tuple[str, Any]]:
  preprocess = loaded.preprocess
  parameters = sum(math.prod(x.shape) for x in jax.tree.leaves(loaded.params))
  resize = preprocess.resize
  if preprocess.fill is not None and isinstance(resize, tuple):
    values = ', '.join(map(str, preprocess.fill))
    resized = f'to fit into {_by(resize)}, with a border of {values}'
  elif isinstance(resize, int):
    resized = f'to a short side of {resize}, then the middle is cut out'
  elif resize == preprocess.image_size:
    resized = 'to that size'
  elif resize is None:
    resized = 'to fill that size, then the middle is cut out'
  else:
    resized = f'to {_by(resize)}, then the middle is cut out'
  names, count = loaded.classes, loaded.model.num_classes
  classes = f'{count}, without names' if count else 'none: features come out'
  if count and names:
    listed = (name.replace('|', '\\|') for name in names[:_MOST_NAMES])
    dots = ', ...' if names[_MOST_NAMES:] else ''
    classes = f'{count}: {", ".join(listed)}{dots}'
  facts: list[tuple[str, Any]] = [
    ('parameters', f'{parameters:,}'),
    ('input (height x width)', _by(preprocess.image_size)),
    ('channels', preprocess.channels),
    ('images are resized', f'{resized} ({preprocess.interpolation})'),
    ('mean of pixels in [0, 1]', ', '.join(map(str, preprocess.mean))),
    ('standard deviation', ', '.join(map(str, preprocess.std))),
    ('classes', classes),
  ]
  # The name of the published model of these sizes, if there is one.
  name = describing.published_name(loaded.model)
  values_here = values_lib.model_values(loaded.model)
  published = values_lib.model_values(models.create_model(name))
  if all(values_here.get(x) == published.get(x) for x in _SIZES):
    facts.insert(0, ('model', name))
  if loaded.position_size != preprocess.image_size:
    facts.append(('positions are for', _by(loaded.position_size)))
  return facts


def _by(size: tuple[int, int]) -> str:
  return f'{size[0]} x {size[1]} pixels'


def _values(model: models.Model) -> dict[str, Any]:
  """Returns the model's sizes, and its values that are not the usual ones."""
  values = {'family': type(model).__name__, **values_lib.model_values(model)}
  if not isinstance(model, vit.ViT):
    hidden = None, False, getattr(model, 'class_defaults', {}).get('block')
    return {k: x for k, x in values.items() if x not in hidden}
  sizes = {key: values[key] for key in ('num_classes', *_SIZES_OF_VITS)}
  default_values = values_lib.model_values(
    models.create_model('ViT-S/16', **sizes)
  )
  changed = values_lib.differences(values, default_values)
  return sizes | {path: value for path, (value, _) in changed.items()}
