"""What systems and runs leave in folders of data, and is no data itself."""

import itertools
import os

# In lower case, besides names that begin with a dot.
_SYSTEM_NAMES = {
  'Synology': ('@eadir', '@tmp', '#recycle', '#snapshot'),
  'QNAP': ('@__thumb', '@recycle', '@recently-snapshot'),
  'macOS': ('__macosx', 'icon\r', 'network trash folder'),
  'Windows': (
    'thumbs.db',
    'ehthumbs.db',
    'desktop.ini',
    '$recycle.bin',
    'system volume information',
    'recycler',
  ),
  'Linux': ('lost+found',),
  'Python': ('__pycache__',),
}
_HIDDEN = frozenset(itertools.chain.from_iterable(_SYSTEM_NAMES.values()))
# A run or a sweep keeps such a file from its start to its end.
_LOCKS = ('.lock', '.sweep.lock')
_OF_A_RUN = ('config.json', 'preprocess.json')
_DEFAULT = 'runs'  # holds the work directories that have no name of their own


def is_hidden(name: str) -> bool:
  """Whether a file or a folder is hidden, or has a name that systems use."""
  return name.startswith('.') or name.lower() in _HIDDEN


def is_workdir(folder: str) -> bool:
  """Whether a folder is the work directory of a run or of a sweep."""

  def has(name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))

  return any(map(has, _LOCKS)) or all(map(has, _OF_A_RUN))


def holds_runs(folder: str) -> bool:
  """Whether a folder is a work directory, or is there for work directories.

  Such a folder has nothing else in it, but for files in one that is called as
  the default.
  """
  if is_workdir(folder):
    return True
  try:
    with os.scandir(folder) as entries:
      names = [(x.path, x.is_dir()) for x in entries if not is_hidden(x.name)]
  except OSError:  # whoever reads it says so
    return False
  is_default = os.path.basename(folder) == _DEFAULT
  if not names:
    return is_default
  folders = [path for path, is_folder in names if is_folder]
  if not folders or (len(folders) < len(names) and not is_default):
    return False
  return all(map(holds_runs, folders))
