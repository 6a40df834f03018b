"""The web page, in a real Chromium.

`VIT_JAX_SCREENSHOTS=DIR` keeps a picture of each case.
"""

import base64
import os
import pathlib
import re
import shutil

import pytest

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')
pytest.importorskip('selenium', reason='selenium is not installed')

import numpy as np
import page_server
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver import Keys
from selenium.webdriver.chrome import service
from selenium.webdriver.common.actions import action_builder
from selenium.webdriver.common.actions import interaction
from selenium.webdriver.common.actions import pointer_input
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from vit_jax import explore
from vit_jax.explore import samples as samples_lib
from vit_jax.explore import viewer as viewer_lib
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.web import uploads

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
DRIVER = shutil.which('chromedriver')
pytestmark = [
  pytest.mark.browser,
  pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason='chromium or chromedriver is not installed',
  ),
  # .ci/run: as it passed before.
  pytest.mark.skipif(
    os.environ.get('VIT_JAX_TEST_BROWSER') == '0',
    reason='VIT_JAX_TEST_BROWSER is 0',
  ),
]

PATIENCE_S = 60
WIDE, NARROW = (1280, 900), (360, 740)
GRID = (4, 6)
READOUT = re.compile(
  r'The (.*) looks most at row (\d+), column (\d+): ([\d.]+)%'
)


class Browser:
  """A page in a Chromium."""

  def __init__(self, driver, address):
    self.driver = driver
    driver.get(address)
    self.wait(lambda: self.all('.panel'))

  def wait(self, found):
    WebDriverWait(self.driver, PATIENCE_S).until(lambda _: found())

  def all(self, selector):
    return self.driver.find_elements(By.CSS_SELECTOR, selector)

  def one(self, selector, panel=0):
    return self.all(f'.panel:nth-child({panel + 1}) {selector}')[0]

  def text(self, selector):
    return self.driver.find_element(By.CSS_SELECTOR, selector).text

  def choose(self, path):
    """Chooses a file, and waits until it is shown or refused."""
    self.driver.find_element(By.ID, 'file').send_keys(str(path))
    self.settle(path.name)

  def settle(self, name):
    self.wait(
      lambda: (
        self.text('#status').startswith(f'{name}:')
        or self.text('#error').startswith(f'{name}:')
      )
    )

  def readout(self, panel=0):
    """Returns who looks most at which (row, column), and how much."""
    text = self.one('.readout', panel).text
    query, row, column, share = READOUT.fullmatch(text).groups()
    return query, (int(row), int(column)), float(share) / 100

  def hover(self, patch, panel=0, click=False):
    """Moves the mouse to the middle of a patch."""
    stage = self.one('.stage', panel)
    x, y = (
      round(length * ((i + 0.5) / n - 0.5))
      for length, i, n in zip(
        (stage.size['width'], stage.size['height']),
        patch[::-1],
        GRID[::-1],
        strict=True,
      )
    )
    actions = ActionChains(self.driver, duration=0)
    actions.move_to_element_with_offset(stage, x, y)
    (actions.click() if click else actions).perform()

  def slide(self, name, *keys):
    self.one(f'.{name} input').send_keys(*keys)

  def pixels(self, selector):
    """Returns the pixels of a canvas, uint8 [h, w, 4]."""
    pixels, height, width = self.driver.execute_script(
      """const {width, height} = arguments[0];
      const image = arguments[0].getContext('2d').getImageData(
        0, 0, width, height);
      return [Array.from(image.data), height, width];""",
      self.one(selector),
    )
    return np.array(pixels, np.uint8).reshape(height, width, 4)

  def width(self):
    """Returns that of the page, in pixels."""
    return self.driver.execute_script(
      'return document.documentElement.scrollWidth'
    )

  def keep(self, name):
    """Takes a picture of all of the page, where pictures are kept."""
    if not (folder := os.environ.get('VIT_JAX_SCREENSHOTS')):
      return
    shot = self.driver.execute_cdp_cmd(
      'Page.captureScreenshot', {'captureBeyondViewport': True}
    )
    path = pathlib.Path(folder) / f'{name}.png'
    path.write_bytes(base64.b64decode(shot['data']))


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
  options = webdriver.ChromeOptions()
  options.binary_location = CHROMIUM
  profile = tmp_path_factory.mktemp('chromium')
  for argument in (
    '--headless=new',
    '--no-sandbox',  # which root cannot have
    '--disable-dev-shm-usage',
    '--disable-gpu',
    f'--user-data-dir={profile}',
  ):
    options.add_argument(argument)
  options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
  driver = webdriver.Chrome(options, service.Service(DRIVER))
  yield driver
  driver.quit()


