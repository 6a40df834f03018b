"""Whole models of segmentation in the names of mmsegmentation and MONAI.

A file has the trunk and its heads. In mmsegmentation the trunk is its
`VisionTransformer`, with a class token and `final_norm=True`, whose last norm
SETR does not use; in MONAI it is that of `UNETR`.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from flax import traverse_util
import jax
import numpy as np

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import layouts
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights.files import containers
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import mmseg
from vit_jax.weights.formats import monai
from vit_jax.weights.formats import tables


@dataclasses.dataclass(frozen=True)
class _Format:
  """Names of a program.

  Attributes:
    program: Its name, for messages.
    rules: The table of the objective's parameters.
    ignored: Regular expression for names in files that are not needed.
    optional: Paths of ours that a file may lack, with their values then.
  """

  program: str
  rules: list[tables.Rule]
  ignored: str
  optional: Mapping[str, float]


FORMATS: Mapping[str, _Format] = {
  'mmseg': _Format(
    'mmsegmentation',
    [
      *tables.below(mmseg.TRUNK, 'trunk/', 'backbone.'),
      *tables.below(mmseg.SETR, 'decoder/', ''),
    ],
    r'.*\.num_batches_tracked',
    {'trunk/norm/scale': 1.0, 'trunk/norm/bias': 0.0},
  ),
  'monai': _Format(
    'MONAI',
    [
      *tables.below(monai.TRUNK, 'trunk/', 'vit.'),
      *tables.below(monai.DECODER, 'decoder/', ''),
    ],
    monai.IGNORED,
    {},
  ),
}


# Values of a trunk that arrays show, or that the programs' own code is told.
_TRUNK = (
  *('hidden_size', 'depth', 'num_heads', 'mlp_dim', 'patch_size'),
  *('num_classes', 'layer_norm_epsilon', 'class_token', 'pool', 'mlp.gelu'),
  *('attention.qkv_bias', 'positions.learned', 'positions.learned.tokens'),
)


def check(trunk: vit.ViT, name: str) -> list[str]:
  """Returns notes on where a program computes something else than a trunk.

  The program is a key of FORMATS. It may have no place for a part.
  """
  program = FORMATS[name].program
  values = values_lib.model_values(trunk)
  trunk_values = {path: x for path, x in values.items() if path in _TRUNK}
  keys = values_lib.config_keys(trunk_values)
  restored = values_lib.model_values(models.create_model('ViT-S/16', **keys))
  if changed := values_lib.differences(values, restored):
    path, (value, _) = next(iter(changed.items()))
    value_text = format_lib.show(path, value, values)
    raise UserError(
      f'{program} has no place for {value_text} of the trunk: use --to=vit_jax'
    )
  gelu = values['mlp.gelu']
  if gelu == 'exact':
    return []
  return [f'this model has mlp(gelu={gelu!r}); {program} has the exact GELU']


def write(params: Any, path: pathlib.Path, name: str) -> None:
  """Writes a segmentation, `trunk` and `decoder`, to a .safetensors file."""
  form = FORMATS[name]
  if path.suffix != '.safetensors' or path.exists():
    raise UserError(
      f'{path}: --to={name} writes a new .safetensors file; name one'
    )
  params = layouts.unstack_all(jax.tree.map(np.asarray, params))
  try:
    arrays = dict(tables.write(form.rules, params))
  except KeyError as e:
    raise UserError(
      f'{form.program} has no place for {e.args[0]}: --to={name} is for'
      f' {"SETR on a ViT with a class token" if name == "mmseg" else "UNETR"}'
    ) from None
  arrays |= _unused(arrays) if name == 'monai' else {}
  containers.write_safetensors(path, arrays, {'format': 'pt'})


def read(path: pathlib.Path, like: Any) -> Any:
  """Returns the parameters of a file, in a tree of the structure of `like`."""
  abstract = traverse_util.flatten_dict(
    jax.eval_shape(layouts.unstack_all, like), sep='/'
  )
  with containers.open_arrays(path) as arrays:
    form = _stored_format(path, arrays)
    filled = {}
    for param_path, value in form.optional.items():
      names = [n for x in form.rules for n in x.names(param_path) or ()]
      if not set(names) <= arrays.shapes.keys():
        filled[param_path] = np.full(
          abstract.pop(param_path).shape, value, np.float32
        )
    needed = traverse_util.unflatten_dict(abstract, sep='/')
    try:
      params = tables.read(arrays, form.rules, needed, form.ignored)
    except KeyError as e:
      raise UserError(
        f'{form.program} has no place for {e.args[0]} of the run that --like'
        ' names: name a run of the same model'
      ) from None
    except UserError as e:
      raise UserError(f'{path}: {e}') from None
  flat = traverse_util.flatten_dict(params, sep='/') | filled
  return layouts.relayout(traverse_util.unflatten_dict(flat, sep='/'), like)


def _stored_format(path: pathlib.Path, arrays: containers.Arrays) -> _Format:
  for key, start in (('mmseg', 'backbone.'), ('monai', 'vit.')):
    if any(name.startswith(start) for name in arrays.shapes):
      return FORMATS[key]
  raise UserError(
    f'{path} is no segmentation of mmsegmentation or MONAI: names of its arrays'
    ' begin neither with backbone. nor with vit.'
  )


def _unused(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the norms that MONAI's blocks hold without using them."""
  norms = {}
  for name, x in arrays.items():
    if '.norm1.' in name and name.startswith('vit.blocks.'):
      unused_name = name.replace('.norm1.', '.norm_cross_attn.')
      norms[unused_name] = np.full_like(x, name.endswith('weight'))
  return norms
