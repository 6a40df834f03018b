"""Folders of images with maps of classes beside them."""

import io
import itertools
import re

import numpy as np
from PIL import Image
from PIL import ImageOps
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import class_areas
from vit_jax.data import features
from vit_jax.data import survey
from vit_jax.data import target_kinds
from vit_jax.data.device import views
from vit_jax.train import experiment as experiment_lib

CLASSES = ('sky', 'road', 'tree')


def encoded(labels: np.ndarray, palette: bool = False) -> bytes:
  """Returns a PNG of labels, with a palette or grey."""
  image = Image.fromarray(labels)
  if palette:
    image.putpalette([(7 * i) % 256 for i in range(768)])
  file = io.BytesIO()
  image.save(file, 'PNG')
  return file.getvalue()


def make_labels(number: int, size=(20, 24)) -> np.ndarray:
  y, x = np.mgrid[: size[0], : size[1]]
  labels = ((y // 7 + x // 5 + number) % 3).astype(np.uint8)
  labels[0, :3] = 255
  return labels


def write(root, images, maps, names=('a', 'b', 'c'), **options):
  """Writes pairs of images and maps, and the classes."""
  (root / 'classes.txt').write_text('\n'.join(CLASSES) + '\n')
  for i, name in enumerate(names):
    image, labels = root / images / f'{name}.png', root / maps / f'{name}.png'
    for path in (image, labels):
      path.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(stand_in.png(stand_in.pixels(i, 20, 24)))
    labels.write_bytes(encoded(make_labels(i), **options))
  return root


def make_config(root, **settings):
  config = config_lib.default()
  config.data.update(name=f'folder:{root}', image_size=(16, 18), **settings)
  config.train.batch_size = 3
  return config


def open_pairs(root, split='train', **settings):
  return data.open_source(make_config(root, **settings), split)


@pytest.mark.parametrize(
  'train, val',
  [
    (
      ('images/training', 'annotations/training'),
      ('images/validation', 'annotations/validation'),
    ),
    (('train/images', 'train/masks'), ('val/images', 'val/masks')),
  ],
)
@pytest.mark.parametrize('palette', [False, True])
def test_layouts(tmp_path, train, val, palette):
  write(tmp_path, *train, names=('1', 'deep/2'), palette=palette)
  write(tmp_path, *val, names=('3',), palette=palette)
  source = open_pairs(tmp_path)
  assert source.features == {
    'image': features.Image(),
    'map': target_kinds.SegmentationMap(CLASSES),
  }
  assert len(source) == 2 and source.classes == CLASSES
  ids = {source.id(i) for i in range(2)}
  assert {re.split('[/.]', x)[-2] for x in ids} == {'1', '2'}
  assert [source.read(i).index for i in range(2)] == [0, 1]
  other = open_pairs(tmp_path, 'val')
  assert len(other) == 1 and other.fingerprint() != source.fingerprint()
  assert len(open_pairs(tmp_path, 'all')) == 3
  (batch,) = data.eval_batches(
    other, make_config(tmp_path, eval_resize=(20, 24)), batch_size=1
  )
  np.testing.assert_array_equal(batch['map'][0], make_labels(0)[2:18, 3:21])


@pytest.mark.parametrize('bits', [1, 2, 4, 8, 16])
def test_labels_of_all_depths(tmp_path, bits):
  root = write(tmp_path, 'images', 'masks', names=('a',))
  labels = make_labels(0) % min(3, 2**bits)
  if bits == 16:
    file = encoded(labels.astype(np.uint16))
  elif bits == 8:
    file = encoded(labels)
  else:
    file = shallow(labels, bits)
  (root / 'masks/a.png').write_bytes(file)
  config = make_config(root, source_size=(20, 24))
  source = data.open_source(config, 'train')
  (batch,) = data.eval_batches(source, config, batch_size=1)
  np.testing.assert_array_equal(batch['map'][0], labels)


def shallow(labels: np.ndarray, bits: int) -> bytes:
  """Returns a grey PNG of fewer than 8 bits, which Pillow does not write."""
  planes = (labels[..., None] >> np.arange(bits)[::-1]) & 1
  rows = np.packbits(planes.reshape(len(labels), -1), axis=1)
  return stand_in.raw_png([x.tobytes() for x in rows], labels.shape, bits)


def read_all(root, **settings):
  config = make_config(root, **settings)
  source = data.open_source(config, 'train')
  return list(data.eval_batches(source, config, batch_size=3))


def test_errors_of_files_name_them(tmp_path):
  root = write(tmp_path, 'images', 'masks')
  path = root / 'masks/b.png'
  good = path.read_bytes()
  wrong = make_labels(1)
  wrong[4, 6] = 3
  colours = stand_in.png(stand_in.pixels(0, 20, 24))
  for content, message in [
    (
      encoded(make_labels(1, (20, 23))),
      r'\(20, 23\), but its image .*b.png has',
    ),
    (encoded(wrong), 'has label 3 in row 4, column 6, but labels are from 0'),
    (colours, 'holds colours, and not a label for each pixel'),
    (good[: len(good) // 2], 'is damaged'),
    (b'', 'is empty'),
  ]:
    path.write_bytes(content)
    for size in (None, (20, 24)):
      with pytest.raises(UserError, match=rf'masks/b.png.* {message}') as e:
        read_all(root, source_size=size)
      assert '\n' not in str(e.value)


def test_a_map_that_pillow_refuses_is_named(tmp_path, monkeypatch):
  root = write(tmp_path, 'images', 'masks')
  monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)  # in place of 89 million
  with pytest.raises(UserError, match=r'^[^\n]*masks/\w.png.* exceeds limit'):
    read_all(root)


def test_missing_counterparts_are_named(tmp_path):
  root = write(tmp_path, 'images', 'masks')
  (root / 'masks/b.png').unlink()
  with pytest.raises(UserError, match=r'images/b.png has no map .*masks/b\.\*'):
    open_pairs(root)
  (root / 'images/b.png').unlink()
  (root / 'images/c.png').unlink()
  with pytest.raises(UserError, match=r'masks/c.png has no image'):
    open_pairs(root)
  (root / 'images/c.jpg').write_bytes(b'')
  (root / 'images/c.jpeg').write_bytes(b'')
  with pytest.raises(UserError, match='differ only in their endings'):
    open_pairs(root)


def test_maps_are_laid_out_as_their_images(tmp_path):
  write(tmp_path, 'images/train', 'masks')
  with pytest.raises(
    UserError, match=r'folders of splits \(train\), but .*masks'
  ):
    open_pairs(tmp_path)


def test_check_finds_what_is_wrong_with_maps(tmp_path):
  root = write(tmp_path, 'images/train', 'masks/train')
  write(root, 'images/val', 'masks/val')
  (root / 'masks/val/b.png').write_bytes(encoded(make_labels(1, (20, 23))))
  report = survey.report(survey.list_folder(str(root)))
  assert {x: y['examples'] for x, y in report['splits'].items()} == {
    'train': 3,
    'val': 3,
  }
  (damaged,) = report['damaged']
  assert damaged['id'] == 'images/val/b.png' and damaged['split'] == 'val'
  assert 'masks/val/b.png has (height, width) (20, 23)' in damaged['problem']


@pytest.mark.parametrize(
  'text, message',
  [
    (None, r'classes.txt cannot be read .*write the name of a class on each'),
    ('\n', 'classes.txt is empty'),
    ('sky\nroad\nsky\n', "names 'sky' twice"),
  ],
)
def test_errors_of_the_classes(tmp_path, text, message):
  root = write(tmp_path, 'images', 'masks')
  (root / 'classes.txt').unlink()
  if text is not None:
    (root / 'classes.txt').write_text(text)
  with pytest.raises(UserError, match=message):
    open_pairs(root)


def test_many_classes_have_a_wide_ignore(tmp_path):
  root = write(tmp_path, 'images', 'masks', names=('a',))
  (root / 'classes.txt').write_text('\n'.join(map(str, range(300))))
  wide = make_labels(0).astype(np.uint16)
  wide[5, 5], wide[0, :3] = 299, 65535
  (root / 'masks/a.png').write_bytes(encoded(wide))
  (batch,) = read_all(root, source_size=(20, 24))
  assert batch['map'].dtype == np.uint16
  np.testing.assert_array_equal(batch['map'][0], wide)


CROPS = (
  'random_resized(scale=(0.2, 0.9))',
  'random',
  'pad(3)',
  'scaled(zoom=(0.7, 1.6))',
  'center',
)


@pytest.mark.parametrize('crop', CROPS)
def test_crops_of_the_host_are_those_of_the_image(tmp_path, crop):
  """An image whose grey levels are its labels stays equal to its map."""
  (tmp_path / 'classes.txt').write_text('\n'.join(map(str, range(9))))
  for folder in ('images', 'masks'):
    (tmp_path / folder).mkdir()
  for i, size in itertools.product(range(3), ((8, 10), (10, 6))):
    blocks = np.random.default_rng(i).integers(1, 9, (size[0], size[1]))
    labels = np.repeat(np.repeat(blocks, 24, 0), 24, 1).astype(np.uint8)
    name = f'{i}-{size[0]}.png'
    (tmp_path / 'masks' / name).write_bytes(encoded(labels))
    image = np.repeat(labels[..., None], 3, -1)
    (tmp_path / 'images' / name).write_bytes(stand_in.png(image))
  config = make_config(tmp_path, crop=crop, antialias=False)
  config.data.image_size = (96, 80)
  source = data.open_source(config, 'train')
  batches = data.train_batches(source, config, start_step=0, num_steps=3)
  for batch in batches:
    pixels = batch['image'][..., 0].astype(int)
    labels = np.where(batch['map'] == 255, 0, batch['map']).astype(int)
    inner = stand_in.same_neighbours(labels)
    assert inner.mean() > 0.3
    np.testing.assert_array_equal(pixels[inner], labels[inner])
    assert (batch['map'] == 255).any() == (crop == 'pad(3)')


def cityscapes(root):
  """Writes folders as Cityscapes has them; a map has stored 7, 11 or 3."""
  (root / 'classes.txt').write_text('road\nbuilding\n')
  stored = np.array([7, 11, 3], np.uint8)[make_labels(0) % 3]
  for name in ('a_0', 'a_1'):
    image = root / 'leftImg8bit/train/a' / f'{name}_leftImg8bit.png'
    labels = root / 'gtFine/train/a' / f'{name}_gtFine_labelIds.png'
    colours = labels.with_name(f'{name}_gtFine_color.png')
    for path in (image, labels):
      path.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(stand_in.png(stand_in.pixels(1, 20, 24)))
    labels.write_bytes(encoded(stored))
    rgb = np.stack([stored * 9, stored + 1, stored * 0], axis=-1)
    colours.write_bytes(encoded(rgb))
  return root, stored


@pytest.mark.parametrize('kind', ['labels', 'colours'])
def test_maps_of_codes(tmp_path, kind):
  """Stored numbers or colours become classes; others do not count."""
  root, stored = cityscapes(tmp_path)
  config = make_config(root)
  config.data.map.image_suffix = '_leftImg8bit'
  if kind == 'labels':
    config.data.map.suffix = '_gtFine_labelIds'
    config.data.map.labels = (7, 11)
  else:
    config.data.map.suffix = '_gtFine_color'
    config.data.map.colours = ((63, 8, 0), (99, 12, 0))
  data.check(config)
  source = data.open_source(config, 'train')
  assert len(source) == 2
  actual = source.read(0).values['map']
  expected = np.full(stored.shape, 255)
  expected[stored == 7], expected[stored == 11] = 0, 1
  np.testing.assert_array_equal(actual, expected)
  batch = next(iter(data.eval_batches(source, config, batch_size=2)))
  assert set(np.unique(batch['map'])) == {0, 1, 255}
  config.data.map.suffix = '_gtFine_labelIds'
  config.data.map.labels, config.data.map.colours = (), ((1, 2, 3), (4, 5, 6))
  with pytest.raises(
    UserError, match=r'labelIds.png holds numbers, but .*colo'
  ):
    data.open_source(config, 'train').read(0)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'labels': (1, 1)}, r'map\.labels is \(1, 1\): write different'),
    ({'colours': ((1, 2),)}, r'map\.colours is .*: write different'),
    ({'labels': (1,), 'colours': ((1, 2, 3),)}, 'leave one of them out'),
    ({'labels': (1, 2)}, r'map\.labels has 2 values, .*classes\.txt names 3'),
  ],
)
def test_mistakes_of_codes(settings, message, tmp_path):
  root = write(tmp_path, 'images', 'masks')
  config = make_config(root)
  config.data.map.update(settings)
  with pytest.raises(UserError, match=f'^[^\n]*{message}'):
    data.check(config)
    data.open_source(config, 'train')


