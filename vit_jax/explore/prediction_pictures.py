"""Pictures and charts of predictions, mistakes and embeddings.

Charts are figures of matplotlib, made within `canvas.style`.
"""

from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import UserError
from vit_jax.evaluation import calibration
from vit_jax.evaluation import intervals
from vit_jax.evaluation import metrics
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import canvas
from vit_jax.plots import class_colours
from vit_jax.plots import matrix
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles

if TYPE_CHECKING:
  from matplotlib import figure as figure_lib

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_TOP = 5
_MISTAKES = 24
_MISTAKE_COLUMNS = 6
_THUMBNAIL = 216  # pixels of the file, as the lengths of bars
_ROW, _NAME, _LONGEST, _NUMBER = 42, 300, 300, 88
_COLUMNS = 2  # columns of images with their bars
_MAP = 1030, 600  # pixels of the two panels together
_PANEL = 400, 520  # approximate pixels of a panel for points
_ON_MAP = 22  # pixels of a thumbnail on a map
_DISTANCE = 28  # minimum pixels between the centres of two thumbnails
_NEIGHBOURS = 10  # number of neighbours whose labels are compared
_MOST_THUMBNAILS = 90
_LISTED = 20  # largest number of classes that a legend names
_RELIABILITY = 480, 540  # pixels of both panels together
LEAST_IN_BAR = 5  # examples; the accuracy of fewer says nothing
_FULL = 30  # examples of a bar that does not fade
_GAP: Any = {
  'facecolor': 'none',
  'edgecolor': style.RED,
  'hatch': '////',
  'linewidth': 0.8,
}


def predictions(subject: Subject) -> Drawn:
  """Draws the most probable classes of each image."""
  images = subject.images
  names, probabilities = subject.names, subject.probabilities
  order = np.argsort(-probabilities, axis=1, kind='stable')[:, :_TOP]
  # A model that does not predict the label has no classes of labels.
  classes = subject.vit.classes
  truths = [x if x in classes else None for x in images.truths]
  bars = [
    [(names[i], float(row[i]), names[i] == truth) for i in best]
    for row, best, truth in zip(probabilities, order, truths, strict=True)
  ]
  meaning = (
    'the softmax of the logits, whatever loss the model was trained with'
  )
  if not subject.vit.preprocess.has_label:
    meaning = 'each has a probability of its own, the sigmoid of its logit'
  caption = f'The most probable classes of each image: {meaning}.'
  if any(truths):
    caption += ' The class of the label is green.'
  if images.naming:
    caption += f' {images.naming}'
  # Lists, since two images or classes may have the same name.
  numbers = {
    'images': images.names,
    'labels': images.truths,
    'classes': [[name for name, *_ in row] for row in bars],
    'probabilities': [[x for _, x, _ in row] for row in bars],
  }
  captions = [
    subject_lib.one_line(subject_lib.caption(name, label=truth))
    for name, truth in zip(images.names, images.truths, strict=True)
  ]
  figure = draw_bars(subject.pixels, captions, bars)
  return Drawn(caption, [('', figure)], numbers)


def mistakes(subject: Subject) -> Drawn:
  """Draws the wrong predictions with the highest confidence."""
  predicted, names = subject.predictions
  examples = subject.examples
  wrong = predictions_lib.confident_mistakes(
    predicted.top[:, 0], predicted.probability[:, 0], predicted.label
  )
  if not len(wrong):
    raise UserError(f'there is no mistake in {examples.described}')
  chosen = wrong[:_MISTAKES]
  preprocess = subject.vit.preprocess
  pixels = tiles.pixels(preprocess, examples.inputs(chosen))
  numbers, groups = [], []
  for i, image in zip(chosen, pixels, strict=True):
    mistake = {
      'index': int(predicted.index[i]),
      'name': examples.names[i],
      'label': names[predicted.label[i]],
      'prediction': names[predicted.top[i, 0]],
      'probability': float(predicted.probability[i, 0]),
    }
    numbers.append(mistake)
    text = subject_lib.caption(
      examples.names[i],
      names[predicted.top[i, 0]],
      float(predicted.probability[i, 0]),
      names[predicted.label[i]],
    )
    groups.append([sheet.Tile(sheet.readable(image), text)])
  caption = (
    f'The {len(chosen)} of {len(wrong)} mistakes with the highest confidence in'
    f' {examples.described}: the prediction with its probability, and the'
    ' label. Some of them may be mistakes of the labels.'
  )
  drawn = sheet.draw(sheet.grouped(groups, _MISTAKE_COLUMNS))
  return Drawn(caption, [('', drawn)], {'mistakes': numbers})


