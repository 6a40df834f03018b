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


@pytest.mark.parametrize(
  ('keys', 'name'),
  [
    ({'model__patch_size': 2}, 'ViT-Ti/2 with hidden_size='),
    ({'model__patch_size': (2, 2)}, 'ViT-Ti/2 with hidden_size='),
    ({'model__patch_size': 4}, 'ViT-Ti/2 with patch_size=4, hidden_size='),
  ],
)
def test_sizes_that_are_not_of_the_name_follow_it(keys, name, caplog):
  caplog.set_level('INFO')
  config = tiny.config(model__name='ViT-Ti/2', **keys)
  start.log_facts(experiment_lib.build(config))
  assert f'model: {name}' in caplog.text


@pytest.mark.parametrize('num_classes', [None, 10, 12])
def test_outputs_without_a_class_get_a_warning(num_classes, caplog):
  experiment_lib.build(tiny.config(model__num_classes=num_classes))
  line = 'num_classes is 12, but digits has 10 classes: the other outputs have'
  assert (line in caplog.text) == (num_classes == 12)


@pytest.mark.parametrize(
  ('split', 'line'),
  [
    ('train[80%:]', ''),
    ('train[70%:]', "images of 'train[70%:]' are in 'train[:80%]' as well"),
    ('train', "config.evals.val.split: images of 'train' are in 'train[:80%]'"),
  ],
)
def test_evaluations_on_trained_images_get_a_warning(split, line, caplog):
  config = tiny.config(data__split='train[:80%]', evals__val__split=split)
  start.log_facts(experiment_lib.build(config))
  assert ('as well, which trains' in caplog.text) == bool(line)
  assert line in caplog.text
