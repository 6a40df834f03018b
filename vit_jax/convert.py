"""Converts a model to the format of another program, or to ours.

  python -m vit_jax.convert runs/flowers flowers-hf --to=huggingface
  python -m vit_jax.convert vit.npz vit-timm --to=timm --image_size=384

SRC is any path that `vit_jax.load` reads: a file or directory of Google, timm
or Hugging Face, a work directory, or a URL. DST is a new or empty directory;
for google it may be an .npz file, for timm a .safetensors file, which gets a
config.json and a README.md beside it.

  google       model.npz, for google-research/vision_transformer, big_vision
               and BiT
  timm         config.json and model.safetensors, for timm.create_model
  huggingface  config.json, preprocessor_config.json and model.safetensors, for
               transformers
  vit_jax      a finished work directory

With --whole, the run of a method that has parameters beside the model, such as
the decoder of MAE, is written with these, in the names of the method's authors.

Class names, normalisation and a model card (README.md) are written, too.
Nothing is rounded: converted back, the arrays have the same bits. If a format
can only hold an equivalent form of the model (learned position embeddings for
fixed ones, LayerScale folded into the preceding layers), that form is written
with a warning. A warning also says if the other program computes something
else.
"""

import os
import pathlib
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import weights
  from vit_jax.weights.formats import whole as whole_lib

FLAGS = flags.FlagValues()  # separate, since other commands share flag names
cli.define_overrides(FLAGS)
cli.define_compile_cache(FLAGS)
_FORMATS = ['google', 'timm', 'huggingface', 'vit_jax']
_TO = flags.DEFINE_enum(
  'to', None, _FORMATS, 'Format to write.', flag_values=FLAGS
)
_WHOLE = flags.DEFINE_boolean(
  'whole',
  False,
  "Also write the objective's other parameters, such as a decoder.",
  flag_values=FLAGS,
)


def main(argv: list[str]) -> None:
  """Converts the model."""
  if len(argv) != 3:
    raise UserError(
      f'{len(argv) - 1} paths are given: name two, from where and to where, as'
      ' in `python -m vit_jax.convert runs/digits digits-timm --to=timm`'
    )
  if _TO.value is None:
    raise UserError(f'--to is missing: choose one of {", ".join(_FORMATS)}')
  source, path = argv[1], pathlib.Path(os.path.abspath(argv[2]))
  # After the flags, since these import jax.
  from vit_jax.weights.formats import export

  export.check_path(path, _TO.value)
  loaded = cli.load(FLAGS, source, as_stored=True)
  if loaded.origin.step is not None:
    source = loaded.origin.path
  whole = _whole(loaded, _TO.value) if _WHOLE.value else None
  if _TO.value == export.OURS:
    write_workdir(loaded, path, source)
    notes = []
  else:
    notes = export.write(loaded, path, _TO.value, source, whole)
  for note in notes:
    logging.warning('warning: %s', note)
  logging.info('wrote %s', path)


def _whole(loaded: 'weights.Loaded', name: str) -> 'whole_lib.Whole':
  """Returns how a format stores what a run has beside its model.

  Raises:
    UserError: It has nothing else, or the format has no place for it.
  """
  from vit_jax import objectives
  from vit_jax.data import features

  config, stored = loaded.trained_with, loaded.preprocess.features
  if config is None or not loaded.beside:
    raise UserError(
      f'{loaded.origin.path} has nothing beside its model: leave --whole out'
    )
  known = {key: features.from_dict(x) for key, x in stored.items()}
  found = objectives.create(config, known).foreign(name)
  if found is None:
    raise UserError(
      f'no file of --to={name} has what config.objective.name='
      f'{config.objective.name} has beside its model: leave --whole out, or'
      ' choose another --to'
    )
  return found


def write_workdir(
  loaded: 'weights.Loaded', path: pathlib.Path, source: str
) -> None:
  """Writes the work directory of a finished run.

  Args:
    loaded: The model.
    path: Path of the work directory, which is new or empty.
    source: Origin of the model, for its card.

  Raises:
    UserError: The directory is not empty, or cannot be written.
  """
  import jax.numpy as jnp

  from vit_jax.runs import checkpoint
  from vit_jax.runs import safe_io
  from vit_jax.runs import workdir
  from vit_jax.train import step
  from vit_jax.weights.formats import export

  config = _config(loaded)
  state = step.TrainState(
    jnp.zeros((), jnp.int32),
    loaded.params,
    opt_state=None,
    ema_params=None,
    extra={},
  )
  with export.new_directory(path) as directory:
    workdir.prepare(directory, config, loaded.preprocess.to_dict(), '')
    with checkpoint.Checkpointer(directory, config.checkpoint) as checkpoints:
      checkpoints.save(0, state, {})
    name = path.name
    export.write_card(
      directory, loaded, title=name, source=source, where=name, usage=[]
    )
    safe_io.write_json(directory / 'DONE', {})


def _config(loaded: 'weights.Loaded') -> 'ml_collections.ConfigDict':
  """Returns the config of a run that would have made the model."""
  import jax.numpy as jnp

  from vit_jax import config as config_lib
  from vit_jax import models

  config = loaded.preprocess.to_config()
  config.data.name = ''
  config.data.image_size = loaded.position_size
  config.init_from.resize = loaded.resize
  config.train.dtype = jnp.dtype(loaded.model.dtype).name
  config.model.name = models.name_of(loaded.model)
  for key, value in models.fields_of(loaded.model).items():
    if value is not None:
      config_lib.set_value(config, f'model.{key}', value)
  return config


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
