"""Google's Cloud TPU API, as far as a slice is requested and deleted there."""

from collections.abc import Iterator
import contextlib
import http.server
import json
import re
import threading
from typing import Any
import urllib.parse

_PATH = re.compile(
  r'/v2/(projects/project/locations/us-central2-b/(nodes|queuedResources))'
  r'(?:/vit)?'
)


class Api:
  """The slice `vit`, its request, and what became of both.

  Attributes:
    states: Of the request, one at each look at it; the last one stays.
    requests: Such states of the next requests.
    has_node: Whether the slice is there.
    bodies: What was asked for.
    url: Address of the API.
  """

  def __init__(self, requests: list[list[str]]):
    """Has neither a slice nor a request."""
    self.requests = requests
    self.states: list[str] = []
    self.has_node = False
    self.bodies: list[dict[str, Any]] = []
    self.url = ''

  def answer(
    self, method: str, path: str, query: dict[str, str], body: bytes
  ) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON of a reply."""
    match = _PATH.fullmatch(path)
    assert match is not None, path
    name = f'{match[1]}/vit'
    done = {'name': f'{match[1].rpartition("/")[0]}/operations/1', 'done': True}
    is_there = self.has_node if match[2] == 'nodes' else bool(self.states)
    if method == 'POST':
      assert query['queuedResourceId'] == 'vit' and not is_there
      self.bodies.append(json.loads(body))
      self.states = self.requests.pop(0)
      return 200, done | {'response': {'name': name}}
    if not is_there:
      error = {'code': 404, 'message': f'{name} not found'}
      return 404, {'error': error | {'status': 'NOT_FOUND'}}
    if method == 'DELETE':
      assert query['force'] == 'True'
      self.states, self.has_node = [], False
      return 200, done | {'response': {}}
    if match[2] == 'nodes':
      return 200, {'name': name, 'state': 'READY'}
    state: dict[str, Any] = {'state': self.states[0]}
    if self.states[0] == 'FAILED':
      error = {'code': 8, 'message': 'there is no more capacity in the zone'}
      state['failedData'] = {'error': error}
    self.has_node = self.states[0] == 'ACTIVE'
    self.states = self.states[1:] or self.states
    return 200, {'name': name, 'state': state}


@contextlib.contextmanager
def serving(requests: list[list[str]]) -> Iterator[Api]:
  """Serves an API, whose requests have these states one after the other."""
  api = Api(requests)

  class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self) -> None:
      url = urllib.parse.urlsplit(self.path)
      body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
      query = dict(urllib.parse.parse_qsl(url.query))
      status, answer = api.answer(self.command, url.path, query, body)
      content = json.dumps(answer).encode()
      self.send_response(status)
      self.send_header('Content-Type', 'application/json')
      self.send_header('Content-Length', str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    do_GET = do_POST = do_DELETE = reply

    def log_message(self, *args: Any) -> None:
      del args

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  api.url = f'http://127.0.0.1:{server.server_port}/'
  try:
    yield api
  finally:
    server.shutdown()
    server.server_close()
    thread.join()
