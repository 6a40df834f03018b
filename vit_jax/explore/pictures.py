r"""Draws a report on a model: pictures as PNG and SVG, and one page with all.

  python -m vit_jax.explore --from=runs/digits --data=digits \
    --split='train[80%:]' --out=runs/digits-inside
  python -m vit_jax.explore --from=ViT-B_16.npz --images='holidays/*.jpg' \
    --only=attention,rollout --out=inside

--images takes files, folders and patterns, as `vit_jax.predict` does, and may
be given several times; arguments that are not flags are images, too. If there
are more than --max_images, evenly spread ones are taken. --data and --split add
pictures of the predictions for labelled examples; without --images, some of
these examples are the images.

The pictures, by the names that --only takes:

  of the model     patches, filters, stem, positions
  of attention     attention, segments, rollout, relevance, query, distance
  of tokens        norms, similarity, pca, foreground, cka
  of features      neighbors
  of a method      objective (masks, reconstructions), samples, completions
  of labelled data decodability, mistakes, confusion, reliability, embedding
  of predictions   predictions
  of segmentation  overlays, errors (of data with maps of classes)

OUT/report.html has all pictures, with captions that explain how they were
computed; it needs no other file. OUT also has the pictures one by one, and
numbers.json with the numbers behind them and the checkpoint that was loaded.
If a model lacks something (a Mixer has no attention), a line of the report says
so. An earlier report in OUT is replaced, with its pictures.

Prints the path of the report, and the progress on stderr. Needs matplotlib and
jinja2: pip install 'vit_jax[explore]'.
"""

from collections.abc import Sequence
import os
import pathlib
import re
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.cli import data_flags
from vit_jax.cli import image_files
from vit_jax.config import UserError

if TYPE_CHECKING:
  from vit_jax import weights
  from vit_jax.explore import examples as examples_lib
  from vit_jax.explore import kinds as kinds_lib
  from vit_jax.explore import report as report_lib
  from vit_jax.explore import subject as subject_lib

USAGE = 'explore --from=PATH (--data=NAME | --images=PATH)'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_OTHER_MODEL = flags.DEFINE_string(
  'other',
  None,
  'A second model. Its layers are compared with the layers of --from.',
  flag_values=FLAGS,
)
_IMAGES = flags.DEFINE_multi_string(
  'images', [], 'Image file, folder or pattern.', flag_values=FLAGS
)
_OUT = cli.define_path(
  'out',
  None,
  'Folder of the report and the pictures. Default: runs/explore-<model>.',
  flag_values=FLAGS,
)
_MAX_IMAGES = flags.DEFINE_integer(
  'max_images',
  16,
  'Largest number of images to show.',
  lower_bound=1,
  flag_values=FLAGS,
)
_ONLY = flags.DEFINE_list(
  'only', [], 'Names of the pictures to draw. Default: all.', FLAGS
)
_LAYERS = flags.DEFINE_list(
  'layers',
  [],
  'Layers whose maps are drawn, from 0. -1 is the last layer. Default: all.',
  FLAGS,
)
_QUERY = flags.DEFINE_string(
  'query',
  None,
  'ROW,COLUMN of the query patch, from 0. Default: the middle.',
  flag_values=FLAGS,
)
_CLASSES = flags.DEFINE_list(
  'classes',
  [],
  'Names or numbers of the classes for class relevance. Default: the most'
  ' probable class of each image.',
  FLAGS,
)
_MASS = flags.DEFINE_float(
  'mass',
  0.6,
  "Fraction of the class token's attention that a segment holds.",
  lower_bound=0.01,
  upper_bound=1.0,
  flag_values=FLAGS,
)
_NEIGHBORS = flags.DEFINE_integer(
  'neighbors',
  5,
  'Number of nearest neighbours to show for each image. They come from --data,'
  ' or else from the images.',
  lower_bound=1,
  flag_values=FLAGS,
)
_POSITION_SIZE = flags.DEFINE_string(
  'position_size',
  None,
  'Image size that position embeddings are resized for. Default: 1.5 times the'
  " model's.",
  flag_values=FLAGS,
)
data_flags.define(FLAGS, 'take labelled images from')
_SAME_ORDER = data_flags.define_same_order(FLAGS)
_MAX_EXAMPLES = flags.DEFINE_integer(
  'max_examples',
  1000,
  'Largest number of labelled images to read, from the start of the split.',
  lower_bound=1,
  flag_values=FLAGS,
)


