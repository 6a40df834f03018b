"""The settings of Sphinx for scripts/build_docs.sh; the source is the clone."""

import ast
import pathlib
import re
import sys

import sphinx.application
import yaml

import vit_jax

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = 'vit_jax'
citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
author = ', '.join(x['name'] for x in citation['authors'])
copyright = author
release = str(citation['version'])
sys.path.append(str(ROOT / 'docs'))  # of the extension `generated`
extensions = [
  'generated',
  'myst_nb',
  'sphinx.ext.autodoc',
  'sphinx.ext.napoleon',
  'sphinx_copybutton',
  'sphinx_design',
]
root_doc = 'docs/index'
include_patterns = ['docs/*.md', 'docs/log/*.md', 'notebooks/*.ipynb', '*.md']
html_theme = 'sphinx_book_theme'
html_title = project
html_theme_options = {
  'use_download_button': False,
  'show_toc_level': 2,
  'navbar_persistent': [],  # a second field for the search
  'footer_content_items': ['copyright.html'],
}
html_extra_path = ['site']
html_static_path = ['static']
html_css_files = ['custom.css']
html_search_scorer = str(ROOT / 'docs/scorer.js')
highlight_language = 'none'  # of a block that names none: commands, output
nb_execution_mode = 'off'  # tests run the notebooks
myst_enable_extensions = ['colon_fence', 'dollarmath']
myst_heading_anchors = 3
autodoc_typehints_format = 'short'
napoleon_use_ivar = True
python_maximum_signature_line_length = 70
autodoc_member_order = 'bysource'


def configs() -> str:
  """Returns a table of all configs, and the docstring of each, as Markdown."""
  table = ['| config | trains | run by us |', '|---|---|---|']
  texts = []
  for path in sorted(ROOT.glob('configs/*.py')):
    doc = ast.get_docstring(ast.parse(path.read_text())) or ''
    title, _, rest = doc.partition('\n')
    # Longer schedules of a config that was run "have not been run".
    unrun = re.search(
      r'not run by us|it has not been run', ' '.join(doc.split()), re.I
    )
    table.append(
      f'| [{path.stem}](#config-{path.stem}) | {title} |'
      f' {"no" if unrun else "yes"} |'
    )
    texts += [
      f'(config-{path.stem})=',
      f'## {path.stem}',
      f'{title} [configs/{path.name}](../configs/{path.name})',
      f'```text\n{rest.strip()}\n```',
    ]
  return '\n'.join(table) + '\n\n' + '\n\n'.join(texts)


def model_zoo() -> str:
  """Returns a table of the published checkpoints that have a name."""
  table = ['| model | `pretrained` | image size | file |', '|---|---|---|---|']
  for checkpoint in vit_jax.list_models(pretrained=True):
    table.append(
      f'| {checkpoint.model} | `{checkpoint.tag}` |'
      f' {checkpoint.image_size or ""} | `{checkpoint.address}` |'
    )
  return '\n'.join(table)


# What is added to a page, by its path.
GENERATED = {'docs/all_configs': configs, 'docs/model_zoo': model_zoo}


def change_source(
  app: sphinx.application.Sphinx, page: str, source: list[str]
) -> None:
  """Adds generated tables, and unlinks folders, which are no pages.

  Args:
    app: Sphinx.
    page: Path of the page, without its suffix.
    source: Its text; changed in place.
  """
  del app
  text = source[0]
  if page in GENERATED:
    text += GENERATED[page]()
  folder = (ROOT / page).parent

  def unlinked(link: re.Match[str]) -> str:
    return link[1] if (folder / link[2]).is_dir() else link[0]

  source[0] = re.sub(r'\[([^\]]+)\]\(([\w./]+)\)', unlinked, text)


def setup(app: sphinx.application.Sphinx) -> None:
  """Registers what this file adds to Sphinx."""
  app.connect('source-read', change_source)
