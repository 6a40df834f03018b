"""A stand-in for the Hugging Face Hub that takes uploads and serves them."""

import base64
import hashlib
import json

import file_server


class Hub(file_server.Server):
  """Takes every file as part of the commit, as the Hub does with small ones.

  Attributes:
    tokens: The Authorization of each POST.
    denied: Whether it refuses to write.
  """

  def __init__(self):
    super().__init__()
    self.RequestHandlerClass = _Handler
    self.tokens = []
    self.denied = False


class _Handler(file_server.Handler):
  def do_POST(self) -> None:
    content = self.rfile.read(int(self.headers['Content-Length'] or 0))
    self.server.tokens.append(self.headers['Authorization'])
    if self.server.denied:
      self.reply({'error': 'You have no right to write here'}, 403)
    elif self.path.endswith('/repos/create'):
      self.reply({'url': f'{self.server.url}/me/digits', 'name': 'me/digits'})
    elif self.path.endswith('/validate-yaml'):  # of the card's head
      self.reply({'errors': [], 'warnings': []})
    elif '/preupload/' in self.path:
      files = json.loads(content)['files']
      answer = {'uploadMode': 'regular', 'shouldIgnore': False, 'oid': None}
      self.reply({'files': [{'path': x['path'], **answer} for x in files]})
    elif '/commit/' in self.path:
      self.store([json.loads(line) for line in content.splitlines()])
      page = f'{self.server.url}/me/digits/commit/c0ffee'
      self.reply({'commitUrl': page, 'commitOid': 'c0ffee', 'success': True})
    else:
      self.reply({'error': f'unexpected {self.path}'}, 500)

  def store(self, entries) -> None:
    for entry in entries:
      if entry['key'] == 'file':
        name, body = entry['value']['path'], entry['value']['content']
        body = base64.b64decode(body)
        self.server.replies[f'/me/digits/resolve/main/{name}'] = (
          file_server.Reply(
            body,
            etag=f'"{hashlib.sha256(body).hexdigest()}"',
            headers={'X-Repo-Commit': 'c0ffee'},
          )
        )

  def reply(self, value, status: int = 200) -> None:
    body = json.dumps(value).encode()
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)
