r"""Converts a model to the format of another program, or to ours.

  python -m vit_jax.convert runs/flowers flowers-hf --to=huggingface
  python -m vit_jax.convert vit.npz vit-timm --to=timm --image_size=384

SRC is any path that `vit_jax.load` reads: a file or directory of Google, timm,
Hugging Face or torchvision, a work directory, or a URL. DST is a new or empty
directory; for google it may be an .npz file, for timm and torchvision a
.safetensors file, which gets a config.json and a README.md beside it.

  google       model.npz, for google-research/vision_transformer, big_vision
               and BiT
  timm         config.json and model.safetensors, for timm.create_model
  huggingface  config.json, preprocessor_config.json and model.safetensors, for
               transformers
  torchvision  model.safetensors, for torchvision.models.VisionTransformer
  vit_jax      a finished work directory
  adapters     a .safetensors file with what a run has trained, as low-rank
               factors and the head, to be loaded on the checkpoint that the run
               started from

With --push=hf:owner/name the directory is then uploaded to the Hugging Face
Hub, with the token of $HF_TOKEN or `hf auth login`; `vit_jax.load` reads it
from there. --dry_run lists its files instead.

  python -m vit_jax.convert runs/flowers flowers --to=timm \
      --push=hf:me/flowers --license=apache-2.0 --dry_run

Of a run, its config (run_config.json), the metrics of the checkpoint
(metrics.json) and their curves (curves.png, if matplotlib is there) are added.

With --whole, the run of a method that has parameters beside the model, such as
the decoder of MAE, is written with these, in the names of the method's authors.

A run of segmentation is written whole, as one .safetensors file, for
mmsegmentation (SETR) with --to=mmseg or MONAI (UNETR) with --to=monai. Files of
these are read with --like, a run of ours of the same model, whose config and
classes the new work directory has:

  python -m vit_jax.convert runs/setr setr.safetensors --to=mmseg
  python -m vit_jax.convert setr.safetensors runs/again --to=vit_jax \
    --like=runs/setr

Class names, normalisation and a model card (README.md) are written, too.
Nothing is rounded: converted back, the arrays have the same bits. If a format
can only hold an equivalent form of the model (learned position embeddings for
fixed ones, LayerScale folded into the preceding layers), that form is written
with a warning. A warning also says if the other program computes something
else.
"""

import dataclasses
import math
import os
import pathlib
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import tables
from vit_jax.config import UserError
from vit_jax.config.addresses import check_local
from vit_jax.config.packages import check_package

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import weights
  from vit_jax.runs import records
  from vit_jax.weights.formats import objective_tables

