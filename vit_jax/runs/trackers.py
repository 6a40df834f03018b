"""Trackers of experiments that `config.reporting` names.

  wandb    Weights & Biases; extra [wandb]. Its own variables say where:
           WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline, ...
  mlflow   extra [mlflow]: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...

trackers.json in the work directory has the id of the run in each, so that a
run that resumes goes on in the same record. What it repeats since its last
checkpoint is reported again there, at the same steps. A server that fails does
not stop training: a warning says so, and metrics.jsonl has every value.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import importlib
import io
import os
import pathlib
import secrets
import time
from typing import Any

from absl import logging
from PIL import Image

from vit_jax.config import UserError
from vit_jax.runs import reporting
from vit_jax.runs import safe_io

_PROJECT = 'vit_jax'  # where no variable names another


class Wandb:
  """A run of Weights & Biases."""

  def __init__(self, workdir: pathlib.Path, start_step: int):
    """Begins the run, or goes on with it."""
    del start_step
    self._wandb = importlib.import_module('wandb')
    run_id = _ids(workdir).get('wandb')
    if run_id is None:
      run_id = secrets.token_hex(8)
      _remember(workdir, 'wandb', run_id)
    try:
      self._run = self._wandb.init(
        project=os.environ.get('WANDB_PROJECT', _PROJECT),
        id=run_id,
        resume='allow',
        name=workdir.name,
        dir=str(workdir),
        # train.log has the output.
        settings=self._wandb.Settings(console='off'),
      )
    except self._wandb.Error as e:
      raise UserError(
        f'config.reporting: wandb cannot begin ({e}): run `wandb login`, or set'
        ' WANDB_MODE=offline'
      ) from e
    # Its own step never goes back, as that of a resumed run does.
    self._run.define_metric('*', step_metric='step')

  def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
    """Logs the scalars at their step."""
    del now
    self._run.log({**scalars, 'step': step})

  def write_start(self, start: reporting.Start) -> None:
    """Stores the config, and the entry of run.json."""
    # W&B itself shows the keys that differ between runs.
    values = dict(start.config)
    if start.record:
      values['run'] = dict(start.record)
    self._run.config.update(values, allow_val_change=True)

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Logs an image."""
    image = self._wandb.Image(Image.open(io.BytesIO(png)))
    self._run.log({name: image, 'step': step})

  def close(self) -> None:
    """Ends the run; a later start goes on with it."""
    self._run.finish()


class Mlflow:
  """A run of MLflow."""

  def __init__(self, workdir: pathlib.Path, start_step: int):
    """Begins the run, or goes on with it."""
    del start_step
    mlflow = importlib.import_module('mlflow')
    self._entities = importlib.import_module('mlflow.entities')
    self._error = mlflow.exceptions.MlflowException
    self._client = mlflow.MlflowClient()
    self._warned = False
    self._id = _ids(workdir).get('mlflow')
    self._is_new = self._id is None
    try:
      if self._id is None:
        name = os.environ.get('MLFLOW_EXPERIMENT_NAME', _PROJECT)
        experiment = mlflow.set_experiment(name)
        run = self._client.create_run(
          experiment.experiment_id, run_name=workdir.name
        )
        self._id = run.info.run_id
        _remember(workdir, 'mlflow', self._id)
      else:
        self._client.update_run(self._id, status='RUNNING')
    except self._error as e:
      raise UserError(
        f'config.reporting: mlflow cannot begin ({str(e).splitlines()[0]}): is'
        f' {mlflow.get_tracking_uri()} right (MLFLOW_TRACKING_URI), and does it'
        f' still have the run of {workdir / "trackers.json"}?'
      ) from e

  def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
    """Logs the scalars at their step."""
    metric = functools.partial(
      self._entities.Metric, timestamp=int(1000 * now), step=step
    )
    values = [metric(name, value) for name, value in scalars.items()]
    self._try(lambda: self._client.log_batch(self._id, metrics=values))

  def write_start(self, start: reporting.Start) -> None:
    """Stores the config, and the entry of run.json."""
    # MLflow itself shows the keys that differ between runs.
    if start.record:
      self._try(
        lambda: self._client.log_dict(self._id, dict(start.record), 'run.json')
      )
    if not self._is_new:  # parameters of a run cannot change
      return
    params = [
      self._entities.Param(key, str(value)[:500])
      for key, value in start.config.items()
    ]
    for i in range(0, len(params), 100):  # at most 100 at once
      part = params[i : i + 100]
      self._try(
        functools.partial(self._client.log_batch, self._id, params=part)
      )

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Logs an image."""
    image = Image.open(io.BytesIO(png))
    self._try(
      lambda: self._client.log_image(
        self._id, image, key=name, step=step, timestamp=int(1000 * time.time())
      )
    )

  def close(self) -> None:
    """Ends the run; a later start goes on with it."""
    self._try(lambda: self._client.set_terminated(self._id))

  def _try(self, call: Callable[[], Any]) -> None:
    """Calls; warns of the first failure, which must not stop the run."""
    try:
      call()
    except self._error as e:
      if not self._warned:
        logging.warning('mlflow: %s; metrics.jsonl has all', e)
      self._warned = True


def _ids(workdir: pathlib.Path) -> dict[str, str]:
  return safe_io.read_json(workdir / 'trackers.json') or {}


def _remember(workdir: pathlib.Path, name: str, run_id: str) -> None:
  ids = _ids(workdir) | {name: run_id}
  safe_io.write_json(workdir / 'trackers.json', ids)
