"""What figures are made of: tiles, their places, and files that stay equal."""

import re

import cv2
import lettering
import numpy as np
import pytest
import stand_in

from vit_jax import data
from vit_jax.evaluation import calibration
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import model_pictures
from vit_jax.explore import prediction_pictures
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import sheet
from vit_jax.plots import style as style_lib
from vit_jax.plots import tiles
from vit_jax.runs import workdir as workdir_lib


@pytest.fixture
def style():
  with canvas.style():
    yield


def test_pixels_are_what_was_normalised():
  stored = stand_in.pixels(3, 6, 5)
  preprocess = data.Preprocess((), (6, 5), 3, (0.4, 0.5, 0.6), (0.2,), None)
  np.testing.assert_array_equal(
    tiles.pixels(preprocess, preprocess(stored)), stored[None]
  )


def test_colours_of_any_channels():
  grey = np.array([[[0.0], [0.5]]])
  np.testing.assert_array_equal(
    sheet.to_rgb(grey), [[[0, 0, 0], [128, 128, 128]]]
  )
  clear = np.array([[[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]]])
  np.testing.assert_array_equal(
    sheet.to_rgb(clear), [[[255, 255, 255], [255, 0, 0]]]
  )


@pytest.mark.parametrize(
  'image, grid, columns',
  [
    ((224, 224), (14, 14), 13),
    ((8, 8), (4, 4), 5),
    ((32, 64), (2, 8), 3),
    ((384, 384), (24, 24), 25),
    ((448, 448), (64, 64), 33),  # a tile that is larger than is wished
  ],
)
def test_tiles_have_whole_pixels_for_each_patch(image, grid, columns):
  h, w = tiles.tile_shape(image, grid, columns)
  assert h % grid[0] == 0 and w % grid[1] == 0
  assert h / w == pytest.approx(image[0] / image[1], rel=0.3)
  assert max(h, w) <= max(384, *grid)


def test_a_chosen_patch_has_a_frame():
  image = np.zeros((40, 40, 3), np.uint8)
  actual = tiles.mark(image, (1, 0), (2, 2)).any(axis=-1)
  assert actual[18:, :22].any() and not actual[:15].any()
  assert not actual[24:36, 4:16].any()  # the patch is seen
  assert not image.any()


def test_images_are_evenly_spread():
  assert tiles.spread(3, 5) == [0, 1, 2]
  assert tiles.spread(100, 3) == [0, 50, 99]
  assert len(set(tiles.spread(17, 16))) == 16
  assert tiles.spread(5, 1) == [0]


def test_groups_stay_together():
  groups = [[i, -i] for i in range(1, 6)]
  assert sheet.grouped(groups, 5) == [
    [1, -1, 2, -2],
    [3, -3, 4, -4],
    [5, -5, None, None],
  ]
  assert sheet.grouped(groups[:1], 1) == [[1, -1]]


def extents(figure):
  """Returns the texts of a figure with their places, in pixels."""
  from matplotlib import text as text_lib
  from matplotlib.backends import backend_agg

  renderer = backend_agg.FigureCanvasAgg(figure).get_renderer()
  figure.draw(renderer)
  return [
    (x.get_text(), x.get_window_extent(renderer))
    for x in figure.findobj(text_lib.Text)
    if x.get_text() and x.get_visible()
  ]


def test_the_norms_of_any_range_have_numbers(style):
  for low, high in ((7, 42), (2, 3), (21, 29), (9, 44), (0.4, 900)):
    norms = np.linspace(low, high, 6)[:, None] * np.ones(3)
    figure = charts.norms_by_depth(norms, {'class token': norms[:, 0]})
    actual = extents(figure)
    box = figure.axes[0].get_window_extent()
    numbers = [
      text
      for text, there in actual
      if there.x1 <= box.x0 and text[0].isdigit() and box.y0 < there.y1 < box.y1
    ]
    assert 3 <= len(numbers) <= 12, (low, high, numbers)


def test_no_legend_is_over_data(style):
  level = charts.Level(0.1, 'by chance')
  panels = [charts.Panel(np.ones((3, 2)), 'pixels', level)] * 2
  intervals = np.array([[0.0, 1.0]] * 3)
  for figure in (
    charts.heads_by_depth(panels),
    charts.accuracy_by_depth(np.ones(3), intervals, level),
  ):
    extents(figure)  # lays it out
    (legend,) = figure.legends
    bottom = legend.get_window_extent().y0
    assert all(x.get_window_extent().y1 <= bottom for x in figure.axes)


