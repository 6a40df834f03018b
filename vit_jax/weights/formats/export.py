"""Writes a model in the format of another program.

It also writes config.json, with the fields that arrays do not show, and a model
card. It never overwrites an existing path, and a new path appears only when it
is complete.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import target_kinds
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import resnet
from vit_jax.models import values as values_lib
from vit_jax.runs import safe_io
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import card
from vit_jax.weights.formats import equivalent
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import huggingface
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm

VIT_JAX = 'vit_jax'
FORMATS = (*(form.NAME for form in foreign.FORMATS), VIT_JAX)
_WRITERS: Mapping[str, base.Writer] = {
  timm.NAME: timm,
  huggingface.NAME: huggingface,
}


def write(
  loaded: weights.Loaded,
  path: pathlib.Path,
  name: str,
  source: str,
  objective_table: objective_tables.ObjectiveTable | None = None,
) -> list[str]:
  """Writes a model in a foreign format.

  Args:
    loaded: The model; its arrays are read one at a time.
    path: A directory; or a file of weights if the format has one, and the other
      files go to its directory.
    name: Name of the format.
    source: Origin of the model, for its card.
    objective_table: How the format stores `loaded.objective_params`, which are
      then written, too; None: the model alone.

  Returns:
    Notes on what was changed for that format, and where its code computes
    something else, one line each.
  """
  form = {form.NAME: form for form in foreign.FORMATS}[name]
  loaded = _unrolled(loaded)
  target = _supported(loaded, form, source)
  values = values_lib.model_values(target)
  is_joint = values.get('block') in ('parallel', 'branches')
  if objective_table is not None and is_joint:
    raise UserError(
      f'{source}: files of --whole have no place for layers with parts beside'
      ' each other: leave --whole out'
    )
  is_file = check_path(path, name)
  loaded, notes = equivalent.rewrite(loaded, target)
  kind = format_lib.storing(form.KINDS, target, loaded.position_size)
  assert kind is not None  # as `_supported` has checked
  weights_file = path.name
  folder = path.absolute().parent.name
  if not is_file:
    weights_file = f'model{form.SUFFIX or ".safetensors"}'
    folder = path.name
  notes += kind.notes(target, loaded.position_size)
  if name in _WRITERS:
    notes += _WRITERS[name].notes(kind, values)
  notes += _preprocess_notes(loaded.preprocess, name)
  with new_directory(path, is_file) as directory:
    companions = _companions(loaded, values, name, weights_file, kind)
    if objective_table is not None:
      companions['config.json'].update(objective_table.config)
    for json_name, content in companions.items():
      safe_io.write_json(directory / json_name, content)
    write_card(
      directory,
      loaded,
      title=path.stem if is_file else path.name,
      source=source,
      address=path.name,
      usage=[form.usage(kind, values, folder, weights_file)],
      notes=notes,
    )
    arrays = _arrays(loaded, values, objective_table, kind)
    if form.SUFFIX == '.npz':
      containers.write_npz(directory / weights_file, arrays)
    else:
      containers.write_safetensors(
        directory / weights_file,
        dict(arrays),  # views: no memory
        {'format': 'pt'},
      )
  return notes


def check_path(path: pathlib.Path, name: str) -> bool:
  """Checks that a format can be written to a path; is it a file's?

  The path is a new or empty directory, or a new file.
  """
  suffixes = {form.NAME: form.SUFFIX for form in foreign.FORMATS}
  is_file = path.suffix in foreign.SUFFIXES
  if is_file and path.suffix != suffixes.get(name):
    file = f' or a {suffixes[name]} file' if suffixes.get(name) else ''
    raise UserError(f'{path}: --to={name} writes a directory{file}; name one')
  names = [path.name, 'config.json', 'README.md'] if is_file else [path.name]
  for target in (path.with_name(name) for name in names):
    is_empty = not is_file and target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty:
      raise UserError(
        f'{target} is there already, and is not overwritten: name a new'
        ' directory'
      )
  parent = next(p for p in path.absolute().parents if p.exists())
  if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
    raise UserError(
      f'{path}: nothing can be written below {parent}; name another place'
    )
  return is_file


def _supported(
  loaded: weights.Loaded, form: base.Library, source: str
) -> models.Model:
  """Returns the form of a model that a format can store.

  If there is none, the error names formats that have one.
  """
  model, size = loaded.model, loaded.position_size
  if len(size) == 3:
    raise UserError(
      f'{source} cannot be written with --to={form.NAME}, which has no place'
      f' for volumes: use --to={VIT_JAX}, or --to=monai for a UNETR'
    )

  def storable_form(form: base.Library) -> models.Model | None:
    for equal in equivalent.forms(model):
      if not format_lib.refusal(form.KINDS, equal, size):
        return equal
    return None

  target = storable_form(form)
  if target is None:
    able = [
      x.NAME
      for x in foreign.FORMATS
      if x is not form and storable_form(x) is not None
    ]
    raise UserError(
      f'{source} cannot be written with --to={form.NAME}, which has no place'
      f' for {format_lib.refusal(form.KINDS, model, size)}: use'
      f' --to={" or --to=".join([*able, VIT_JAX])}'
    )
  return target


@contextlib.contextmanager
def new_directory(
  path: pathlib.Path, is_file: bool = False
) -> Iterator[pathlib.Path]:
  """Yields a temporary directory, whose content goes to `path` at the end.

  If `path` is a new file (`is_file`), the temporary files go to its directory.
  """
  path = path.absolute()
  temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  try:
    temporary.mkdir(parents=True)
    yield temporary
    if is_file:
      files = sorted(temporary.iterdir(), key=lambda x: x.name == path.name)
      for file in files:  # the weights last
        file.rename(path.with_name(file.name))
    else:
      temporary.rename(path)
  except OSError as e:
    raise safe_io.cannot_write(path, e) from None
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def write_card(
  directory: pathlib.Path, loaded: weights.Loaded, **content: Any
) -> None:
  """Writes README.md; `content` has the arguments of `card.text`."""
  with safe_io.replacing(directory / 'README.md') as file:
    file.write(card.text(loaded, **content))


def _unrolled(loaded: weights.Loaded) -> weights.Loaded:
  """Returns the model with unrolled layers and NumPy arrays.

  Arrays in this machine's memory are not copied.
  """
  model, params = loaded.model, jax.tree.map(np.asarray, loaded.params)
  if not isinstance(model, resnet.BiT) and model.scan:
    model, params = model.clone(scan=False), layouts.unstack_layers(params)
  objective_params = layouts.unstack_all(
    jax.tree.map(np.asarray, loaded.objective_params)
  )
  return dataclasses.replace(
    loaded, model=model, params=params, objective_params=objective_params
  )


def _companions(
  loaded: weights.Loaded,
  values: base.Values,
  name: str,
  weights_file: str,
  kind: format_lib.Format,
) -> dict[str, Any]:
  preprocess, size = loaded.preprocess, loaded.position_size
  files: dict[str, dict[str, Any]] = {'config.json': {}}
  if name in _WRITERS:
    image = {'image_size': size, 'image_channels': preprocess.channels}
    files = _WRITERS[name].companions(
      kind, {**values, **image}, preprocess, loaded.params
    )
  if name != huggingface.NAME:  # transformers takes no other fields
    files['config.json']['vit_jax'] = {
      'file': weights_file,
      'model': describing.config_values(loaded.model),
      'image_size': size,
      'resize': loaded.resize,
      'preprocess': preprocess.to_dict(),
    }
  return files


def _preprocess_notes(preprocess: data.Preprocess, name: str) -> list[str]:
  """Returns notes on inputs and outputs that a format has no place for."""
  notes = []
  levels, target = preprocess.levels, preprocess.target
  if not levels.is_plain:  # 0 and 255 are not 0 and 1
    low, high = levels.window or (0, 2**levels.bits - 1)
    notes.append(
      f'this model takes images of {levels.bits} bits: before mean and std'
      f' their values from {low:g} to {high:g} become 0 to 1, others are cut;'
      " that program's own preprocessing does not know it"
    )
  unknown = "that program's own code does not know it"
  if isinstance(target, target_kinds.Number):
    facts = preprocess.outputs['logits']
    notes.append(
      f'this model predicts numbers, {", ".join(target.names)}: its outputs'
      f' times {facts["std"]}, plus {facts["mean"]}; {unknown}'
    )
  elif isinstance(target, target_kinds.MultiLabel):
    notes.append(
      f'each of its outputs, {", ".join(target.names)}, has a probability of'
      f' its own, the sigmoid; {unknown}'
    )
  if (fill := preprocess.fill) is not None:
    values = base.per_channel(fill, preprocess.channels)
    mean = base.per_channel(preprocess.mean, preprocess.channels)
    is_timms = values == [round(255 * x) for x in mean]
    if name != timm.NAME or not is_timms:
      notes.append(
        'this model takes images that are not cut, with a border of'
        f' {", ".join(map(str, fill))}; that program has no such preprocessing'
      )
  return notes


def _arrays(
  loaded: weights.Loaded,
  values: base.Values,
  objective_table: objective_tables.ObjectiveTable | None,
  kind: format_lib.Format,
) -> Iterator[tuple[str, np.ndarray]]:
  model_arrays = tables.write(kind.rules(values), loaded.params, values)
  if objective_table is None:
    named = ((kind.stored(values, name), x) for name, x in model_arrays)
    yield from ((name, x) for name, x in named if name)
    return
  yield from ((objective_table.stored(name), x) for name, x in model_arrays)
  params = loaded.objective_params
  for name, array in tables.write(objective_table.rules, params):
    yield objective_table.stored(name), array
  yield from objective_table.constants.items()
