"""Scans in files: sizes, spacings, axes, windows, crops and mistakes."""

import errno
import gzip
import itertools
import json
import os

import commands
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.data import class_areas
from vit_jax.data import input_kinds
from vit_jax.data import scans
from vit_jax.data import survey
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import levels
from vit_jax.predict import __main__ as predict
from vit_jax.train import loop

CLASSES = 'background\norgan\ntumour\n'
# Axes of the file are superior, left and anterior; distances are 3, 2 and 1 mm.
AFFINE = np.array(
  [[0, -2, 0, 7], [0, 0, 1, -4], [3, 0, 0, 5], [0, 0, 0, 1]], float
)


def scan(number, size, dtype=np.uint8):
  """Returns a scan [D, H, W] that grows along each axis, and its map."""
  rng = np.random.default_rng(number)
  axes = np.indices(size)
  values = (axes * np.array([5, 3, 2]).reshape(3, 1, 1, 1)).sum(axis=0)
  labels = np.zeros(size, np.uint8)
  labels[2:6, 3:7, 4:8] = 1 + number % 2
  return (values + rng.integers(0, 9, size)).astype(dtype), labels


def write(root, sizes, part='train', **options):
  """Writes pairs of .npy files, and the classes."""
  (root / 'classes.txt').write_text(CLASSES)
  for i, size in enumerate(sizes):
    for kind, x in zip(
      ('images', 'masks'), scan(i, size, **options), strict=True
    ):
      path = root / kind / part / f'{part}{i}.npy'
      path.parent.mkdir(parents=True, exist_ok=True)
      np.save(path, x)
  return root


SIZES = ((10, 12, 9), (8, 9, 14), (6, 12, 12))


def make_config(root, size=(8, 8, 8), **volume):
  config = config_lib.default()
  config.data.update(name=f'folder:{root}', image_size=size, channels=1)
  config.data.volume.update(volume)
  config.train.batch_size = 6
  return config


def test_scans_of_different_sizes(tmp_path):
  """Evaluation pads whole scans; training cuts what there is."""
  config = make_config(write(tmp_path, SIZES))
  source = data.open_source(config, 'train')
  assert source.features['image'] == input_kinds.Volume((10, 12, 14), 1, False)
  assert source.classes == ('background', 'organ', 'tumour')
  assert source.image_shape is None and source.bits() == 8
  batch = next(iter(data.eval_batches(source, config, batch_size=2)))
  assert batch['image'].shape == (2, 10, 12, 14, 1)
  for i in range(2):
    path = source.file(i)
    size = np.load(path).shape
    inside = tuple(slice(n) for n in size)
    np.testing.assert_array_equal(
      batch['image'][i][inside][..., 0], np.load(path)
    )
    assert (batch['map'][i] == 255).sum() == 10 * 12 * 14 - np.prod(size)
  config.augment.volume.foreground = 1.0
  batch = next(
    iter(data.train_batches(source, config, start_step=0, num_steps=1))
  )
  assert batch['image'].shape == (6, 8, 8, 8, 1)
  assert (
    ((batch['map'] > 0) & (batch['map'] < 255)).sum(axis=(1, 2, 3)) > 8
  ).all()
  rows = Rng(np.array([0, 1], np.uint32), np.arange(6, dtype=np.int32))
  prepared = views.train_transform(config, source.features)(batch, rows)
  np.testing.assert_array_equal(prepared['map'], batch['map'])


def test_a_crop_depends_on_its_draw_alone(tmp_path):
  config = make_config(write(tmp_path, SIZES))
  config.augment.volume.foreground = 0.5
  source = data.open_source(config, 'train')
  first, second = (
    list(data.train_batches(source, config, start_step=s, num_steps=4))
    for s in (0, 2)
  )
  for a, b in zip(first[2:], second, strict=True):
    for name in ('image', 'map', 'index'):
      np.testing.assert_array_equal(a[name], b[name])
  images = np.concatenate([x['image'] for x in first])
  assert len({x.tobytes() for x in images}) > 6


