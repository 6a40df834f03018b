"""The settings of Sphinx for scripts/build_docs.sh; the source is the clone."""

import ast
import pathlib
import re
import sys

import sphinx.application

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = 'vit_jax'
copyright = 'the authors of vit_jax'
sys.path.append(str(ROOT / 'docs'))  # of the extension `generated`
extensions = [
  'generated',
  'myst_nb',
  'sphinx.ext.autodoc',
  'sphinx.ext.napoleon',
]
root_doc = 'docs/index'
include_patterns = ['docs/*.md', 'docs/log/*.md', 'notebooks/*.ipynb', '*.md']
html_theme = 'sphinx_book_theme'
html_title = 'vit_jax'
html_theme_options = {'use_download_button': False, 'show_toc_level': 2}
html_extra_path = ['site']
nb_execution_mode = 'off'  # tests run the notebooks
myst_heading_anchors = 3
autodoc_typehints_format = 'short'
napoleon_use_ivar = True
python_maximum_signature_line_length = 70
autodoc_member_order = 'bysource'


def configs() -> str:
  """Returns a table of all configs, and the docstring of each, as Markdown."""
  table = ['| config | what it trains | run by us |', '|---|---|---|']
  texts = []
  for path in sorted(ROOT.glob('configs/*.py')):
    doc = ast.get_docstring(ast.parse(path.read_text())) or ''
    title, _, rest = doc.partition('\n')
    unrun = re.search(
      r'not run by us|not been run|not run in full', ' '.join(doc.split()), re.I
    )
    table.append(
      f'| [{path.stem}](#config-{path.stem}) | {title} |'
      f' {"no, or not in full" if unrun else "see its figures"} |'
    )
    texts += [
      f'(config-{path.stem})=',
      f'## {path.stem}',
      f'{title} [configs/{path.name}](../configs/{path.name})',
      f'```text\n{rest.strip()}\n```',
    ]
  return '\n'.join(table) + '\n\n' + '\n\n'.join(texts)


def change_source(
  app: sphinx.application.Sphinx, page: str, source: list[str]
) -> None:
  """Inserts the configs, and unlinks folders, which are no pages.

  Args:
    app: Sphinx.
    page: Path of the page, without its suffix.
    source: Its text; changed in place.
  """
  del app
  text = source[0]
  if page == 'docs/all_configs':
    text += configs()
  folder = (ROOT / page).parent

  def unlinked(link: re.Match[str]) -> str:
    return link[1] if (folder / link[2]).is_dir() else link[0]

  source[0] = re.sub(r'\[([^\]]+)\]\(([\w./]+)\)', unlinked, text)


def setup(app: sphinx.application.Sphinx) -> None:
  """Registers what this file adds to Sphinx."""
  app.connect('source-read', change_source)