def main(argv: list[str]) -> int:
  """Draws, prints the path of the report, and returns the exit status."""
  out = _check_flags()
  requested = [*_IMAGES.value, *argv[1:]]
  paths = image_files.find(requested) if requested else []
  vit = cli.load(FLAGS)
  from vit_jax.explore import kinds  # after the flags: imports jax
  from vit_jax.explore import report_folder

  names = _chosen_kinds(list(kinds.KINDS))
  failed: list[UserError] = []
  subject = _subject(vit, paths, failed)
  with report_folder.replacing(out) as new:
    contents = kinds.draw(
      subject, names, new, lambda name: logging.info('drawing %s', name)
    )
    _write(subject, contents, new, failed)
  if contents.missing:
    lines = _missing_lines(contents.missing)
    logging.info('not in the report:\n%s', '\n'.join(f'  {x}' for x in lines))
  print(out / 'report.html')
  return 1 if failed else 0


def _subject(
  vit: 'weights.Loaded', paths: list[str], failed: list[UserError]
) -> 'subject_lib.Subject':
  """Reads images, examples and the other model; adds errors to `failed`."""
  from vit_jax import weights
  from vit_jax.explore import subject as subject_lib

  options = _options(vit)
  examples = _examples(vit)
  images = _read_images(vit, paths, examples, failed)
  other_model = None
  if _OTHER_MODEL.value:
    other_model = weights.load(_OTHER_MODEL.value)
    logging.info('loaded %s', other_model.origin)
  name, other_name = _model_names()
  return subject_lib.Subject(
    vit, name, images, examples, options, other_model, other_name
  )


def _write(
  subject: 'subject_lib.Subject',
  contents: 'kinds_lib.Contents',
  folder: pathlib.Path,
  failed: list[UserError],
) -> None:
  """Writes numbers.json and report.html into the folder of the pictures."""
  from vit_jax.explore import report
  from vit_jax.explore import report_folder
  from vit_jax.explore import summaries
  from vit_jax.runs import safe_io

  if not contents.sections:
    reasons = '; '.join(_missing_lines(contents.missing))
    raise UserError(f'there is nothing to draw: {reasons}')
  numbers = {
    report_folder.FILES: sorted(os.listdir(folder)),
    **contents.numbers,
    'checkpoint': subject.vit.origin.to_dict(),
  }
  if subject.second_vit is not None:
    numbers['other_checkpoint'] = subject.second_vit.origin.to_dict()
  safe_io.write_json(folder / report_folder.NUMBERS, numbers)
  report.write(
    folder / 'report.html',
    f'Inside {subject.name}',
    summaries.summarize(subject, contents.numbers),
    _facts(subject, failed),
    contents.sections,
    contents.missing,
  )


def _check_flags() -> pathlib.Path:
  """Checks the flags that need no model; returns the output folder."""
  from vit_jax.explore import report
  from vit_jax.explore import report_folder
  from vit_jax.plots import canvas

  cli.check_from(FLAGS)
  for flag, needed, example in (
    ('data', 'split', 'val'),
    ('split', 'data', 'folder:images'),
  ):
    if FLAGS[flag].value and not FLAGS[needed].value:
      raise UserError(
        f'--{flag} needs --{needed} beside it, as --{needed}={example}'
      )
  canvas.check()
  report.check()
  _query()
  name = _model_name(FLAGS['from'].value)
  out = pathlib.Path(_OUT.value or f'runs/explore-{name}')
  report_folder.check(out)
  return out


def _model_names() -> tuple[str, str]:
  """Returns short names of both models, or their paths if those are equal."""
  paths = FLAGS['from'].value or '', _OTHER_MODEL.value or ''
  names = _model_name(paths[0]), _model_name(paths[1])
  return paths if names[0] == names[1] else names


def _model_name(path: Any) -> str:
  """Returns the last part of a path, `digits` of 'runs/digits'."""
  return os.path.basename(os.path.abspath(path)) or 'model'


def _chosen_kinds(kinds: list[str]) -> list[str]:
  """Returns the kinds of --only, in the order of the page."""
  for name in _ONLY.value:
    if name not in kinds:
      raise UserError(
        f'--only: there is no picture {name!r}: choose from {", ".join(kinds)}'
      )
  return [name for name in kinds if name in (_ONLY.value or kinds)]


def _query() -> tuple[int, int] | None:
  if _QUERY.value is None:
    return None
  match = re.fullmatch(r'(\d{1,6}),(\d{1,6})', _QUERY.value)
  if match is None:
    raise UserError(
      f'--query={_QUERY.value}: write the row and the column of a patch, as 3,5'
    )
  return int(match[1]), int(match[2])


