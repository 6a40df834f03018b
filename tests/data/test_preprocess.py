import io
import json

import numpy as np
from PIL import Image
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import features

IMAGE = stand_in.pixels(2, 30, 40)


def make(**settings) -> data.Preprocess:
  config = config_lib.default()
  config.data.update(image_size=(16, 20), mean=(0.4,), std=(0.2, 0.3, 0.4))
  config.data.update(settings)
  label = features.Label(('a', 'b'))
  return data.Preprocess.from_config(config, {'label': label})


def test_takes_whatever_holds_an_image(tmp_path):
  preprocess = make()
  path = tmp_path / 'image.png'
  path.write_bytes(stand_in.png(IMAGE))
  kinds = [str(path), path, path.read_bytes(), Image.fromarray(IMAGE), IMAGE]
  kinds.append(IMAGE.astype(np.uint16) * 257)
  images = preprocess(kinds)
  assert images.shape == (6, 16, 20, 3) and images.dtype == np.float32
  assert (images == images[:1]).all()
  for kind in kinds:
    np.testing.assert_array_equal(preprocess(kind), images[:1])
  np.testing.assert_array_equal(preprocess(np.stack([IMAGE] * 2)), images[:2])


def test_equals_evaluation(tmp_path):
  folder = stand_in.write_folder(tmp_path, train=2)
  config = config_lib.default()
  config.data.update(name=f'folder:{folder}', image_size=(16, 20))
  source = data.open_source(config, 'train')
  batch = next(data.eval_batches(source, config, batch_size=6))
  preprocess = data.Preprocess.from_config(config, source.features)
  images = preprocess([source.read(i).origin for i in range(6)])
  np.testing.assert_allclose(images, batch['image'] / 127.5 - 1, atol=1e-6)


def test_json_round_trip():
  for resize in (None, 24, (24, 28)):
    preprocess = make(eval_resize=resize)
    stored = json.loads(json.dumps(preprocess.to_dict()))
    assert data.Preprocess.from_dict(stored) == preprocess


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_pil_images_are_seen_as_files_are(channels):
  preprocess = make(channels=channels, std=(0.2,))
  exif = Image.Exif()
  exif[0x0112] = 6
  image = Image.fromarray(IMAGE)
  alpha = Image.fromarray(IMAGE[..., 1])
  for kind, picture in {
    'turned': image,
    'grey': image.convert('L'),
    'alpha': Image.merge('RGBA', [*image.split(), alpha]),
    'grey with alpha': Image.merge('LA', [image.convert('L'), alpha]),
    'palette': image.quantize(9),
    '1 bit': image.convert('1'),
    '16 bits': Image.fromarray(IMAGE[..., 0].astype(np.uint16) * 250),
  }.items():
    file = io.BytesIO()
    picture.save(file, 'PNG', exif=exif)
    opened = Image.open(file)
    np.testing.assert_allclose(
      preprocess(opened), preprocess(file.getvalue()), atol=0.05, err_msg=kind
    )


@pytest.mark.parametrize(
  'image, message',
  [
    ('/no/such.png', '/no/such.png cannot be read: No such file'),
    (b'nothing', 'image 1 is damaged or no image'),
    (
      np.zeros((4, 4)),
      r'image 1 is an array of type float64 and shape \(4, 4\)',
    ),
    (np.zeros((4, 4, 5), np.uint8), 'it must be uint8'),
    (np.zeros((0, 4, 3), np.uint8), r'shape \(0, 4, 3\), which has no pixels'),
  ],
)
def test_errors_name_the_image(image, message):
  with pytest.raises(UserError, match=message):
    make()([IMAGE, image])