USAGE = 'convert SRC DST --to=FORMAT'
FLAGS = flags.FlagValues()  # separate, since other commands share flag names
cli.define_overrides(FLAGS)
cli.define_compile_cache(FLAGS)
_DENSE = ['mmseg', 'monai']  # of whole models of segmentation
_FORMATS = [
  *('google', 'timm', 'huggingface', 'torchvision'),
  *_DENSE,
  'vit_jax',
  'adapters',
]
_TO = flags.DEFINE_enum(
  'to', None, _FORMATS, 'Format to write.', flag_values=FLAGS
)
_WITH_METHOD = flags.DEFINE_boolean(
  'whole',
  False,
  "Also write the objective's other parameters, such as MAE's decoder.",
  flag_values=FLAGS,
)
_LIKE = flags.DEFINE_string(
  'like',
  None,
  'A run of segmentation with the model of an mmsegmentation or MONAI file.',
  flag_values=FLAGS,
)
_PUSH = flags.DEFINE_string(
  'push', '', 'Upload the result to hf:OWNER/NAME.', flag_values=FLAGS
)
_LICENSE = flags.DEFINE_string(
  'license',
  '',
  "Licence of the weights for the card, by the Hub's name: apache-2.0.",
  flag_values=FLAGS,
)
_DRY_RUN = flags.DEFINE_boolean(
  'dry_run', False, 'With --push: only list the files.', flag_values=FLAGS
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
  check_local(argv[2], 'the path to write to')
  source, path = argv[1], pathlib.Path(os.path.abspath(argv[2]))
  # After the flags, since these import jax.
  from vit_jax.weights.formats import export
  from vit_jax.weights.formats import foreign

  if _PUSH.value:
    check_package('--push', 'huggingface_hub', 'hub')
    from vit_jax.weights import hub

    hub.check_name(_PUSH.value)
    is_file = path.suffix in foreign.SUFFIXES
    if _TO.value not in ('timm', 'huggingface') or is_file:
      raise UserError(
        f'--push uploads a directory of --to=timm or huggingface, not {path} of'
        f' --to={_TO.value}'
      )
  elif _DRY_RUN.value or _LICENSE.value:
    raise UserError('--dry_run and --license need --push=hf:OWNER/NAME')
  if _LIKE.value is not None or _TO.value in _DENSE:
    _convert_dense(source, path)
    logging.info('wrote %s', path)
    return
  if _TO.value == 'adapters':
    from vit_jax.weights import adapters

    if _WITH_METHOD.value:
      raise UserError(
        '--to=adapters writes what a run has trained of its model alone: leave'
        ' --whole out'
      )
    adapters.save(cli.load(FLAGS, source, as_stored=True), path)
    logging.info('wrote %s', path)
    return
  export.check_path(path, _TO.value)
  loaded = cli.load(FLAGS, source, as_stored=True)
  if loaded.origin.step is not None:
    source = loaded.origin.path
  full_params = _whole_params(loaded, _TO.value) if _WITH_METHOD.value else None
  if _TO.value == export.VIT_JAX:
    write_workdir(loaded, path, source)
  else:
    _warn(export.write(loaded, path, _TO.value, source, full_params))
  logging.info('wrote %s', path)
  if _PUSH.value:
    _add_facts(path, pathlib.Path(argv[1]), loaded.origin.step)
    if _DRY_RUN.value:
      rows = [(x.stat().st_size, x.name) for x in sorted(path.iterdir())]
      print(tables.Table((), rows).text())
    else:
      logging.info('uploaded to %s', hub.push(path, _PUSH.value))


def _warn(notes: list[str]) -> None:
  for note in notes:
    logging.warning('warning: %s', note)


def _add_facts(
  path: pathlib.Path, source: pathlib.Path, step: int | None
) -> None:
  """Adds what the Hub shows: facts about the run, and the card's head."""
  from vit_jax.runs import records
  from vit_jax.runs import safe_io

  head = ['library_name: vit_jax', 'tags:', '- vision-transformer', '- jax']
  if _LICENSE.value:
    head.insert(0, f'license: {_LICENSE.value}')
  more: list[str] = []
  if records.is_run(source):
    run = records.read(source)
    metrics = {
      name: point.value
      for name, points in run.curves.items()
      for point in points  # the last one counts
      if records.is_evaluation(name) and point.step <= (step or 0)
    }
    finite = {k: x if math.isfinite(x) else None for k, x in metrics.items()}
    safe_io.write_json(path / 'metrics.json', finite)
    config = safe_io.read_json(source / 'config.json')
    safe_io.write_json(path / 'run_config.json', config)
    more += ['## Results', '', f'Up to step {step}, whose weights these are.']
    more += ['', '| metric | value |', '|---|---|']
    more += [f'| {name} | {x:.4g} |' for name, x in metrics.items()]
    if _draw_curves(run, path / 'curves.png'):
      more += ['', '![Curves of the run](curves.png)']
  card = (path / 'README.md').read_text('utf-8')
  with safe_io.replacing(path / 'README.md') as file:
    file.write('\n'.join(['---', *head, '---', '', card, *more, '']))


def _draw_curves(run: 'records.Record', path: pathlib.Path) -> bool:
  """Draws the loss and the evaluations; returns whether it could."""
  import numpy as np

  from vit_jax.plots import canvas
  from vit_jax.plots import curves
  from vit_jax.runs import records

  try:
    canvas.check()
  except UserError:
    return False
  plotted = [
    name
    for name in run.curves
    if name == 'train/loss'
    or (records.is_evaluation(name) and not name.endswith('/examples'))
  ]
  panels = {
    name: {
      run.path.name: curves.Line(
        np.array([p.step for p in run.curves[name]], float),
        np.array([p.value for p in run.curves[name]]),
      )
    }
    for name in plotted[:6]
  }
  if panels:
    curves.draw(panels, [run.path.name], path, x_label='step')
  return bool(panels)


def _whole_params(
  loaded: 'weights.Loaded', name: str
) -> 'objective_tables.ObjectiveTable':
  """Returns how a format stores what a run has beside its model."""
  from vit_jax import objectives
  from vit_jax.data import kinds as kinds_lib
  from vit_jax.weights.formats import objective_tables

  config, stored = loaded.trained_with, loaded.preprocess.features
  if config is None or not loaded.objective_params:
    raise UserError(
      f'{loaded.origin.path} has nothing beside its model: leave --whole out'
    )
  stored_features = {key: kinds_lib.from_dict(x) for key, x in stored.items()}
  foreign = objective_tables.table(
    objectives.create(config, stored_features), name
  )
  if foreign is None:
    raise UserError(
      f'no file of --to={name} has what config.objective.name='
      f'{config.objective.name} has beside its model: leave --whole out, or'
      ' choose another --to'
    )
  return foreign


def _convert_dense(source: str, path: pathlib.Path) -> None:
  """Writes a run of segmentation under another program's names, or reads it."""
  from vit_jax.models import vit
  from vit_jax.objectives import trained
  from vit_jax.weights.formats import dense
  from vit_jax.weights.formats import export

  is_read, name = _LIKE.value is not None, str(_TO.value)
  if is_read:
    if name != export.VIT_JAX:
      raise UserError(
        f'--like is for --to=vit_jax, and --to={name} is given: leave one of'
        ' them out'
      )
    export.check_path(path, export.VIT_JAX)
  loaded = cli.load(FLAGS, str(_LIKE.value) if is_read else source)
  if 'segments' not in loaded.preprocess.outputs:
    raise UserError(
      f'{loaded.origin.path} is no run of segmentation, which mmsegmentation'
      ' and MONAI could hold: choose another --to'
    )
  _, params = trained.restored(loaded)
  if is_read:
    params = dense.read(pathlib.Path(source), params)
    write_workdir(loaded, path, source, params)
    return
  assert isinstance(loaded.model, vit.ViT)  # as segmentation has checked
  size = loaded.position_size
  _warn(dense.write(loaded.model, size, params, path, name))


def write_workdir(
  loaded: 'weights.Loaded',
  path: pathlib.Path,
  source: str,
  all_params: Any = None,
) -> None:
  """Writes the work directory of a finished run.

  `all_params` are all parameters of the objective of the run that `loaded` is
  of, whose config is written then; None: the model alone.
  """
  import jax.numpy as jnp

  from vit_jax.runs import checkpoint
  from vit_jax.runs import safe_io
  from vit_jax.runs import workdir
  from vit_jax.train import state as state_lib
  from vit_jax.weights import preprocessing
  from vit_jax.weights.formats import export

  config, preprocess = loaded.trained_with, loaded.preprocess
  if all_params is None or config is None:
    config = _config(loaded)
    outputs = preprocessing.head_outputs(preprocess.outputs)
    preprocess = dataclasses.replace(preprocess, outputs=outputs, trunk='')
  state = state_lib.TrainState(
    jnp.zeros((), jnp.int32),
    loaded.params if all_params is None else all_params,
    opt_state=None,
    ema_params=None,
    extra={},
  )
  with export.new_directory(path) as directory:
    workdir.prepare(directory, config, preprocess.to_dict(), '')
    with checkpoint.Checkpointer(directory, config.checkpoint) as checkpoints:
      checkpoints.save(0, state, {})
    name = path.name
    export.write_card(
      directory, loaded, title=name, source=source, address=name, usage=[]
    )
    safe_io.write_json(directory / 'DONE', {})


def _config(loaded: 'weights.Loaded') -> 'ml_collections.ConfigDict':
  """Returns the config of a run that would have made the model."""
  import jax.numpy as jnp

  from vit_jax import config as config_lib
  from vit_jax.models import describing

  config = loaded.preprocess.to_config()
  config.data.name = ''
  config.data.image_size = loaded.position_size
  config.init_from.resize = loaded.resize
  config.train.dtype = jnp.dtype(loaded.model.dtype).name
  trained = loaded.trained_with
  # If it is of the model alone.
  if trained is not None and not loaded.objective_params:
    config.objective = trained.objective.copy_and_resolve_references()
  for key, value in describing.config_values(loaded.model).items():
    if value is not None:
      config_lib.set_value(config, f'model.{key}', value)
  return config


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