@pytest.fixture(scope='module')
def vit():
  return page_server.load()


@pytest.fixture(scope='module')
def address(vit):
  """Of a page for two ViTs, the second of which has other patches."""
  second_model = page_server.load('ViT-Ti/8', depth=5, num_heads=4)
  viewers = [
    viewer_lib.Viewer(vit, 'one'),
    viewer_lib.Viewer(second_model, 'other'),
  ]
  with page_server.serving(viewers) as address:
    yield address


@pytest.fixture
def browser(driver, address):
  """A page, freshly opened; it must not complain on the console."""
  resize(driver, *WIDE)
  driver.get_log('browser')
  page = Browser(driver, address)
  yield page
  complaints = [x for x in driver.get_log('browser') if x['level'] == 'SEVERE']
  # That the server refuses an image is said there, too.
  assert not [x for x in complaints if '422' not in x['message']]


def resize(driver, width, height, scheme='light'):
  """Makes the page as wide as a phone's is, whatever a window's least width."""
  driver.execute_cdp_cmd(
    'Emulation.setDeviceMetricsOverride',
    {
      'width': width,
      'height': height,
      'deviceScaleFactor': 1,
      'mobile': width < 500,
    },
  )
  driver.execute_cdp_cmd(
    'Emulation.setEmulatedMedia',
    {'features': [{'name': 'prefers-color-scheme', 'value': scheme}]},
  )


@pytest.fixture(scope='module')
def image(tmp_path_factory):
  path = tmp_path_factory.mktemp('images') / 'blocks.png'
  path.write_bytes(page_server.picture((48, 72)))
  return path


@pytest.fixture(scope='module')
def maps(vit, image):
  """Returns what gives a map of the library, [h, w]."""
  x = vit.preprocess(image)

  def of(query=None, layer=-1, head=None):
    actual = explore.attention_maps(vit, x, query=query)[layer, 0]
    return actual.mean(axis=0) if head is None else actual[head]

  return of


def check(browser, query, expected):
  """Asserts that a map [h, w] is shown."""
  actual, brightest, share = browser.readout()
  assert actual == query
  assert brightest == np.unravel_index(expected.argmax(), GRID)
  assert share == pytest.approx(expected.max(), abs=0.002)
  # Lightness grows with what is shown, so brightness does.
  pixels = browser.pixels('.map')[..., :3].astype(float) @ [0.21, 0.72, 0.07]
  assert pixels.shape == GRID
  ranks = [np.argsort(np.argsort(x.ravel())) for x in (pixels, expected)]
  assert np.corrcoef(*ranks)[0, 1] > 0.98


