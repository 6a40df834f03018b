"""Checks that no built page scrolls sideways on a phone.

  python scripts/check_pages.py build/site

opens each page in Chromium at a width of 390 pixels, and names the elements
that are wider than the window. Without Chromium and its driver it checks
nothing, and says so.
"""

import pathlib
import shutil

from absl import flags
from selenium import webdriver
from selenium.webdriver.chrome import options as chrome
from selenium.webdriver.chrome import service

from vit_jax import cli
from vit_jax.config import UserError

FLAGS = flags.FlagValues()
WIDTH, HEIGHT = 390, 844  # pixels of CSS
_WIDEST = """
const width = document.documentElement.clientWidth;
return [
  document.documentElement.scrollWidth,
  [...document.querySelectorAll('.bd-article *')]
    .filter(x => x.getBoundingClientRect().right > width + 1)
    .filter(x => !x.closest('.pst-scrollable-table-container, pre, .highlight'))
    .slice(0, 3)
    .map(x => `${x.tagName} ${x.textContent.trim().slice(0, 60)}`),
];
"""


def browser() -> webdriver.Chrome | None:
  """Returns a Chromium with a narrow window; None where there is none."""
  program, driver = shutil.which('chromium'), shutil.which('chromedriver')
  if program is None or driver is None:
    return None
  settings = chrome.Options()
  settings.binary_location = program
  for argument in ('--headless=new', '--no-sandbox', '--disable-gpu'):
    settings.add_argument(argument)
  settings.add_experimental_option(
    'mobileEmulation',
    {'deviceMetrics': {'width': WIDTH, 'height': HEIGHT, 'pixelRatio': 1}},
  )
  return webdriver.Chrome(settings, service.Service(driver))


def main(argv: list[str]) -> None:
  """Checks the pages."""
  if len(argv) != 2:
    raise UserError('name the folder of the pages, as in build/site')
  site = pathlib.Path(argv[1]).resolve()
  pages = [x for x in sorted(site.rglob('*.html')) if '_static' not in x.parts]
  driver = browser()
  if driver is None:
    print('note: the width of pages is not checked: no chromium, chromedriver')
    return
  wide = []
  try:
    for page in pages:
      driver.get(page.as_uri())
      width, elements = driver.execute_script(_WIDEST)
      if width > WIDTH:
        wide.append(f'{page.relative_to(site)} ({width} pixels: {elements})')
  finally:
    driver.quit()
  if wide:
    raise UserError(f'pages scroll sideways on a phone: {", ".join(wide)}')
  print(f'{len(pages)} pages fit {WIDTH} pixels')


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
