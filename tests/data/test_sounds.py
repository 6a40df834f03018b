"""Sounds: tones, spectrograms, files, masks, mistakes."""

import jax
import numpy as np
import other_libraries
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import input_kinds
from vit_jax.data import spectrogram
from vit_jax.data import tones
from vit_jax.data.device import clips
from vit_jax.data.device import views
from vit_jax.data.host import sound_files

soundfile = pytest.importorskip('soundfile')

RATE = 16_000


def make_config(name='tones', size=(64, 32), **settings):
  config = config_lib.default()
  config.data.update(name=name, image_size=size, channels=1, bits=16)
  tiny.change(config, settings)
  config.train.batch_size = 6
  return config


def tone(pitch, seconds=1.0, rate=RATE):
  wave = np.sin(2 * np.pi * pitch * np.arange(round(seconds * rate)) / rate)
  return 0.3 * wave.astype(np.float32)


def write_folder(root, seconds=1.0):
  for part in ('train', 'val'):
    for name, pitch in (('high', 2500), ('low', 300)):
      folder = root / part / name
      folder.mkdir(parents=True)
      wave = tone(pitch, seconds)
      soundfile.write(folder / 'a.wav', wave, RATE)
      soundfile.write(folder / 'b.flac', np.stack([wave, wave], 1), RATE)
      soundfile.write(folder / 'c.wav', tone(pitch, seconds, 44_100), 44_100)
  return root