def test_windows_of_intensities(tmp_path):
  root = write(tmp_path, SIZES[:1], dtype=np.int16)
  with pytest.raises(UserError, match=r'train0.npy holds int16, which has no'):
    data.open_source(make_config(root), 'train').read(0)
  config = make_config(root, window=(-20.0, 80.0))
  source = data.open_source(config, 'train')
  stored, actual = np.load(source.file(0)), source.read(0).image[..., 0]
  assert actual.dtype == np.uint16 and source.bits() == 16
  expected = np.clip((stored + 20) / 100, 0, 1) * 65535
  np.testing.assert_allclose(actual, expected, atol=0.51)
  config.data.volume.window = 'percentiles(10,90)'
  actual = data.open_source(config, 'train').read(0).image
  assert (actual == 0).mean() == pytest.approx(0.1, abs=0.04)
  assert (actual == 65535).mean() == pytest.approx(0.1, abs=0.04)


def test_a_window_holds_for_all_modalities(tmp_path):
  root = write(tmp_path, SIZES[:1])
  scan_path = root / 'images' / 'train' / 'train0.npy'
  modality = np.load(scan_path).astype(np.uint16)
  many = np.stack([modality] * 3 + [4 * modality], axis=-1)
  np.save(scan_path, many)
  config = make_config(root)
  config.data.update(channels=4, intensity='percentiles(0,100)')
  source = data.open_source(config, 'train')
  levels.fill(config, source)
  high = int(many[..., 3].max())  # fourth, but no alpha
  assert config.data.intensity_window == (int(many.min()), high)
  config.data.intensity, config.data.intensity_window = (0, high), ()
  config.data.update(mean=(0.0,), std=(1.0,))
  batch = next(data.eval_batches(source, config, batch_size=1))
  actual = views.eval_batch(config, source.features)(batch)['image'][0]
  inside = actual[tuple(slice(n) for n in many.shape[:3])]
  np.testing.assert_allclose(inside, many / high, rtol=1e-5)
  preprocess = data.Preprocess.from_config(config, source.features)
  np.testing.assert_allclose(
    preprocess.normalized(many), many / high, rtol=1e-5
  )


def save_nifti(path, values, affine=AFFINE):
  """Writes values [D, H, W, ...] of the body's axes as a file stores them."""
  nibabel = pytest.importorskip('nibabel')
  # Right to left, anterior, superior -> the axes of AFFINE.
  stored = np.moveaxis(values[::-1], (0, 1, 2), (1, 2, 0))
  path.parent.mkdir(parents=True, exist_ok=True)
  nibabel.save(nibabel.Nifti1Image(stored, affine), path)


def decathlon(root, count=4, channels=2):
  """Writes a data set laid out as the Medical Segmentation Decathlon's."""
  listed = []
  for i in range(count):
    values, labels = scan(i, (10, 16, 8))
    many = np.stack([values + 7 * c for c in range(channels)], axis=-1)
    name = f'scan_{i}.nii.gz'
    save_nifti(root / 'imagesTr' / name, many.astype(np.int16))
    save_nifti(root / 'labelsTr' / name, labels)
    listed.append(
      {'image': f'./imagesTr/{name}', 'label': f'./labelsTr/{name}'}
    )
  content = {
    'labels': {'0': 'background', '1': 'organ', '2': 'tumour'},
    'modality': {'0': 'T2', '1': 'ADC'},
    'training': listed,
  }
  (root / 'dataset.json').write_text(json.dumps(content))
  return root


