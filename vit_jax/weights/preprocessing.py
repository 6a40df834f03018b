"""Reads the preprocessing of images from the files beside foreign weights.

timm keeps it in config.json under `pretrained_cfg`, transformers in
preprocessor_config.json. A missing field has the library's default. An
unsupported value is an error that names it.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import math
import re
from typing import Any
from typing import NamedTuple

from vit_jax.data.host import crop_modes
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base

Pair = tuple[int, int]
MeanStd = tuple[tuple[float, ...], tuple[float, ...]]

# Examples of what a user may write, by file name.
EXAMPLES = {
  'config.json': (
    '{"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],'
    ' "crop_pct": 0.9, "interpolation": "bicubic"}}'
  ),
  'preprocessor_config.json': (
    '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size":'
    ' {"height": 224, "width": 224}, "resample": 2}'
  ),
}
HALF: MeanStd = ((0.5,), (0.5,))


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Default preprocessing of a family of models, used if no file has it."""

  # Mean and standard deviation of three channels.
  mean_std: MeanStd = base.IMAGENET
  # Side of the crop, as a fraction of the resized image's.
  crop_pct: float = 0.875
  crop_mode: str = 'center'  # one of `crop_modes.CROP_MODES`
  interpolation: str = 'bicubic'  # one of `geometry.INTERPOLATIONS`
  resize_like: str = 'timm'  # as `config.data.resize_like`


GOOGLE = Defaults(HALF, 1.0, 'squash', 'bilinear', '')
# timm's defaults of `pretrained_cfg`, as in the evaluation of DeiT and MAE.
TIMM = Defaults()
# For models that timm has from Google.
TIMM_OF_GOOGLE = dataclasses.replace(TIMM, mean_std=HALF)

# Value of a border; timm has none, and takes the mean.
FILL = 'fill_color'
LEVEL = typed.Kind(
  'a whole number from 0 to 255', lambda x: type(x) is int and 0 <= x <= 255
)
_CROP_MODE = typed.choice(*crop_modes.CROP_MODES)


def from_timm(
  config: typed.Json, size: Pair, channels: int, defaults: Defaults
) -> tuple[dict[str, Any], str]:
  """Reads `pretrained_cfg` of a config.json.

  `size` is that of the model's input, (height, width). Returns fields of
  `data.Preprocess`, and `Description.silent`.
  """
  key = 'pretrained_cfg'
  silent = '' if config.get(key, typed.OBJECT) else config.file
  mean, std = defaults.mean_std if channels == 3 else HALF
  mean = config.channel_values(f'{key}.mean', channels, mean)
  crop = config.get(f'{key}.crop_pct', typed.POSITIVE, defaults.crop_pct)
  if not crop_modes.is_crop_pct(crop):
    raise config.error(
      f'{key}.crop_pct', crop, 'it must not be above 1, or below 0.001'
    )
  mode = config.get(f'{key}.crop_mode', _CROP_MODE, defaults.crop_mode)
  resize = crop_modes.before_crop(size, crop)
  preprocess = {
    'image_size': size,
    'channels': channels,
    'mean': mean,
    'std': config.channel_values(
      f'{key}.std', channels, std, typed.is_positive
    ),
    'resize': min(resize) if mode == 'center' else resize,
    'crop_pct': crop,
    'interpolation': config.get(
      f'{key}.interpolation', base.INTERPOLATION, defaults.interpolation
    ),
    'resize_like': defaults.resize_like,
  }
  if mode == 'border':
    fill = config.get(f'{key}.{FILL}', LEVEL)
    usual_fill = tuple(round(255 * x) for x in mean)
    preprocess['fill'] = usual_fill if fill is None else (fill,)
  return preprocess, silent


def as_timm(
  defaults: Defaults,
) -> Callable[[Any, Pair, int], tuple[dict[str, Any], str]]:
  """Returns `Format.preprocess` of files beside which timm's config may be."""

  def preprocess(
    file: Any, size: Pair, channels: int
  ) -> tuple[dict[str, Any], str]:
    content, silent = from_timm(file.config, size, channels, defaults)
    return {'classes': (), **content}, silent

  return preprocess


CLIP = (
  (0.48145466, 0.4578275, 0.40821073),
  (0.26862954, 0.26130258, 0.27577711),
)


class _Processor(NamedTuple):
  """Defaults of a class of transformers; `resample` is Pillow's number."""

  size: int | Pair
  crop: bool
  resample: int
  mean_std: MeanStd


_CLASSES = {
  'ViT': _Processor((224, 224), False, 2, HALF),
  'DeiT': _Processor((256, 256), True, 3, HALF),
  'Beit': _Processor((256, 256), True, 3, HALF),
  'DINOv3ViT': _Processor((224, 224), False, 2, base.IMAGENET),
  'Bit': _Processor(224, True, 3, CLIP),
  'CLIP': _Processor(224, True, 3, CLIP),
  'Siglip': _Processor((224, 224), False, 3, HALF),
}
_CLASS = (
  r'(ViT|DeiT|DINOv3ViT|Beit|Bit|CLIP|Siglip)'
  r'(?:ImageProcessor(?:Fast|Pil)?|FeatureExtractor)'
)
# model_type -> class, and mean and standard deviation of published models.
_OF_TYPE: Mapping[str, tuple[str, MeanStd]] = {
  **dict.fromkeys(('vit', 'vit_msn'), ('ViT', HALF)),
  'vit_mae': ('ViT', base.IMAGENET),
  'deit': ('DeiT', base.IMAGENET),
  **dict.fromkeys(('beit', 'data2vec-vision'), ('Beit', HALF)),
  'dinov3_vit': ('DINOv3ViT', base.IMAGENET),
  'bit': ('Bit', HALF),
  'clip_vision_model': ('CLIP', CLIP),
  'aimv2_vision_model': ('Bit', CLIP),
  **dict.fromkeys(
    ('siglip_vision_model', 'siglip2_vision_model'), ('Siglip', HALF)
  ),
}
RESAMPLE = {2: 'bilinear', 3: 'bicubic'}  # Pillow's numbers

