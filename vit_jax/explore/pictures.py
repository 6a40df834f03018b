r"""Draws what a model sees, as PNG and SVG files and one page to read.

  python -m vit_jax.explore --from=runs/digits --data=digits \
    --split='train[80%:]' --out=runs/digits-inside
  python -m vit_jax.explore --from=ViT-B_16.npz --images='holidays/*.jpg' \
    --only=attention,rollout --out=inside

--images takes files, folders and patterns, as `vit_jax.predict` does, and may
be given several times; what is no flag is an image, too. Where there are more
than --max_images, those evenly spread are taken. With --data and --split there
are pictures of what the model makes of labelled examples, and where --images is
missing some of these examples are looked at.

The pictures, by the names that --only takes:

  of the model     patches, filters, stem, positions
  of attention     attention, rollout, relevance, query, distance
  of tokens        norms, similarity, pca, cka
  of labelled data decodability, mistakes, confusion, reliability, embedding
  of answers       predictions

OUT/report.html has them all, with captions that say what is shown and how it
was computed; it needs no other file. Beside it there are the pictures one by
one, and numbers.json with the numbers behind them and the checkpoint that was
loaded. What a model cannot show,
as attention of a Mixer, is a line in the report. A report that is in OUT
already is replaced, with its pictures.

Prints the path of the report; on stderr, what is being drawn. Needs matplotlib
and jinja2: pip install 'vit_jax[explore]'.
"""

from collections.abc import Sequence
import os
import pathlib
import re
import sys
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
  from vit_jax.explore import labelled as labelled_lib
  from vit_jax.explore import report as report_lib
  from vit_jax.explore import subject as subject_lib

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_compile_cache(FLAGS)
_OTHER = flags.DEFINE_string(
  'other',
  None,
  'A second model, as it is stored, whose layers are compared with those of'
  ' --from.',
  flag_values=FLAGS,
)
_IMAGES = flags.DEFINE_multi_string(
  'images', [], 'A file, a folder or a pattern.', flag_values=FLAGS
)
_OUT = flags.DEFINE_string(
  'out',
  None,
  'Folder of the report and the pictures. Default: runs/explore-<model>.',
  flag_values=FLAGS,
)
_MAX_IMAGES = flags.DEFINE_integer(
  'max_images', 16, 'Images to look at.', lower_bound=1, flag_values=FLAGS
)
_ONLY = flags.DEFINE_list(
  'only', [], 'Pictures to draw, by their names. Default: all.', FLAGS
)
_LAYERS = flags.DEFINE_list(
  'layers',
  [],
  'Layers whose maps are shown, from 0; -1 is the last. Default: all.',
  FLAGS,
)
_QUERY = flags.DEFINE_string(
  'query',
  None,
  'ROW,COLUMN of the patch that others are compared with, from 0. Default: the'
  ' one in the middle.',
  flag_values=FLAGS,
)
_CLASSES = flags.DEFINE_list(
  'classes',
  [],
  'Names or numbers of classes to show what speaks for them. Default: the most'
  ' probable one of each image.',
  FLAGS,
)
_POSITION_SIZE = flags.DEFINE_string(
  'position_size',
  None,
  'Image size, as 384 or 224x320, to resize position embeddings for. Default:'
  ' one and a half times that of the model.',
  flag_values=FLAGS,
)
data_flags.define(FLAGS, 'take labelled images from')
_SAME_ORDER = data_flags.define_same_order(FLAGS)
_MAX_EXAMPLES = flags.DEFINE_integer(
  'max_examples',
  1000,
  'Labelled images to read, the first of the split.',
  lower_bound=1,
  flag_values=FLAGS,
)


def main(argv: list[str]) -> int:
  """Draws, prints the path of the report, and returns the exit status."""
  out = _check_flags()
  asked = [*_IMAGES.value, *argv[1:]]
  paths = image_files.find(asked) if asked else []
  vit = cli.load(FLAGS)
  from vit_jax import weights  # they import jax
  from vit_jax.explore import folder as folder_lib
  from vit_jax.explore import gallery
  from vit_jax.explore import report
  from vit_jax.explore import subject as subject_lib
  from vit_jax.runs import safe_io

  names = _chosen_kinds(list(gallery.KINDS))
  options = _options(vit)
  labelled = _labelled(vit)
  failed: list[UserError] = []
  images = _read_images(vit, paths, labelled, failed)
  other = None
  if _OTHER.value:
    other = weights.load(_OTHER.value)
    logging.info('loaded %s', other.origin)
  name, other_name = _model_names()
  subject = subject_lib.Subject(
    vit, name, images, labelled, options, other, other_name
  )

  def begin(name: str) -> None:
    number = names.index(name) + 1
    logging.info('drawing %d of %d: %s', number, len(names), name)

  with folder_lib.replacing(out) as new:
    shown = gallery.draw(subject, names, new, begin)
    if not shown.sections:
      raise _nothing_shown(shown.missing)
    numbers = {folder_lib.FILES: sorted(os.listdir(new)), **shown.numbers}
    numbers['checkpoint'] = vit.origin.to_dict()
    if other is not None:
      numbers['other_checkpoint'] = other.origin.to_dict()
    safe_io.write_json(new / folder_lib.NUMBERS, numbers)
    report.write(
      new / 'report.html',
      f'Inside {subject.name}',
      _facts(subject, failed),
      shown.sections,
      shown.missing,
    )
  print(out / 'report.html')
  return 1 if failed else 0


