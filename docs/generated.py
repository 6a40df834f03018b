"""The pages that are made from the source: a Sphinx extension of conf.py.

The rest of a page is written by hand: its file in docs/ says what it lists.
"""

import ast
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import importlib
import inspect
import pathlib
import re
import textwrap
from typing import Any
from typing import ClassVar

from docutils import nodes
import sphinx.addnodes
import sphinx.application
import sphinx.environment

import vit_jax
from vit_jax import config as config_lib
from vit_jax.cli import help as help_lib
from vit_jax.cli import verbs
from vit_jax.config import keys as config_keys_lib
from vit_jax.config import meanings
from vit_jax.data import augmentations
from vit_jax.data.host import geometry
from vit_jax.optim import optimizers
from vit_jax.optim import schedules
from vit_jax.train import variant
from vit_jax.weights.formats import dense
from vit_jax.weights.formats import fields as fields_lib
from vit_jax.weights.formats import foreign

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Keys of entries that the user names.
_EVALUATION, _TASK = 'evals.NAME', 'tasks.NAME'
# Modules that name all keys, and use none.
_TABLES = re.compile(r'config/(defaults|synonyms|keys|\w*recipes)\.py')

_USAGE_COLUMNS = 80
# Quoted values, flags, names with an underscore, keys, and empty tuples.
_CODE = re.compile(
  r"`[^`]+`|(?<!\w)'[^']*'(?!\w)|--\w+(?:\.\w+)*(?:=[^\s;)]*[^\s;),.])?"
  r'|[$~/\w.:]*\w_\w(?:[\w./:]*\w(?:\(\))?)?'
  rf'|\b(?:config|{"|".join(config_lib.default())})\.\w+(?:\.\w+)*|\(\)(?=:)'
)


def config_keys() -> str:
  """Returns the entries of all keys, as Markdown."""
  config = config_lib.default()
  entries: dict[str, list[str]] = {'General': []}
  for key, value in _keys(config):
    parts = key.split('.')
    title = parts[0] if parts[1:] else 'General'
    entries.setdefault(title, []).append(_entry(key, value, _type(config, key)))
  texts = []
  for title, keys in entries.items():
    texts.append(f'(keys-{title})=\n## {title}')
    if title == 'model':
      texts.append('[Parts of a model](parts.md) has the parts by name.')
    texts += keys
  return '\n\n'.join([*texts, *_choices(), *_options()])


def _keys(config: Any) -> Iterator[tuple[str, Any]]:
  """Yields the keys with their defaults, in the order of the source."""
  for name in config:
    if name == 'evals':
      yield from _flat(_EVALUATION, config_lib.evaluation())
    elif name == 'tasks':
      task = config_lib.task(config)
      for key in task:
        if not hasattr(task[key], 'keys'):
          yield f'{_TASK}.{key}', task[key]
    else:
      yield from _flat(name, config[name])


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
  if not hasattr(value, 'keys'):
    yield prefix, value
    return
  for name in value:
    yield from _flat(f'{prefix}.{name}', value[name])


def _type(config: Any, key: str) -> str:
  """Returns the name of a key's type; '' if a value may have several."""
  if key.startswith(_EVALUATION):
    holder = config_lib.evaluation()
  elif key.startswith(_TASK):
    holder = config_lib.task(config)
  else:
    holder = config
    for part in key.split('.')[:-1]:
      holder = holder[part]
  name = holder.get_type(key.split('.')[-1]).__name__
  return '' if name == 'object' else name


def _entry(key: str, value: Any, kind: str, meaning: str | None = None) -> str:
  """Returns a key as an object of Sphinx, which its search ranks first."""
  default = str(value) if isinstance(value, float) else repr(value)
  text = meanings.meaning(key) if meaning is None else meaning
  readers, group = _readers().get(key, []), key.rpartition('.')[0]
  if not readers and '.' in group:  # read together with its group
    readers = _readers().get(group, [])
  lines = [
    f'({key})=',
    f'````{{configkey}} {key}: {kind} = {default}',
    _markdown(text[:1].upper() + text[1:]),
  ]
  if readers:
    files = ', '.join(f'`{reader}`' for reader in readers)
    lines[-1] += '\\' if text else ''
    lines.append(f'Read by {files}.')
  return '\n'.join([*lines, '````'])


