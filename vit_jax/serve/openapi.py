"""The description of the requests: OpenAPI 3.1, and a page made of it."""

from collections.abc import Iterator
import html
import importlib.metadata
import pathlib
from typing import Any

from vit_jax.serve import model as model_lib
from vit_jax.web import uploads

STYLE = pathlib.Path(__file__).with_name('docs.css').read_text()

_Object = dict[str, Any]

_ERRORS = {
  400: 'An image is damaged or no image, or a parameter is wrong.',
  408: 'The body did not arrive in time.',
  413: 'The body is too large, or has too many images or pixels.',
  415: 'The Content-Type is none of those that are listed.',
  500: 'The model failed.',
  503: 'Too many images wait. The header Retry-After has the seconds to wait.',
}


def describe(
  answerer: model_lib.Answerer, model: str, most_images: int, top: int
) -> _Object:
  """Returns the description.

  Args:
    answerer: The model.
    model: The model in words.
    most_images: Largest number of images in a request.
    top: Number of classes in an answer by default.
  """
  head, paths = answerer.head, {}
  if head is not None:
    answer = _numbers() if head.predicts_numbers else _predictions()
    paths['/predict'] = _post(
      'The numbers of each image.'
      if head.predicts_numbers
      else 'The most probable classes of each image.',
      most_images,
      answer,
      [] if head.predicts_numbers else [_top(min(top, head.top), head.top)],
    )
  paths['/embed'] = _post(
    'The embedding of each image, as vit-jax embed writes it.',
    most_images,
    {'embedding': {'type': 'array', 'items': {'type': 'number'}}},
    [],
  )
  paths['/health'] = {
    'get': {
      'summary': 'Whether the model works.',
      'responses': {
        '200': _json('It does.', _ref('Health')),
        '503': _json('Its last batch failed.', _ref('Health')),
      },
    }
  }
  for path, summary, kind in (
    ('/metrics', 'Counts and seconds, for Prometheus.', 'text/plain'),
    ('/openapi.json', 'This description.', 'application/json'),
    ('/docs', 'This description as a page.', 'text/html'),
  ):
    content: dict[str, Any] = {kind: {'schema': {}}}
    response = {'description': 'OK', 'content': content}
    paths[path] = {'get': {'summary': summary, 'responses': {'200': response}}}
  return {
    'openapi': '3.1.0',
    'info': {
      'title': 'vit-jax serve',
      'version': importlib.metadata.version('vit_jax'),
      'description': f'{model}, from {answerer.loaded.origin.path}.',
    },
    'paths': paths,
    'components': {'schemas': _schemas(most_images)},
  }


def _post(
  summary: str, most_images: int, answer: _Object, parameters: list[_Object]
) -> _Object:
  """Returns a request with images.

  Args:
    summary: What it answers.
    most_images: Largest number of images.
    answer: The properties of the answer for an image, beside its name.
    parameters: Its parameters.
  """
  result = _fields({'image': {'type': 'string'}, **answer})
  reply = _fields(
    {
      'results': {'type': 'array', 'items': result},
      'checkpoint': {'type': 'object'},
    }
  )
  binary = {'type': 'string', 'format': 'binary'}
  form = {'type': 'object', 'additionalProperties': binary}
  errors = {
    str(status): _json(text, _ref('Error')) for status, text in _ERRORS.items()
  }
  return {
    'post': {
      'summary': summary,
      'parameters': parameters,
      'requestBody': {
        'required': True,
        'description': (
          'One image as it is; or files of a form; or JSON. An image is a JPEG,'
          f' PNG, WebP, GIF or BMP file. All have {most_images} images,'
          f' {uploads.MOST_BYTES >> 20} MiB and, each,'
          f' {uploads.MOST_PIXELS // 10**6} million pixels at most.'
        ),
        'content': {
          'image/*': {'schema': {}},
          'multipart/form-data': {'schema': form},
          'application/json': {'schema': _ref('Images')},
        },
      },
      'responses': {'200': _json('The answers.', reply), **errors},
    }
  }


def _top(default: int, most: int) -> _Object:
  return {
    'name': 'top',
    'in': 'query',
    'description': 'Number of classes.',
    'schema': {
      'type': 'integer',
      'minimum': 1,
      'maximum': most,
      'default': default,
    },
  }


def _predictions() -> _Object:
  item = _ref('Prediction')
  return {'predictions': {'type': 'array', 'items': item}}


def _numbers() -> _Object:
  number = {'type': 'number'}
  return {'numbers': {'type': 'object', 'additionalProperties': number}}


def _schemas(most_images: int) -> _Object:
  text, number = {'type': 'string'}, {'type': 'number'}
  base64 = {'type': 'string', 'contentEncoding': 'base64'}
  return {
    'Images': _fields(
      {
        'images': {
          'type': 'array',
          'items': base64,
          'minItems': 1,
          'maxItems': most_images,
        }
      }
    ),
    'Prediction': _fields(
      {'class': text, 'index': {'type': 'integer'}, 'probability': number}
    ),
    'Health': _fields(
      {
        'status': {'enum': ['ready', 'failing']},
        'model': text,
        'checkpoint': {'type': 'object'},
        'uptime_s': number,
      }
    ),
    'Error': _fields({'error': text}),
  }


def _fields(properties: _Object) -> _Object:
  """Returns the schema of an object that has all of some properties."""
  return {
    'type': 'object',
    'required': [*properties],
    'properties': properties,
  }


def _json(text: str, schema: _Object) -> _Object:
  content = {'application/json': {'schema': schema}}
  return {'description': text, 'content': content}


def _ref(name: str) -> _Object:
  return {'$ref': f'#/components/schemas/{name}'}


def page(description: _Object) -> str:
  """Returns the description as a page of HTML, which runs no script."""
  info = description['info']
  body = [
    f'<h1>{html.escape(info["title"])} {html.escape(info["version"])}</h1>',
    f'<p>{html.escape(info["description"])}</p>',
    '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
  ]
  for path, methods in description['paths'].items():
    for method, request in methods.items():
      body += _section(f'{method.upper()} {path}', request)
  return (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width">\n'
    f'<title>{html.escape(info["title"])}</title>\n'
    '<link rel="stylesheet" href="docs.css">\n'
    + '\n'.join(body)
    + '\n</html>\n'
  )


def _section(title: str, request: _Object) -> Iterator[str]:
  yield f'<h2><code>{html.escape(title)}</code></h2>'
  yield f'<p>{html.escape(request["summary"])}</p>'
  rows = []
  for parameter in request.get('parameters', ()):
    schema = parameter['schema']
    limits = (
      f'{schema["minimum"]} to {schema["maximum"]}; by default'
      f' {schema["default"]}'
    )
    rows.append(
      (f'?{parameter["name"]}=', f'{parameter["description"]} {limits}')
    )
  if body := request.get('requestBody'):
    rows.append(('body', body['description']))
    rows.append(('Content-Type', ', '.join(body['content'])))
  rows += [
    (status, response['description'])
    for status, response in request['responses'].items()
  ]
  yield '<table>'
  for name, text in rows:
    yield f'<tr><th><code>{html.escape(name)}</code><td>{html.escape(text)}'
  yield '</table>'
