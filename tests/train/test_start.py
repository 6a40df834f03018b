"""What a run says of itself before it begins."""

import numpy as np
from PIL import Image
import pytest
import tiny

from vit_jax.runs import logs
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import start


@pytest.mark.parametrize('classes', [('cat',), ('cat', 'dog')])
def test_one_class_gets_a_warning(classes, tmp_path, caplog):
  for name in classes:
    (tmp_path / 'train' / name).mkdir(parents=True)
    for i in range(8):
      pixels = np.full((8, 8), i, np.uint8)
      Image.fromarray(pixels).save(tmp_path / 'train' / name / f'{i}.png')
  config = tiny.config(
    data__name=f'folder:{tmp_path}',
    train__batch_size=4,
    evals__val__split='',
    checkpoint__best='',
  )
  experiment_lib.check(config)
  start.log_facts(experiment_lib.build(config))
  assert ("has one class alone, 'cat'" in caplog.text) == (len(classes) == 1)


@pytest.mark.parametrize('verbose', [False, True])
def test_tables_of_all_parameters_are_in_the_log_file(verbose, caplog):
  """And on stderr where they are asked for."""
  caplog.set_level('INFO')
  logs.FILE_ONLY.addHandler(caplog.handler)
  try:
    start.log_facts(experiment_lib.build(tiny.config()), verbose=verbose)
  finally:
    logs.FILE_ONLY.removeHandler(caplog.handler)
  by_logger = {'absl': '', 'vit_jax.file_only': ''}
  for record in caplog.records:
    by_logger[record.name] += record.getMessage()
  tables = by_logger['absl' if verbose else 'vit_jax.file_only']
  for head in ('bytes a device', 'weight decay'):
    assert head in tables
  assert ('weight decay' in by_logger['absl']) == verbose
  assert ' parameters' in by_logger['absl']
