"""Videos: moving digits, clips of files and of frames, crops, mistakes."""

import cv2
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import cache
from vit_jax.data import moving_digits
from vit_jax.data.device import views
from vit_jax.data.host import levels


def make_config(name='moving_digits', size=(4, 24, 24), **settings):
  config = config_lib.default()
  config.data.update(name=name, image_size=size, channels=1, crop='center')
  config.data.update(flip=False, mean=(0.0,), std=(1.0,))
  tiny.change(config, settings)
  config.train.batch_size = 6
  return config


def numbered(frames, size=(16, 20)):
  """Returns a video whose frame i has the value 10 i, uint8 [T, h, w, 3]."""
  values = np.arange(frames, dtype=np.uint8) * 10
  return np.broadcast_to(values[:, None, None, None], (frames, *size, 3))


def write_video(path, video):
  codec = {'.mp4': 'mp4v', '.avi': 'MJPG', '.webm': 'VP90'}[path.suffix]
  path.parent.mkdir(parents=True, exist_ok=True)
  size = video.shape[2], video.shape[1]
  file = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10.0, size)
  for frame in video:
    file.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
  file.release()


def write_frames(path, video):
  path.mkdir(parents=True)
  for i, frame in enumerate(video):
    cv2.imwrite(str(path / f'frame{i}.png'), frame)


def write_folder(root, frames=12):
  for part in ('train', 'val'):
    for i, name in enumerate(('brighter', 'darker')):
      video = numbered(frames)[:: 1 - 2 * i]
      write_video(root / part / name / 'a.mp4', video)
      write_video(root / part / name / 'deep' / 'b.avi', video[:, :, :16])
      write_frames(root / part / name / 'c', video)
  return root


def test_a_frame_does_not_tell_the_direction():
  source = data.open_source(make_config(), 'test')
  assert len(source) == 1000 and source.image_shape == moving_digits.SIZE
  assert source.classes == moving_digits.CLASSES
  videos = np.stack([source.read(i).image for i in range(400)])
  labels = source.column('label')[:400]
  means = [videos[labels == i][:, 3, ..., 0].mean(axis=0) for i in range(8)]
  spread = np.std([x.mean() for x in means])
  assert spread < 1.0  # frames of all directions are alike
  right = videos[labels == moving_digits.CLASSES.index('right')]
  moved = [np.roll(right[:, 0], i, axis=2) for i in (1, 2)]
  errors = [np.abs(x - 1.0 * right[:, 1]).mean((1, 2, 3)) for x in moved]
  still = np.abs(right[:, 0] - 1.0 * right[:, 1]).mean((1, 2, 3))
  assert (np.minimum(*errors) < still).all()


def test_clips_on_the_device():
  """The device draws where a clip begins; evaluation takes the middle."""
  config = make_config(size=(3, 24, 24), data__video__stride=2)
  prepared, batch = stand_in.train_batch(config)
  assert batch['image'].shape == (6, 10, 24, 24, 1)
  clips = np.asarray(prepared['image'])
  assert clips.shape == (6, 3, 24, 24, 1)
  firsts = []
  for clip, whole in zip(clips, batch['image'] / 255.0, strict=True):
    at = [i for i in range(6) if np.allclose(clip, whole[i : i + 5 : 2])]
    firsts += at
  assert len(firsts) == 6 and len(set(firsts)) > 1
  source = data.open_source(config, 'train')
  middle = views.eval_batch(config, source.features)(batch)['image']
  expected = batch['image'][:, 2:7:2] / 255.0
  np.testing.assert_allclose(middle, expected, atol=1e-6)


@pytest.mark.parametrize('where', ['device', 'host'])
def test_frames_are_cropped_and_mirrored_alike(where, tmp_path):
  """A still video stays still; another draw gives another crop."""
  settings = {'crop': 'random_resized', 'flip': True}
  rng = np.random.default_rng(0)
  still = np.repeat(rng.integers(0, 256, (1, 24, 24, 1), np.uint8), 10, 0)
  if where == 'device':
    config = make_config()
    source = data.open_source(config, 'train')
    config.data.update(settings)
    batch = {'image': np.stack([still] * 6), 'label': np.zeros(6, np.int32)}
    transform = views.train_transform(config, source.features)
    clips = np.asarray(transform(batch, stand_in.rows(*range(6)))['image'])
  else:
    write_frames(tmp_path / 'one' / 'a', still.repeat(3, axis=-1))
    write_frames(tmp_path / 'two' / 'b', still.repeat(3, axis=-1))
    config = make_config(f'video:{tmp_path}')
    config.data.update(settings)
    clips = np.asarray(stand_in.train_batch(config)[0]['image'])
  assert clips.shape == (6, 4, 24, 24, 1)
  np.testing.assert_array_equal(clips, clips[:, :1].repeat(4, axis=1))
  assert len(np.unique(clips[:, 0].sum(axis=(1, 2, 3)))) == 6


