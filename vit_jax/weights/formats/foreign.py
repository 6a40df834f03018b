"""Opens a foreign checkpoint: finds its files, its format and its model."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import pathlib
from typing import Any

from absl import logging

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.models.parts import stems
from vit_jax.runs import safe_io
from vit_jax.weights import preprocessing
from vit_jax.weights import resize as resize_lib
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import google
from vit_jax.weights.formats import google_towers
from vit_jax.weights.formats import huggingface
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import open_clip
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm
from vit_jax.weights.formats import torchvision

FORMATS: tuple[base.Library, ...] = (google, huggingface, timm, torchvision)

# Names of weights in a directory; the first that exists is read.
_WEIGHTS = (
  'model.safetensors',
  'model.safetensors.index.json',
  'pytorch_model.bin',
  'pytorch_model.bin.index.json',
  'model.npz',
  'open_clip_model.safetensors',
  'open_clip_pytorch_model.bin',
)
SUFFIXES = ('.safetensors', '.npz', '.pth', '.pt', '.bin')

_MOST_PREFIXES = 3  # names of modules around a model
_RESIZE = typed.choice(*resize_lib.METHODS)
# Fields that `export` writes to config.json, besides the name of the file.
_EXPORTED_FIELDS = {
  'model': typed.OBJECT,
  'image_size': typed.PAIR,
  'resize': _RESIZE,
  'preprocess': typed.OBJECT,
}


def read(
  path: pathlib.Path,
  values: Mapping[str, Any],
  image_size: tuple[int, int] | None,
  state: str | None = None,
) -> tuple[base.Description, Any, str]:
  """Reads a file of weights, or a directory with one.

  Returns the model in the file, float32 arrays in our tree, layers unrolled,
  and the name of the format.

  Args:
    path: An .npz, .safetensors or .pth file, or a directory in the format of
      Hugging Face or of timm's Hub. Of LiT's and big_vision's files with two
      towers, the image tower is read.
    values: Values of the model that the caller gives
      (`models.values.explicit_values`), of which its arrays do not show some.
    image_size: (height, width) that the caller requests, which can determine a
      grid that is not square; or None.
    state: As of `containers.open_arrays`.
  """
  file = _weights_in(path) if path.is_dir() else path
  config = _json(file.with_name('config.json'))
  preprocessor = _json(file.with_name('preprocessor_config.json'))
  with containers.open_arrays(file, state) as opened_file, _named(path):
    stored = _plain(google_towers.image_tower(opened_file))
    is_ours = config.get('vit_jax.file', typed.TEXT) == file.name and all(
      config.get(f'vit_jax.{key}', kind) is not None
      for key, kind in _EXPORTED_FIELDS.items()
    )
    form = _format(stored.shapes)
    arrays = form.prepare(stored)
    facts = base.FileFacts(arrays, config, preprocessor, values, image_size)
    if is_ours:
      keys = config.get('vit_jax.model', typed.OBJECT)
      facts.caller_values = {**values_lib.explicit_values(keys), **values}
      facts.stored_size = tuple(config.get('vit_jax.image_size', typed.PAIR))
    elif open_clip.recognises(stored.shapes):
      own_config = _json(file.with_name(open_clip.FILE))
      if own_config.content:
        facts.config = open_clip.config_as_timm(own_config)
    description = _cropped(form.describe(facts), facts)
    if is_ours:
      description = _restored(description, config, values)
    channels = description.preprocess['channels']
    abstract = models.abstract_params(
      description.model, (*description.image_size, channels)
    )
    extra_params, rules = description.extra_params, description.rules
    file_params = {
      path: x for path, x in abstract.items() if path not in extra_params
    }
    params = tables.read(
      arrays, rules, file_params, form.IGNORED, arrays.stored
    )
    params |= extra_params
  logging.debug('read %s, a file of the kind %s', path, form.NAME)
  if description.silent and not is_ours:
    _say_assumed(path, description)
  return description, params, form.NAME


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[containers.Arrays]:
  """Opens a file of weights, or that of a directory; errors name the path."""
  file = _weights_in(path) if path.is_dir() else path
  with containers.open_arrays(file) as arrays, _named(path):
    yield arrays


def config_beside(path: pathlib.Path) -> typed.Json:
  """Returns the config.json of a directory, or beside a file; or nothing."""
  directory = path if path.is_dir() else path.parent
  return _json(directory / 'config.json')


def read_beside(
  path: pathlib.Path,
  objective_table: objective_tables.ObjectiveTable,
  abstract: Any,
) -> dict[str, Any] | None:
  """Reads the parameters that an objective has beside its trunk.

  `abstract` are their shapes, as a tree with layers unrolled. Returns float32
  arrays in the same tree; None if the file has none of them.
  """
  rules = objective_table.rules
  with opened(path) as container:
    plain = _plain(container)
    arrays = _format(plain.shapes).prepare(plain)
    needed = tables.stored_shapes(tables.entries(rules, abstract))
    if not needed.keys() & arrays.shapes.keys():
      return None
    return tables.read(arrays, rules, abstract, '.*', arrays.stored)


def _cropped(
  description: base.Description, file: base.FileFacts
) -> base.Description:
  """Returns the model of a file whose images are no whole patches.

  The patch embeddings of all formats are convolutions, which leave the rest
  out; timm's can be told to pad it.
  """
  model = description.model
  if not isinstance(model, vit.ViT) or 'patches.crop' in file.caller_values:
    return description
  patches = model.patches
  sides = zip(description.image_size, patches.pixels, strict=False)
  pads = file.config.get('model_args.dynamic_img_pad', typed.TRUTH, False)
  is_whole = not any(n % p for n, p in sides)
  if is_whole or pads or isinstance(patches, stems.HybridPatches):
    return description
  model = model.clone(patches=patches.clone(crop=True))
  return dataclasses.replace(description, model=model)


def _say_assumed(path: pathlib.Path, description: base.Description) -> None:
  """Warns about the assumed preprocessing, if no file defines it."""
  preprocess, silent = description.preprocess, description.silent
  resize = preprocess['resize']
  size = ' x '.join(map(str, preprocess['image_size']))
  to = ' x '.join(map(str, resize)) if isinstance(resize, tuple) else None
  logging.warning(
    'warning: no file beside %s says how its images are prepared; assumed: mean'
    ' %s and standard deviation %s of pixels in [0, 1], resized (%s) to %s, the'
    ' middle %s pixels; to change that, write %s beside it: %s',
    path,
    ', '.join(map(str, preprocess['mean'])),
    ', '.join(map(str, preprocess['std'])),
    preprocess['interpolation'],
    to or f'a short side of {resize}',
    size,
    silent,
    preprocessing.EXAMPLES[silent],
  )


def _plain(arrays: containers.Arrays) -> containers.Arrays:
  """Returns the arrays of a model that is part of another, by its own names.

  `open_arrays` removes the prefixes that training usually makes. Any other,
  such as `image_encoder.vit.`, is known by the names of a format behind it.
  """
  if _recognising([*arrays.shapes]):
    return arrays
  groups: dict[str, list[str]] = {}
  for name in arrays.shapes:
    parts = name.split('.')
    for depth in range(1, min(_MOST_PREFIXES, len(parts) - 1) + 1):
      groups.setdefault('.'.join(parts[:depth]) + '.', []).append(name)
  fits = {
    prefix: names
    for prefix, names in groups.items()
    if _recognising([name.removeprefix(prefix) for name in names])
  }
  if not fits:
    return arrays
  most = max(map(len, fits.values()))
  prefix, *other_prefixes = [
    x for x, names in fits.items() if 2 * len(names) >= most
  ]
  other_prefixes = [x for x in other_prefixes if not x.startswith(prefix)]
  if other_prefixes:
    raise UserError(
      f'it holds several models, {", ".join((prefix, *other_prefixes))}: name'
      f' one, as --state={prefix.partition(".")[0]} (state= in load)'
    )
  logging.info('read the arrays whose names begin with %s', prefix)
  names = {name.removeprefix(prefix): name for name in fits[prefix]}
  return containers.Arrays(
    {name: arrays.shapes[x] for name, x in names.items()},
    lambda name: arrays.read(names[name]),
  )


def _recognising(names: Iterable[str]) -> base.Library | None:
  return next((form for form in FORMATS if form.recognises(names)), None)


def _format(names: Collection[str]) -> base.Library:
  if form := _recognising(names):
    return form
  raise UserError(
    f'it holds {len(names)} arrays of no known format'
    f' ({", ".join(list(names)[:3])}, ...): those of Google, timm, Hugging Face'
    ' and torchvision are known'
  )


@contextlib.contextmanager
def _named(path: pathlib.Path) -> Iterator[None]:
  """Prepends the file's name to an error that does not name it."""
  try:
    yield
  except ValueError as e:  # includes UserError
    text = str(e)
    raise UserError(text if str(path) in text else f'{path}: {text}') from None