def test_scaled_crops(tmp_path):
  """A crop has the image's scale times a factor, and is filled at its end."""
  root = write(tmp_path, 'images', 'masks', names=('a',))
  config = make_config(root, crop='scaled', flip=False, antialias=False)
  for zoom, inside in ((1.0, (16, 18)), (0.5, (10, 12)), (2.0, (16, 18))):
    config.data.crop = f'scaled(({zoom}, {zoom}))'
    source = data.open_source(config, 'train')
    batches = data.train_batches(source, config, start_step=0, num_steps=1)
    batch = next(iter(batches))
    assert batch['map'].shape == (3, 16, 18)
    for image, labels in zip(batch['image'], batch['map'], strict=True):
      assert image[: inside[0], : inside[1]].any()
      assert not image[inside[0] :].any() and not image[:, inside[1] :].any()
      assert (labels[inside[0] :] == 255).all()
      assert (labels[1 : inside[0], 3 : inside[1]] != 255).all()
    if zoom == 1.0:
      whole = make_labels(0)
      boxes = np.lib.stride_tricks.sliding_window_view(whole, (16, 18))
      assert (boxes == batch['map'][0]).all(axis=(2, 3)).any()
  config.data.source_size = (20, 24)
  source = data.open_source(config, 'train')
  with pytest.raises(UserError, match='crop=scaled is for images of different'):
    views.train_transform(config, source.features)


