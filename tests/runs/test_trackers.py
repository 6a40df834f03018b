"""Weights & Biases and MLflow beside TensorBoard, offline."""

import importlib.util
import json
import sys

import cv2
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.runs import reporting
from vit_jax.train import experiment


def report(workdir, name, start, stop):
  """Does as a run does; begins by its config and an image."""
  _, png = cv2.imencode('.png', np.zeros((4, 4, 3), np.uint8))
  with reporting.Reporter(workdir, 20, start, reports_to=name) as reporter:
    reporter.describe({'seed': start, 'model.name': 'ViT-Ti/16'})
    reporter.show(start, 'train/images', png.tobytes())
    for step in range(start + 1, stop + 1):
      reporter.write(step, step / 4, {'train/loss': 1 / step})


def test_a_package_is_missing(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[mlflow\]'"):
    experiment.check(tiny.config(reporting='mlflow'))


def test_a_folder_is_no_package(tmp_path, monkeypatch):
  """As ./wandb, which W&B makes."""
  experiment.check(tiny.config())  # imports what it needs
  (tmp_path / 'wandb').mkdir()
  monkeypatch.delitem(sys.modules, 'wandb', raising=False)
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])  # without W&B itself
  spec = importlib.util.find_spec('wandb')
  assert spec is not None and spec.origin is None
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[wandb\]'"):
    experiment.check(tiny.config(reporting='wandb'))


def test_no_tracker(tmp_path):
  report(tmp_path, '', 0, 2)
  assert [x.name for x in tmp_path.iterdir()] == ['metrics.jsonl']


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
  mlflow = pytest.importorskip('mlflow')
  monkeypatch.delenv('MLFLOW_EXPERIMENT_NAME', raising=False)
  before = mlflow.get_tracking_uri()
  mlflow.set_tracking_uri(f'sqlite:///{tmp_path}/mlflow.db')
  monkeypatch.chdir(tmp_path)  # for pictures
  yield mlflow
  mlflow.set_tracking_uri(before)


@pytest.mark.filterwarnings('ignore')
def test_a_run_resumes_in_its_record_of_mlflow(mlflow, tmp_path):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  report(workdir, 'mlflow,tensorboard', 0, 4)
  report(workdir, 'mlflow,tensorboard', 3, 6)
  client = mlflow.MlflowClient()
  experiment_id = client.get_experiment_by_name('vit_jax').experiment_id
  (run,) = client.search_runs([experiment_id])
  assert run.info.status == 'FINISHED' and run.info.run_name == 'run'
  assert run.data.params == {'seed': '0', 'model.name': 'ViT-Ti/16'}
  history = client.get_metric_history(run.info.run_id, 'train/loss')
  assert {x.step: x.value for x in history} == {
    step: pytest.approx(1 / step) for step in range(1, 7)
  }
  assert client.list_artifacts(run.info.run_id, 'images')
  assert list(workdir.glob('events.out.*'))
  (workdir / 'trackers.json').write_text('{"mlflow": "none"}')
  with pytest.raises(UserError, match=r'does it still have the run'):
    report(workdir, 'mlflow', 6, 7)


@pytest.mark.filterwarnings('ignore')
def test_training_reports_to_mlflow(mlflow, tmp_path):
  config = tiny.config(reporting='mlflow', train__duration='3 steps')
  results = vit_jax.train(config, str(tmp_path / 'run'))
  client = mlflow.MlflowClient()
  (name,) = json.loads((tmp_path / 'run/trackers.json').read_text()).values()
  actual = client.get_run(name).data
  assert actual.metrics['val/loss'] == pytest.approx(
    results.metrics['val/loss']
  )
  assert actual.params['train.duration'] == '3 steps'
  assert not list((tmp_path / 'run').glob('events.out.*'))


@pytest.mark.filterwarnings('ignore')
def test_a_run_resumes_in_its_record_of_wandb(tmp_path, monkeypatch):
  wandb = pytest.importorskip('wandb')
  del wandb
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')
  report(tmp_path, 'wandb', 0, 4)
  report(tmp_path, 'wandb', 3, 6)
  name = json.loads((tmp_path / 'trackers.json').read_text())['wandb']
  files = sorted(tmp_path.glob(f'wandb/offline-run-*-{name}/*.wandb'))
  assert 1 <= len(files) <= 2
  content = b''.join(path.read_bytes() for path in files)
  assert content.count(b'train/loss') >= 7
  assert b'train/images' in content and b'ViT-Ti/16' in content