def confusion(subject: Subject) -> Drawn:
  """Draws the confusion matrix."""
  predicted, names = subject.predictions
  best, total = predicted.top[:, 0], len(predicted.label)
  counts = metrics.confusion(predicted.label, best, len(names))
  chosen = matrix.most_confused(counts)
  correct = int(np.trace(counts))
  caption = (
    f'How {subject.examples.described} were classified. Rows are true classes,'
    ' columns predicted ones. A cell has the number of examples and the colour'
    ' of their share of the true class. On the right is the share of each'
    f' class that is classified correctly: {correct} of {total} in all'
    f' ({correct / total:.1%}).'
  )
  totals = counts.sum(axis=1)
  accuracy = np.diag(counts) / np.maximum(totals, 1)
  ascending = np.argsort(accuracy, kind='stable')
  numbers = {
    'classes': [names[i] for i in chosen],
    'counts': counts[np.ix_(chosen, chosen)],
    'examples': total,
    'accuracy': correct / total,
    'interval': intervals.wilson(correct, total),
    'classes_by_accuracy': [
      (names[i], float(accuracy[i])) for i in ascending if totals[i]
    ],
  }
  return Drawn(caption, [('', matrix.confusion(counts, names))], numbers)


def reliability(subject: Subject) -> Drawn:
  """Draws accuracy against confidence."""
  predicted, _ = subject.predictions
  confidence = predicted.probability[:, 0].astype(np.float64)
  right = predicted.top[:, 0] == predicted.label
  bins = calibration.reliability_bins(confidence, right)
  error = calibration.calibration_error(confidence, right)
  figure = reliability_diagram(bins, error)
  described = subject.examples.described
  caption = (
    f'{described[0].upper()}{described[1:]} in {calibration.BINS} ranges of'
    ' confidence (the probability of the predicted class). A bar is the'
    ' accuracy in its range, with a 95% interval (Wilson); the hatched part is'
    ' the gap to the mean confidence. Gaps above a bar show overconfidence.'
    ' Bars of few examples are pale, and ranges with fewer than'
    f' {LEAST_IN_BAR} have none. The expected calibration error (ECE) is the'
    f' mean gap over all examples: {error:.4f} (arXiv:1706.04599).'
  )
  numbers = {
    'calibration_error': error,
    'bins': [bin_._asdict() for bin_ in bins],
  }
  return Drawn(caption, [('', figure)], numbers)


def embedding(subject: Subject) -> Drawn:
  """Draws maps of the embeddings, by PCA and t-SNE."""
  examples, least = subject.examples, predictions_lib.LEAST_POINTS
  if len(examples) < least:
    raise UserError(
      f'{examples.described} are too few: --split must have {least}'
    )
  components, parts = predictions_lib.embedding_components(subject.embeddings)
  points = {'PCA': components[:, :2], 't-SNE': predictions_lib.tsne(components)}
  axes: dict[str, tuple[str, str] | None] = {
    'PCA': (f'component 1 ({parts[0]:.0%})', f'component 2 ({parts[1]:.0%})'),
    't-SNE': None,
  }
  thumbnails = examples.thumbnails(subject.vit.preprocess)
  figures = (
    (
      label,
      embedding_map(
        plane, examples.label, examples.classes, thumbnails, label, axes[label]
      ),
    )
    for label, plane in points.items()
  )
  caption = (
    f'The input of the head for {examples.described}. Left, a point for each in'
    ' the colour of its label; points whose neighbours have other labels are on'
    ' top. Right, thumbnails where there is room, over the same points in grey.'
    ' First the plane of the two principal components, with the fraction of the'
    ' variance that each explains. Then t-SNE of the first'
    f' {predictions_lib.PCA_FIRST} components (scikit-learn with its defaults,'
    ' started from the principal components): neighbours stay together, while'
    ' distances between groups and the sizes of groups mean little.'
  )
  labels = [examples.classes[i] for i in examples.label]
  numbers = {'index': examples.index, 'label': labels, **points}
  return Drawn(caption, figures, numbers)