def voc(root, classes=None):
  """Writes three pairs as Pascal VOC does, two of them in lists."""
  for name in ('JPEGImages', 'SegmentationClass', 'ImageSets/Segmentation'):
    (root / name).mkdir(parents=True)
  for i, name in enumerate(('a', 'b', 'c')):
    image = Image.fromarray(stand_in.pixels(i, 20, 24))
    image.save(root / 'JPEGImages' / f'{name}.jpg')
    labels = encoded(make_labels(i), palette=True)
    (root / 'SegmentationClass' / f'{name}.png').write_bytes(labels)
  (root / 'JPEGImages' / 'without_a_map.jpg').write_bytes(b'')
  lists = root / 'ImageSets' / 'Segmentation'
  (lists / 'train.txt').write_text('b\na\n')
  (lists / 'val.txt').write_text('c\n')
  (lists / 'trainval.txt').write_text('a\nb\nc\n')
  if classes:
    (root / 'classes.txt').write_text('\n'.join(classes))
  return root


@pytest.mark.parametrize(
  ('classes', 'encoding'),
  [(None, 'utf-8'), (CLASSES, 'utf-8-sig'), (CLASSES, 'utf-16')],
)
def test_lists_of_pascal_voc(tmp_path, classes, encoding):
  voc(tmp_path, classes)
  for path in tmp_path.rglob('*.txt'):
    path.write_bytes(path.read_text('utf-8').encode(encoding))
  source = open_pairs(tmp_path)
  assert len(source) == 2 and len(source.classes) == len(classes or range(21))
  assert source.classes[0] == (classes or ('background',))[0]
  assert {source.id(i) for i in range(2)} == {
    'JPEGImages/a.jpg',
    'JPEGImages/b.jpg',
  }
  other = open_pairs(tmp_path, 'val')
  assert [other.id(i) for i in range(len(other))] == ['JPEGImages/c.jpg']
  assert len(open_pairs(tmp_path, 'train+val')) == 3
  config = make_config(tmp_path)
  batch = next(iter(data.eval_batches(other, config, batch_size=1)))
  assert set(np.unique(batch['map'])) <= {0, 1, 2, 255}


