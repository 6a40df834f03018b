"""`vit_jax.evaluate`: its numbers against known ones and the run's own."""

import csv
import importlib.util
import json
import shutil

import commands
import numpy as np
import pytest
from sklearn import neighbors
import stand_in

import vit_jax
from vit_jax import data
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.evaluation import calibration
from vit_jax.evaluation import intervals
from vit_jax.evaluation import predictions as predictions_lib
from vit_jax.evaluation import report

SPLIT = '--split=train[80%:]'  # what configs/digits.py evaluates on


def run(capsys, *args):
  """Returns the report."""
  assert commands.run(evaluate, '--format=json', *args) == 0
  return json.loads(capsys.readouterr().out)


def test_the_numbers_are_those_of_the_run(digits_run, capsys):
  """All devices and any size of batch; the last one is padded."""
  expected = json.loads((digits_run / 'DONE').read_text())
  for size in (16, 50):
    actual = run(
      capsys,
      f'--from={digits_run}',
      '--data=digits',
      SPLIT,
      f'--batch_size={size}',
    )
    assert actual['examples'] == expected['val/examples'] == 359
    assert actual['accuracy'] == pytest.approx(expected['val/accuracy'], 1e-6)
    assert actual['loss'] == pytest.approx(expected['val/loss'], 1e-5)
  matrix = np.array(actual['confusion'])
  assert matrix.sum() == 359 and matrix.trace() == round(
    actual['accuracy'] * 359
  )
  for row, of_class in zip(matrix, actual['classes'], strict=True):
    assert row.sum() == of_class['examples']
  for i, of_class in enumerate(actual['classes']):
    assert of_class['name'] == str(i)
    assert of_class['accuracy'] == matrix[i, i] / matrix[i].sum()
  assert actual['k'] == 5
  assert actual['accuracy'] <= actual['top_k_accuracy'] <= 1


def test_predictions_of_a_folder(class_folder, folder_run, tmp_path, capsys):
  """The rows name the files; a class that is not first has its own label."""
  path = tmp_path / 'answers.csv'
  actual = run(
    capsys,
    f'--from={folder_run}',
    f'--data=folder:{class_folder}',
    '--split=val[20%:]+train[:3]',
    '--batch_size=4',
    f'--predictions={path}',
  )
  expected = json.loads((folder_run / 'DONE').read_text())
  assert expected['val/examples'] == 15
  with open(path) as f:
    rows = list(csv.DictReader(f))
  assert len(rows) == actual['examples'] == 15
  assert [int(x['index']) for x in rows] == [*range(3, 15), 15, 16, 17]
  logits = vit_jax.load(folder_run).predict([x['file'] for x in rows])
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  hits = 0
  for row, of_row in zip(rows, p, strict=True):
    label = stand_in.CLASSES.index(row['label_name'])
    assert f'/{row["label_name"]}/' in row['file']
    assert int(row['label']) == label
    order = np.argsort(-of_row).tolist()
    assert (
      json.loads(row['top']) == order and int(row['prediction']) == order[0]
    )
    assert row['prediction_name'] == stand_in.CLASSES[order[0]]
    assert float(row['probability']) == pytest.approx(of_row.max(), rel=1e-4)
    assert float(row['loss']) == pytest.approx(-np.log(of_row[label]), rel=1e-4)
    np.testing.assert_allclose(
      json.loads(row['top_probability']), of_row[order], rtol=1e-4
    )
    hits += order[0] == label
  assert actual['accuracy'] == hits / 15
  assert actual['k'] == 3 and actual['top_k_accuracy'] == 1


