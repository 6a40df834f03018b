"""The colours of classes, which people with weak sight can tell apart."""

from collections.abc import Sequence
import functools

import cv2
import numpy as np

from vit_jax.plots import style

_CLASSES = (
  style.BLUE,
  style.ORANGE,
  style.GREEN,
  style.RED,
  style.SKY,
  style.PURPLE,
  style.YELLOW,
  '#000000',
)
_LEVELS = 14  # of red, green and blue among which more colours are chosen
_LIGHTNESS = 25, 90  # of these, in CIELAB
_CHROMA = 25, 75  # neither greys nor glaring colours
# What deuteranopes see of linear RGB (Machado et al., 2009, severity 1).
_DEUTERANOPIA = np.array(
  [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
  ]
)
_BACKGROUNDS = ('background', 'unlabelled', 'unlabeled')


@functools.cache
def class_colours(count: int) -> np.ndarray:
  """Returns the colours of classes, uint8 [count, 3].

  The first eight are Okabe and Ito's. Each further one is the colour that is
  least like all before it, for normal sight and for deuteranopes. None is like
  BACKGROUND or VOID.
  """
  chosen = [style.rgb(colour) for colour in _CLASSES[:count]]
  if count <= len(chosen):
    return np.array(chosen, np.uint8).reshape(-1, 3)
  levels = np.linspace(0, 255, _LEVELS)
  grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
  lightness, red_green, yellow_blue = _lab(grid).T
  chroma = np.hypot(red_green, yellow_blue)
  fits = (lightness > _LIGHTNESS[0]) & (lightness < _LIGHTNESS[1])
  grid = grid[fits & (chroma > _CHROMA[0]) & (chroma < _CHROMA[1])]
  colours = _perceived(grid)
  fixed = np.array(
    [*chosen, *map(style.rgb, (style.BACKGROUND, style.VOID))], np.float64
  )
  nearest = _distances(colours, _perceived(fixed)).min(axis=1)
  while len(chosen) < count:
    best = int(nearest.argmax())
    red, green, blue = np.round(grid[best]).astype(int).tolist()
    chosen.append((red, green, blue))
    nearest = np.minimum(
      nearest, _distances(colours, colours[best : best + 1])[:, 0]
    )
  return np.array(chosen, np.uint8)


def label_colours(names: Sequence[str]) -> np.ndarray:
  """Returns the colours of classes of pixels, uint8 [len(names), 3].

  A class named 'background' or 'unlabelled' has the colour BACKGROUND. The
  others have `class_colours` in their order.
  """
  is_class = np.array([x.lower() not in _BACKGROUNDS for x in names], bool)
  colours = np.tile(
    np.array(style.rgb(style.BACKGROUND), np.uint8), (len(names), 1)
  )
  colours[is_class] = class_colours(int(is_class.sum()))
  return colours


def _perceived(colours: np.ndarray) -> np.ndarray:
  """Returns CIELAB with normal sight and with deuteranopia, [N, 2, 3]."""
  linear = (colours / 255) ** 2.2
  weak_sight = np.clip(linear @ _DEUTERANOPIA.T, 0, 1) ** (1 / 2.2) * 255
  return np.stack([_lab(colours), _lab(weak_sight)], axis=1)


def _lab(colours: np.ndarray) -> np.ndarray:
  """Converts red, green and blue from 0 to 255, [N, 3], to CIELAB."""
  image = (colours[None] / 255).astype(np.float32)
  lab: np.ndarray = cv2.cvtColor(image, cv2.COLOR_RGB2Lab)[0]
  return lab


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns how unlike colours are: the lesser of both sights, [N, M]."""
  distances = np.linalg.norm(first[:, None] - second[None], axis=-1)
  lesser: np.ndarray = distances.min(axis=-1)
  return lesser
