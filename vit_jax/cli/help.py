"""The text of `--help`: usage, a sentence, examples, and the flags in groups.

It is made from a command's docstring and its flags, and so is the page
docs/command_line.md.
"""

from collections.abc import Iterator
import dataclasses
import re
import shutil
import textwrap

from absl import flags

from vit_jax.parallel import allocator

_NARROWEST, _WIDEST = 60, 100  # columns
_INDENT = 24  # columns before the meaning of a flag

# Titles of groups, with the flags in them, of all commands. A flag that is in
# none is in the group _DEFAULT_GROUP.
_DEFAULT_GROUP = 'What to do'
_GROUPS = {
  'What to read': (
    'config from step state model image_size quantize other like data split'
    ' data_dir source_size images text image sweep same_order max_images'
    ' max_examples count'
  ),
  _DEFAULT_GROUP: '',
  'Probes': 'probe train_split features k shots templates class_names',
  'Segmentation': 'whole scales flip overlap gaussian hausdorff',
  'Several variants': 'patch_size merge plot',
  'Planning for other hardware': 'devices mesh hardware slices fit',
  'Output': (
    'workdir out output format json predictions picture cache license push'
  ),
  'Address': 'host port names',
  'Speed and memory': (
    'batch_size max_delay_ms max_queue timeout_s num_workers compile_cache jobs'
  ),
  'Several machines': 'coordinator num_processes process_id',
  'SLURM': (
    'slurm local partition nodes tasks_per_node gpus_per_node cpus_per_task'
    ' timeout_min grace_s max_requeues sbatch'
  ),
}
# Flags, by verb and name, that have the name of another command's flag and are
# in no group.
_UNGROUPED = {('convert', 'whole')}
# By the name of a flag, or by its type.
_VALUES = {
  **dict.fromkeys(('compile_cache', 'data_dir', 'other', 'like'), 'PATH'),
  **dict.fromkeys(('image_size', 'source_size', 'position_size'), 'SIZE'),
  'config': 'FILE.py',
  'coordinator': 'HOST:PORT',
  'data': 'NAME',
  'patch_size': 'SIZES',
  'split': 'SPLIT',
  'step': 'STEP',
  'string': 'TEXT',
  'multi string': 'TEXT',
  'path': 'PATH',
  'int': 'N',
  'float': 'X',
  'comma separated list of strings': 'A,B',
}


@dataclasses.dataclass(frozen=True)
class Option:
  """A flag, for people."""

  text: str  # as '--split=TEXT'
  meaning: str
  default: str  # '' if there is none
  required: bool  # whether the command cannot work without it


def grouped(
  flag_values: flags.FlagValues, usage: str
) -> dict[str, list[Option]]:
  """Returns the flags of a command, but absl's own, by titles of their groups.

  The usage is that of `text`.
  """
  owners = flag_values.flags_by_module_dict()
  named = {
    flag.name: flag
    for module, module_flags in owners.items()
    for flag in module_flags
    if not module.startswith('absl')
  }
  verb = usage.partition(' ')[0]
  titles = {
    name: title
    for title, names in _GROUPS.items()
    for name in names.split()
    if (verb, name) not in _UNGROUPED
  }
  groups: dict[str, list[Option]] = {title: [] for title in _GROUPS}
  order = [*titles, *named]
  for name in sorted(named, key=order.index):
    option = _option(named[name], usage)
    groups[titles.get(name, _DEFAULT_GROUP)].append(option)
  return {title: options for title, options in groups.items() if options}