@pytest.mark.parametrize(
  ('split', 'names'),
  [('', ('bee',)), ('test', ('cow', 'ant')), ('val', ('cow',))],
)
def test_some_of_the_classes(
  class_folder, folder_run, tmp_path, capsys, split, names
):
  """As of these rows of all classes; the only split needs no flag."""
  for name in names:
    target = tmp_path / 'some' / split / name
    shutil.copytree(class_folder / 'val' / name, target)
  paths = tmp_path / 'all.csv', tmp_path / 'some.csv'
  data_of = f'folder:{class_folder}', f'folder:{tmp_path}/some'
  flags_of = ['--split=val'], [f'--split={split}'] * bool(split)
  rows = []
  for path, name, split_flags in zip(paths, data_of, flags_of, strict=True):
    args = f'--from={folder_run}', f'--data={name}', f'--predictions={path}'
    summary = run(capsys, *args, *split_flags)
    with open(path) as file:
      rows.append(
        sorted(
          (x['label_name'], x['label'], x['prediction'], x['loss'][:6])
          for x in csv.DictReader(file)
          if x['label_name'] in names
        )
      )
  assert rows[0] == rows[1] and len(rows[1]) == 5 * len(names)
  assert summary['examples'] == 5 * len(names)
  correct = sum(x[1] == x[2] for x in rows[1])
  assert summary['accuracy'] == pytest.approx(correct / summary['examples'])


def test_classes_that_the_model_lacks_are_named(
  class_folder, folder_run, tmp_path
):
  shutil.copytree(class_folder / 'val' / 'ant', tmp_path / 'test' / 'ant')
  for name in ('elk', 'fox'):
    shutil.copytree(class_folder / 'val' / 'bee', tmp_path / 'test' / name)
  args = f'--from={folder_run}', f'--data=folder:{tmp_path}'
  text = commands.mistake(evaluate, *args, has_config=False)
  assert 'of the data alone are elk, fox; of the model are ant, bee' in text


def test_names_that_unicode_composes_otherwise():
  composed, decomposed = 'caf\u00e9', 'cafe\u0301'
  actual = predictions_lib.match_classes(
    ['a', composed, 'z'], 3, ['z', decomposed]
  )
  np.testing.assert_array_equal(actual, [2, 1])


def test_the_same_classes_in_another_order(
  class_folder, folder_run, tmp_path, capsys
):
  args = f'--data=folder:{class_folder}', '--split=val'
  before = run(capsys, f'--from={folder_run}', *args)
  copy = tmp_path / 'run'
  shutil.copytree(folder_run, copy)
  stored = json.loads((copy / 'preprocess.json').read_text())
  names = ['cow', 'ant', 'bee']
  (copy / 'preprocess.json').write_text(json.dumps(stored | {'classes': names}))
  after = run(capsys, f'--from={copy}', *args)
  assert [x['name'] for x in after['classes']] == names
  relabelled = run(capsys, f'--from={copy}', *args, '--same_order')
  assert relabelled['confusion'] == before['confusion']
  # Output 0 is now called cow: column 0 counts what column 0 did, and the rows
  # have moved with their names.
  rows = np.array(before['confusion'])[[2, 0, 1]]
  np.testing.assert_array_equal(after['confusion'], rows)


def test_matching_classes():
  match = predictions_lib.match_classes
  np.testing.assert_array_equal(match('abc', 3, 'abc'), [0, 1, 2])
  np.testing.assert_array_equal(match('cab', 3, 'abc'), [1, 2, 0])
  np.testing.assert_array_equal(match((), 2, 'ab'), [0, 1])
  # Two classes may have one name, as in ImageNet, as long as the order agrees.
  np.testing.assert_array_equal(match('aab', 3, 'aab'), [0, 1, 2])
  with pytest.raises(UserError, match='of the data alone are c; of the model'):
    match('ab', 2, 'abc')
  with pytest.raises(UserError, match='twice'):
    match('aab', 3, 'aba')
  with pytest.raises(UserError, match='3 classes apart, and the data have 2'):
    match((), 3, 'ab')


def test_parquet(digits_run, tmp_path, capsys):
  if not importlib.util.find_spec('pyarrow'):
    pytest.skip('pyarrow is not installed')
  from pyarrow import parquet

  args = f'--from={digits_run}', '--data=digits', '--split=train[:7]'
  for name in ('a.csv', 'a.parquet'):
    run(capsys, *args, f'--predictions={tmp_path}/{name}')
  table = parquet.read_table(tmp_path / 'a.parquet').to_pydict()
  with open(tmp_path / 'a.csv') as f:
    rows = list(csv.DictReader(f))
  assert list(table) == list(rows[0])
  assert table['file'] == [None] * 7
  assert [str(x) for x in table['index']] == [x['index'] for x in rows]
  assert table['top'] == [json.loads(x['top']) for x in rows]


