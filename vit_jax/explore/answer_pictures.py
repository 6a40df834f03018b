"""Pictures of what a model answers, and of what it answers by."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.evaluation import report
from vit_jax.explore import answer_charts
from vit_jax.explore import answers as answers_lib
from vit_jax.explore import labelled as labelled_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import tiles

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_TOP = 5
_MISTAKES = 24
_MISTAKE_COLUMNS = 6
_MOST_CLASSES = 40  # of a confusion matrix


def predictions(subject: Subject) -> Drawn:
  """The most probable classes of each image."""
  names, probabilities = subject.names, subject.probabilities
  order = np.argsort(-probabilities, axis=1, kind='stable')[:, :_TOP]
  answers = [
    [
      answer_charts.Bar(names[i], float(row[i]), names[i] == truth)
      for i in best
    ]
    for row, best, truth in zip(
      probabilities, order, subject.images.truths, strict=True
    )
  ]
  caption = (
    'The most probable classes of each image: the softmax of the logits,'
    ' whatever loss the model was trained with.'
  )
  captions = list(subject.images.names)
  if any(subject.images.truths):
    caption += ' Green is the class that the label says.'
  if subject.images.naming:
    caption += f' {subject.images.naming}'
  # Lists: two images or classes may have one name.
  numbers = {
    'images': captions,
    'classes': [[bar.name for bar in row] for row in answers],
    'probabilities': [[bar.probability for bar in row] for row in answers],
  }
  figure = answer_charts.bars(subject.pixels, captions, answers)
  return Drawn(caption, [('', figure)], numbers)


def mistakes(subject: Subject) -> Drawn:
  """The wrong answers that the model is most sure of."""
  answers, names = subject.answers
  wrong = answers_lib.confident_mistakes(
    answers.top[:, 0], answers.probability[:, 0], answers.label
  )
  if not len(wrong):
    raise UserError(f'there is no mistake in {_examples(subject)}')
  chosen = wrong[:_MISTAKES]
  shape = tiles.tile_shape(
    subject.vit.preprocess.image_size,
    (1, 1),
    _MISTAKE_COLUMNS,
    limits=(96, 140),
  )
  pixels = tiles.pixels(subject.vit.preprocess, subject.examples.inputs(chosen))
  captions, numbers = [], []
  for i in chosen:
    said, true = names[answers.top[i, 0]], names[answers.label[i]]
    sure = float(answers.probability[i, 0])
    captions.append(f'says {said}\nis {true}\n{sure:.1%}')
    numbers.append(
      {
        'index': int(answers.index[i]),
        'label': true,
        'prediction': said,
        'probability': sure,
      }
    )
  groups = [[tile] for tile in tiles.fit_all(pixels, shape)]
  figure = canvas.sheet(
    tiles.grouped(groups, _MISTAKE_COLUMNS), captions=captions
  )
  caption = (
    f'The {len(chosen)} of {len(wrong)} mistakes of which the model is most'
    f' sure, in {_examples(subject)}: what it says, what the label says, and'
    ' the probability of the former. Some of these may be mistakes of the'
    ' labels.'
  )
  return Drawn(caption, [('', figure)], {'mistakes': numbers})


def confusion(subject: Subject) -> Drawn:
  """How often each class is taken for each other."""
  answers, names = subject.answers
  counts = report.confusion(answers.label, answers.top[:, 0], len(names))
  chosen = _most_confused(counts)
  shown = counts[np.ix_(chosen, chosen)]
  # Of all examples of a class, also those taken for a class not shown.
  parts = shown / np.maximum(counts[chosen].sum(axis=1, keepdims=True), 1)
  some = [names[i] for i in chosen]
  figure = charts.matrix(
    parts,
    x='predicted class',
    y='true class',
    label="part of the true class's examples",
    names=(some, some),
    limits=(0.0, 1.0),
    written=shown,
  )
  correct = int((answers.top[:, 0] == answers.label).sum())
  caption = (
    f'How {_examples(subject)} were classified: a row is a true class, a'
    ' column a predicted one; the colour is the part of the row.'
    f' {correct} of {len(answers.label)} are right'
    f' ({correct / len(answers.label):.1%}).'
  )
  if len(chosen) < len(names):
    caption += (
      f' Only the {len(chosen)} of {len(names)} classes with the most mistakes'
      ' are shown.'
    )
  return Drawn(caption, [('', figure)], {'classes': some, 'counts': shown})


def _most_confused(counts: np.ndarray) -> np.ndarray:
  """Returns the classes to show: those of the most mistakes, in order."""
  if len(counts) <= _MOST_CLASSES:
    return np.arange(len(counts))
  wrong = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
  return np.sort(np.argsort(-wrong, kind='stable')[:_MOST_CLASSES])


def reliability(subject: Subject) -> Drawn:
  """Whether the model is as often right as it is sure."""
  answers, _ = subject.answers
  confidence = answers.probability[:, 0].astype(np.float64)
  right = answers.top[:, 0] == answers.label
  bins = answers_lib.reliability_bins(confidence, right)
  error = report.calibration_error(confidence, right)
  figure = answer_charts.reliability(bins, answers_lib.BINS)
  caption = (
    f'{_capital(_examples(subject))} in {answers_lib.BINS} ranges of'
    ' confidence, the probability of what the model predicts: how much of each'
    ' range is right, with 95% intervals (Wilson), and how many it has. Below'
    ' the diagonal the model is too sure. The expected calibration error, the'
    f' mean distance from the diagonal, is {error:.4f} (arXiv:1706.04599).'
  )
  numbers = {
    'calibration_error': error,
    'bins': [bin_._asdict() for bin_ in bins],
  }
  return Drawn(caption, [('', figure)], numbers)


def embedding(subject: Subject) -> Drawn:
  """What the head reads, as points of a plane."""
  examples = subject.examples
  least = answers_lib.LEAST_POINTS
  if len(examples) < least:
    raise UserError(
      f'{_examples(subject)} are too few: --split must have {least}'
    )
  components, parts = answers_lib.principal_components(
    examples.embeddings(subject.vit)
  )
  points = {'PCA': components[:, :2], 't-SNE': answers_lib.tsne(components)}
  axes = {
    'PCA': (f'component 1 ({parts[0]:.0%})', f'component 2 ({parts[1]:.0%})'),
    't-SNE': ('', ''),
  }
  thumbnails = examples.thumbnails(subject.vit.preprocess)

  def figures() -> Iterator[tuple[str, Any]]:
    for label, plane in points.items():
      yield (
        label,
        answer_charts.embedding_map(
          plane, examples.label, examples.classes, thumbnails, axes[label]
        ),
      )

  caption = (
    f'What the head reads of {_examples(subject)}: on the left a point for'
    ' each, in the colour of its label, those on top whose neighbours on the'
    ' map have other labels; on the right thumbnails where there is room, over'
    ' the same points in grey. First the plane of the two principal'
    ' components, with the part of the variance that each has. Then t-SNE of'
    f' the first {answers_lib.PCA_FIRST} components (scikit-learn, its'
    ' defaults, started from the principal components): neighbours stay'
    ' together, while distances between groups and their sizes mean little.'
  )
  numbers = {
    'index': examples.index,
    'label': [examples.classes[i] for i in examples.label],
    **points,
  }
  return Drawn(caption, figures(), numbers)


def _examples(subject: Subject) -> str:
  """Returns words for the labelled examples."""
  return describe(subject.examples)


def describe(examples: labelled_lib.Labelled) -> str:
  """Returns words for examples, as 'the 359 examples of digits, test'."""
  count, total = len(examples), examples.total
  if count == total:
    return f'the {count} examples of {examples.where}'
  return f'the first {count} of {total} examples of {examples.where}'


def _capital(text: str) -> str:
  return text[0].upper() + text[1:]