def test_files_are_the_same_each_time(style, tmp_path):
  contents = []
  for name in ('a', 'b'):
    figure = charts.heads_by_depth(
      [charts.Panel(np.eye(3), 'pixels', charts.Level(0.5, 'uniform'))]
    )
    size = canvas.save(figure, tmp_path / name)
    contents.append(
      [(tmp_path / f'{name}{x}').read_bytes() for x in ('.png', '.svg')]
    )
  assert contents[0] == contents[1]
  png, svg = contents[0]
  height, width = cv2.imdecode(np.frombuffer(png, np.uint8), 1).shape[:2]
  assert (width, height) == (2 * size[0], 2 * size[1])
  assert re.search(rb'<text[^>]*>layer</text>', svg)  # text stays text
  with pytest.raises(workdir_lib.UserError, match='cannot write'):
    canvas.save(figure, tmp_path / 'none' / 'a')


def test_what_is_shown_of_a_sequence(style):
  assert model_pictures.shown_patches(4, 20) == [0, 1, 2, 3]
  assert model_pictures.shown_patches(196, 8) == [
    0,
    1,
    2,
    3,
    None,
    193,
    194,
    195,
  ]
  image = stand_in.pixels(0, 60, 90)
  pixels = model_pictures.draw_sequence(image, (10, 15), ['class', 'reg 0'])
  assert lettering.shows(pixels, '10 × 15 patches')
  assert lettering.shows(pixels, 'The sequence of 152 tokens', bold=True)
  for text in ('class', 'reg 0', '0', '…', '149'):
    assert lettering.shows(pixels, text), text


def test_white_patches_have_frames():
  frame = style_lib.rgb(style_lib.FAINT)
  white, black = (
    model_pictures.draw_sequence(
      np.full((96, 96, 3), grey, np.uint8), (2, 2), []
    )
    for grey in (255, 0)
  )
  framed = (black == frame).all(axis=-1)
  assert framed.sum() > 4 * 4 * (48 + 68)
  assert (white[framed] == frame).all()


def test_thumbnails_stay_apart():
  points = np.random.default_rng(0).normal(size=(400, 2))
  chosen = prediction_pictures.separate_points(points, (500, 400))
  assert 30 < len(chosen) <= 90
  span = points.max(axis=0) - points.min(axis=0)
  places = (points / span * (500, 400))[chosen]
  distances = np.abs(places[:, None] - places).max(axis=-1)
  assert distances[~np.eye(len(chosen), dtype=bool)].min() > 28
  assert prediction_pictures.separate_points(np.zeros((3, 2)), (500, 400)) == [
    0
  ]


def test_strays_lie_on_top(style):
  points = np.random.default_rng(0).normal(size=(90, 2))
  labels = np.arange(90) % 3
  points[:, 0] += 50 * labels
  labels[[7, 40]] = 0, 2  # 7 and 40 are among those of label 1
  order = prediction_pictures.strays_last(points, labels)
  assert sorted(order) == list(range(90)) and set(order[-2:]) == {7, 40}
  assert len(prediction_pictures.strays_last(points[:5], labels[:5])) == 5
  images = np.zeros((90, 8, 8, 3), np.uint8)
  for axes_names in (('x', 'y'), None):
    figure = prediction_pictures.embedding_map(
      points, labels, 'abc', images, 't-SNE', axes_names
    )
    left, right = figure.axes
    assert len(left.collections[0].get_offsets()) == 90 and not left.artists
    assert right.artists and left.get_title('left') == 't-SNE'
    ticks = left.xaxis.get_major_ticks()[0]
    assert (ticks.label1.get_color() == 'none') == (axes_names is None)


def test_reliability_is_in_bars_that_fade(style):
  """Of few examples there is no bar; the histogram has them, in percent."""
  bins = [
    calibration.Bin(0.3, 1.0, (0.2, 1.0), 1),
    calibration.Bin(0.65, 0.5, (0.3, 0.7), 9),
    calibration.Bin(0.95, 0.9, (0.85, 0.95), 90),
  ]
  above, below = prediction_pictures.reliability_diagram(bins, 0.0625).axes
  bars = [x for x in above.patches if x.get_height()]
  heights = [0.5, 0.65 - 0.5, 0.9, 0.95 - 0.9]
  assert [x.get_height() for x in bars] == pytest.approx(heights)
  assert [x.get_y() for x in bars] == pytest.approx([0, 0.5, 0, 0.9])
  assert bars[0].get_alpha() < bars[2].get_alpha() == 1
  assert [x.get_height() for x in below.patches] == pytest.approx([1, 9, 90])
  assert 'ECE 0.062' in [x.get_text() for x in above.texts]


def test_names_of_any_bytes():
  assert examples_lib.printable('a b.png') == 'a b.png'
  unknown = '\N{REPLACEMENT CHARACTER}'
  assert (
    examples_lib.printable('caf\udce9\n.png') == f'caf{unknown}{unknown}.png'
  )
