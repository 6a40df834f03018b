"""Defines and parses the flags that several commands share."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import os
import re
import sys
from typing import Any
from typing import cast
from typing import TYPE_CHECKING

from absl import flags
from absl import logging
from ml_collections import config_flags

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.config import synonyms

if TYPE_CHECKING:
  from vit_jax import weights


def define_config(
  flag_values: flags.FlagValues = flags.FLAGS,
) -> flags.FlagHolder:
  """Defines `--config=FILE.py[:ARG]` and `--config.KEY=VALUE`."""
  holder = config_flags.DEFINE_config_file(
    'config',
    None,
    'Config file. Text after a colon is the argument of its get_config().'
    ' --config.KEY=VALUE sets a key of it.',
    flag_values,
  )
  flag_values['config'].parser = _ConfigParser()
  return holder


class _ConfigParser(flags.ArgumentParser):
  def parse(self, argument: str) -> Any:
    """Returns the config, locked; the command line sets only keys it has."""
    config = config_lib.load(argument)
    defaults = dict(config_lib.flatten(config))
    for key in _keys_set(sys.argv):
      if key not in defaults:
        raise config_lib.unknown_key(config, key)
    return config.lock()


def define_texts(
  flag_values: flags.FlagValues, meanings: Mapping[str, str]
) -> None:
  """Defines flags whose values are texts, without a default."""
  for name, meaning in meanings.items():
    flags.DEFINE_string(name, None, meaning, flag_values=flag_values)


def define_from(flag_values: flags.FlagValues) -> None:
  """Defines `--from=PATH` and the flags of `define_overrides`."""
  meaning = (
    'The model: a work directory, or any other path that vit_jax.load reads.'
  )
  define_texts(flag_values, {'from': meaning})
  define_overrides(flag_values)


def define_overrides(flag_values: flags.FlagValues) -> None:
  """Defines `--step`, `--state`, `--image_size` and `--model.KEY=VALUE`."""
  define_texts(
    flag_values,
    {
      'step': 'The checkpoint of a work directory: a step, best or newest.'
      ' Default: the best if there is one, else the newest.',
      'state': 'The state to read from a training checkpoint of PyTorch, by its'
      ' key, such as student. Default: averaged weights or a teacher, if there'
      ' are any.',
      'image_size': "Size of the model's input in pixels: 384, or 224x320"
      " (height x width). Default: the checkpoint's.",
    },
  )
  flags.DEFINE_multi_string(
    'model',
    [],
    '--model.KEY=VALUE sets a key of the model that its file does not have.'
    ' Example: --model.num_heads=3.',
    flag_values=flag_values,
  )


def define_quantize(flag_values: flags.FlagValues) -> None:
  """Defines `--quantize`, for `load`."""
  meaning = (
    'int8 stores the kernels of the model in int8, in a quarter of the bytes.'
  )
  define_texts(flag_values, {'quantize': meaning})


def define_path(
  name: str,
  default: str | None,
  meaning: str,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> flags.FlagHolder[Any]:
  """Defines a flag for a local path that is written to; addresses are refused.

  `meaning` is for `--help`.
  """
  parser = _PathParser(name, default is not None)
  return flags.DEFINE(parser, name, default, meaning, flag_values=flag_values)


def define_workdir(meaning: str) -> flags.FlagHolder[str | None]:
  """Defines `--workdir` of a command that trains; it may be in a store."""
  parser = _PathParser('workdir', may_be_in_store=True)
  return flags.DEFINE(parser, 'workdir', None, meaning)


class _PathParser(flags.ArgumentParser[str]):
  """Refuses what is no local path, nor an address of an object store."""

  def __init__(
    self, name: str, may_be_empty: bool = False, may_be_in_store: bool = False
  ):
    self._name, self._may_be_empty = name, may_be_empty
    self._may_be_in_store = may_be_in_store

  def parse(self, argument: str) -> str:
    """Returns the path, or the address of an object store."""
    flag = f'--{self._name}'
    if self._may_be_in_store:
      address = config_lib.store_address(argument, flag)
      if address is not None:
        return address
    if not argument and not self._may_be_empty:
      raise config_lib.UserError(
        f'{flag} is empty: name a path, or leave the flag out'
      )
    config_lib.check_local(argument, flag)
    return argument

  def flag_type(self) -> str:
    return 'path'


def define_format(
  flag_values: flags.FlagValues, *more_formats: str
) -> flags.FlagHolder[str]:
  """Defines `--format`: 'table', 'json', or one of the others."""
  return flags.DEFINE_enum(
    'format',
    'table',
    ['table', 'json', *more_formats],
    'Format of standard output.',
    flag_values=flag_values,
  )


def define_compile_cache(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--compile_cache`, which `run` applies."""
  meaning = (
    "Folder where JAX keeps compiled programs for the next process. '': none."
    ' Default: $JAX_COMPILATION_CACHE_DIR, else $VIT_JAX_CACHE/xla, which is'
    ' ~/.cache/vit_jax/xla.'
  )
  define_texts(flag_values, {'compile_cache': meaning})