def test_the_table(digits_run, folder_run, class_folder, capsys):
  args = f'--from={digits_run}', '--data=digits', '--split=train[:50]'
  assert commands.run(evaluate, *args) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].split() == ['examples', '50']
  assert lines[2].startswith('top-5') and ' (0.' in lines[1]
  assert len(lines) == 5 + 1 + 1 + 10 + 1 + 1 + 1 + 10
  names = [f'class {i}' for i in range(30)]
  text = report.as_text(report.summarize(MEASURED, known_predictions(), names))
  assert 'the 20 worst classes' in text and 'confusion' not in text
  assert 'class 0' in text and 'class 29' not in text  # it has no examples


MEASURED = {'accuracy': 0.5, 'loss': 3.0, 'examples': 4.0}


def known_predictions():
  """Four predictions; right, wrong, right, wrong but second."""
  return predictions_lib.Predictions(
    index=np.arange(4),
    label=np.array([0, 0, 1, 2]),
    loss=np.array([1, 2, 3, 6], np.float32),
    top=np.array([[0, 1], [1, 2], [1, 0], [0, 2]]),
    probability=np.array([[0.9, 0.1], [0.6, 0.3], [0.6, 0.4], [0.5, 0.5]]),
  )


def test_the_report_of_known_predictions():
  actual = report.summarize(MEASURED, known_predictions(), ['a', 'b', 'c', 'd'])
  assert actual['accuracy'] == 0.5 and actual['top_k_accuracy'] == 0.75
  assert actual['loss'] == 3 and actual['k'] == 2
  assert actual['confusion'] == [
    [1, 1, 0, 0],
    [0, 1, 0, 0],
    [1, 0, 0, 0],
    [0, 0, 0, 0],
  ]
  assert [x['accuracy'] for x in actual['classes']] == [0.5, 1, 0, None]
  assert actual['classes'][3]['accuracy_interval'] == (0, 1)
  own = MEASURED | {'rotation_accuracy': 0.25}
  actual_own = report.summarize(own, known_predictions(), ['a', 'b', 'c', 'd'])
  assert actual_own == actual | {'rotation_accuracy': 0.25}
  assert 'rotation accuracy  0.2500' in report.as_text(actual_own)
  few = report.summarize({}, known_predictions(), ['a', 'b', 'c', 'd'])
  assert few == actual  # the objective measures something else alone
  # Bins: 0.9 (right), 0.6 twice (one right), 0.5 (wrong).
  assert actual['calibration_error'] == pytest.approx((0.1 + 0.2 + 0.5) / 4)


def test_calibration_error():
  confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.35, 0.35])
  correct = np.array([True, True, True, False, False, True])
  expected = (4 * abs(0.75 - 0.95) + 2 * abs(0.5 - 0.35)) / 6
  actual = calibration.calibration_error(confidence, correct)
  assert actual == pytest.approx(expected)
  # The ends of bins belong to the lower one, and 0 and 1 to some.
  confidence, correct = np.array([0.0, 1.0]), np.array([False, True])
  assert calibration.calibration_error(confidence, correct) == 0
  confidence = np.array([2 / 15, 1.5 / 15])
  correct = np.array([True, False])
  actual = calibration.calibration_error(confidence, correct)
  assert actual == pytest.approx(abs(0.5 - 1.75 / 15))


def test_wilson():
  # From the formula, in exact arithmetic.
  assert intervals.wilson(8, 10) == pytest.approx(
    (0.490162, 0.943318), abs=1e-6
  )
  assert intervals.wilson(0, 10) == pytest.approx((0, 0.277533), abs=1e-6)
  assert intervals.wilson(10, 10) == pytest.approx((0.722467, 1), abs=1e-6)
  assert intervals.wilson(0, 0) == (0, 1)