def _options(vit: 'weights.Loaded') -> 'subject_lib.Options':
  """Returns the options, checked against the model."""
  from vit_jax.explore import subject as subject_lib
  from vit_jax.models import resnet
  from vit_jax.weights import features

  if len(vit.preprocess.image_size) == 3:
    raise UserError(
      'this model takes volumes or videos, and explore draws images: predict'
      ' writes slices of their maps'
    )
  query = _query()
  layers: tuple[int, ...] = ()
  if not isinstance(vit.model, resnet.BiT):  # has neither patches nor layers
    h, w = features.patch_grid(vit)
    query = query or (h // 2, w // 2)
    try:
      features.patch_index(vit, query)
    except UserError as e:
      raise UserError(f'--query={_QUERY.value}: {e}') from None
    layers = _layers(vit)
  return subject_lib.Options(
    query=query or (0, 0),
    layers=layers,
    classes=_classes(vit),
    position_size=_position_size(vit),
    same_order=_SAME_ORDER.value,
    mass=_MASS.value,
    neighbors=_NEIGHBORS.value,
  )


def _position_size(vit: 'weights.Loaded') -> tuple[int, int] | None:
  from vit_jax import weights

  if not _POSITION_SIZE.value:
    return None
  size = cli.parse_size(_POSITION_SIZE.value, '--position_size')
  pair = (size, size) if isinstance(size, int) else size
  try:
    weights.grid(vit.model, pair)
  except UserError as e:
    raise UserError(f'--position_size={_POSITION_SIZE.value}: {e}') from None
  return pair


def _layers(vit: 'weights.Loaded') -> tuple[int, ...]:
  from vit_jax.weights import features

  if not _LAYERS.value:
    return tuple(range(features.depth(vit)))
  layers = set()
  for text in _LAYERS.value:
    if not re.fullmatch(r'-?\d{1,6}', text):
      raise UserError(f'--layers: {text!r} is no number: write, say, 0,5,-1')
    try:
      layers.add(features.layer_index(vit, int(text)))
    except UserError as e:
      raise UserError(f'--layers: {e}') from None
  return tuple(sorted(layers))


def _classes(vit: 'weights.Loaded') -> tuple[int, ...]:
  """Returns the positions of --classes in the model's output."""
  positions = []
  if _CLASSES.value and not vit.model.num_classes:
    raise UserError('--classes: the model has no head, and so no classes')
  for text in _CLASSES.value:
    if text in vit.classes:
      positions.append(vit.classes.index(text))
    elif text.isdecimal() and int(text) < vit.model.num_classes:
      positions.append(int(text))
    else:
      raise UserError(
        f'--classes: there is no class {text!r}: give names, or numbers from 0'
        f' to {vit.model.num_classes - 1}'
      )
  return tuple(positions)


def _examples(vit: 'weights.Loaded') -> 'examples_lib.Examples | None':
  """Returns the examples of --data, if it is given."""
  from vit_jax.explore import examples as examples_lib

  if not FLAGS['data'].value:
    return None
  config = data_flags.make_config(FLAGS, vit)
  source = data_flags.open_split(FLAGS, config)
  with data_flags.explained():
    return examples_lib.load(source, config, _MAX_EXAMPLES.value)


def _read_images(
  vit: 'weights.Loaded',
  paths: list[str],
  examples: 'examples_lib.Examples | None',
  failed: list[UserError],
) -> 'subject_lib.Images | None':
  """Returns the images; adds the errors of unreadable ones to `failed`."""
  from vit_jax.explore import images

  report = image_files.reporter(failed)
  if paths:
    return images.read(vit, paths, _MAX_IMAGES.value, report)
  if examples is not None:
    return images.from_examples(examples, _MAX_IMAGES.value)
  return None


def _missing_lines(missing: 'Sequence[report_lib.Missing]') -> list[str]:
  """Returns why there are no pictures, as 'stem, cka: REASON'."""
  names: dict[str, list[str]] = {}
  for kind in missing:
    names.setdefault(kind.reason, []).append(kind.name)
  return [f'{", ".join(kinds)}: {reason}' for reason, kinds in names.items()]


def _facts(
  subject: 'subject_lib.Subject', failed: list[UserError]
) -> dict[str, str]:
  """Returns the table at the top of the report."""
  facts = {
    'Model': f'{FLAGS["from"].value}: {subject.vit.describe()}',
    'Checkpoint': str(subject.vit.origin),
  }
  if subject.second_vit is not None:
    facts['Compared with'] = (
      f'{_OTHER_MODEL.value}: {subject.second_vit.describe()}'
    )
  if subject.chosen_images is not None:
    count, total = (
      len(subject.chosen_images.names),
      subject.chosen_images.available,
    )
    height, width = subject.vit.preprocess.image_size
    facts['Images'] = (
      f'{count} of {total}, resized to {height} × {width} pixels, as the model'
      ' sees them. Captions have the name, the most probable class with its'
      f' probability, and the label. {subject.chosen_images.naming}'
    ).rstrip()
  if failed:
    facts['Unreadable'] = '; '.join(map(str, failed))
  if subject.labelled is not None:
    examples = subject.labelled
    facts['Labelled examples'] = (
      f'{len(examples)} of {examples.total} in {examples.source_name}'
    )
  return facts