def test_a_list_names_what_is_missing(tmp_path):
  (voc(tmp_path) / 'SegmentationClass' / 'b.png').unlink()
  message = r'train.txt names b, but there is no .*SegmentationClass/b.png'
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    open_pairs(tmp_path)


@pytest.mark.parametrize('kind', ['table', 'hf', 'tar'])
def test_columns_of_images_and_maps(tmp_path, kind):
  """Two columns give the same examples as the folder."""
  write(tmp_path, 'images', 'masks', palette=True)
  paths = {
    name: [str(tmp_path / folder / f'{x}.png') for x in 'abc']
    for name, folder in (('image', 'images'), ('mask', 'masks'))
  }
  if kind == 'table':
    name, column = f'table:{tmp_path}/all.csv', 'mask'
    lines = [','.join(x) for x in zip(*paths.values(), strict=True)]
    (tmp_path / 'all.csv').write_text('\n'.join(['image,mask', *lines]))
  elif kind == 'tar':
    name, column = f'tar:{tmp_path}/all.tar', 'seg.png'
    samples = {
      x: {
        'seg.png': (tmp_path / 'masks' / f'{x}.png').read_bytes(),
        'PNG': (tmp_path / 'images' / f'{x}.png').read_bytes(),
      }
      for x in 'abc'
    }
    stand_in.write_shard(tmp_path / 'all.tar', samples)
  else:
    datasets = pytest.importorskip('datasets')
    types = datasets.Features(image=datasets.Image(), mask=datasets.Image())
    made = datasets.Dataset.from_dict(paths, features=types)
    made.save_to_disk(tmp_path / 'saved')
    name, column = f'hf:{tmp_path}/saved', 'mask'
  config = make_config(tmp_path)
  config.data.name, config.data.columns.map = name, column
  with pytest.raises(UserError, match='names of the classes: list'):
    data.check(config)
  config.data.map.classes = CLASSES
  data.check(config)
  source = data.open_source(config, 'train')
  assert source.features == open_pairs(tmp_path).features
  batch, expected = (
    next(iter(data.eval_batches(x, config, batch_size=3)))
    for x in (source, open_pairs(tmp_path))
  )
  keys = [[m.tobytes() for m in x['map']] for x in (batch, expected)]
  assert sorted(keys[0]) == sorted(keys[1])
  for i, key in enumerate(keys[0]):
    other = expected['image'][keys[1].index(key)]
    np.testing.assert_array_equal(batch['image'][i], other)
  assert source.fingerprint() == data.open_source(config, 'train').fingerprint()