def _option(flag: flags.Flag, usage: str) -> Option:
  in_usage = re.search(rf'--{flag.name}=([\w.:/]+)', usage)
  choices = getattr(flag.parser, 'enum_values', None)
  if flag.boolean:
    text = f'--[no]{flag.name}' if flag.default else f'--{flag.name}'
  else:
    value = _VALUES.get(flag.name) or _VALUES.get(flag.flag_type(), 'VALUE')
    value = in_usage[1] if in_usage else '|'.join(choices or [value])
    text = f'--{flag.name}={value}'
  meaning = ' '.join((flag.help or '').split())
  if written := re.match(r'(--\S+) (.*)', meaning):
    text, meaning = written[1], written[2][:1].upper() + written[2][1:]
  if choices:
    meaning = meaning.removeprefix(f'<{"|".join(choices)}>: ')
    meaning += f' One of {", ".join(choices)}.' if in_usage else ''
  if isinstance(flag, flags.MultiFlag):  # absl has added its own sentence
    meaning = f'{meaning.partition("; repeat this")[0]} May be repeated.'
  default = flag.default
  if isinstance(default, list):
    default = ','.join(default)
  if default is None or flag.boolean or 'Default: ' in meaning:
    default = ''
  optional = r'\[[^\]]*\]|\([^)]*\)'
  required = re.search(rf'--{flag.name}\b', re.sub(optional, '', usage))
  return Option(text, meaning, str(default), required is not None)


def text(
  doc: str,
  flag_values: flags.FlagValues,
  usage: str = '',
  everything: bool = False,
) -> str:
  """Returns the text of `--help`.

  Args:
    doc: The command's docstring: a sentence, then indented examples, then the
      details.
    flag_values: Its flags.
    usage: The verb and its arguments, as 'embed --from=PATH --out=FILE'. Flags
      outside of [] and () are required. '': a program that has no usage line.
    everything: Whether to print the details, too, as for `--helpfull`.
  """
  columns = shutil.get_terminal_size((_WIDEST, 0)).columns
  width = max(_NARROWEST, min(_WIDEST, columns))
  sentence, examples, details = parts(doc)
  lines = [*usage_lines(usage, width), ''] if usage else []
  lines += [*textwrap.wrap(sentence, width), '']
  lines += [*(f'  {line}' for line in examples), ''] if examples else []
  groups = grouped(flag_values, usage)
  for title, options in groups.items():
    lines += [f'{title}:', *_table(options, width), '']
  if details and (everything or not groups):
    lines += [details, '']
  elif details:
    lines.append('--helpfull adds the details.')
  return as_started('\n'.join(lines).rstrip())


def parts(doc: str) -> tuple[str, list[str], str]:
  """Returns a docstring's sentence, its examples, and its details.

  The examples are the indented lines after the sentence, without their indent.
  """
  first, _, body = doc.strip().partition('\n\n')
  block, _, details = body.partition('\n\n')
  sentence = ' '.join(first.split())
  if not block.startswith('  '):
    return sentence, [], body.strip('\n')
  return sentence, textwrap.dedent(block).splitlines(), details.strip('\n')


def usage_lines(usage: str, width: int) -> list[str]:
  """Returns the usage, as in `text`, in lines of at most `width` columns."""
  verb, _, arguments = usage.partition(' ')
  lines = [f'usage: python -m vit_jax.{module(verb)}']
  for argument in re.findall(
    r'\[[^\]]*\]|\([^)]*\)|\S+', f'{arguments} [--FLAG=VALUE ...]'
  ):
    if len(lines[-1]) + 1 + len(argument) > width:
      lines.append(' ' * 6)
    lines[-1] += f' {argument}'
  return lines


def _table(options: list[Option], width: int) -> Iterator[str]:
  for option in options:
    meaning = option.meaning
    if option.required:
      meaning += ' Required.'
    if option.default:
      meaning += f' Default: {option.default}.'
    left = f'  {option.text}'
    if len(left) > _INDENT - 2:
      yield left
      left = ''
    lines = textwrap.wrap(meaning, width - _INDENT, break_on_hyphens=False)
    for line in lines:
      yield f'{left:{_INDENT}}{line}'
      left = ''


def module(verb: str) -> str:
  """Returns the module below vit_jax of a verb."""
  return 'main' if verb == 'train' else verb


def as_started(text: str) -> str:
  """Returns a text whose commands are written as this process was started."""
  return console(text) if allocator.program().endswith('vit-jax') else text


def console(text: str) -> str:
  """Replaces `python -m vit_jax.MODULE` by `vit-jax VERB`."""
  text = re.sub(r'python -m vit_jax\.main\b', 'vit-jax train', text)
  return re.sub(r'python -m vit_jax\.(?=[a-z])', 'vit-jax ', text)