def _markdown(text: str) -> str:
  """Returns a comment as Markdown: its values and its names as code."""
  codes: list[str] = []

  def keep(match: re.Match[str]) -> str:
    codes.append(f'`{match[0].strip("`")}`')
    return f'\0{len(codes) - 1}\0'

  text = re.sub(_CODE, keep, text)
  text = re.sub(r'([*<$\[\]{}\\_^~])', r'\\\1', text)
  text = re.sub('\0(\\d+)\0', lambda match: codes[int(match[1])], text)
  return text and text + ('' if text.endswith(('.', ':')) else '.')


# What the text of a key may name: classes by name, as 'module:Class'.
_CHOICES: Mapping[str, Mapping[str, str]] = {
  'optim.name': optimizers.OPTIMIZERS,
  'optim.schedule': schedules.SCHEDULES,
  'optim.clip': optimizers.CLIPS,
  'optim.sam': config_keys_lib.SAM,
  'train.variant': variant.VARIANTS,
  'data.crop': geometry.CROPS,
  **augmentations.CHOICES,
  'evals.NAME.kind': {
    name: f'vit_jax.evaluation.{name}:{class_name}'
    for name, class_name in {
      'knn': 'Knn',
      'few_shot': 'FewShot',
      'linear': 'Linear',
      'zero_shot': 'ZeroShot',
    }.items()
  },
}


def _choices() -> Iterator[str]:
  """Yields the options of what keys name."""
  yield '(choices)=\n## Choices'
  yield (
    'These keys name a thing with options. An option without a default must be'
    " given: `--config.augment.erase='erase(0.25)'`."
  )
  for key, choices in _CHOICES.items():
    rows = [f'| `{key}` | options | |', '|---|---|---|']
    for name, path in choices.items():
      found = config_lib.wing(path)
      options = [
        f'`{x.name}`' if x.default is x.empty else f'`{x.name}={x.default!r}`'
        for x in inspect.signature(found).parameters.values()
        if x.name != 'spec'
      ]
      summary = (inspect.getdoc(found) or '').partition('\n')[0]
      cell = _markdown(summary).replace('|', '\\|')
      rows.append(f'| `{name}` | {", ".join(options)} | {cell} |')
    yield '\n'.join(rows)


def _options() -> Iterator[str]:
  """Yields the options of each objective, with its comments."""
  yield '(keys-objective.options)=\n## objective.options'
  yield (
    'Each objective has options of its own. A key of the table for `dino` is'
    ' set by `--config.objective.options.KEY=VALUE` where `objective.name` is'
    " `'dino'`."
  )
  for path in sorted((ROOT / 'vit_jax/objectives').glob('*.py')):
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
      if not isinstance(node, ast.AnnAssign) or not isinstance(
        node.value, ast.Dict
      ):
        continue
      if ast.unparse(node.target) != 'options' or not node.value.keys:
        continue
      yield f'### Options of {path.stem}'
      rows = ['| option | default | meaning |', '|---|---|---|']
      for key, value in zip(node.value.keys, node.value.values, strict=True):
        assert isinstance(key, ast.Constant) and value.end_lineno
        comments = (
          meanings.above(lines, key.lineno - 1),
          meanings.trailing(lines[value.end_lineno - 1]),
        )
        text = _markdown(' '.join(filter(None, comments)))
        cell = text.replace('|', '\\|')
        rows.append(f'| `{key.value!s}` | `{ast.unparse(value)}` | {cell} |')
      yield '\n'.join(rows)