def write_stored(root, *stored, count=5):
  """Writes maps that hold some numbers, and as many classes as CLASSES."""
  names = [str(i) for i in range(count)]
  root.mkdir(exist_ok=True)
  write(root, 'images', 'masks', names=names)
  rng = np.random.default_rng(0)
  for name in names:
    labels = rng.choice(np.array(stored, np.uint8), (20, 24))
    (root / 'masks' / f'{name}.png').write_bytes(encoded(labels))
  return root


NOWHERE = 'none of the 5 maps has'


@pytest.mark.parametrize(
  ('classes', 'stored', 'codes', 'message', 'stops'),
  [
    (2, (0, 255), {}, rf'{NOWHERE} road, and \d\d\.\d% of their places', True),
    (3, (0, 255), {}, f'{NOWHERE} road, tree, and .*labels, as', True),
    (2, (1, 255), {}, f'{NOWHERE} sky, and', True),
    (2, (255,), {}, f'{NOWHERE} sky, road, and 100.0% of', True),
    (2, (0,), {}, f'{NOWHERE} road: mend', True),
    (3, (0, 1), {}, f'{NOWHERE} tree: mend', False),
    (3, (0, 2, 255), {}, f'{NOWHERE} road, and', False),
    (2, (0, 255), {'labels': (1, 2)}, f'{NOWHERE} sky, road, and 100.0%', True),
    (3, (7, 8), {'labels': (7, 8, 9)}, f'{NOWHERE} tree: mend', False),
    (2, (0, 255), {'labels': (0, 255)}, '', False),
    (2, (0, 1, 255), {}, '', False),
    (2, (0, 1, 128), {}, r'masks/\d\.png has label 128', True),
  ],
)
def test_classes_that_no_training_map_has(
  classes, stored, codes, message, stops, tmp_path, warnings_logged
):
  """A check and the start of a run say it, and a run of one class stops."""
  root = write_stored(tmp_path / 'data', *stored)
  (root / 'classes.txt').write_text('\n'.join(CLASSES[:classes]))
  config = tiny.config(
    objective__name='segmentation',
    data__name=f'folder:{root}',
    data__split='train',
    data__image_size=(16, 16),
    data__channels=3,
    evals__val__split='',
    checkpoint__best='',
    train__batch_size=4,
  )
  config.objective.options.update(head='linear', auxiliary_weight=0)
  config.data.map.update(codes)
  if stops:
    with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
      experiment_lib.build(config)
  else:
    experiment_lib.build(config)
    lines = [x for x in warnings_logged if 'none of the' in x]
    assert len(lines) == bool(message)
    assert all(re.search(f'train: {message}', x) for x in lines)
  report = survey.report(survey.list_config(config))
  assert survey.is_bad(report) == stops
  lines = [*report['problems'], *report['warnings']]
  lines += [x['problem'] for x in report['damaged']]
  assert bool(lines) == bool(message)
  assert all(re.search(message, x) for x in lines)
  if not report['damaged']:
    areas = report['maps']['map']['train']
    assert sum(areas['classes'].values()) + areas['ignored'] == 5 * 20 * 24
    text = survey.as_text(report)
    assert ('nothing is wrong' in text) != bool(message)