def check_from(flag_values: flags.FlagValues) -> None:
  """Raises a UserError if `--from` is missing or names nothing."""
  path = flag_values['from'].value
  if not path:
    raise missing('from', 'a model', 'runs/digits')
  if not os.path.exists(path):
    from vit_jax import weights  # after the flags, since it imports jax

    weights.check_path(path)


def load(
  flag_values: flags.FlagValues,
  path: str | None = None,
  as_stored: bool = False,
  sizes: bool = True,
) -> 'weights.Loaded':
  """Loads the model that the flags of `define_from` name.

  Args:
    flag_values: Parsed flags.
    path: Replaces `--from`.
    as_stored: Passed to `vit_jax.load`.
    sizes: Whether `--image_size` and `--quantize` are applied; they may have
      several.
  """
  path = path or flag_values['from'].value
  if not path:
    raise missing('from', 'a model', 'runs/digits')
  overrides = _overrides(flag_values)
  if sizes and (size := flag_values['image_size'].value):
    overrides['image_size'] = parse_size(size, '--image_size')
  if sizes and 'quantize' in flag_values and flag_values['quantize'].value:
    overrides['quantize'] = flag_values['quantize'].value
  from vit_jax import weights  # after the flags, since they import jax
  from vit_jax.weights import adapt

  try:
    loaded = weights.load(path, as_stored=as_stored, **overrides)
  except (TypeError, ValueError) as e:
    if isinstance(e, config_lib.UserError) or not overrides:
      raise
    settings = ', '.join(f'{key}={value!r}' for key, value in overrides.items())
    raise config_lib.UserError(
      f'{path} with {settings}: {config_lib.one_line(e)}'
    ) from None
  origin = loaded.origin
  has_newer = origin.newest not in (None, origin.step)
  hint = ' (--step=newest)' if has_newer and 'step' not in overrides else ''
  logging.info('loaded %s%s', origin, hint)
  if loaded.changes:
    logging.info('%s', adapt.changes_table(loaded.changes))
  return loaded


def _overrides(flag_values: flags.FlagValues) -> dict[str, Any]:
  values = {name: flag_values[name].value for name in ('step', 'state')}
  overrides: dict[str, Any] = {key: x for key, x in values.items() if x}
  for text in flag_values['model'].value or ():
    key, has_value, value = text.partition('=')
    if not key or not has_value:
      raise config_lib.UserError(
        f'--model.{key}: write --model.KEY=VALUE, as in --model.num_heads=3'
      )
    if key == 'quantize':  # not every command can do with such a model
      raise config_lib.UserError(
        '--model.quantize is no key of a model: evaluate and predict have'
        ' --quantize'
      )
    overrides[key] = parts.literal(value)
  return overrides


def parse_size(text: str, flag: str) -> int | tuple[int, int]:
  """Parses `384` or `224x320` (height x width), in pixels.

  A size of volumes is `64x96x96` (depth x height x width). Errors name the
  flag.
  """
  if not re.fullmatch(r'[1-9]\d{0,5}(x[1-9]\d{0,5}){0,2}', text):
    raise config_lib.UserError(
      f'{flag}={text}: write a size in pixels, as 384 or 224x320 (height x'
      ' width)'
    )
  sides = tuple(map(int, text.split('x')))
  return cast(tuple[int, int], sides) if len(sides) > 1 else sides[0]


