"""Files of adapters: what a run has trained, alone.

They hold the low-rank factors or adapters of layers, and the head
(`models/parts/adapters.py` has the layers). Their metadata say the checkpoint
that the run started from, its base, and what it takes to load them on it again.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any
from typing import cast

from absl import logging
from flax import traverse_util
import jax
import numpy as np
import safetensors

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.config import parts as parts_lib
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import registry
from vit_jax.models.parts import adapters
from vit_jax.optim import rules as rules_lib
from vit_jax.weights import fit
from vit_jax.weights import origin as origin_lib
from vit_jax.weights.files import containers

_METADATA = 'vit_jax_adapters'
SUFFIX = '.safetensors'
# Sums over an array of the base, relative to its norm, differ by less where
# positions were resized on another computer.
_TOLERANCE = 1e-4
_MOST_FILES = 4  # of adapters, each the base of the next


def on_base(text: str, base_text: str) -> str:
  """Returns the text of a block with the options of that of its checkpoint.

  Only adapted layers take them. Both are texts of `config.model.block`.
  """
  part, base = _part(text), _part(base_text)
  kind, base_kind = map(_kind, (part, base))
  bare = adapters.bare_class(kind)
  if bare is kind or adapters.bare_class(base_kind) is not base_kind:
    return text
  if base_kind is not bare:
    name = registry.class_name('block', bare)
    raise config_lib.UserError(
      f'config.model.block={text} adapts layers of {name!r}, and the checkpoint'
      f' has {base_text!r}: docs/fine_tuning.md has another way'
    )
  return str(dataclasses.replace(part, options=base.options | part.options))


def bare_text(text: str) -> str:
  """Returns the text of the block that adapters are added to."""
  part = _part(text)
  kind = _kind(part)
  bare = adapters.bare_class(kind)
  if bare is kind:
    return text
  declared, bare_declared = map(registry.declared_options, (kind, bare))
  options = dict(zip(declared, part.args, strict=False)) | part.options
  options = {name: x for name, x in options.items() if name in bare_declared}
  name = registry.class_name('block', bare)
  return str(parts_lib.Part(name, (), options))


def bare_values(keys: Mapping[str, Any]) -> dict[str, Any]:
  """Returns keys of `config.model` for a file, which has no adapters."""
  text = keys.get('block')
  if not text or adapters.bare_class(_kind(_part(text))) is _kind(_part(text)):
    return dict(keys)
  bare = bare_text(text)  # without options the file says which block it is
  return {**keys, 'block': bare if '(' in bare else None}


def resumed(text: str, stored_text: str) -> str:
  """Returns the text of a block as `on_base` has changed that of a run."""
  bare = bare_text(stored_text)
  return text if bare == stored_text else on_base(text, bare)


def _part(text: str) -> parts_lib.Part:
  return parts_lib.parse(text, 'model.block')


def _kind(part: parts_lib.Part) -> type[Any]:
  return registry.part_class('block', part.name)


def merge(loaded: weights.Loaded) -> weights.Loaded:
  """Returns a model whose adapters are merged into its layers, if they can."""
  block = adapters.block(loaded.model)
  if block is None or not block.can_merge:
    return loaded
  merged = cast(Any, loaded.model).clone(block=block.bare())
  return loaded.adapted(block=describing.key_values(merged)['block'])


def save(loaded: weights.Loaded, path: pathlib.Path) -> None:
  """Writes the parameters that a run has trained."""
  config, place = loaded.trained_with, loaded.origin.path
  if path.suffix != SUFFIX or path.exists():
    raise config_lib.UserError(
      f'{path}: --to=adapters writes a new {SUFFIX} file; name one'
    )
  if config is None or not config.init_from.path:
    raise config_lib.UserError(
      f'{place} is no run that started from a checkpoint (init_from.path), so'
      ' that there is no base on which adapters could be loaded'
    )
  if loaded.objective_params:
    raise config_lib.UserError(
      f'{place} has parameters beside its model, of'
      f' config.objective.name={config.objective.name}, and a file of adapters'
      ' has none of these'
    )
  flat = _flat(loaded)
  rules = rules_lib.make(config.optim, traverse_util.unflatten_dict(flat, '/'))
  values = describing.config_values(loaded.model)
  left_out = ('name', *models.EXECUTION)
  facts = {
    'base': config.init_from.path,
    'model': {
      key: x
      for key, x in values.items()
      if x is not None and key not in left_out
    },
    'image_size': loaded.position_size,
    'resize': loaded.resize,
    'preprocess': loaded.preprocess.to_dict(),
    'frozen': {
      name: _sums(x)
      for name, x in flat.items()
      if not rules.parameters[name].trains
    },
  }
  arrays = {name: x for name, x in flat.items() if name not in facts['frozen']}
  containers.write_safetensors(path, arrays, {_METADATA: json.dumps(facts)})


def _flat(loaded: weights.Loaded) -> dict[str, np.ndarray]:
  """Returns the arrays of a model by path, layers unrolled."""
  params = layouts.unstack_layers(jax.tree.map(np.asarray, loaded.params))
  return traverse_util.flatten_dict(params, sep='/')


def _sums(x: np.ndarray) -> tuple[float, float]:
  """Returns the sum of an array, and its norm."""
  x = np.asarray(x, float)
  return float(x.sum()), float(np.linalg.norm(x))


def is_file(path: pathlib.Path) -> bool:
  """Whether a path is a file of adapters."""
  return path.suffix == SUFFIX and path.is_file() and bool(_facts(path))


def _facts(path: pathlib.Path) -> dict[str, Any]:
  """Returns the metadata of a file of adapters; {}: it is none."""
  try:
    with safetensors.safe_open(path, framework='np') as file:
      text = (file.metadata() or {}).get(_METADATA)
  except (safetensors.SafetensorError, OSError):
    return {}  # the reader of other files says what is wrong
  if text is None:
    return {}
  try:
    facts = json.loads(text)
  except (ValueError, RecursionError):
    facts = None
  try:
    config_lib.wing('vit_jax.weights.stored_adapters:check')(facts)
  except config_lib.UserError as e:
    raise config_lib.UserError(
      f'the metadata of {path} are damaged: {e}; store the adapters again by'
      ' `vit-jax convert --to=adapters`'
    ) from None
  return cast(dict[str, Any], facts)


def load(
  path: pathlib.Path, base: str, chosen: Mapping[str, Any], **options: Any
) -> weights.Loaded:
  """Returns the model of adapters on their base.

  Args:
    path: The file.
    base: Any path that `weights.load` reads; '': the one that the file names.
    chosen: Values of `config.model` that the caller has chosen. The file may
      name a class that is not ours only if they name it, too: else anybody's
      file could have any module imported.
    **options: Passed to `weights.load` for the base.
  """
  facts = _facts(path)
  if not facts:
    raise config_lib.UserError(
      f'{path} is no file of adapters: `vit-jax convert --to=adapters` writes'
      ' one'
    )
  base = base or facts['base']
  _check_classes(path, facts['model'], chosen)
  logging.info('%s is loaded on its base, %s', path, base)
  with config_lib.explained(f'{path}, on {base}'):
    _check_chain(base)
    preprocess = data.Preprocess.from_dict(facts['preprocess'])
    loaded = weights.load(
      base,
      image_size=tuple(facts['image_size']),
      resize=facts['resize'],
      **facts['model'] | options,
    )
    if loaded.preprocess.channels != preprocess.channels:
      loaded = dataclasses.replace(loaded, preprocess=preprocess)
      loaded = loaded.adapted(image_size=tuple(facts['image_size']))
    flat = _flat(loaded)
    frozen = {name: x for name, x in flat.items() if name in facts['frozen']}
    with containers.open_arrays(path) as stored:
      arrays = {name: stored.read(name) for name in stored.shapes}
    expected = {name: x.shape for name, x in flat.items()}
    places = 'the file', 'the base'
    if problems := fit.different_arrays(frozen | arrays, expected, places):
      raise config_lib.UserError(
        f'they do not fit: {config_lib.join_first(problems)}'
      )
    _check_base(frozen, facts['frozen'])
  params = traverse_util.unflatten_dict(flat | arrays, sep='/')
  if getattr(loaded.model, 'scan', False):
    params = layouts.stack_layers(params)
  return dataclasses.replace(
    loaded,
    params=params,
    preprocess=preprocess,
    changes=(),
    origin=origin_lib.Origin(str(path), 'vit_jax'),
    trained_with=None,
    objective_params={},
  )


def _check_classes(
  path: pathlib.Path, values: Mapping[str, Any], chosen: Mapping[str, Any]
) -> None:
  """Raises a UserError if only the file names a class that is not ours."""
  for key in registry.PARTS:
    for name in _classes(values, key):
      if not any(name in _classes(chosen, x) for x in registry.PARTS):
        raise config_lib.UserError(
          f'{path} has {key}={values[key]!r}, and a file has no class of'
          f' another module imported: if you trust {name!r}, give {key} that'
          f' value yourself, as --model.{key} or --config.model.{key}'
        )


def _classes(values: Mapping[str, Any], key: str) -> set[str]:
  """Returns the names 'module:Class' in the text of a key."""
  if values.get(key) is None:
    return set()
  names, waiting = set(), [*parts_lib.parse_sum(values[key], f'model.{key}')]
  while waiting:
    part = waiting.pop()
    names.add(part.name)
    options = *part.args, *part.options.values()
    waiting += [x for x in options if isinstance(x, parts_lib.Part)]
  return {name for name in names if ':' in name}


def _check_chain(base: str) -> None:
  """Raises a UserError if bases are files of adapters without an end."""
  for _ in range(_MOST_FILES):
    path = weights.local_path(base)
    if not is_file(path):
      return
    base = _facts(path)['base']
  raise config_lib.UserError(
    f'the base is a file of adapters, and so is its base, {_MOST_FILES} times'
    ' or without an end: name a checkpoint, as vit_jax.load(BASE,'
    ' adapters=FILE)'
  )


def _check_base(
  frozen: Mapping[str, np.ndarray], sums: Mapping[str, tuple[float, float]]
) -> None:
  """Raises a UserError unless a base has the arrays of the one of training."""
  changed = []
  for name, (total, norm) in sums.items():
    new = _sums(frozen[name]) if name in frozen else (np.nan, np.nan)
    difference = max(abs(new[0] - total), abs(new[1] - norm))
    if not difference <= _TOLERANCE * norm:
      changed.append(name)
  if changed:
    raise config_lib.UserError(
      f'this is another base than that of their training: {len(changed)} of'
      f' {len(sums)} frozen arrays differ, as {changed[0]}; name the right one,'
      ' as vit_jax.load(BASE, adapters=FILE)'
    )