def test_a_run_reads_few_of_many_maps(tmp_path, warnings_logged):
  """They may miss a class, so that it is no error."""
  root = write_stored(tmp_path, 0, 255, count=70)
  (root / 'classes.txt').write_text('sky\nroad\n')
  class_areas.check('train', open_pairs(root), 'map')
  (line,) = warnings_logged
  assert 'none of the 64 maps of 70 that were read has road, and' in line


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('size', [(20, 24), (24, 24)])
@pytest.mark.parametrize('options', ['stored', 'shown', 'both say'])
def test_a_map_of_a_turned_photo(options, size, orientation, tmp_path):
  """It is turned where it has the stored pixels, or refused if unclear."""
  labels = make_labels(1, size)
  grey = np.where(labels == 255, 0, labels * 100)  # the photo shows its map
  photo = Image.fromarray(np.stack([grey] * 3, axis=-1).astype(np.uint8))
  exif = Image.Exif()
  exif[0x0112] = orientation
  exif_of_map = exif if options == 'both say' else None
  upright = Image.fromarray(labels)
  if options == 'shown':
    upright.info['exif'] = exif.tobytes()
    upright = ImageOps.exif_transpose(upright)
  for name in ('images', 'masks'):
    (tmp_path / name).mkdir()
  (tmp_path / 'classes.txt').write_text('\n'.join(CLASSES))
  photo.save(tmp_path / 'images' / 'a.png', exif=exif)
  upright.save(tmp_path / 'masks' / 'a.png', exif=exif_of_map)
  is_long = orientation >= 5 and size[0] != size[1]
  shape = size[::-1] if orientation >= 5 else size
  config = make_config(tmp_path, source_size=shape)
  config.data.image_size = shape
  source = data.open_source(config, 'train')
  batches = data.eval_batches(source, config, batch_size=1)
  if orientation > 1 and options != 'both say' and not is_long:
    message = f'a.png is turned by its EXIF orientation {orientation}, and'
    with pytest.raises(UserError, match=message):
      next(iter(batches))
    (damaged,) = survey.report(survey.list_config(config))['damaged']
    assert message in damaged['problem'] and '\n' not in damaged['problem']
    return
  (batch,) = batches
  shown = ImageOps.exif_transpose(Image.open(tmp_path / 'images' / 'a.png'))
  np.testing.assert_array_equal(batch['image'][0], np.asarray(shown))
  counted = batch['map'][0] != 255
  image = batch['image'][0, ..., 0]
  np.testing.assert_array_equal(
    image[counted], batch['map'][0][counted].astype(int) * 100
  )