def test_files_and_folders_of_frames(tmp_path):
  config = make_config(f'video:{write_folder(tmp_path)}', size=(4, 16, 16))
  source = data.open_source(config, 'train')
  names = {source.id(i) for i in range(len(source))}
  assert {'train/darker/a.mp4', 'train/brighter/deep/b.avi'} <= names
  assert len(names) == 6 and 'train/darker/c' in names
  assert source.classes == ('brighter', 'darker') and source.bits() == 8
  prepared, batch = stand_in.train_batch(config)
  assert batch['image'].shape == (6, 4, 16, 16, 1)
  clips = np.asarray(prepared['image']).mean(axis=(2, 3, 4)) * 255
  steps = np.diff(clips, axis=1) * np.where(batch['label'], -1, 1)[:, None]
  np.testing.assert_allclose(steps, 10, atol=4)  # some codecs lose detail
  val = data.open_source(config, 'val')
  clips = next(data.eval_batches(val, config, batch_size=6))['image']
  clips = clips.mean(axis=(2, 3, 4))
  np.testing.assert_allclose(np.sort(clips[:, 0]), [40] * 3 + [70] * 3, atol=4)


def test_percentiles_of_videos_in_files(tmp_path):
  root = write_folder(tmp_path)
  config = make_config(f'video:{root}', (4, 16, 16), data__channels=3)
  config.data.intensity = 'percentiles(0,100)'
  levels.fill(config, data.open_source(config, 'train'))
  low, high = config.data.intensity_window
  assert low <= 2 and 105 <= high <= 115  # 0 and 110, but for the codec


def test_short_videos_are_padded_or_refused(tmp_path):
  root = write_folder(tmp_path, frames=5)
  config = make_config(f'video:{root}', size=(4, 16, 16))
  config.data.video.stride = 2
  with pytest.raises(UserError, match=r'has 5 frames, but a clip of 4 with a'):
    stand_in.train_batch(config)
  config.data.video.short = 'pad'
  clips = np.asarray(stand_in.train_batch(config)[0]['image'])
  assert clips.shape == (6, 4, 16, 16, 1)
  np.testing.assert_array_equal(clips[:, 2], clips[:, 3])


@pytest.mark.parametrize(
  ('name', 'change', 'message'),
  [
    (
      'a.mp4',
      lambda x: x.write_bytes(b'no video' * 100),
      r'a\.mp4 cannot be decoded as a video',
    ),
    (
      'a.mp4',
      lambda x: x.write_bytes(b''),
      r'a\.mp4 cannot be decoded as a video',
    ),
    (
      'deep/b.avi',
      lambda x: x.write_bytes(x.read_bytes()[:3000]),
      r'b\.avi',
    ),
    (
      'c/frame5.png',
      lambda x: cv2.imwrite(str(x), np.zeros((8, 8, 3), np.uint8)),
      r'c: frame 5 has \(height, width\) \(8, 8\)',
    ),
    ('c/frame5.png', lambda x: x.write_bytes(b'bad'), r'frame5\.png'),
  ],
)
def test_bad_files_are_named(name, change, message, tmp_path):
  root = write_folder(tmp_path)
  change(root / 'train' / 'darker' / name)
  config = make_config(f'video:{root}', size=(12, 16, 16))
  with pytest.raises(UserError, match=message) as error:
    stand_in.train_batch(config)
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_a_run_names_the_classes_of_files(tmp_path, capsys):
  """Trained on a cache, measured on files, and asked about files."""
  root = write_folder(tmp_path / 'data')
  val = root / 'val' / 'brighter'
  paths = [val / 'a.mp4', val / 'c', root / 'val' / 'darker' / 'deep']
  loaded, classes = stand_in.train_on_files(
    f'video:{root}',
    tmp_path / 'run',
    paths,
    capsys,
    data__image_size=(4, 16, 16),
    data__crop='center',
    model__patch_size=(2, 8, 8),
    train__duration='30 steps',
  )
  assert classes == ['brighter', 'brighter', 'darker']
  video = numbered(12)
  answers = loaded.predict([str(paths[0]), video])
  assert loaded.preprocess(video).shape == (1, 4, 16, 16, 1)
  np.testing.assert_allclose(answers[0], answers[1], atol=0.5)
  with pytest.raises(UserError, match='cannot be decoded as a video'):
    loaded.preprocess(__file__)


def test_cached_videos_are_the_same():
  config = make_config(augment__mixup=0.4, model__num_classes=8)
  config.data.split = 'train[:12]'
  source = data.open_source(config, 'train[:12]')
  cached = cache.decode_split(source, config)
  assert cached.features == source.features
  batches = [
    next(data.train_batches(x, config, start_step=0, num_steps=1))
    for x in (source, cached)
  ]
  np.testing.assert_array_equal(batches[0]['image'], batches[1]['image'])