def test_an_image_is_looked_at(browser, vit, image, maps):
  assert browser.one('.answers').text == ''
  browser.choose(image)
  check(browser, 'class token', maps())
  # One scale for all layers and heads, in multiples of uniform attention.
  tokens = 1 + GRID[0] * GRID[1]
  attention = explore.attention_maps(vit, vit.preprocess(image))
  high = max(np.percentile(attention, 99) * tokens, 2)
  scale = browser.one('.most').text
  assert float(scale.strip('≥ ×')) == pytest.approx(high, abs=0.06)
  browser.slide('layer', Keys.HOME)
  assert browser.one('.most').text == scale
  browser.slide('layer', Keys.END)
  items = browser.all('.panel:first-child .answers li')
  logits = vit.predict(image)[0]
  probabilities = np.exp(logits) / np.exp(logits).sum()
  order = np.argsort(-logits)[:5]
  names = [*page_server.CLASSES, *(f'class {i}' for i in range(3, 7))]
  for item, i in zip(items, order, strict=True):
    name, share = item.text.split('\n')
    assert name == names[i]
    assert float(share.rstrip(' %')) / 100 == pytest.approx(
      probabilities[i], abs=0.0006
    )
    bar = item.find_element(By.CSS_SELECTOR, '.bar')
    assert bar.size['width'] == pytest.approx(
      max(probabilities[i] * item.size['width'], 2), abs=2
    )
  browser.keep('wide')


def test_images_of_the_data_are_offered(driver, vit, maps, image):
  """The first is shown at once, and the image stays beside its map."""
  files = [page_server.picture(seed=1), image.read_bytes()]
  samples = [samples_lib.Sample(f'no. {i}', x) for i, x in enumerate(files)]
  viewers = [viewer_lib.Viewer(vit, 'one')]
  resize(driver, *WIDE)
  with page_server.serving(viewers, samples=samples) as address:
    page = Browser(driver, address)
    page.settle('no. 0')
    page.all('#samples button')[1].click()
    page.settle('no. 1')
    check(page, 'class token', maps())
    pixels = tiles.pixels(vit.preprocess, vit.preprocess(image))[0]
    np.testing.assert_array_equal(page.pixels('.original')[..., :3], pixels)
    stage, original = page.one('.stage'), page.one('.original')
    assert original.location['y'] == stage.location['y']
    page.keep('samples')


def test_hovering_shows_where_a_patch_looks(browser, image, maps):
  browser.choose(image)
  for patch in [(0, 0), (3, 5), (2, 1)]:
    browser.hover(patch)
    query = f'patch at row {patch[0]}, column {patch[1]}'
    check(browser, query, maps(patch))
    frame, stage = browser.one('.patch'), browser.one('.stage')
    left = frame.location['x'] - stage.location['x']
    assert left == pytest.approx(patch[1] * stage.size['width'] / 6, abs=2)
  # In the other model it is the same place: of its 2 x 3 patches.
  assert browser.readout(1)[0] == 'patch at row 1, column 0'
  browser.keep('hover')
  ActionChains(browser.driver).move_to_element(browser.all('h1')[0]).perform()
  check(browser, 'class token', maps())
  assert browser.readout(1)[0] == 'class token'


