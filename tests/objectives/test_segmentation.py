"""Segmentation: a class for each pixel, by heads on a ViT's layers."""

import functools
import json

import commands
import cv2
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pandas as pd
import pytest
import tiny

import vit_jax
from vit_jax import evaluate
from vit_jax.data import scenes
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import metrics
from vit_jax.evaluation import segments
from vit_jax.explore import pictures as explore
from vit_jax.models import setr
from vit_jax.objectives import segmentation
from vit_jax.objectives import segmenter
from vit_jax.plots import class_colours
from vit_jax.predict import __main__ as predict
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

make_config = functools.partial(methods.config, 'segmentation')
finished = methods.finished('segmentation')


@pytest.mark.slow
def test_measures_are_those_of_all_pixels():
  """Each pixel of the split counts once, whatever the batches."""
  experiment = experiment_lib.build(make_config())
  objective = experiment.program.objective
  params = jax.jit(objective.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  images = rng.normal(size=(5, 16, 16, 3)).astype(np.float32)
  labels = rng.integers(0, 11, (5, 16, 16)).astype(np.int32)
  labels[:, :3] = 255
  outputs = jax.jit(objective.outputs)(params, {'image': images})
  assert outputs['logits'].shape == (5, 16, 16, 11)
  collections = [
    objective.measure(
      {k: x[rows] for k, x in outputs.items()},
      {'map': labels[rows], 'valid': np.array(valid)},
    )
    for rows, valid in (
      (slice(0, 3), [True, True, True]),
      (slice(2, 5), [False, True, True]),
    )
  ]
  actual = collections[0].merge(collections[1]).compute()
  predicted = np.asarray(outputs['segments'])
  matrix = metrics.confusion(labels, predicted, 11, labels != 255)
  expected = segments.overlaps(matrix)
  assert actual['miou'] == pytest.approx(expected.mean_iou)
  assert actual['accuracy'] == pytest.approx(expected.total)
  assert actual['dice'] == pytest.approx(segments.mean(expected.dice))
  np.testing.assert_allclose(actual['iou'], expected.iou)
  assert actual['examples'] == 5


def test_metrics_of_a_run(finished):
  last = [x for x in tiny.metrics(finished) if 'val/miou' in x][-1]
  for name in ('accuracy', 'mean_accuracy', 'dice', 'iou/background', 'iou/9'):
    assert 0 <= last[f'val/{name}'] <= 1, name
  assert last['val/examples'] == 12
  assert 1 <= last['val/labelled_classes'] <= last['val/miou_classes'] <= 11


@pytest.mark.slow
@pytest.mark.parametrize(
  ('head', 'loss'),
  [
    *((head, 'cross_entropy') for head in setr.KINDS),
    *(('naive', loss) for loss in list(segmentation.LOSSES)[1:]),
  ],
)
def test_every_head_and_loss_learns(head, loss):
  """The gradient of one batch lowers its loss."""
  config = make_config({'head': head, 'loss': loss}, model__depth=2)
  assert_learns(experiment_lib.build(config).program.objective)


@pytest.mark.parametrize('weights', [(), (1.0, 3.0) + (2.0,) * 9])
def test_what_the_loss_is_averaged_over(weights):
  """All pixels by default; ignored ones lower no mean over valid ones."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
  labels = np.full((2, 16, 16), 1, np.int32)

  def loss_of(**options):
    options |= {'head': 'linear', 'auxiliary_weight': 0, 'layers': (1,)}
    options['class_weights'] = weights
    config = make_config(options, model__depth=2)
    objective = experiment_lib.build(config).program.objective
    params = objective.init(jax.random.key(0))
    extra = objective.init_extra(params)
    keys = Rng(jax.random.key(1), jnp.arange(2))

    @jax.jit
    def loss(share):
      ignored = jnp.arange(16)[:, None] < 16 * share
      batch = {'image': images, 'map': jnp.where(ignored, 255, labels)}
      return objective.loss(params, extra, batch, keys)[0]

    return loss

  over_all, over_valid = loss_of(), loss_of(loss_mean='valid')
  weight = weights[1] if weights else 1.0
  np.testing.assert_allclose(over_all(0.0), weight * over_valid(0.0), rtol=1e-5)
  for share in (0.25, 0.5, 0.75):
    np.testing.assert_allclose(
      over_all(share), weight * (1 - share) * over_valid(share), rtol=1e-5
    )
  assert over_valid(0.5) > 0.7 * over_valid(0.0)


def assert_learns(objective):
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.normal(size=(4, 16, 16, 3)).astype(np.float32),
    'map': rng.integers(0, 11, (4, 16, 16)).astype(np.int32),
  }
  methods.assert_learns(objective, batch)


# A ResNet with two stages, on whose features Trans2Seg draws.
TRANS2SEG = {
  'model__name': (
    'BiT-R50x1(stages=(1, 1), channels=(16, 32), stem_width=8, num_groups=4)'
  ),
} | dict.fromkeys(
  (
    'model__patch_size',
    'model__hidden_size',
    'model__mlp_dim',
    'model__num_heads',
    'model__depth',
    'model__pool',
  )
)
SMALL = {'head': 'trans2seg', 'width': 16, 'depth': 2, 'heads': 2}


@pytest.mark.slow
def test_trans2seg_trains_and_predicts(tmp_path, capsys):
  config = make_config(SMALL, **TRANS2SEG)
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  last = [x for x in tiny.metrics(tmp_path / 'run') if 'val/miou' in x][-1]
  assert np.isfinite(last['val/loss']) and 0 <= last['val/miou'] <= 1
  image = scenes.ScenesSource('test', (16, 16)).read(0).values['image']
  cv2.imwrite(str(tmp_path / 'scene.png'), image[..., ::-1])
  args = f'--from={tmp_path}/run', tmp_path / 'scene.png', '--format=json'
  assert commands.run(predict, *args, f'--output={tmp_path}/maps') == 0
  assert len(json.loads(capsys.readouterr().out)[0]['numbers']) == 11


@pytest.mark.slow
def test_trans2seg_learns():
  config = make_config(SMALL, **TRANS2SEG)
  objective = experiment_lib.build(config).program.objective
  assert_learns(objective)


@pytest.mark.slow
def test_a_trunk_of_another_run(tmp_path):
  """The trunk starts from a run's; the heads are new."""
  first = tiny.config(
    data__image_size=16,
    data__channels=3,
    data__split='train[:64]',
    model__patch_size=4,
    evals__val__split='',
    train__duration='1 steps',
    optim__warmup='0 steps',
  )
  assert loop.run(first, str(tmp_path / 'first')).status == 0
  config = make_config(
    init_from__path=str(tmp_path / 'first'), model__name='init_from'
  )
  experiment = experiment_lib.build(config)
  started = experiment.start.take()
  expected = vit_jax.load(tmp_path / 'first').params
  np.testing.assert_array_equal(
    started['trunk']['patch_embedding']['kernel'],
    expected['patch_embedding']['kernel'],
  )


def test_the_command_measures_a_run(finished, tmp_path, capsys):
  """The metrics of training, the confusion, and the worst images."""
  table = tmp_path / 'images.csv'
  args = f'--from={finished}', '--data=scenes', '--split=test[:12]'
  args += ('--source_size=16x16', f'--predictions={table}')
  assert commands.run(evaluate, *args, '--format=json') == 0
  actual = json.loads(capsys.readouterr().out)
  last = [x for x in tiny.metrics(finished) if 'val/miou' in x][-1]
  for name in ('miou', 'dice', 'accuracy', 'iou/background'):
    assert actual[name] == pytest.approx(last[f'val/{name}'], abs=1e-6)
  matrix = np.array(actual['confusion'])
  assert matrix.sum() == 12 * 16 * 16
  right = np.trace(matrix) / matrix.sum()
  assert right == pytest.approx(actual['accuracy'], abs=1e-6)
  rows = pd.read_csv(table)
  assert rows['accuracy'].mean() == pytest.approx(right, abs=1e-5)
  worst = actual['worst']['miou']
  assert len(worst) == 10
  assert worst[0]['miou'] == pytest.approx(rows['miou'].min())
  low, high = actual['miou_interval']
  assert low <= actual['miou'] <= high and 'hausdorff95' not in actual
  assert set(rows) == {'index', 'miou', 'accuracy', 'file'}
  assert commands.run(evaluate, *args, '--hausdorff', '--format=json') == 0
  actual = json.loads(capsys.readouterr().out)
  assert 0 <= actual['hausdorff95/background'] < 16
  assert 0 < actual['missed_objects'] <= actual['objects']
  assert actual['miou_classes'] <= 11


@pytest.fixture(scope='module')
def folder_of_pairs(tmp_path_factory):
  """Scenes of different sizes, with their maps and a place that is ignored."""
  root = tmp_path_factory.mktemp('pairs')
  (root / 'classes.txt').write_text('\n'.join(scenes.CLASSES))
  for name in ('images', 'masks'):
    (root / name).mkdir()
  for i, size in enumerate([(16, 16), (21, 40), (9, 5)]):
    values = scenes.ScenesSource('test', size).read(i).values
    labels = values['map'].copy()
    labels[0, 0] = 255
    cv2.imwrite(str(root / 'images' / f'{i}.png'), values['image'][..., ::-1])
    cv2.imwrite(str(root / 'masks' / f'{i}.png'), labels)
  return root


@pytest.mark.parametrize(
  'flags', [('--whole',), ('--scales=1,1.5', '--flip', '--gaussian')]
)
def test_whole_images_are_measured_at_their_size(
  flags, finished, folder_of_pairs, tmp_path, capsys
):
  """Each pixel counts once; the maps equal those that predict writes."""
  args = f'--from={finished}', f'--data=folder:{folder_of_pairs}'
  table = tmp_path / 'images.csv'
  args += ('--split=train', f'--predictions={table}', '--format=json')
  assert commands.run(evaluate, *args, '--hausdorff', *flags) == 0
  actual = json.loads(capsys.readouterr().out)
  matrix = np.array(actual['confusion'])
  assert matrix.sum() == 16 * 16 + 21 * 40 + 9 * 5 - 3
  assert actual['examples'] == len(pd.read_csv(table)) == 3
  assert actual['hausdorff95/background'] >= 0
  predict_flags = [x for x in flags if x != '--whole']
  output = f'--output={tmp_path}/maps'
  images = folder_of_pairs / 'images'
  assert (
    commands.run(predict, f'--from={finished}', images, output, *predict_flags)
    == 0
  )
  capsys.readouterr()
  expected = np.zeros_like(matrix)
  for i in range(3):
    labels, guess = (
      cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
      for path in (
        folder_of_pairs / 'masks' / f'{i}.png',
        tmp_path / 'maps' / f'{i}.map.png',
      )
    )
    np.add.at(expected, (labels[labels != 255], guess[labels != 255]), 1)
  np.testing.assert_array_equal(matrix, expected)
  assert actual['miou'] == pytest.approx(segments.overlaps(expected).mean_iou)


@pytest.mark.parametrize('flags', [(), ('--scales=1,1.5', '--flip')])
def test_maps_of_images_of_any_size(flags, finished, tmp_path, capsys, caplog):
  caplog.set_level('INFO', logger='absl')
  folder, output = tmp_path / 'images', tmp_path / 'maps'
  folder.mkdir()
  for i, size in enumerate([(16, 16), (21, 40), (9, 5)]):
    image = scenes.ScenesSource('test', size).read(i).values['image']
    cv2.imwrite(str(folder / f'{i}.png'), image[..., ::-1])
  (folder / 'bad.png').write_bytes(b'no image')
  args = f'--from={finished}', folder, f'--output={output}', '--format=json'
  assert commands.run(predict, *args, *flags) == 1
  captured = capsys.readouterr()
  assert 'bad.png' in captured.err
  assert f'maps of 3 of 4 images are in {output}' in caplog.text
  actual = json.loads(captured.out)
  for i, (height, width) in enumerate([(16, 16), (21, 40), (9, 5)]):
    labels = cv2.imread(str(output / f'{i}.map.png'), cv2.IMREAD_UNCHANGED)
    assert labels.shape == (height, width)
    shares = list(actual[i]['numbers'].values())
    counts = np.bincount(labels.ravel(), minlength=11) / labels.size
    np.testing.assert_allclose(shares, counts)
    colours = cv2.imread(str(output / f'{i}.colour.png'))[..., ::-1]
    names = ['background', *map(str, range(10))]
    expected = class_colours.label_colours(names)[labels]
    np.testing.assert_array_equal(colours, expected)
    assert cv2.imread(str(output / f'{i}.overlay.png')).shape == colours.shape
  args = f'--from={finished}', folder / '0.png', f'--output={output}', '--top=2'
  assert commands.run(predict, *args, *flags) == 0
  _, *lines = capsys.readouterr().out.splitlines()
  largest = sorted(filter(None, actual[0]['numbers'].values()), reverse=True)[
    :2
  ]
  assert [x.split()[-2] for x in lines] == [f'{x:.6g}' for x in largest]


def test_each_image_has_maps_of_its_own(finished, tmp_path, capsys):
  """Also where names are equal, and one is what another would get."""
  output, paths = tmp_path / 'maps', ['x/a.png', 'y/a.png', 'x/a-2.png']
  for i, path in enumerate(paths):
    image = scenes.ScenesSource('test', (16, 16 + i)).read(i).values['image']
    (tmp_path / path).parent.mkdir(exist_ok=True)
    cv2.imwrite(str(tmp_path / path), image[..., ::-1])
  images = [tmp_path / path for path in paths]
  args = f'--from={finished}', *images, f'--output={output}'
  assert commands.run(predict, *args) == 0
  actual = [cv2.imread(str(x)).shape[1] for x in output.glob('*.map.png')]
  assert sorted(actual) == [16, 17, 18]


def test_pictures_of_maps_and_their_errors(finished, tmp_path, capsys):
  args = f'--from={finished}', '--data=scenes', '--split=test[:12]'
  args += ('--source_size=16x16', f'--out={tmp_path}/out', '--max_images=3')
  names = '--only=overlays,errors,confusion,neighbors'
  assert commands.run(explore, *args, names) == 0
  numbers = json.loads((tmp_path / 'out' / 'numbers.json').read_text())
  assert len(numbers['overlays']['images']) == 3
  totals = np.sum(numbers['overlays']['shares'], axis=1)
  np.testing.assert_allclose(totals, 1, rtol=1e-5)
  actual = [x['miou'] for x in numbers['errors']['worst']]
  assert actual == sorted(actual) and len(actual) == 12
  for name in ('overlays', 'errors'):
    assert (tmp_path / 'out' / f'{name}.png').stat().st_size > 500
  page = (tmp_path / 'out' / 'report.html').read_text()
  assert 'id="overlays"' in page and 'and these have maps' in page
  # The card has the numbers of all examples, not the mean over the worst.
  by_class = dict(numbers['errors']['classes_by_iou'])
  assert numbers['errors']['miou'] == pytest.approx(
    np.mean(list(by_class.values())), rel=1e-4
  )
  assert f'<dd class="value">{numbers["errors"]["miou"]:.3f}</dd>' in page
  # Both of the pictures have images with ground truth, prediction and errors.
  wide = [
    cv2.imread(str(tmp_path / 'out' / f'{name}.png')).shape[1]
    for name in ('overlays', 'errors')
  ]
  assert wide[0] == wide[1] > 1000


def test_a_map_is_that_of_the_objective(finished):
  """For an image of the model's size there is one window."""
  loaded = vit_jax.load(finished)
  segment = segmenter.Segmenter(loaded)
  image = scenes.ScenesSource('test', (16, 16)).read(0).values['image']
  _, labels = segment(image)
  outputs = loaded.outputs(image)
  assert outputs['logits'].shape == (1, 16, 16, 11)
  np.testing.assert_array_equal(labels, outputs['segments'][0])