def test_a_damaged_image_is_named(class_folder, folder_run, tmp_path, capsys):
  root = tmp_path / 'images'
  shutil.copytree(class_folder, root)
  (root / 'val' / 'bee' / '0.png').write_bytes(b'damaged')
  with pytest.raises(UserError, match=r'bee/0\.png is damaged'):
    run(capsys, f'--from={folder_run}', f'--data=folder:{root}', '--split=val')


TRAIN_SPLIT = '--train_split=train[:80%]'


def count_tokens(vit, images):
  """Returns all tokens of images side by side, [B, N D]."""
  inputs = vit.preprocess(images)
  actual = vit.model.apply({'params': vit.params}, inputs, method='trunk')
  return np.asarray(actual['tokens'], np.float32).reshape(len(images), -1)


@pytest.mark.parametrize(
  'features, embed', [('head', vit_jax.embeddings), ('tokens', count_tokens)]
)
def test_nearest_neighbours_of_a_run(digits_run, capsys, features, embed):
  """Against scikit-learn's, on the library's embeddings."""
  args = f'--from={digits_run}', '--data=digits', SPLIT, TRAIN_SPLIT
  flags = '--k=3', '--batch_size=50', f'--features={features}'
  actual = run(capsys, *args, '--probe=knn', *flags)
  vit = vit_jax.load(digits_run)
  assert '\n' not in repr(vit) and '10 classes' in repr(vit)
  (x, y), (test, expected) = (
    (embed(vit, list(source.arrays['image'])), source.arrays['label'])
    for source in (
      data.open_source(vit.preprocess.to_config(), split)
      for split in ('train[:80%]', 'train[80%:]')
    )
  )
  reference = neighbors.KNeighborsClassifier(
    3, metric='cosine', weights=lambda distance: np.exp((1 - distance) / 0.07)
  )
  rate = reference.fit(x, y).score(test, expected)
  assert actual['accuracy'] == pytest.approx(rate, abs=1.01 / 359)
  low, high = actual['accuracy_interval']
  assert low < actual['accuracy'] < high
  assert {
    k: actual[k] for k in ('probe', 'k', 'train_examples', 'examples')
  } == {
    'probe': 'knn',
    'k': 3,
    'train_examples': 1438,
    'examples': 359,
  }


def test_few_shots_and_a_linear_probe(digits_run, capsys):
  args = f'--from={digits_run}', '--data=digits', SPLIT, TRAIN_SPLIT
  few = run(capsys, *args, '--probe=few_shot', '--shots=1,20')
  assert list(few)[:3] == ['probe', 'train_examples', 'examples']
  assert few['few_shot_1_accuracy'] < few['few_shot_20_accuracy']
  low, high = few['few_shot_20_accuracy_interval']
  assert 0 <= low < few['few_shot_20_accuracy'] < high <= 1
  linear = run(capsys, *args, '--probe=linear')
  assert linear['accuracy'] > few['few_shot_20_accuracy']
  assert 1e-9 < linear['penalty'] < 1e4
  assert commands.run(evaluate, *args, '--probe=knn') == 0
  lines = [x.split() for x in capsys.readouterr().out.splitlines()]
  assert lines[:2] == [['probe', 'knn'], ['k', '20']]
  assert lines[-1][0] == 'accuracy' and lines[-1][2].startswith('(0.')


def test_a_probe_asks_for_no_head_and_no_class_names(
  class_folder, digits_run, tmp_path, capsys
):
  """Of images in other classes than the model's."""
  grey = tmp_path / 'images'
  for split, count in (('train', 6), ('val', 4)):
    stand_in.write_folder(grey, **{split: count})
  actual = run(
    capsys,
    f'--from={digits_run}',
    f'--data=folder:{grey}',
    '--split=val',
    '--train_split=train',
    '--probe=few_shot',
    '--shots=6',
    '--batch_size=8',
  )
  assert actual['examples'] == 12 and actual['train_examples'] == 18
  assert 0 <= actual['few_shot_6_accuracy'] <= 1
