"""A server of files, which can be told to misbehave."""

import dataclasses
from http import server as http_server
import re
import threading

BODY = bytes(range(256)) * 1200  # a few network packets: 307,200 bytes


@dataclasses.dataclass
class Reply:
  """How the server answers for one path.

  Attributes:
    cuts: After how many bytes it drops the connection, request by request.
    ranges: 'right'; 'ignored'; or 'unchecked', which ignores If-Range.
  """

  body: bytes = BODY
  status: int = 200
  etag: str = '"one"'
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  cuts: list[int] = dataclasses.field(default_factory=list)
  ranges: str = 'right'
  gate: threading.Event | None = None


class Server(http_server.ThreadingHTTPServer):
  """Serves `replies`, by path.

  Attributes:
    requests: (path, headers) of each GET.
    heads: The same of each HEAD.
  """

  def __init__(self):
    super().__init__(('127.0.0.1', 0), Handler)
    self.replies: dict[str, Reply] = {}
    self.requests = []
    self.heads = []
    self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
    self.thread.start()

  @property
  def url(self) -> str:
    return f'http://127.0.0.1:{self.server_port}'

  @property
  def paths(self) -> list[str]:
    return [path for path, _ in self.requests]

  def ranges(self) -> list[str | None]:
    return [headers['Range'] for _, headers in self.requests]

  def stop(self) -> None:
    self.shutdown()
    self.server_close()
    self.thread.join()


class Handler(http_server.BaseHTTPRequestHandler):
  def log_message(self, *_) -> None:
    pass

  def do_HEAD(self) -> None:
    self.answer(with_body=False)

  def do_GET(self) -> None:
    self.answer()

  def answer(self, with_body: bool = True) -> None:
    requests = self.server.requests if with_body else self.server.heads
    requests.append((self.path, self.headers))
    reply = self.server.replies.get(self.path, Reply(b'', 404))
    if reply.gate:
      reply.gate.wait(timeout=30)
    body, status, headers = reply.body, reply.status, dict(reply.headers)
    match = re.fullmatch(r'bytes=(\d+)-', self.headers['Range'] or '')
    fresh = self.headers['If-Range'] == reply.etag
    if (
      match and reply.ranges != 'ignored' and (fresh or reply.ranges != 'right')
    ):
      start, status = int(match[1]), 206
      if start >= len(body):
        start, status = len(body), 416
      headers['Content-Range'] = f'bytes {start}-{len(body) - 1}/{len(body)}'
      body = body[start:]
    self.send_response(status)
    for name, value in {'ETag': reply.etag, **headers}.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    if with_body:
      self.wfile.write(body[: reply.cuts.pop(0)] if reply.cuts else body)
