"""Preprocessing for prediction, and its file preprocess.json."""

from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import cast
from typing import Self

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import features as features_lib
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib

_IMAGE = features_lib.Image()


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """Turns images of any kind into a model's input, as evaluation does.

  Attributes:
    classes: Names of the classes; () if the model predicts something else.
    image_size: (height, width) of the model's input, in pixels; of volumes
      (depth, height, width), of videos (frames, height, width), of sounds
      (frames, mels).
    channels: 1 (grey), 3 (RGB) or 4 (RGB and alpha); of volumes any number.
    mean: Mean of pixels in [0, 1], one number or one for each channel.
    std: Standard deviation of the pixels, in the same form.
    resize: Short side, or (height, width), to which images are resized before
      the crop, as `config.data.eval_resize`.
    crop_pct: timm's share of the resized image's sides that the crop has;
      `resize` follows from it, also for another `image_size`. None: `resize`
      is a size of its own.
    fill: Stored values of the channels of the border: images fit into `resize`
      and are padded to `image_size`. None: images cover it, and are cropped.
    antialias: Whether images are smoothed when they are shrunk.
    bits: Bits of a stored value that are kept until normalisation, 8 or 16.
    intensity: (low, high), the stored values that become 0 and 1; values
      outside are clipped. None: the range of the type.
    interpolation: 'bilinear' or 'bicubic', as `config.data.interpolation`.
    resize_like: As `config.data.resize_like`.
    spacing: As `config.data.volume.spacing`.
    window: As `config.data.volume.window`.
    features: Features of the training examples, by name, from
      `features.Feature.to_dict`; {}: unknown.
    outputs: Outputs of the model, by name, from `Objective.output_facts`; {}:
      logits of `classes`.
    trunk: Path of the model's parameters within the objective's; '': the
      objective has no parameters of its own.
  """

  classes: tuple[str, ...]
  image_size: tuple[int, int]  # the type of most users; volumes have three
  channels: int
  mean: tuple[float, ...]
  std: tuple[float, ...]
  resize: int | tuple[int, int] | None = None
  crop_pct: float | None = None
  fill: tuple[int, ...] | None = None
  antialias: bool = True
  bits: int = 8
  intensity: tuple[float, float] | None = None
  interpolation: str = 'bilinear'
  resize_like: str = ''
  spacing: tuple[float, ...] = ()
  window: Any = 'type'
  # They have the classes once more.
  features: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, repr=False
  )
  outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trunk: str = ''

  @classmethod
  def from_config(
    cls,
    config: ml_collections.ConfigDict,
    features: features_lib.Features,
    outputs: Mapping[str, Any] | None = None,
    trunk: str = '',
  ) -> Self:
    """Returns that of evaluation; by default it outputs logits of labels."""
    if outputs is None:
      outputs = {'logits': {'feature': 'label'}} if 'label' in features else {}
    predicted = outputs.get('logits', {}).get('feature')
    crop = geometry.eval_crop(config)
    mean, std = config_lib.normalization(config)
    levels, window = levels_lib.from_config(config), config.data.volume.window
    return cls(
      classes=features['label'].names if predicted == 'label' else (),
      image_size=crop.size,
      channels=config.data.channels,
      mean=mean,
      std=std,
      resize=crop.resize,
      crop_pct=crop.crop_pct,
      fill=cast(tuple[int, ...], crop.fill) if crop.border else None,
      antialias=crop.antialias,
      bits=levels.bits,
      intensity=levels.window,
      interpolation=crop.interpolation,
      resize_like=crop.resize_like,
      spacing=tuple(config.data.volume.spacing),
      window=window if isinstance(window, str) else tuple(window),
      features={name: x.to_dict() for name, x in features.items()},
      outputs=dict(outputs),
      trunk=trunk,
    )

  @classmethod
  def from_dict(cls, stored: Mapping[str, Any]) -> Self:
    """Returns the inverse of `to_dict`, also of its result read from JSON."""
    fields: dict[str, Any] = {
      key: tuple(value) if isinstance(value, list) else value
      for key, value in stored.items()
    }
    problem = 'what prediction needs (preprocess.json) cannot be used'
    with config_lib.explained(problem):
      config_lib.wing('vit_jax.data.stored_preprocess:check')(fields)
      result = cls(**fields)
      resize = result.at_size(result.image_size).resize
      if resize != result.resize:
        raise UserError(
          f'resize is {result.resize}, but crop_pct {result.crop_pct} of'
          f' image_size {result.image_size} makes {resize}: correct one of'
          ' them, or set crop_pct to null'
        )
    return result

  @property
  def target(self) -> features_lib.Target:
    """The feature that the logits predict; without `outputs`, a label.

    A label has the names in `classes`, which a user may have edited.
    """
    name = self.outputs.get('logits', {}).get('feature')
    target = _feature(self.features[name]) if name else None
    if target is None or isinstance(target, features_lib.Label):
      return features_lib.Label(self.classes)
    return cast(features_lib.Target, target)

  @property
  def input(self) -> features_lib.Image:
    """The feature of what the model takes; that of images where unknown."""
    stored = self.features.get('image')
    image = _feature(stored) if stored else None
    return image if isinstance(image, features_lib.Image) else _IMAGE

  @property
  def crop(self) -> geometry.Crop:
    """The crop of evaluation."""
    return geometry.Crop(
      'center',
      self.image_size,
      self.resize,
      crop_pct=self.crop_pct,
      border=self.fill is not None,
      fill=self.fill or 0,
      antialias=self.antialias,
      interpolation=self.interpolation,
      resize_like=self.resize_like,
    )

  @property
  def _eval_resize(self) -> int | tuple[int, int] | str | None:
    """The value of `config.data.eval_resize`."""
    if self.crop_pct is None:
      return self.resize
    if self.fill is not None:
      values = ', '.join(map(str, (self.crop_pct, *self.fill)))
      return f'border({values})'
    mode = 'squash' if isinstance(self.resize, tuple) else 'center'
    return f'{mode}({self.crop_pct})'

  def at_size(self, image_size: tuple[int, int]) -> Self:
    """Returns the preprocessing for another size, with the same crop."""
    old, resize = self.image_size, self.resize
    if self.crop_pct is not None:
      resize = geometry.resizing(self._eval_resize, image_size, '')['resize']
    elif isinstance(resize, int):
      resize = round(resize * min(image_size) / min(old))
    elif resize is not None:
      resize = (
        round(resize[0] * image_size[0] / old[0]),
        round(resize[1] * image_size[1] / old[1]),
      )
    return dataclasses.replace(self, image_size=image_size, resize=resize)

  @property
  def has_label(self) -> bool:
    """Whether the logits are of mutually exclusive classes."""
    return isinstance(self.target, features_lib.Label)

  def to_dict(self) -> dict[str, Any]:
    """Returns the content of preprocess.json."""
    return dataclasses.asdict(self)

  def to_config(self) -> ml_collections.ConfigDict:
    """Returns a config whose evaluation preprocesses so, without a dataset."""
    config = config_lib.default()
    for key in (
      *('image_size', 'channels', 'mean', 'std', 'antialias', 'bits'),
      *('interpolation', 'resize_like'),
    ):
      config.data[key] = getattr(self, key)
    config.data.eval_resize = self._eval_resize
    if self.intensity is not None:
      config.data.intensity = self.intensity
    config.data.volume.spacing = self.spacing
    config.data.volume.window = self.window
    self.input.set_keys(config)
    return config

  @property
  def levels(self) -> levels_lib.Levels:
    """Stored values that become 0 and 1."""
    has_alpha = len(self.image_size) == 2
    return levels_lib.Levels(self.bits, self.intensity, has_alpha)

  def __call__(self, images: Any) -> np.ndarray:
    """Decodes, resizes, crops and normalises images to float32 [B, H, W, C].

    This takes an image or a sequence of images. Each is a path, the bytes of a
    file, a PIL image, or an array, uint8 or uint16 [h, w] or [h, w, C]. An
    array [B, h, w, C] is a sequence. `given.GivenSource` says what a model of
    videos or sounds takes; videos become [B, T, H, W, C].
    """
    return self.normalized(self.pixels(images))

  def normalized(self, stored: np.ndarray) -> np.ndarray:
    """Returns stored values [..., C] as the model takes them, float32."""
    mean, std = (np.asarray(x, np.float32) for x in (self.mean, self.std))
    return (self.levels.scale(stored) - mean) / std

  def pixels(self, images: Any) -> np.ndarray:
    """Returns images before normalisation, uint8 or uint16 [B, H, W, C]."""
    return config_lib.wing('vit_jax.data.given:pixels')(self, images)


def _feature(stored: Mapping[str, Any]) -> features_lib.Feature:
  feature: features_lib.Feature
  feature = config_lib.wing('vit_jax.data.kinds:from_dict')(stored)
  return feature