def test_the_decathlon(tmp_path):
  """Axes are the body's, and places have the wanted spacing."""
  config = make_config(decathlon(tmp_path), (8, 8, 8), window=(0.0, 120.0))
  config.data.channels = 2
  source = data.open_source(config, 'train')
  assert len(source) == 4 and source.classes[2] == 'tumour'
  number = int(source.file(0)[-8])
  values, labels = scan(number, (10, 16, 8))
  example = source.read(0)
  assert example.image.shape == (10, 16, 8, 2)
  np.testing.assert_array_equal(example.values['map'], labels)
  for c in range(2):
    expected = np.clip((values + 7.0 * c) / 120, 0, 1) * 65535
    np.testing.assert_allclose(example.image[..., c], expected, atol=0.51)
  config.data.volume.spacing = (1.0, 2.0, 3.0)  # it was (2, 1, 3)
  source = data.open_source(config, 'train')
  assert source.features['image'].size == (20, 8, 8)
  example = source.read(0)
  assert example.image.shape == (20, 8, 8, 2)
  assert example.values['map'].shape == (20, 8, 8)
  share = (labels > 0).mean()
  assert (example.values['map'] > 0).mean() == pytest.approx(share, rel=0.3)


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16'])
def test_a_list_in_another_encoding(encoding, tmp_path):
  root = decathlon(tmp_path)
  path = root / 'dataset.json'
  path.write_text(path.read_text(), encoding=encoding)
  config = make_config(root, (8, 8, 8))
  config.data.channels = 2
  source = data.open_source(config, 'train')
  assert len(source) == 4 and source.classes[2] == 'tumour'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A run on NIfTI files of two modalities, resampled."""
  root = tmp_path_factory.mktemp('decathlon')
  decathlon(root / 'data')
  config = tiny.config(
    objective__name='segmentation',
    data__name=f'folder:{root}/data',
    data__image_size=(8, 8, 8),
    data__channels=2,
    data__volume__window=(0.0, 120.0),
    data__volume__spacing=(2.0, 2.0, 3.0),
    data__split='train[:3]',
    model__patch_size=(4, 4, 4),
    augment__volume__foreground=0.5,
    evals__val__split='train[3:]',
    train__duration='4 steps',
    train__batch_size=4,
    checkpoint__best='val/dice',
  )
  config.objective.options.update(head='linear', channels=4)
  assert loop.run(config, str(root / 'run')).status == 0
  return root


def test_a_run_on_scans_is_measured_and_predicts(finished, tmp_path, capsys):
  """The map has the axes, size and affine of its scan."""
  nibabel = pytest.importorskip('nibabel')
  run, folder = finished / 'run', finished / 'data'
  last = [x for x in tiny.metrics(run) if 'val/dice' in x][-1]
  args = f'--from={run}', f'--data=folder:{folder}', '--split=train[3:]'
  args += ('--step=newest', '--format=json', '--batch_size=2')
  assert commands.run(evaluate, *args) == 0
  actual = json.loads(capsys.readouterr().out)
  assert actual['dice'] == pytest.approx(last['val/dice'], abs=1e-6)
  assert np.array(actual['confusion']).sum() == 10 * 8 * 8
  args = f'--from={run}', folder / 'imagesTr', f'--output={tmp_path}'
  assert commands.run(predict, *args) == 0
  original = nibabel.load(folder / 'imagesTr' / 'scan_1.nii.gz')
  labels = nibabel.load(tmp_path / 'scan_1.map.nii.gz')
  assert labels.shape == original.shape[:3]
  np.testing.assert_allclose(labels.affine, original.affine, atol=1e-6)
  assert labels.get_data_dtype() == np.uint8
  loaded = vit_jax.load(run)
  path = str(folder / 'imagesTr' / 'scan_1.nii.gz')
  volume, header = scans.read_volume(path, loaded.preprocess)
  assert header.size == (10, 16, 8) and volume.shape == (10, 8, 8, 2)
  body, _ = scans.read_labels(str(tmp_path / 'scan_1.map.nii.gz'))
  assert body.shape == (10, 16, 8)
  np.testing.assert_array_equal(body[:, ::2], body[:, 1::2])  # 1 mm from 2 mm


@pytest.mark.parametrize('ending', ['.nii', '.nii.gz'])
@pytest.mark.parametrize('affine', [np.eye(4), AFFINE], ids=['ras', 'turned'])
@pytest.mark.parametrize(
  ('dtype', 'slope', 'inter'),
  [
    (np.uint8, 1, 0),
    (np.uint8, 0.1, -1.0),
    (np.uint16, 1, -1024),
    (np.int16, 2.5, 7),
    (np.int16, 1, 0),
    (np.int32, 1e-3, 0),
    (np.float32, 1, 0),
    (np.float32, -2.0, 0.5),
    (np.float64, 1, 0),
    (np.float64, 3.0, -1.0),
  ],
)
def test_a_slope_scales_the_stored_values(
  dtype, slope, inter, affine, ending, tmp_path
):
  nibabel = pytest.importorskip('nibabel')
  rng = np.random.default_rng(0)
  stored = rng.integers(0, 200, (4, 5, 6)).astype(dtype)
  image = nibabel.Nifti1Image(stored, affine)
  path = tmp_path / f'a{ending}'
  # Written as it is, since nibabel would choose a slope of its own.
  raw = image.header.copy()
  raw['scl_slope'], raw['scl_inter'], raw['vox_offset'] = slope, inter, 352
  content = raw.binaryblock + bytes(4) + stored.tobytes(order='F')
  is_gz = ending == '.nii.gz'
  path.write_bytes(gzip.compress(content) if is_gz else content)
  expected = nibabel.as_closest_canonical(nibabel.load(path)).get_fdata()
  values, header = scans.read(str(path))
  np.testing.assert_allclose(values[..., 0], expected, rtol=1e-6, atol=1e-6)
  assert values.dtype == header.dtype == scans.header(str(path)).dtype
  is_scaled = (slope, inter) != (1, 0)
  assert values.dtype.kind == ('f' if is_scaled else np.dtype(dtype).kind)
  config = make_config(tmp_path, window=(-100.0, 300.0))
  volume = scans.from_config(config).volume(values, header, str(path))
  share = np.clip((expected + 100) / 400, 0, 1)
  np.testing.assert_allclose(volume[..., 0], share * 65535, atol=0.51)


def test_labels_of_a_slope_are_whole(tmp_path):
  """A slope is rounded to float32."""
  nibabel = pytest.importorskip('nibabel')
  image = nibabel.Nifti1Image(np.array([[[0, 127, 254]]], np.uint8), np.eye(4))
  raw = image.header.copy()
  raw['scl_slope'], raw['scl_inter'], raw['vox_offset'] = 2 / 254, 0, 352
  (tmp_path / 'a.nii').write_bytes(
    raw.binaryblock + bytes(4) + bytes([0, 127, 254])
  )
  labels, _ = scans.read_labels(str(tmp_path / 'a.nii'))
  np.testing.assert_array_equal(labels, [[[0, 1, 2]]])


def test_the_header_of_a_scan_is_read_without_its_values(tmp_path):
  """Of a file that ends after a part of its values, too."""
  rng = np.random.default_rng(0)
  path = tmp_path / 'a.nii.gz'
  save_nifti(path, rng.integers(0, 999, (9, 8, 20)).astype(np.int16))
  whole = scans.header(str(path))
  assert whole.size == (9, 8, 20) and whole.spacing == (2, 1, 3)
  path.write_bytes(path.read_bytes()[:1000])
  assert scans.header(str(path)) == whole
  with pytest.raises(UserError, match='is damaged'):
    scans.read(str(path))


def rotation(degrees):
  """Returns an affine that turns the first two axes of the body."""
  cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
  turn = np.eye(4)
  turn[:2, :2] = [[cosine, -sine], [sine, cosine]]
  return turn


def save_pair(root, turn, moved, affine=AFFINE):
  """Writes a scan and its map, stored along other axes.

  Args:
    root: The folder.
    turn: Axes and directions of the stored map, as `nibabel.orientations`.
    moved: float [4, 4], of the map's places in the body.
    affine: That of the scan.

  Returns:
    The values and labels of the stored scan's axes.
  """
  nibabel = pytest.importorskip('nibabel')
  values, labels = scan(0, (10, 12, 9))
  turned = nibabel.orientations.apply_orientation(labels, np.array(turn))
  change = nibabel.orientations.inv_ornt_aff(np.array(turn), labels.shape)
  (root / 'classes.txt').write_text(CLASSES)
  for kind, x, places in (
    ('images', values, affine),
    ('masks', turned, moved @ affine @ change),
  ):
    (root / kind).mkdir()
    nibabel.save(nibabel.Nifti1Image(x, places), root / kind / 'a.nii.gz')
  return values, labels


TURNS = [
  [[axis, sign] for axis, sign in zip(axes, signs, strict=True)]
  for axes in itertools.permutations(range(3))
  for signs in ((1, 1, 1), (-1, 1, -1), (1, -1, 1))
]


@pytest.mark.parametrize('turn', TURNS, ids=str)
@pytest.mark.parametrize('degrees', [0, 20, 45])
def test_a_map_is_turned_to_the_axes_of_its_scan(turn, degrees, tmp_path):
  affine = rotation(degrees) @ AFFINE
  values, labels = save_pair(tmp_path, turn, np.eye(4), affine)
  example = data.open_source(make_config(tmp_path), 'train').read(0)
  image = example.image[..., 0]
  assert (example.values['map'] > 0).sum() == (labels > 0).sum()
  # As in the file, whose axes both have left together.
  inside = np.sort(image[example.values['map'] > 0])
  np.testing.assert_array_equal(inside, np.sort(values[labels > 0]))


def shift(*distances):
  moved = np.eye(4)
  moved[:3, 3] = distances
  return moved


@pytest.mark.parametrize('turn', TURNS[:5:2], ids=str)
@pytest.mark.parametrize(
  ('moved', 'message'),
  [
    (shift(0, 0, 0.5), r'they lie up to 0\.5 mm apart, origins \('),
    (shift(-40, 0, 0), 'up to 40 mm apart, origins'),
    (np.diag([1.0, 1.1, 1.0, 1.0]), r'spacings \(2, 1, 3\) and \(2, 1\.1, 3'),
    (rotation(2), 'axes turned by 2 degrees'),
    (np.diag([-1.0, 1.0, 1.0, 1.0]), 'origins'),
  ],
  ids=['shifted', 'far', 'scaled', 'rotated', 'mirrored'],
)
def test_a_map_of_other_places_is_refused(moved, message, turn, tmp_path):
  save_pair(tmp_path, turn, moved)
  files = r'masks/a\.nii\.gz and its scan .*images/a\.nii\.gz'
  with pytest.raises(UserError, match=f'^[^\n]*{files} [^\n]*{message}[^\n]*$'):
    data.open_source(make_config(tmp_path), 'train')


def test_rounded_affines_are_the_same(tmp_path):
  save_pair(tmp_path, TURNS[7], shift(0.02, -0.02, 0.02) @ rotation(0.02))
  assert len(data.open_source(make_config(tmp_path), 'train')) == 1


def broken(root, mistake):
  """Writes a folder with one mistake."""
  write(root, SIZES)
  image, labels = (
    root / x / 'train' / 'train1.npy' for x in ('images', 'masks')
  )
  if mistake == 'map':
    np.save(labels, np.zeros((8, 9, 13), np.uint8))
  if mistake == 'label':
    np.save(labels, np.full((8, 9, 14), 7, np.uint8))
  if mistake == 'pair':
    labels.unlink()
  if mistake == 'fractions':
    np.save(labels, np.full((8, 9, 14), 0.5, np.float32))
  if mistake == 'foreground':
    np.save(labels, np.zeros((8, 9, 14), np.uint8))
  if mistake == 'channels':
    np.save(image, np.zeros((8, 9, 14, 2), np.uint8))
  if mistake == 'damaged':
    image.write_bytes(image.read_bytes()[:90])
  if mistake == 'archive':
    with image.open('wb') as file:
      np.savez(file, scan=np.zeros((8, 9, 14), np.uint8))
  if mistake == 'json':
    (root / 'dataset.json').write_text('{"labels": {"0": "a", "2": "b"}}')
  if mistake == 'deep':
    (root / 'dataset.json').write_text('[' * 100_000)
  return root


@pytest.mark.parametrize(
  ('mistake', 'message'),
  [
    ('map', r'train1.npy has .* \(8, 9, 13\), but its scan .*\(8, 9, 14\)'),
    (
      'label',
      r'masks/train/train1.npy has label 7 in slice 0, row 0, column 0',
    ),
    ('pair', r'images/train/train1.npy has no map'),
    ('fractions', r'masks/train/train1.npy holds numbers that are no labels'),
    ('foreground', r'masks/train/train1.npy has no place of a class other'),
    ('channels', r'images/train/train1.npy has 2 channels'),
    (
      'thin',
      r'images/train/train2.npy has \(6, 12, 12\) places, and is thinner',
    ),
    ('damaged', r'images/train/train1.npy is damaged'),
    ('archive', r'images/train/train1.npy is damaged'),
    ('deep', r'dataset.json is not that of .*more than 64 lists'),
    ('json', r'dataset.json is not that of .*labels are \[0, 2\]'),
  ],
)
def test_mistakes_get_one_line(mistake, message, tmp_path):
  config = make_config(broken(tmp_path, mistake))
  config.augment.volume.foreground = 0.5
  if mistake == 'thin':
    config.model.patch_size = (8, 8, 8)
  with pytest.raises(UserError, match=f'^[^\n]*{message}'):
    source = data.open_source(config, 'train')
    next(iter(data.train_batches(source, config, start_step=0, num_steps=1)))


def test_a_changed_byte_of_a_compressed_scan_is_found(tmp_path):
  path = tmp_path / 'a.nii.gz'
  rng = np.random.default_rng(0)
  save_nifti(path, rng.integers(0, 9, (20, 20, 20)).astype(np.int16), np.eye(4))
  good, (values, _) = path.read_bytes(), scans.read(str(path))
  for at in range(20, len(good), len(good) // 40):
    path.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
    with pytest.raises(UserError, match=r'^.*a\.nii\.gz is damaged[^\n]*$'):
      scans.read(str(path))
  path.write_bytes(good)
  np.testing.assert_array_equal(scans.read(str(path))[0], values)


def test_values_that_lie_nowhere_are_damage(tmp_path):
  path = tmp_path / 'a.nii'
  save_nifti(path, np.zeros((4, 5, 6), np.int16), np.eye(4))
  header = bytearray(path.read_bytes())
  header[108:112] = np.float32(1e19).tobytes()  # where the values begin
  path.write_bytes(header)
  with pytest.raises(UserError, match=r'^[^\n]*a\.nii is damaged'):
    scans.read(str(path))


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
  closed = write(tmp_path, SIZES) / 'images' / 'train' / 'closed'
  closed.mkdir()
  scandir = os.scandir

  def scan_folder(path):  # root may read any
    if os.fspath(path) == str(closed):
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return scandir(path)

  monkeypatch.setattr(os, 'scandir', scan_folder)
  message = r'closed must be readable, or be moved away: Permission'
  with pytest.raises(UserError, match=message):
    data.open_source(make_config(tmp_path), 'train')


def test_check_is_for_images(tmp_path):
  root = write(tmp_path, SIZES)
  with pytest.raises(UserError, match='holds scans, and check is for images'):
    survey.list_folder(str(root))


@pytest.mark.parametrize('layout', ['pairs', 'decathlon'])
def test_check_reads_scans_by_a_config(layout, tmp_path):
  config, count = make_config(tmp_path, window=(0.0, 120.0)), 3
  if layout == 'pairs':
    write(tmp_path, SIZES)
  else:
    decathlon(tmp_path, count)
    config.data.channels = 2
  actual = survey.report(survey.list_config(config))
  assert not survey.is_bad(actual)
  areas = actual['maps']['map']['train']
  assert areas['maps'] == actual['examples'] == count
  assert areas['classes']['organ'] > 0 and areas['ignored'] == 0
  assert not actual['warnings'] and actual['bits'] == {'8': 0, '16': count}


def test_a_map_of_a_scan_with_one_class_stops_a_run(tmp_path):
  root = write(tmp_path, SIZES)
  for path in (root / 'masks' / 'train').glob('*.npy'):
    np.save(path, np.where(np.load(path) > 0, 255, 0).astype(np.uint8))
  config = make_config(root)
  source = data.open_source(config, 'train')
  message = 'none of the 3 maps has organ, tumour, and .* do not count'
  with pytest.raises(UserError, match=message):
    class_areas.check('train', source, 'map')
  actual = survey.report(survey.list_config(config))
  assert survey.is_bad(actual) and 'organ' in actual['problems'][0]
