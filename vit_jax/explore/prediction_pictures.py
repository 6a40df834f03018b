"""Pictures of predictions, mistakes and embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.evaluation import report
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import prediction_charts
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import matrix
from vit_jax.plots import sheet
from vit_jax.plots import tiles

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_TOP = 5
_MISTAKES = 24
_MISTAKE_COLUMNS = 6


def predictions(subject: Subject) -> Drawn:
  """Draws the most probable classes of each image."""
  names, probabilities = subject.names, subject.probabilities
  order = np.argsort(-probabilities, axis=1, kind='stable')[:, :_TOP]
  # A model that does not predict the label has no classes of labels.
  classes = subject.vit.classes
  truths = [x if x in classes else None for x in subject.images.truths]
  bars = [
    [
      prediction_charts.ClassBar(names[i], float(row[i]), names[i] == truth)
      for i in best
    ]
    for row, best, truth in zip(probabilities, order, truths, strict=True)
  ]
  meaning = (
    'the softmax of the logits, whatever loss the model was trained with'
  )
  if not subject.vit.preprocess.has_label:
    meaning = 'each has a probability of its own, the sigmoid of its logit'
  caption = f'The most probable classes of each image: {meaning}.'
  images = subject.images
  if any(truths):
    caption += ' The class of the label is green.'
  if images.naming:
    caption += f' {images.naming}'
  # Lists, since two images or classes may have the same name.
  numbers = {
    'images': images.names,
    'labels': images.truths,
    'classes': [[prediction.name for prediction in row] for row in bars],
    'probabilities': [
      [prediction.probability for prediction in row] for row in bars
    ],
  }
  captions = [
    subject_lib.one_line(subject_lib.caption(name, label=truth))
    for name, truth in zip(images.names, images.truths, strict=True)
  ]
  figure = prediction_charts.bars(subject.pixels, captions, bars)
  return Drawn(caption, [('', figure)], numbers)


def mistakes(subject: Subject) -> Drawn:
  """Draws the wrong predictions with the highest confidence."""
  predicted, names = subject.predictions
  wrong = predictions_lib.confident_mistakes(
    predicted.top[:, 0], predicted.probability[:, 0], predicted.label
  )
  if not len(wrong):
    raise UserError(f'there is no mistake in {_examples(subject)}')
  chosen = wrong[:_MISTAKES]
  numbers = [
    {
      'index': int(predicted.index[i]),
      'name': subject.examples.names[i],
      'label': names[predicted.label[i]],
      'prediction': names[predicted.top[i, 0]],
      'probability': float(predicted.probability[i, 0]),
    }
    for i in chosen
  ]
  caption = (
    f'The {len(chosen)} of {len(wrong)} mistakes with the highest confidence in'
    f' {_examples(subject)}: the prediction with its probability, and the'
    ' label. Some of them may be mistakes of the labels.'
  )
  figure = _mistake_sheet(subject, chosen, numbers)
  return Drawn(caption, [('', figure)], {'mistakes': numbers})


def _mistake_sheet(
  subject: Subject, chosen: np.ndarray, numbers: list[dict[str, Any]]
) -> np.ndarray:
  """Returns the chosen examples with their predictions and labels."""
  preprocess = subject.vit.preprocess
  pixels = tiles.pixels(preprocess, subject.examples.inputs(chosen))
  captions = [
    subject_lib.caption(
      x['name'], x['prediction'], x['probability'], x['label']
    )
    for x in numbers
  ]
  groups = [
    [sheet.Tile(sheet.readable(image), text)]
    for image, text in zip(pixels, captions, strict=True)
  ]
  return sheet.draw(tiles.grouped(groups, _MISTAKE_COLUMNS))


def confusion(subject: Subject) -> Drawn:
  """Draws the confusion matrix."""
  predicted, names = subject.predictions
  counts = report.confusion(predicted.label, predicted.top[:, 0], len(names))
  chosen = matrix.most_confused(counts)
  correct = int(np.trace(counts))
  caption = (
    f'How {_examples(subject)} were classified. Rows are true classes, columns'
    ' predicted ones. A cell has the number of examples and the colour of their'
    ' share of the true class. On the right is the share of each class that is'
    f' classified correctly: {correct} of {len(predicted.label)} in all'
    f' ({correct / len(predicted.label):.1%}).'
  )
  numbers = {
    'classes': [names[i] for i in chosen],
    'counts': counts[np.ix_(chosen, chosen)],
    'examples': len(predicted.label),
    'accuracy': correct / len(predicted.label),
    'interval': report.wilson(correct, len(predicted.label)),
    'classes_by_accuracy': _by_accuracy(counts, names),
  }
  return Drawn(caption, [('', matrix.confusion(counts, names))], numbers)


def _by_accuracy(
  counts: np.ndarray, names: Sequence[str]
) -> list[tuple[str, float]]:
  """Returns classes that have examples, from the lowest accuracy on."""
  totals = counts.sum(axis=1)
  accuracy = np.diag(counts) / np.maximum(totals, 1)
  order = np.argsort(accuracy, kind='stable')
  return [(names[i], float(accuracy[i])) for i in order if totals[i]]


def reliability(subject: Subject) -> Drawn:
  """Draws accuracy against confidence."""
  predicted, _ = subject.predictions
  confidence = predicted.probability[:, 0].astype(np.float64)
  right = predicted.top[:, 0] == predicted.label
  bins = predictions_lib.reliability_bins(confidence, right)
  error = report.calibration_error(confidence, right)
  figure = prediction_charts.reliability(bins, error)
  least = prediction_charts.LEAST_IN_BAR
  caption = (
    f'{_capital(_examples(subject))} in {predictions_lib.BINS} ranges of'
    ' confidence (the probability of the predicted class). A bar is the'
    ' accuracy in its range, with a 95% interval (Wilson); the hatched part is'
    ' the gap to the mean confidence. Gaps above a bar show overconfidence.'
    ' Bars of few examples are pale, and ranges with fewer than'
    f' {least} have none. The expected calibration error (ECE) is the mean gap'
    f' over all examples: {error:.4f} (arXiv:1706.04599).'
  )
  numbers = {
    'calibration_error': error,
    'bins': [bin_._asdict() for bin_ in bins],
  }
  return Drawn(caption, [('', figure)], numbers)


def embedding(subject: Subject) -> Drawn:
  """Draws maps of the embeddings, by PCA and t-SNE."""
  examples = subject.examples
  least = predictions_lib.LEAST_POINTS
  if len(examples) < least:
    raise UserError(
      f'{_examples(subject)} are too few: --split must have {least}'
    )
  components, parts = predictions_lib.principal_components(subject.embeddings)
  points = {'PCA': components[:, :2], 't-SNE': predictions_lib.tsne(components)}
  axes: dict[str, tuple[str, str] | None] = {
    'PCA': (f'component 1 ({parts[0]:.0%})', f'component 2 ({parts[1]:.0%})'),
    't-SNE': None,
  }
  thumbnails = examples.thumbnails(subject.vit.preprocess)
  figures = (
    (
      label,
      prediction_charts.embedding_map(
        plane,
        examples.label,
        examples.classes,
        thumbnails,
        label,
        axes[label],
      ),
    )
    for label, plane in points.items()
  )
  labels = [examples.classes[i] for i in examples.label]
  numbers = {'index': examples.index, 'label': labels, **points}
  return Drawn(_embedding_caption(subject), figures, numbers)


def _embedding_caption(subject: Subject) -> str:
  return (
    f'The input of the head for {_examples(subject)}. Left, a point for each in'
    ' the colour of its label; points whose neighbours have other labels are on'
    ' top. Right, thumbnails where there is room, over the same points in grey.'
    ' First the plane of the two principal components, with the fraction of the'
    ' variance that each explains. Then t-SNE of the first'
    f' {predictions_lib.PCA_FIRST} components (scikit-learn with its defaults,'
    ' started from the principal components): neighbours stay together, while'
    ' distances between groups and the sizes of groups mean little.'
  )


def _examples(subject: Subject) -> str:
  """Returns words for the labelled examples."""
  return describe(subject.examples)


def describe(examples: examples_lib.Examples) -> str:
  """Returns words for examples, as 'the 359 examples of digits, test'."""
  count, total = len(examples), examples.total
  if count == total:
    return f'the {counted(count, "example")} of {examples.source_name}'
  return f'the first {count} of {total} examples of {examples.source_name}'


def _capital(text: str) -> str:
  return text[0].upper() + text[1:]