def parse_flags(
  argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> list[str]:
  """Parses absl's flags of a command line and returns the other arguments."""
  end = argv.index('--') if '--' in argv else len(argv)
  argv, inner_argv = argv[:end], argv[end:]  # of another command
  argv, options = _without_options(argv)
  keys = _keys_set(argv)
  if keys and config_path(argv) is None:
    raise config_lib.UserError(
      f'--config.{keys[0]} needs --config=FILE before it'
    )
  if 'model' in flag_values:
    argv = [re.sub(r'^--?model\.', '--model=', arg) for arg in argv]
  if not flags.FLAGS.is_parsed():  # absl's logging and Grain read theirs
    flags.FLAGS.mark_as_parsed()
  process_argv = sys.argv
  sys.argv = list(argv)  # ml_collections looks for keys there
  try:
    remaining = flag_values([*argv, *inner_argv])
  except flags.UnrecognizedFlagError as e:
    raise _unknown_flag(e.flagname, flag_values) from None
  except (flags.Error, TypeError, ValueError) as e:
    if isinstance(e.__context__, config_lib.UserError):
      raise e.__context__ from None
    text = config_lib.one_line(e)
    for pattern, advice in _TYPE_ADVICE.items():
      text = re.sub(f'^(flag --.*): {pattern}$', rf'\1: {advice}', text)
    raise config_lib.UserError(text) from None
  finally:
    sys.argv = process_argv
  if options:
    config: Any = flag_values['config'].value
    config.objective.options.update(options)
  return remaining


def missing(flag: str, subject: str, example: str) -> config_lib.UserError:
  """Returns the error for a flag without which a command cannot work."""
  return config_lib.UserError(
    f'--{flag} is missing: name {subject}, as in --{flag}={example}'
  )


def refuse_arguments(argv: Sequence[str]) -> None:
  """Raises a UserError if a command line has more than flags."""
  if argv[1:]:
    raise config_lib.UserError(f'unexpected argument {argv[1]!r}')


def _without_options(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
  """Takes `--config.objective.options.KEY=VALUE` out of a command line.

  Only the objective knows these keys, and it imports jax: so it checks them
  later. A value is a Python literal, or else a string.
  """
  pattern = r'(?s)--?config\.objective\.options\.([^=]+)=(.*)'
  remaining = [arg for arg in argv if not re.fullmatch(pattern, arg)]
  matches = filter(None, (re.fullmatch(pattern, arg) for arg in argv))
  options = {match[1]: parts.literal(match[2]) for match in matches}
  if options and config_path(remaining) is None:
    raise config_lib.UserError(
      f'--config.objective.options.{next(iter(options))} needs --config=FILE'
      ' before it'
    )
  return remaining, options


def config_path(argv: Sequence[str]) -> str | None:
  """Returns the value of the last `--config` in argv, or None."""
  path = None
  for i, arg in enumerate(argv):
    if match := re.fullmatch(r'--?config(?:=(.*))?', arg, re.DOTALL):
      following = argv[i + 1] if i + 1 < len(argv) else ''
      path = following if match[1] is None else match[1]
  return path


def _keys_set(argv: Sequence[str]) -> list[str]:
  matches = (re.match(r'--?(?:no)?config\.([^=]+)', arg) for arg in argv)
  return [match[1] for match in matches if match]


# What the messages of absl say of a value -> what a flag takes.
_TYPE_ADVICE = {
  r'invalid literal for int\(\) .*': 'write a whole number, as 64',
  r'could not convert string to float: .*': 'write a number, as 0.001',
  r"\('Non-boolean argument to boolean flag', .*": 'write true or false',
}


def _unknown_flag(
  name: str, flag_values: flags.FlagValues
) -> config_lib.UserError:
  hint = 'see --help'
  similar = difflib.get_close_matches(name, list(flag_values), n=1, cutoff=0.75)
  defaults = dict(config_lib.flatten(config_lib.default()))
  if similar:
    hint = f'did you mean --{similar[0]}?'
  elif 'config' in flag_values:
    hint = synonyms.suggest(name, defaults, '--config.') or hint
  elif 'from' in flag_values and synonyms.is_checkpoint(name):
    hint = 'the model is named by --from=PATH'
  return config_lib.UserError(f'there is no flag --{name}: {hint}')