def test_spectrograms_are_those_of_kaldi():
  """As transformers' AST computes them, of a sum of tones and noise."""
  audio_utils = other_libraries.imported('transformers.audio_utils')
  audio = input_kinds.Audio(mels=64, window='hann')
  sound = tones.make('peak', RATE, np.random.default_rng(0))
  bands = audio_utils.mel_filter_bank(
    *(257, 64, 20, RATE // 2, RATE),
    mel_scale='kaldi',
    triangularize_in_mel_space=True,
  )
  expected = audio_utils.spectrogram(
    sound,
    audio_utils.window_function(400, 'hann', periodic=False),
    *(400, 160, 512),
    power=2.0,
    center=False,
    preemphasis=0.97,
    mel_filters=bands,
    log_mel='log',
    mel_floor=1.192092955078125e-07,
    remove_dc_offset=True,
  ).T
  actual = spectrogram.log_mel(sound, audio)
  assert actual.shape == expected.shape == (98, 64)
  np.testing.assert_allclose(actual, expected, atol=1e-3)
  low, high = spectrogram.RANGE
  stored = spectrogram.from_waveform(sound, audio)[..., 0] / 65535
  np.testing.assert_allclose(stored * (high - low) + low, actual, atol=3e-4)


def test_a_tone_is_in_its_band():
  audio = input_kinds.Audio(mels=40, sample_rate=8_000, hop_ms=20.0)
  assert (audio.window_length, audio.hop_length, audio.fft_length) == (
    200,
    160,
    256,
  )
  low, high = (
    spectrogram.log_mel(tone(x, 0.5, 8_000), audio) for x in (400, 3e3)
  )
  assert low.shape == (24, 40) and audio.samples(24) <= 4_000
  assert 8 <= low.mean(axis=0).argmax() < 14 < high.mean(axis=0).argmax() < 38
  assert spectrogram.log_mel(np.zeros(4_000, np.float32), audio).max() < -15


def test_parts_in_time():
  """Training draws where a part begins; evaluation takes the middle."""
  config = make_config(data__std=(1.0,), data__mean=(0.0,))
  prepared, batch = stand_in.train_batch(config)
  parts = np.asarray(prepared['image'])
  assert parts.shape == (6, 64, 32, 1) and batch['image'].shape[1] == 98
  assert batch['image'].dtype == np.uint16
  whole = batch['image'] / 65535.0
  actual = [
    i
    for part, x in zip(parts, whole, strict=True)
    for i in range(35)
    if np.allclose(part, x[i : i + 64], atol=1e-6)
  ]
  assert len(actual) == 6 and len(set(actual)) > 1
  source = data.open_source(config, 'train')
  assert source.image_shape == (98, 32) and source.bits() == 16
  assert source.classes == tones.CLASSES
  middle = views.eval_batch(config, source.features)(batch)['image']
  np.testing.assert_allclose(middle, whole[:, 17:81], atol=1e-6)


def test_masks_hide_ranges():
  config = make_config(
    augment__audio__time_mask=10, augment__audio__frequency_mask=6
  )
  keys = jax.random.split(jax.random.key(0), 64)
  ones = np.ones((64, 50, 20, 1), np.float32)
  hidden = np.asarray(clips.mask(ones, keys, config.augment.audio))[..., 0] == 0
  frames, bands = hidden.all(axis=2).sum(axis=1), hidden.all(axis=1).sum(axis=1)
  assert set(frames) == set(range(11)) and set(bands) == set(range(7))
  assert (hidden.sum((1, 2)) == 20 * frames + 50 * bands - frames * bands).all()
  runs = np.abs(np.diff(hidden.all(axis=2).astype(int), axis=1)).sum(axis=1)
  assert runs.max() <= 2  # one range each
  config.augment.audio.masks = 0
  assert (clips.mask(ones, keys, config.augment.audio) == 1).all()


def test_files_of_any_rate_and_length(tmp_path):
  config = make_config(f'audio:{write_folder(tmp_path)}')
  source = data.open_source(config, 'train')
  assert len(source) == 6 and source.classes == ('high', 'low')
  actual = {source.id(i): source.read(i).image for i in range(6)}
  one = actual['train/low/a.wav'].astype(int)
  assert one.shape == (98, 32, 1)
  for name in ('b.flac', 'c.wav'):  # two channels; resampled
    other = actual[f'train/low/{name}'].astype(int)
    loud = one > 30_000
    assert np.abs(one - other)[loud].max() < 2_000, name
  _, batch = stand_in.train_batch(config)
  bands = batch['image'].mean(axis=(1, 3)).argmax(axis=1)
  assert ((bands > 16) == (batch['label'] == 0)).all()


def test_short_sounds_are_padded_or_refused(tmp_path):
  config = make_config(f'audio:{write_folder(tmp_path, seconds=0.4)}')
  _, batch = stand_in.train_batch(config)
  assert batch['image'].shape == (6, 64, 32, 1)
  assert (batch['image'][:, 45:] == batch['image'].min()).all()
  config.data.audio.short = 'refuse'
  with pytest.raises(UserError, match=r'has 0\.400 s, less than the 0\.655'):
    stand_in.train_batch(config)
  config.data.audio.update(resample=False, short='pad')
  with pytest.raises(UserError, match='has 44100 samples per second'):
    for i in range(6):
      data.open_source(config, 'train').read(i)


def claim_samples(path):
  """Writes an MP3 whose header says that it has 2^32 - 1 frames."""
  soundfile.write(path, np.zeros(4_000, np.float32), RATE, format='MP3')
  content = bytearray(path.read_bytes())
  at = content.index(b'Xing') + 8
  content[at : at + 4] = b'\xff' * 4
  path.write_bytes(content)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda x: x.write_bytes(b'no sound' * 9), 'cannot be decoded as a sound'),
    (claim_samples, 'cannot be decoded as a sound .*Unable to allocate'),
    (lambda x: x.write_bytes(b''), 'cannot be decoded as a sound'),
    (
      lambda x: x.write_bytes(x.read_bytes()[:-2]),
      r'ends after \d+ of \d+ bytes of its sound',
    ),
    (
      lambda x: soundfile.write(x, np.zeros(9, np.float32), RATE),
      r'has 0\.001 s, less than the 0\.025 s of one window',
    ),
    (
      lambda x: soundfile.write(
        x, np.full(9_000, np.nan, np.float32), RATE, subtype='FLOAT'
      ),
      'not finite',
    ),
  ],
)
def test_bad_files_are_named(change, message, tmp_path):
  root = write_folder(tmp_path)
  change(root / 'train' / 'low' / 'a.wav')
  with pytest.raises(UserError, match=message) as error:
    stand_in.train_batch(make_config(f'audio:{root}'))
  assert 'a.wav' in str(error.value) and '\n' not in str(error.value)


def test_a_stream_of_unknown_length_is_read(tmp_path):
  path, audio = tmp_path / 'a.wav', input_kinds.Audio(sample_rate=RATE)
  soundfile.write(path, tone(300), RATE)
  whole = sound_files.read(str(path), audio, 1)
  content = bytearray(path.read_bytes())
  at = content.index(b'data') + 4
  content[at : at + 4] = b'\xff' * 4
  path.write_bytes(content)
  np.testing.assert_array_equal(sound_files.read(str(path), audio, 1), whole)


@pytest.mark.slow
def test_a_run_names_the_classes_of_files(tmp_path, capsys):
  root = write_folder(tmp_path / 'data')
  loaded, classes = stand_in.train_on_files(
    f'audio:{root}',
    tmp_path / 'run',
    [root / 'val' / 'high', root / 'val' / 'low' / 'b.flac'],
    capsys,
    data__image_size=(64, 32),
    data__crop='pad(0)',
    model__patch_size=(16, 8),
    train__duration='20 steps',
  )
  assert classes == ['high', 'high', 'high', 'low']
  answers = loaded.predict([str(root / 'val/low/a.wav'), tone(300)])
  np.testing.assert_allclose(answers[0], answers[1], atol=0.1)
  with pytest.raises(UserError, match='is no sound'):
    loaded.preprocess(np.zeros((8, 8, 3), np.uint8))
