"""Writes two towers as other programs do, for what reads them."""

import re

import jax
import numpy as np

from vit_jax.weights.formats import google
from vit_jax.weights.formats import google_towers
from vit_jax.weights.formats import huggingface_clip
from vit_jax.weights.formats import tables


def google_arrays(model, params, kind, stacked):
  """Returns the arrays of a file.

  Args:
    model: The towers.
    params: Their parameters, layers unrolled.
    kind: `google_towers.LIT` or `BIG_VISION`.
    stacked: Whether equal layers are one array, as in big_vision with scan.
  """
  is_lit = kind == google_towers.LIT
  arrays, stacks = {}, {}
  for name, array in tables.write(google_towers.rules(model), params):
    if not (is_lit and name.endswith(google.POSITIONS)):
      name = google_towers.stored_name(google.newer(name))
    name = name if is_lit else google_towers.PREFIX + name
    match = re.fullmatch(r'(.*encoderblock)_\d+(/.*)', name)
    if match and stacked:  # layers come in order
      stacks.setdefault(match[1] + match[2], []).append(array)
    else:
      arrays[name] = array
  return arrays | {name: np.stack(layers) for name, layers in stacks.items()}


def transformers_arrays(model, params):
  """Returns the arrays of a file of parameters whose layers are unrolled."""
  rules = huggingface_clip.rules(model)
  return dict(tables.write(rules, jax.device_get(params)))
