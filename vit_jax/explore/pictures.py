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
from vit_jax.config import explained
from vit_jax.config import UserError

if TYPE_CHECKING:
  from vit_jax import weights
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
  from vit_jax.explore import kinds  # after the flags: these import jax
  from vit_jax.explore import report
  from vit_jax.runs import safe_io

  for name in _ONLY.value:
    if name not in kinds.KINDS:
      raise UserError(
        f'--only: there is no picture {name!r}: choose from'
        f' {", ".join(kinds.KINDS)}'
      )
  names = [x for x in kinds.KINDS if x in (_ONLY.value or kinds.KINDS)]
  failed: list[UserError] = []
  subject = _subject(vit, paths, failed)
  with report.replacing(out) as new:
    contents = kinds.draw(
      subject, names, new, lambda name: logging.info('drawing %s', name)
    )
    names_by_reason: dict[str, list[str]] = {}
    for kind in contents.missing:
      names_by_reason.setdefault(kind.reason, []).append(kind.name)
    missing = [f'{", ".join(x)}: {y}' for y, x in names_by_reason.items()]
    if not contents.sections:
      raise UserError(f'there is nothing to draw: {"; ".join(missing)}')
    numbers = {
      report.FILES: sorted(os.listdir(new)),
      **contents.numbers,
      'checkpoint': vit.origin.to_dict(),
    }
    if subject.second_vit is not None:
      numbers['other_checkpoint'] = subject.second_vit.origin.to_dict()
    safe_io.write_json(new / report.NUMBERS, numbers)
    report.write(
      new / 'report.html',
      f'Inside {subject.name}',
      report.summarize(subject, contents.numbers),
      _facts(subject, failed),
      contents.sections,
      contents.missing,
    )
  if missing:
    lines = '\n'.join(f'  {x}' for x in missing)
    logging.info('not in the report:\n%s', lines)
  print(out / 'report.html')
  return 1 if failed else 0


def _check_flags() -> pathlib.Path:
  """Checks the flags that need no model; returns the output folder."""
  from vit_jax.explore import report
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
  report.check_folder(out)
  return out


def _model_name(path: Any) -> str:
  """Returns the last part of a path, `digits` of 'runs/digits'."""
  return os.path.basename(os.path.abspath(path)) or 'model'


def _query() -> tuple[int, int] | None:
  if _QUERY.value is None:
    return None
  match = re.fullmatch(r'(\d{1,6}),(\d{1,6})', _QUERY.value)
  if match is None:
    raise UserError(
      f'--query={_QUERY.value}: write the row and the column of a patch, as 3,5'
    )
  return int(match[1]), int(match[2])


def _subject(
  vit: 'weights.Loaded', paths: list[str], failed: list[UserError]
) -> 'subject_lib.Subject':
  """Reads images, examples and the other model; adds errors to `failed`."""
  from vit_jax import weights
  from vit_jax.explore import examples as examples_lib
  from vit_jax.explore import subject as subject_lib

  options = _options(vit)
  examples = images = other_model = None
  if FLAGS['data'].value:
    config = data_flags.make_config(FLAGS, vit)
    source = data_flags.open_split(FLAGS, config)
    with data_flags.explained():
      examples = examples_lib.load(source, config, _MAX_EXAMPLES.value)
  if paths:
    report = image_files.reporter(failed)
    images = examples_lib.read_images(vit, paths, _MAX_IMAGES.value, report)
  elif examples is not None:
    images = examples_lib.choose(examples, _MAX_IMAGES.value)
  if _OTHER_MODEL.value:
    other_model = weights.load(_OTHER_MODEL.value)
    logging.info('loaded %s', other_model.origin)
  models = FLAGS['from'].value or '', _OTHER_MODEL.value or ''
  name, other_name = map(_model_name, models)
  if name == other_name:
    name, other_name = models
  return subject_lib.Subject(
    vit, name, images, examples, options, other_model, other_name
  )


def _options(vit: 'weights.Loaded') -> 'subject_lib.Options':
  """Returns the options, checked against the model."""
  from vit_jax import weights
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
    with explained(f'--query={_QUERY.value}'):
      features.patch_index(vit, query)
    layers = _layers(vit)
  classes = _classes(vit)
  position_size = None
  if _POSITION_SIZE.value:
    size = cli.parse_size(_POSITION_SIZE.value, '--position_size')
    position_size = (size, size) if isinstance(size, int) else size
    with explained(f'--position_size={_POSITION_SIZE.value}'):
      weights.grid(vit.model, position_size)
  return subject_lib.Options(
    query=query or (0, 0),
    layers=layers,
    classes=classes,
    position_size=position_size,
    same_order=_SAME_ORDER.value,
    mass=_MASS.value,
    neighbors=_NEIGHBORS.value,
  )


def _layers(vit: 'weights.Loaded') -> tuple[int, ...]:
  from vit_jax.weights import features

  if not _LAYERS.value:
    return tuple(range(features.depth(vit)))
  layers = set()
  for text in _LAYERS.value:
    if not re.fullmatch(r'-?\d{1,6}', text):
      raise UserError(f'--layers: {text!r} is no number: write, say, 0,5,-1')
    with explained('--layers'):
      layers.add(features.layer_index(vit, int(text)))
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


def _facts(
  subject: 'subject_lib.Subject', failed: list[UserError]
) -> dict[str, str]:
  """Returns the table at the top of the report."""
  vit, other_vit = subject.vit, subject.second_vit
  facts = {
    'Model': f'{FLAGS["from"].value}: {vit.describe()}',
    'Checkpoint': str(vit.origin),
  }
  if other_vit is not None:
    facts['Compared with'] = f'{_OTHER_MODEL.value}: {other_vit.describe()}'
  if (images := subject.chosen_images) is not None:
    height, width = vit.preprocess.image_size
    facts['Images'] = (
      f'{len(images.names)} of {images.available}, resized to {height} ×'
      f' {width} pixels, as the model'
      ' sees them. Captions have the name, the most probable class with its'
      f' probability, and the label. {images.naming}'
    ).rstrip()
  if failed:
    facts['Unreadable'] = '; '.join(map(str, failed))
  if (examples := subject.labelled) is not None:
    facts['Labelled examples'] = (
      f'{len(examples)} of {examples.total} in {examples.source_name}'
    )
  return facts