def _restored(
  description: base.Description, config: typed.Json, values: Mapping[str, Any]
) -> base.Description:
  """Returns a description with what `export` wrote.

  That is the preprocessing, and the model unless the caller gives `values`.
  """
  key, file_preprocess = 'vit_jax.preprocess', description.preprocess
  keys = config.get('vit_jax.model', typed.OBJECT)
  if not values:
    try:
      model = models.create_model(**keys)
    except TypeError:  # no name
      raise config.error('vit_jax.model', keys, 'it must have a name') from None
    description = dataclasses.replace(description, model=model)
  content = config.get(key, typed.OBJECT)
  field_names = {x.name for x in dataclasses.fields(data.Preprocess)}
  channels = file_preprocess['channels']
  preprocess = {
    'classes': (),
    **{
      x: tuple(value) if isinstance(value, list) else value
      for x, value in content.items()
      if value is not None and x in field_names
    },
    'image_size': tuple(
      config.get(f'{key}.image_size', typed.PAIR, file_preprocess['image_size'])
    ),
    'channels': channels,
    'mean': config.channel_values(
      f'{key}.mean', channels, file_preprocess['mean']
    ),
    'std': config.channel_values(
      f'{key}.std', channels, file_preprocess['std'], typed.is_positive
    ),
    'outputs': preprocessing.head_outputs(
      config.get(f'{key}.outputs', typed.OBJECT, {})
    ),
    'trunk': '',
  }
  problem = f'its {config.file} must say {key} as it was exported'
  with config_lib.explained(problem):
    config_lib.wing('vit_jax.data.stored_preprocess:check')(preprocess)
  resize = config.get('vit_jax.resize', _RESIZE)
  return dataclasses.replace(description, preprocess=preprocess, resize=resize)


def _json(path: pathlib.Path) -> typed.Json:
  content = safe_io.read_json(path, 'repair it, or remove it')
  if content is not None and not isinstance(content, dict):
    raise UserError(f'{path} holds no object: repair it, or remove it')
  return typed.Json(path.name, content or {})


def _weights_in(directory: pathlib.Path) -> pathlib.Path:
  for name in _WEIGHTS:
    if (directory / name).is_file():
      return directory / name
  files = sorted(p for p in directory.iterdir() if p.suffix in SUFFIXES)
  if len(files) == 1:
    return files[0]
  problem = 'several files' if files else 'no file'
  raise UserError(
    f'{directory} is no work directory (config.json and preprocess.json), and'
    f' holds {problem} of weights ({", ".join(SUFFIXES)}):'
    + (' name one of them' if files else ' give another path')
  )