def draw_bars(
  images: np.ndarray,
  captions: Sequence[str],
  classes: Sequence[Sequence[tuple[str, float, bool]]],
) -> np.ndarray:
  """Returns images with the probabilities of a few classes, uint8 [h, w, 3].

  Args:
    images: uint8 [B, H, W, 3].
    captions: Texts above the images.
    classes: Some classes for each image, the most probable first: name,
      probability, and whether it is the label.
  """
  gap, line = paper_lib.GAP, paper_lib.LINE
  scale = _THUMBNAIL / max(images.shape[1:3])
  high, wide = (max(1, round(n * scale)) for n in images.shape[1:3])
  names = [name for row in classes for name, *_ in row]
  room = min(_NAME, math.ceil(max(map(paper_lib.width, names))))
  pitch = _THUMBNAIL + room + _LONGEST + _NUMBER + 6 * gap
  down = line + max(high, max(map(len, classes)) * _ROW) + 3 * gap
  columns = min(_COLUMNS, len(images))
  bold = functools.partial(paper_lib.width, bold=True)
  short = paper_lib.shorten(captions, pitch - 3 * gap, bold)
  paper = paper_lib.Paper(
    columns * pitch, gap + -(-len(images) // columns) * down
  )
  for i, (image, text, row) in enumerate(
    zip(images, short, classes, strict=True)
  ):
    left, top = gap + i % columns * pitch, gap + i // columns * down
    paper.write([text], left, top, bold=True)
    top += line + gap // 2
    paper.paste(sheet.fit(image, (high, wide)), left, top)
    start = left + _THUMBNAIL + room + 2 * gap
    row_names = paper_lib.shorten([name for name, *_ in row], room)
    for j, (_, probability, right) in enumerate(row):
      y = top + j * _ROW
      paper.write([row_names[j]], start - gap, y, align=1)
      colour = style.GREEN if right else style.BLUE
      width = max(probability * _LONGEST, 2)
      paper.fill(start, y + 4, width, _ROW - 10, colour)
      paper.write([f'{probability:.1%}'], start + width + gap, y)
  return paper.pixels


def reliability_diagram(
  bins: Sequence[calibration.Bin], error: float
) -> 'figure_lib.Figure':
  """Returns a reliability diagram, with the share of examples below.

  A bar is the accuracy in a range of confidence that contains examples. It
  fades with their number, and is left out below `LEAST_IN_BAR`. The expected
  calibration error is written into the panel.
  """
  figure = canvas.figure(*_RELIABILITY)
  above, below = figure.subplots(
    2, 1, sharex=True, gridspec_kw={'height_ratios': [3, 1]}
  )
  above.plot([0, 1], [0, 1], '--', color=style.PALE, label='calibrated')
  wide = 0.9 / calibration.BINS
  confidences = np.array([bin_.confidence for bin_ in bins])
  middles = (calibration.bin_numbers(confidences) + 0.5) / calibration.BINS
  for x, bin_ in zip(middles.tolist(), bins, strict=True):
    if bin_.examples < LEAST_IN_BAR:
      continue
    alpha = float(np.clip(bin_.examples / _FULL, 0.25, 1))
    above.bar(x, bin_.accuracy, wide, color=style.BLUE, alpha=alpha)
    gap = bin_.confidence - bin_.accuracy
    above.bar(x, gap, wide, bin_.accuracy, alpha=alpha, **_GAP)
    above.vlines(x, *bin_.interval, color=style.INK, linewidth=1)
  # Empty marks, since bars of the legend must not fade.
  above.bar(0, 0, 0, color=style.BLUE, label='accuracy')
  above.bar(0, 0, 0, label='gap to the confidence', **_GAP)
  above.plot([], [], color=style.INK, linewidth=1, label='95% interval')
  above.text(0.03, 0.94, f'ECE {error:.3f}', va='center', weight='bold')
  above.set_ylabel('accuracy')
  above.set_xlim(0, 1)
  above.set_ylim(0, 1)
  figure.legend(loc='outside upper left', frameon=False, ncols=2)
  total = sum(b.examples for b in bins)
  shares = [100 * b.examples / total for b in bins]
  below.bar(middles.tolist(), shares, wide, color=style.BLUE)
  below.set_ylabel('examples (%)')
  below.set_xlabel('confidence (probability of the predicted class)')
  return figure


def embedding_map(
  points: np.ndarray,
  labels: np.ndarray,
  names: Sequence[str],
  images: np.ndarray,
  title: str,
  axes_names: tuple[str, str] | None,
) -> 'figure_lib.Figure':
  """Returns a map of points coloured by class, and one of thumbnails.

  Points whose neighbours have other labels are drawn last, to be visible.

  Args:
    points: float [N, 2].
    labels: Positions in `names`, int [N].
    names: Names of the classes.
    images: Thumbnails, uint8 [N, h, w, 3].
    title: Name of the map.
    axes_names: Labels of the two axes; None: coordinates mean nothing.
  """
  from matplotlib import offsetbox

  figure = canvas.figure(*_MAP)
  left, right = figure.subplots(1, 2, sharex=True, sharey=True)
  colours = class_colours.class_colours(len(names)) / 255
  order = strays_last(points, labels)
  x, y = points[order].T
  left.scatter(x, y, s=9, c=colours[labels[order]], linewidths=0)
  right.scatter(x, y, s=3, c=style.FAINT, linewidths=0)
  for i in separate_points(points, _PANEL):
    zoom = 0.72 * _ON_MAP / max(images[i].shape[:2])  # in points
    frame: Any = {'edgecolor': colours[labels[i]], 'linewidth': 1.2}
    thumbnail = offsetbox.AnnotationBbox(
      offsetbox.OffsetImage(images[i], zoom=zoom),
      tuple(points[i]),
      pad=0.1,
      bboxprops=frame,
    )
    right.add_artist(thumbnail)
  left.set_title(title)
  if axes_names is None:
    left.tick_params(length=0, labelcolor='none')
    right.tick_params(length=0, labelcolor='none')
  else:
    left.set(xlabel=axes_names[0], ylabel=axes_names[1])
    right.set_xlabel(axes_names[0])
  if len(names) <= _LISTED:
    for i in np.unique(labels):
      left.scatter([], [], s=24, color=colours[i], label=names[i])
    figure.legend(loc='outside right upper', frameon=False, title='label')
  return figure


def strays_last(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns an order of points [N, 2]; ones among other labels come last."""
  from sklearn import neighbors  # here: it takes a second to import

  count = min(_NEIGHBOURS, len(points) - 1)
  search = neighbors.NearestNeighbors(n_neighbors=count).fit(points)
  alike = labels[search.kneighbors(return_distance=False)] == labels[:, None]
  return np.argsort(-alike.mean(axis=1), kind='stable')


def separate_points(points: np.ndarray, size: tuple[int, int]) -> list[int]:
  """Returns positions of points [N, 2] whose thumbnails do not overlap.

  `size` is (width, height) of the map, in pixels.
  """
  low = points.min(axis=0)
  span = np.maximum(points.max(axis=0) - low, 1e-12)
  places = (points - low) / span * size
  chosen: list[int] = []
  for i, place in enumerate(places):
    distances = np.abs(places[chosen] - place).max(axis=1)
    if (distances > _DISTANCE).all():
      chosen.append(i)
    if len(chosen) == _MOST_THUMBNAILS:
      break
  return chosen
