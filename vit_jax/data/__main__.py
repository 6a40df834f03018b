r"""Reads every example of the data and lists all that is wrong.

  python -m vit_jax.data check images
  python -m vit_jax.data check images --out=damaged.json
  python -m vit_jax.data check configs/folder.py \
    --config.data.name=folder:images --format=json

The argument is a folder (or folder:PATH), of which all splits are checked, or a
config file, of which the folder or the splits of its dataset are checked.

The report lists damaged and empty images; images with the same bytes in several
splits or classes; ignored files, by file suffix; the sizes of images and
classes; the range of values of 16-bit images; and how many places of the maps
each class has. It warns of classes that no training map has. The exit status is
1 if something would stop a run: a damaged image, a class without images, or
training maps without two classes. Scans need a config file, which says how they
are read.

--out=FILE writes what --format=json prints. Training leaves out the damaged
images that such a file lists:

  python -m vit_jax.main --config=configs/folder.py \
    --config.data.name=folder:images --config.data.skip_damaged=damaged.json

The JSON object has data, examples, splits (name -> folder, examples, classes
with their sizes), problems (of splits and classes), damaged (id, split, class
and problem of each), duplicates (ids, splits and classes of each group with the
same bytes), copies (number of duplicates within a class of a split), ignored
(file suffix -> count, example), sizes (smallest, largest, different, common; as
height and width), channels and bits (number of images of each), intensity
(least, greatest and percentiles of 16-bit values, or null), maps (name of the
feature -> split -> number of maps, places of each class, and those that do not
count) and warnings (classes that no training map has).
"""

import json
import os
import sys

from absl import flags

from vit_jax import cli
from vit_jax.cli import columns
from vit_jax.cli import data_flags
from vit_jax.config import check_data
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.runs import safe_io

USAGE = 'data check (FOLDER | FILE.py)'
FLAGS = flags.FlagValues()  # other commands have flags of the same names
_CONFIG = cli.define_config(FLAGS)
_FORMAT = cli.define_format(FLAGS)
_OUT = cli.define_path(
  'out', None, 'File to write the report to, as JSON.', flag_values=FLAGS
)


def run() -> None:
  """Runs the verb given as the first argument, and exits."""
  sys.argv[1:] = with_config(sys.argv[1:])
  cli.run(main, __doc__, FLAGS, USAGE, computes=False)


def with_config(arguments: list[str]) -> list[str]:
  """Returns the arguments with a config file turned into a leading --config."""
  for i, argument in enumerate(arguments[1:], 1):
    if not argument.startswith('-') and argument.split(':')[0].endswith('.py'):
      other_arguments = [*arguments[:i], *arguments[i + 1 :]]
      return [f'--config={argument}', *other_arguments]
  return arguments


def main(argv: list[str]) -> int:
  """Checks the data and returns the exit status."""
  verb, *names = argv[1:] or ['']
  if verb != 'check':
    raise UserError(
      f'{verb!r} is no verb: write check, as in python -m vit_jax.data check'
      ' images'
    )
  config = _CONFIG.value
  if len(names) + (config is not None) != 1:
    raise UserError(
      f'check takes one folder or config file, but got {len(names)} and'
      f' {"a" if config else "no"} config: write python -m vit_jax.data check'
      ' images'
    )
  out = columns.check_path('--out', _OUT.value) if _OUT.value else None
  from vit_jax import data  # after the flags
  from vit_jax.data import folder
  from vit_jax.data import survey as survey_lib

  if config is not None:
    data.check(config)
    survey = survey_lib.list_config(config)
  else:
    path = os.path.expanduser(names[0].removeprefix(folder.PREFIX))
    check_data(path, '')
    if not os.path.isdir(path):
      hint = ': name one, or a config file, as configs/folder.py'
      suggestion = nearby(path, os.path.isdir, hint)
      raise UserError(f'there is no folder {path}{suggestion}')
    survey = survey_lib.list_folder(path)
  with data_flags.progress(len(survey.entries)) as progress:
    report = survey_lib.report(survey, progress.update)
  if out is not None:
    safe_io.write_json(out, report)
  is_json = _FORMAT.value == 'json'
  print(json.dumps(report) if is_json else survey_lib.as_text(report))
  if report['damaged']:
    list_path = out or 'damaged.json'
    first = '' if out else f'--out={list_path} writes the list; '
    print(
      f'{first}to train without what is damaged, add'
      f' --config.data.skip_damaged={list_path}',
      file=sys.stderr,
    )
  return int(survey_lib.is_bad(report))


if __name__ == '__main__':
  run()