def test_a_click_holds_a_patch_while_layers_and_heads_change(
  browser, image, maps
):
  browser.choose(image)
  browser.hover((1, 4), click=True)
  query = 'patch at row 1, column 4'
  browser.slide('layer', Keys.ARROW_LEFT)
  assert browser.one('.layer output').text == '1 (0 to 2)'
  check(browser, query, maps((1, 4), layer=1))
  browser.slide('head', Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
  assert browser.one('.head output').text == '1 (0 to 1)'
  check(browser, query, maps((1, 4), layer=1, head=1))
  browser.slide('layer', Keys.HOME)
  check(browser, query, maps((1, 4), layer=0, head=1))
  browser.hover((1, 4), click=True)
  check(browser, 'class token', maps(layer=0, head=1))


def test_rollout_is_shown(browser, vit, image):
  browser.choose(image)
  browser.one('.rollout input').click()
  expected = explore.attention_rollout(vit, vit.preprocess(image))[0]
  check(browser, 'output', expected)
  assert not browser.one('.layer input').is_enabled()
  browser.one('.rollout input').click()
  assert browser.one('.layer input').is_enabled()


def test_the_map_can_be_faded(browser, image):
  browser.choose(image)
  browser.slide('strength', Keys.HOME)
  assert browser.one('.map').value_of_css_property('opacity') == '0'
  browser.slide('strength', Keys.END)
  assert browser.one('.map').value_of_css_property('opacity') == '1'


def test_the_keyboard_is_enough(browser, image, maps):
  browser.choose(image)
  stage = browser.one('.stage')
  stage.send_keys(Keys.ARROW_RIGHT)  # the middle at first
  check(browser, 'patch at row 2, column 3', maps((2, 3)))
  stage.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
  check(browser, 'patch at row 1, column 4', maps((1, 4)))
  stage.send_keys(*[Keys.ARROW_LEFT] * 9)  # no further than the edge
  check(browser, 'patch at row 1, column 0', maps((1, 0)))
  stage.send_keys(Keys.ESCAPE)
  check(browser, 'class token', maps())


def test_a_finger_holds_and_lets_go(browser, image, maps):
  browser.choose(image)
  stage = browser.one('.stage')
  x, y = stage.size['width'] * 5 // 12, -stage.size['height'] * 3 // 8
  for query, patch in [
    ('patch at row 0, column 5', (0, 5)),
    ('class token', None),
  ]:
    finger = pointer_input.PointerInput(interaction.POINTER_TOUCH, 'finger')
    actions = action_builder.ActionBuilder(browser.driver, mouse=finger)
    actions.pointer_action.move_to(stage, x, y).pointer_down().pointer_up()
    actions.perform()
    check(browser, query, maps(patch))


def test_colours_are_those_of_reports(browser):
  table = style.colour_table(style.HEAT)
  np.testing.assert_array_equal(browser.pixels('.scale')[0, :, :3], table)


def test_files_are_dropped_and_pasted(browser, image):
  script = """
    const [type, name, text] = arguments;
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const transfer = new DataTransfer();
    if (name) transfer.items.add(new File([bytes], name));
    const event = type === 'drop'
      ? new DragEvent(type, {dataTransfer: transfer, cancelable: true})
      : new ClipboardEvent(type, {clipboardData: transfer, cancelable: true});
    window.dispatchEvent(event);
    return event.defaultPrevented;"""
  text = base64.b64encode(image.read_bytes()).decode()
  run = browser.driver.execute_script
  assert run(script, 'drop', 'dropped.png', text)  # else it is opened instead
  browser.settle('dropped.png')
  run(script, 'paste', 'pasted.png', text)
  browser.settle('pasted.png')
  for name in ('first.png', 'second.png'):  # which alone is shown
    run(script, 'drop', name, text)
  browser.settle('second.png')
  assert browser.text('#error') == ''
  run(script, 'drop', '', '')
  assert 'that is no file' in browser.text('#error')


def test_a_bad_file_is_answered_with_a_message(browser, image, tmp_path, maps):
  browser.choose(image)
  bad = tmp_path / 'notes.txt'
  bad.write_text('no image')
  browser.choose(bad)
  assert 'send a JPEG, PNG, WebP, GIF or BMP file' in browser.text('#error')
  assert browser.text('#status') == f'Still shown: {image.name}'
  check(browser, 'class token', maps())
  browser.keep('error')
  browser.choose(image)
  assert browser.text('#error') == ''


def test_a_large_file_is_not_even_sent(browser, tmp_path):
  large = tmp_path / 'large.png'
  with large.open('wb') as file:
    file.truncate(uploads.MOST_BYTES + 1)
  browser.choose(large)
  assert 'more than 20 MiB' in browser.text('#error')


@pytest.mark.slow
@pytest.mark.parametrize('size', [WIDE, (700, 900), NARROW], ids=str)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_it_fits_any_window(browser, image, size, scheme):
  resize(browser.driver, *size, scheme)
  assert browser.width() <= size[0]
  browser.choose(image)
  browser.hover((1, 2), click=True)
  assert browser.width() <= size[0]
  for selector in ('.stage', '.controls', '.answers', '.legend'):
    box = browser.one(selector).rect
    assert 0 <= box['x'] and box['x'] + box['width'] <= size[0]
    assert box['width'] > 200
  browser.keep(f'{size[0]}-{scheme}')


@pytest.mark.slow
def test_sentences_are_compared(driver, image, tmp_path):
  """A click on one shows which places speak for it."""
  viewer = viewer_lib.Viewer(page_server.pairs_run(tmp_path / 'run'), 'it')
  with page_server.serving([viewer]) as address:
    resize(driver, *WIDE)
    browser = Browser(driver, address)
    driver.find_element(By.ID, 'compare').click()
    assert 'choose an image' in browser.text('#error')
    browser.choose(image)
    assert not browser.one('.sentences').is_displayed()
    driver.find_element(By.ID, 'text').send_keys('3, 8, 1')
    template = driver.find_element(By.ID, 'template')
    template.clear()
    template.send_keys('a {}', Keys.ENTER)
    browser.wait(lambda: browser.all('.sentences li'))
    content = image.read_bytes()
    expected = page_server.unpack(viewer.fit(content, '3, 8, 1', 'a {}'))
    items = browser.all('.sentences li button')
    for item, each in zip(items, expected['sentences'], strict=True):
      name, share = item.text.split('\n')
      assert name == each['text']
      actual = float(share.rstrip(' %')) / 100
      assert actual == pytest.approx(each['probability'], abs=0.0006)
    for item, each in zip(items, expected['sentences'], strict=True):
      item.click()
      assert item.get_attribute('aria-pressed') == 'true'
      row, column = np.argwhere(
        (places := expected['places'][each['index']]) == places.max()
      )[0]
      where = f'“{each["text"]}” rests most on row {row}, column {column}:'
      assert browser.one('.readout').text.startswith(where)
      pixels = browser.pixels('.map')[..., :3].astype(float)
      brightness = pixels @ [0.21, 0.72, 0.07]
      assert brightness.argmax() == places.argmax()
    browser.keep('sentences')
    browser.one('.leave').click()
    assert 'looks most at' in browser.one('.readout').text
    browser.choose(image)  # is compared again
    assert len(browser.all('.sentences li')) == 3
    resize(driver, *NARROW)
    assert browser.width() <= NARROW[0]
    browser.keep('sentences-narrow')


def test_a_mixer_shows_predictions_alone(driver, image):
  mixer = viewer_lib.Viewer(page_server.load('Mixer-S/4'), 'mixer')
  with page_server.serving([mixer]) as address:
    browser = Browser(driver, address)
    browser.choose(image)
    assert 'A Mixer has no attention' in browser.text('.note')
    assert len(browser.all('.answers li')) == 5
    assert not browser.one('.controls').is_displayed()
    assert not browser.one('.readout').is_displayed()
    browser.hover((1, 1), click=True)
    browser.keep('mixer')


def test_a_page_that_got_no_models_asks_again(browser, image, maps):
  script = """
    window.answers = window.fetch;
    window.fetch = async (address, options) => address === 'api/models'
      ? new Response('Service Unavailable', {status: 503})
      : window.answers(address, options);"""
  run = browser.driver.execute_cdp_cmd
  added = run('Page.addScriptToEvaluateOnNewDocument', {'source': script})
  try:
    browser.driver.refresh()
    browser.wait(lambda: browser.text('#error') == 'the server answers 503')
    browser.driver.execute_script('window.fetch = window.answers')
  finally:
    run('Page.removeScriptToEvaluateOnNewDocument', added)
  browser.choose(image)
  check(browser, 'class token', maps())
  assert browser.text('#error') == ''


def test_a_server_that_is_gone_is_said(driver, image):
  viewer = viewer_lib.Viewer(page_server.load(), 'it')
  with page_server.serving([viewer]) as address:
    browser = Browser(driver, address)
  browser.choose(image)
  assert 'is it still running?' in browser.text('#error')