# Fields that are read below, or that do not affect the pixels.
_PROCESSOR_FIELDS = dict.fromkeys(
  """
  crop_size default_to_square do_center_crop do_normalize do_rescale do_resize
  feature_extractor_type image_mean image_processor_type image_std resample
  rescale_factor size
  do_reduce_labels reduce_labels

  _processor_class _valid_processor_keys auto_map data_format device
  disable_grouping do_convert_rgb image_seq_length input_data_format
  processor_class return_tensors transformers_version
  """.split()
)


def from_transformers(
  config: typed.Json, model_type: str, size: Pair, channels: int
) -> tuple[dict[str, Any], str]:
  """Reads a preprocessor_config.json; returns as `from_timm`.

  If it is empty, images have the size (height, width) of config.json, and the
  mean and standard deviation of published models of its `model_type`.
  """
  preprocess: dict[str, Any] = {
    'channels': channels,
    'resize_like': 'transformers',
  }
  class_name, mean_std = _OF_TYPE.get(model_type, ('Bit', base.IMAGENET))
  if not config.content:
    mean, std = mean_std if channels == 3 else HALF
    preprocess |= {'image_size': size, 'resize': size, 'mean': mean, 'std': std}
    is_bilinear = model_type in ('vit', 'vit_msn', 'dinov3_vit')
    preprocess['interpolation'] = RESAMPLE[2 if is_bilinear else 3]
    return preprocess, config.file
  config.check_known(_PROCESSOR_FIELDS)
  for key in ('image_processor_type', 'feature_extractor_type'):
    if name := config.get(key, typed.TEXT):
      match = re.fullmatch(_CLASS, name)
      if not match:
        names = ', '.join(f'{x}ImageProcessor' for x in _CLASSES)
        raise config.error(key, name, f'those that are computed are {names}')
      class_name = match[1]
      break
  defaults = _CLASSES[class_name]
  resize, image_size = _sizes(config, defaults)
  mean, std = _mean_std(config, channels, defaults)
  resample = config.get('resample', typed.choice(*RESAMPLE), defaults.resample)
  return {
    **preprocess,
    'image_size': image_size,
    'mean': mean,
    'std': std,
    'resize': resize,
    'interpolation': RESAMPLE[resample],
  }, ''


def _sizes(config: typed.Json, defaults: _Processor) -> tuple[int | Pair, Pair]:
  if not config.get('do_resize', typed.TRUTH, True):
    raise config.error('do_resize', False, 'images are always resized here')
  is_square = config.get(
    'default_to_square', typed.TRUTH, isinstance(defaults.size, tuple)
  )
  size = config.get('size', IMAGE_SIZE, defaults.size)
  resize: int | Pair = pair(size)
  if isinstance(size, int) and not is_square:
    resize = size
  elif isinstance(size, Mapping) and size.get('shortest_edge'):
    resize = size['shortest_edge']
  if not config.get('do_center_crop', typed.TRUTH, defaults.crop):
    if not isinstance(resize, tuple):
      raise config.error(
        'size',
        size,
        'with a shortest_edge alone images keep their ratio; set'
        ' do_center_crop and crop_size, or height and width',
      )
    return resize, resize
  crop = pair(config.get('crop_size', IMAGE_SIZE, (224, 224)))
  least = resize if isinstance(resize, tuple) else (resize, resize)
  if least[0] < crop[0] or least[1] < crop[1]:
    raise config.error(
      'crop_size',
      crop,
      f'it must not be larger than size {resize}: images are not padded here',
    )
  return resize, crop


def _mean_std(
  config: typed.Json, channels: int, defaults: _Processor
) -> MeanStd:
  """Returns mean and standard deviation for pixels in [0, 1]."""
  mean, std = defaults.mean_std if channels == 3 else HALF
  mean = config.channel_values('image_mean', channels, mean)
  std = config.channel_values('image_std', channels, std, typed.is_positive)
  if not config.get('do_normalize', typed.TRUTH, True):
    mean, std = (0.0,) * channels, (1.0,) * channels
  factor = config.get('rescale_factor', typed.POSITIVE, 1 / 255)
  if not config.get('do_rescale', typed.TRUTH, True):
    factor = 1.0
  white = 1.0 if math.isclose(factor, 1 / 255) else 255 * factor
  return tuple(x / white for x in mean), tuple(x / white for x in std)


def head_outputs(outputs: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `data.Preprocess.outputs` of a model without its objective."""
  return {name: x for name, x in outputs.items() if name == 'logits'}


def pair(size: Any) -> Pair:
  """Reads 224, [224, 224] or {'height': 224, 'width': 224}."""
  if isinstance(size, Mapping):
    side = size.get('shortest_edge')
    return (side, side) if side else (size['height'], size['width'])
  return (size, size) if isinstance(size, int) else (size[0], size[1])


def _is_size(value: Any) -> bool:
  if not isinstance(value, Mapping):
    return typed.SIZE.fits(value)
  sides = {key: x for key, x in value.items() if x is not None}
  ways = ({'shortest_edge'}, {'height', 'width'})
  return sides.keys() in ways and all(map(typed.is_count, sides.values()))


IMAGE_SIZE = typed.Kind(
  'whole numbers above 0, as shortest_edge or height and width', _is_size
)
