"""Files of cases: `CASE => WHAT IS TOLD`, a case in a line or several.

Lines that are indented go on with the one before. A line in brackets begins a
section, and one with a # is a comment.
"""

import pathlib
import re


def read(path: pathlib.Path) -> list[tuple[str, str, str]]:
  """Returns the section, the case, and what is told ('': nothing) of each."""
  section, cases = '', []
  text = re.sub(r'\n +', ' ', path.read_text())
  for line in text.splitlines():
    if line.startswith('['):
      section = line[1:-1]
    elif line and not line.startswith('#'):
      case, _, message = line.partition(' => ')
      cases.append((section, case, message))
  return cases