def _check_flags() -> pathlib.Path:
  """Finds mistakes that need no model; returns the folder to write to."""
  from vit_jax.explore import folder
  from vit_jax.explore import report
  from vit_jax.plots import canvas

  if not FLAGS['from'].value:
    raise UserError('--from is missing: name a model, as in --from=runs/digits')
  for given, wanted in (('data', 'split'), ('split', 'data')):
    if FLAGS[given].value and not FLAGS[wanted].value:
      raise UserError(f'--{given} needs --{wanted} beside it')
  canvas.check()
  report.check()
  _query()
  name = _model_name(FLAGS['from'].value)
  out = pathlib.Path(_OUT.value or f'runs/explore-{name}')
  folder.check(out)
  return out


def _model_names() -> tuple[str, str]:
  """Returns short names of both models, or paths where these are the same."""
  paths = FLAGS['from'].value or '', _OTHER.value or ''
  names = _model_name(paths[0]), _model_name(paths[1])
  return paths if names[0] == names[1] else names


def _model_name(path: Any) -> str:
  """Returns the last part of a path, `digits` of 'runs/digits'."""
  return os.path.basename(os.path.abspath(path)) or 'model'


def _chosen_kinds(known: list[str]) -> list[str]:
  """Returns the kinds of --only, in the order of the page."""
  for name in _ONLY.value:
    if name not in known:
      raise UserError(
        f'--only: there is no picture {name!r}: choose from {", ".join(known)}'
      )
  return [name for name in known if name in (_ONLY.value or known)]


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
  """Returns what the flags ask for, once it is known to be there."""
  from vit_jax.explore import subject as subject_lib
  from vit_jax.models import resnet
  from vit_jax.weights import features

  query = _query()
  layers: tuple[int, ...] = ()
  if not isinstance(vit.model, resnet.BiT):  # which has neither
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
  found = set()
  for text in _LAYERS.value:
    if not re.fullmatch(r'-?\d{1,6}', text):
      raise UserError(f'--layers: {text!r} is no number: write, say, 0,5,-1')
    try:
      found.add(features.layer_index(vit, int(text)))
    except UserError as e:
      raise UserError(f'--layers: {e}') from None
  return tuple(sorted(found))


def _classes(vit: 'weights.Loaded') -> tuple[int, ...]:
  """Returns the positions of --classes in the model's output."""
  found = []
  if _CLASSES.value and not vit.model.num_classes:
    raise UserError('--classes: the model has no head, and so no classes')
  for text in _CLASSES.value:
    if text in vit.classes:
      found.append(vit.classes.index(text))
    elif text.isdecimal() and int(text) < vit.model.num_classes:
      found.append(int(text))
    else:
      raise UserError(
        f'--classes: there is no class {text!r}: give names, or numbers from 0'
        f' to {vit.model.num_classes - 1}'
      )
  return tuple(found)


def _labelled(vit: 'weights.Loaded') -> 'labelled_lib.Labelled | None':
  """Returns the examples of --data, if it is given."""
  from vit_jax.explore import labelled as labelled_lib

  if not FLAGS['data'].value:
    return None
  config = data_flags.make_config(FLAGS, vit)
  source = data_flags.open_split(FLAGS, config)
  with data_flags.explained():
    return labelled_lib.load(source, config, _MAX_EXAMPLES.value)


def _read_images(
  vit: 'weights.Loaded',
  paths: list[str],
  labelled: 'labelled_lib.Labelled | None',
  failed: list[UserError],
) -> 'subject_lib.Images | None':
  """Returns what to look at; adds to `failed` what cannot be read."""
  from vit_jax.explore import images

  def report(error: UserError) -> None:
    failed.append(error)
    print(f'error: {error}', file=sys.stderr)

  if paths:
    return images.read(vit, paths, _MAX_IMAGES.value, report)
  if labelled is not None:
    return images.of_examples(labelled, _MAX_IMAGES.value)
  return None


def _nothing_shown(missing: 'Sequence[report_lib.Missing]') -> UserError:
  """Returns the error that says why there is no picture at all."""
  names: dict[str, list[str]] = {}
  for each in missing:
    names.setdefault(each.reason, []).append(each.name)
  reasons = [f'{why} ({", ".join(which)})' for why, which in names.items()]
  return UserError(f'nothing can be shown: {"; ".join(reasons)}')


def _facts(
  subject: 'subject_lib.Subject', failed: list[UserError]
) -> dict[str, str]:
  """Returns the table at the top of the report."""
  facts = {
    'Model': f'{FLAGS["from"].value}: {subject.vit.describe()}',
    'Loaded': str(subject.vit.origin),
  }
  if subject.other is not None:
    facts['Compared with'] = f'{_OTHER.value}: {subject.other.describe()}'
  if subject.given is not None:
    count, found = len(subject.given.names), subject.given.found
    chosen = f'{count}' if count == found else f'{count} of {found}'
    size = subject.vit.preprocess.image_size
    facts['Images'] = f'{chosen}, as {size[0]} × {size[1]} pixels'
    if subject.given.naming:
      facts['Images'] += f'. {subject.given.naming}'
  if failed:
    facts['Left out'] = '; '.join(map(str, failed))
  if subject.labelled is not None:
    examples = subject.labelled
    facts['Labelled'] = (
      f'{examples.where}: {len(examples)} of {examples.total} examples'
    )
  return facts