@functools.cache
def _readers() -> dict[str, list[str]]:
  """Returns the files that read each key, found in their source."""
  keys = {key for key, _ in _keys(config_lib.default())}
  keys |= {group for key in keys if (group := key.rpartition('.')[0])}
  by_name: dict[str, set[str]] = {}
  for key in keys:
    by_name.setdefault(key.rpartition('.')[2], set()).add(key)
  readers: dict[str, list[str]] = {}
  for path in sorted((ROOT / 'vit_jax').rglob('*.py')):
    file = str(path.relative_to(ROOT / 'vit_jax'))
    if _TABLES.fullmatch(file):
      continue
    visitor = _Reads(file, by_name)
    visitor.visit(ast.parse(path.read_text()))
    for key in visitor.keys:
      readers.setdefault(key, []).append(file)
  return readers


class _Reads(ast.NodeVisitor):
  """Finds the keys that a module reads, as in `config.optim.warmup`.

  Attributes:
    keys: The keys.
  """

  # Variables that hold an entry, and variables that hold any part of a config.
  _HOLDERS: ClassVar[dict[str, str]] = {'spec': _EVALUATION, 'task': _TASK}
  _PARTS = ('config', 'how', 'keys')

  def __init__(self, file: str, by_name: dict[str, set[str]]):
    self.keys: set[str] = set()
    self._file, self._by_name = file, by_name
    self._aliases = dict(self._HOLDERS)

  def visit_Assign(self, node: ast.Assign) -> None:
    """Notes variables that stand for groups, as `keys = config.data.map`."""
    for target in node.targets:
      targets, values = [target], [node.value]
      if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        targets, values = target.elts, node.value.elts
      for name, value in zip(targets, values, strict=False):
        chain = self._chain(value)
        if '.' in chain:
          self._aliases[ast.unparse(name).removeprefix('self._')] = chain
    self.generic_visit(node)

  def visit_Attribute(self, node: ast.Attribute) -> None:
    """Notes a key that is read as an attribute."""
    if isinstance(node.ctx, ast.Load):
      self._note(self._chain(node))
    self.generic_visit(node)

  def visit_Subscript(self, node: ast.Subscript) -> None:
    """Notes a key that is read by its name, as `config.data['mean']`."""
    if isinstance(node.slice, ast.Constant):
      self._note(f'{self._chain(node.value)}.{node.slice.value!s}')
    self.generic_visit(node)

  def visit_For(self, node: ast.For) -> None:
    """Notes keys that a loop reads, as `for key in ('gray', 'blur')`."""
    if isinstance(node.iter, ast.Tuple):
      for child in ast.walk(node):
        if isinstance(child, ast.Subscript):
          if ast.unparse(child.slice) == ast.unparse(node.target):
            for name in node.iter.elts:
              if isinstance(name, ast.Constant):
                self._note(f'{self._chain(child.value)}.{name.value!s}')
    self.generic_visit(node)

  def visit_Constant(self, node: ast.Constant) -> None:
    """Notes a key that is passed to a check, as 'optim.warmup'."""
    if isinstance(node.value, str):
      self._note(node.value.removeprefix('config.'), exact=True)

  def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
    """Skips the constants of messages."""
    for value in node.values:
      if isinstance(value, ast.FormattedValue):
        self.visit(value)

  def visit_ClassDef(self, node: ast.ClassDef) -> None:
    """Notes the fields of models: the keys of `config.model`."""
    if self._file.startswith('models/'):
      for field in node.body:
        if isinstance(field, ast.AnnAssign):
          self._note(f'model.{ast.unparse(field.target)}', exact=True)
    self.generic_visit(node)

  def visit_keyword(self, node: ast.keyword) -> None:
    """Notes the key that fills a field of a part, as `Field(..., key='x')`."""
    if self._file.startswith('models/') and node.arg == 'key':
      if isinstance(node.value, ast.Constant):
        self._note(f'model.{node.value.value!s}', exact=True)
    self.generic_visit(node)

  def _chain(self, node: ast.AST) -> str:
    """Returns the dotted text of an expression; '' if it is no chain."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
      names.append(node.attr)
      node = node.value
    if not isinstance(node, ast.Name):
      return ''
    parts = [name.lstrip('_') for name in (node.id, *reversed(names))]
    if parts[0] == 'self':
      del parts[0]
    parts[:1] = [self._aliases.get(name, name) for name in parts[:1]]
    return '.'.join(parts)

  def _note(self, chain: str, exact: bool = False) -> None:
    holder, _, name = chain.rpartition('.')
    keys = self._by_name.get(name, set())
    for key in keys:
      if chain == key if exact else f'.{chain}'.endswith(f'.{key}'):
        self.keys.add(key)
    if len(keys) == 1 and holder in self._PARTS:
      self.keys |= keys


def command_line() -> str:
  """Returns the usage, the examples and the flags of each verb."""
  texts = []
  for verb, name in _commands():
    command = importlib.import_module(f'vit_jax.{name}')
    flag_values = getattr(command, 'FLAGS', None) or _global_flags()
    doc = help_lib.console(command.__doc__ or '')
    sentence, examples, details = help_lib.parts(doc)
    usage = help_lib.usage_lines(command.USAGE, _USAGE_COLUMNS)
    texts += [f'(vit-jax-{verb.replace(" ", "-")})=\n## vit-jax {verb}']
    texts += [f'```{{program}} vit-jax {verb}\n```']
    texts += [sentence, help_lib.console(_block('text', usage))]
    texts.append(_block('sh', examples))
    for title, options in help_lib.grouped(flag_values, command.USAGE).items():
      texts += [f'**{title}**', *map(_flag, options)]
    if details:
      texts += ['**Details**', _details(details)]
  return '\n\n'.join(texts)


def _commands() -> Iterator[tuple[str, str]]:
  """Yields the verbs, and the modules with their flags."""
  for verb, (name, _) in verbs.VERBS.items():
    if verb == 'explore':
      yield 'explore', 'explore.pictures'
      yield 'explore serve', 'explore.serve'
      yield 'explore data', 'explore.inputs'
    else:
      package = (ROOT / 'vit_jax' / name).is_dir()
      yield verb, f'{name}.__main__' if package else name


def _global_flags() -> Any:
  from absl import flags

  return flags.FLAGS


def _block(language: str, lines: list[str]) -> str:
  return '\n'.join([f'```{language}', *lines, '```'])


def _flag(option: help_lib.Option) -> str:
  """Returns a flag as an object of Sphinx."""
  text = _markdown(option.meaning)
  if option.required:
    text += ' **Required.**'
  if option.default:
    text += f' Default: `{option.default}`.'
  return f'```{{option}} {option.text}\n{text}\n```'


def _details(text: str) -> str:
  """Returns the rest of a docstring: paragraphs, and blocks as they are."""
  parts = []
  for paragraph in text.split('\n\n'):
    if paragraph.startswith(' '):
      parts.append(f'```text\n{textwrap.dedent(paragraph)}\n```')
    else:
      lines = paragraph.splitlines()
      start = next((i for i, x in enumerate(lines) if x[:1] == ' '), None)
      parts.append(_markdown(' '.join(lines[:start])))
      if start is not None:
        parts.append('```text\n' + '\n'.join(lines[start:]) + '\n```')
  return '\n\n'.join(parts)


def parts() -> str:
  """Returns the parts of models that have a name, by kind."""
  texts = []
  kind = ''
  for entry in vit_jax.list_parts():
    if entry.kind != kind:
      kind = entry.kind
      texts.append(f'(parts-{kind})=\n## {kind}')
    file = f'{entry.class_name.partition(":")[0].replace(".", "/")}.py'
    papers = [
      f'[arXiv:{x}](https://arxiv.org/abs/{x})'
      for x in entry.sources
      if x not in entry.summary
    ]
    places = ', '.join([*papers, f'[{file}](../{file})'])
    texts += [
      f'(parts-{kind}-{entry.name})=\n### {entry.name}',
      f'{_markdown(entry.summary)} Source: {places}.',
    ]
    rows = [f'| `{x}` | `{value}` |' for x, value in entry.options.items()]
    if rows:
      head = ['| option | where the text does not set it |', '|---|---|']
      texts.append('\n'.join([*head, *rows]))
  return '\n\n'.join(texts)


def formats() -> str:
  """Returns which values of a model each kind of foreign file has."""
  rows = [
    '| kind of file | its arrays show | its config says | neither says'
    ' | refused unless |',
    '|---|---|---|---|---|',
  ]
  kinds = [kind for form in foreign.FORMATS for kind in form.KINDS]
  for kind in (*kinds, *(x.trunk for x in dense.PROGRAMS.values())):
    entries = [entry for entry in kind.fields if entry.value_name]
    shown = [x for x in entries if x.read]
    said = [x for x in entries if not x.read and x.key]
    assumed = [x for x in entries if not x.read and not x.key]
    columns = [', '.join(map(_value, x)) for x in (shown, said, assumed)]
    needs = [*map(_need, kind.fields), *_shared_keys(said + shown)]
    columns.append('; '.join(filter(None, needs)))
    rows.append(f'| {" | ".join((kind.title, *columns))} |')
  return '\n'.join(rows)


def _value(entry: fields_lib.Entry) -> str:
  """Returns the name of a value, and what is special about it."""
  notes = []
  if entry.is_read_only:
    notes.append('only read')
  if entry.is_given:
    notes.append('its code is told')
  elif not (entry.read or entry.key or callable(entry.default)):
    notes.append(f'`{entry.default}`')
  return f'`{entry.value_name}`' + (f' ({", ".join(notes)})' if notes else '')


def _need(entry: fields_lib.Entry) -> str:
  """Returns beside what a value must stand; '' if beside any."""
  if entry.is_square:
    return f'equal sides of `{entry.value_name or entry.source}`'
  needs = ', '.join(f'`{x}`' for x in entry.needs.split('&') if x)
  return f'{needs} if `{entry.condition}`' if entry.condition else needs


def _shared_keys(entries: Sequence[fields_lib.Entry]) -> Iterator[str]:
  """Yields the values of which a config can say some together alone."""
  for key in dict.fromkeys(x.key for x in entries if x.key):
    names = [f'`{x.value_name}`' for x in entries if x.key == key]
    if len(names) > 1:
      yield f'one key can say {" and ".join(names)}'


PAGES = {
  'docs/checkpoints': formats,
  'docs/config_keys': config_keys,
  'docs/command_line': command_line,
  'docs/parts': parts,
}


def add_page(
  app: sphinx.application.Sphinx, page: str, source: list[str]
) -> None:
  """Appends what is generated to the text of a page."""
  del app
  if page in PAGES:
    source[0] += '\n' + PAGES[page]()


def parse_key(
  env: sphinx.environment.BuildEnvironment,
  text: str,
  node: sphinx.addnodes.desc_signature,
) -> str:
  """Formats 'seed: int = 0' as a signature; returns the key."""
  del env
  key, _, rest = text.partition(':')
  node += sphinx.addnodes.desc_name(key, key)
  kind, _, default = rest.partition('=')
  if kind.strip():
    node += sphinx.addnodes.desc_annotation('', f': {kind.strip()}')
  value = nodes.literal('', default.strip())
  node += sphinx.addnodes.desc_annotation('', ' = ', value)
  return key


def setup(app: sphinx.application.Sphinx) -> dict[str, Any]:
  """Registers the pages and the objects in them."""
  app.add_object_type(
    'configkey', 'key', parse_node=parse_key, objname='config key'
  )
  app.connect('source-read', add_page, priority=100)
  return {'parallel_read_safe': True}
