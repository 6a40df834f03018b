"""What a user reads of a name that is none, or of an error of their part."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import inspect
import re
import traceback
import types
from typing import Any

from flax import linen as nn

from vit_jax.config import parts
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError
from vit_jax.models import fields
from vit_jax.models import listing
from vit_jax.models import refusals
from vit_jax.models import registry
from vit_jax.models import zoo

# Frames of a traceback, and their lines.
Frames = list[tuple[types.FrameType, int]]


def user_error(error: BaseException, model: nn.Module) -> UserError | None:
  """Returns what a user reads of an exception that their part has raised.

  It names the part's class and its line, or where other parts could not take
  what it returns; None: no class of the user's is in the model, or it is an
  error of another kind.
  """
  if isinstance(error, UserError):
    return None
  classes = [type(part) for part in fields.inner_parts(model)]
  users = [x for x in classes if registry.is_own(x)]
  frames = _frames(error, users)
  if not frames:
    is_about_values = isinstance(error, AttributeError | TypeError | ValueError)
    return _around(users, error) if users and is_about_values else None
  owners = [type(frame.f_locals.get('self')) for frame, _ in frames]
  classes = [x for x in owners if x in users]
  if not classes:
    file = frames[-1][0].f_code.co_filename
    classes = [x for x in users if file in _files(x)]
  return UserError(raised(classes[-1], error, frames))


def raised(
  module: type[nn.Module], error: BaseException, frames: Frames | None = None
) -> str:
  """Returns what a class has raised, and where in the users' files."""
  frames = _frames(error, [module]) if frames is None else frames
  name = registry.class_name('', module)
  text = f'{name} raises {type(error).__name__}: {one_line(error)}'
  if not frames:
    return text
  frame, line = frames[-1]
  return f'{text} ({frame.f_code.co_filename}, line {line})'


def _files(module: type[nn.Module]) -> set[str]:
  """Returns the files of a user's class, and of those that it inherits from."""
  return {
    str(getattr(inspect.getmodule(home), '__file__', None))
    for home in module.__mro__
    if home.__module__.split('.')[0] not in registry.LIBRARIES
  }


def _frames(error: BaseException, classes: Sequence[type[nn.Module]]) -> Frames:
  """Returns the frames of a traceback in the users' files, and their lines."""
  files = {file for module in classes for file in _files(module)}
  return [
    (frame, line)
    for frame, line in traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename in files
  ]


def _around(
  classes: Sequence[type[nn.Module]], error: BaseException
) -> UserError:
  """Returns the error of a model that a user's part does not fit into."""
  names = dict.fromkeys(registry.class_name('', x) for x in classes)
  lines = [
    f' ({frame.f_code.co_filename}, line {line})'
    for frame, line in traceback.walk_tb(error.__traceback__)
    if frame.f_globals.get('__name__', '').startswith('vit_jax.')
  ]
  return UserError(
    f'a model with {", ".join(names)} raises {type(error).__name__}:'
    f' {one_line(error)}{"".join(lines[-1:])}: docs/own_parts.md has what such'
    ' a part takes and returns'
  )


def unknown_field(
  module: type[nn.Module], name: str, keys: Sequence[str]
) -> refusals.UnknownFieldError:
  """Returns the error about a key that a model of a class has not."""
  options, hint = listing.all_options(), ''
  matches = difflib.get_close_matches(name, [*registry.KEYS, *options], 1, 0.7)
  option = name if name in options else ''.join(matches)
  if option in options and (option == name or option not in registry.KEYS):
    kind, part = options[option]
    hint = f"{option!r} is an option of a part: {kind}='{part}({option}=...)'"
  return refusals.UnknownFieldError(module, name, keys, hint)


def check_options(
  name: str, options: Mapping[str, Any], option_names: Sequence[str]
) -> None:
  """Raises a UserError if a model's name has an option that is not known."""
  if not option_names:
    raise UserError(
      f'config.model.name: {name} has no options in brackets: a ViT has the'
      ' options of its parts, as config.model.attention'
    )
  parts.check_options(
    parts.Part(name, (), dict(options)), 'model.name', option_names
  )


def is_timms(name: str) -> bool:
  """Whether a name has the form of timm's names of vision transformers."""
  # Architectures of such families, whether they are known here or not.
  form = r'[a-z]+\w*_(patch\d+_\w+|\w+_\d{3}|dinov\d)(\.\w+)?'
  return bool(re.fullmatch(form, name, re.ASCII)) or zoo.find(name) is not None


def unknown_name(name: str) -> ValueError:
  """Returns the error about a name that no family has."""
  if is_timms(name) or re.fullmatch(r'[a-z][\w.-]+/[\w.-]+', name):
    stem = name if '/' in name else f'timm/{name.split(".")[0]}.TAG'
    return ValueError(
      f'{name!r} is no model that is known here by that name: where its'
      f" layers can be computed, vit_jax.load('hf:{stem}') reads its"
      ' architecture off its checkpoint; or give the fields of one of ours, as'
      " create_model('ViT-B/16', pool='mean', registers=4)"
    )
  if re.fullmatch(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*', name):
    return ValueError(
      f'{name!r} is a class of your own: name a model of ours, as'
      " 'ViT-Ti/4', and a part of your own by config.model.block, attention,"
      ' mlp, positions, pool or head (docs/own_parts.md)'
    )
  matches = difflib.get_close_matches(name, zoo.names(), n=1, cutoff=0.7)
  hint = f'did you mean {matches[0]!r}? ' if matches else ''
  sizes, mixers = (', '.join(zoo.family(x).SIZES) for x in ('vit', 'mixer'))
  return ValueError(
    f'no model is named {name!r}: {hint}Sizes of ViT are {sizes}, of Mixer'
    f' {mixers}, with any patch size after the slash'
  )
