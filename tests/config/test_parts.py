"""The language in which keys name things with options."""

import re

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.config.parts import Part

KEY = 'model.mlp'
SWIGLU = Part('swiglu', (512,))
NESTED = Part('p.q:B', (), {'y': Part('r:C.D')})
TEXTS = {'x': 'p:Q', 'y': "it's r:S"}
TABLE = {True: False, 'p:q': 1}


@pytest.mark.parametrize(
  ('text', 'part'),
  [
    ('mlp', Part('mlp')),
    (' mlp() ', Part('mlp')),
    ('experts(8, per_token=2)', Part('experts', (8,), {'per_token': 2})),
    ('a(x=-1.5e3, y=[1, (2,)])', Part('a', (), {'x': -1500, 'y': [1, (2,)]})),
    ('experts(mlp=swiglu(512))', Part('experts', (), {'mlp': SWIGLU})),
    ('a(b, swiglu(512))', Part('a', (Part('b'), SWIGLU))),
    ('my.parts:Gate(x=None)', Part('my.parts:Gate', (), {'x': None})),
    ('a(x=p.q:B(y=r:C.D))', Part('a', (), {'x': NESTED})),
    ("a(x='p:Q', y=\"it's r:S\")", Part('a', (), TEXTS)),
    ('a(x={True:False, "p:q": 1})', Part('a', (), {'x': TABLE})),
  ],
)
def test_parts_are_read(text, part):
  assert parts.parse(text, KEY) == part
  assert parts.parse(str(part), KEY) == part
  assert parts.parse_sum(f'{text} + b', KEY) == (part, Part('b'))


def test_a_sum_may_be_empty():
  assert parts.parse_sum('none', KEY) == parts.parse_sum(' ', KEY) == ()
  assert parts.parse_sum('a + b + c', KEY) == (Part('a'), Part('b'), Part('c'))


WRONG = (
  *('mlp(', 'mlp)', 'mlp(x=[1)', 'mlp(512', '(', ')(', 'mlp(x=1', 'x=1'),
  *('mlp.gelu', 'mlp(x=a.b)', 'mlp(x=a.b(1))', 'mlp()()', 'mlp[0]', '1'),
  *('mlp(x=lambda: 1)', 'mlp(x=[y for y in z])', "mlp(x=f'{1}')"),
  *('mlp(x=[a])', 'mlp(x=1 + 2)', 'mlp(x=not 1)', 'mlp(*x)', 'mlp(**x)'),
  *('mlp(x=1, x=2)', "__import__('os').system('ls')", 'mlp - a', 'mlp\x00'),
  *('(' * 5_000, 'a(' * 300, 'x(y=' + '-' * 1_900 + '1)', 'a' * 10_000),
  *('mlp(x=1e, y)', 'a b', 'a\nb', '\ud800', "'mlp'", 'None', 'a:1', ':a'),
  *(None, 3, b'mlp', ['mlp'], 1.5),
)


@pytest.mark.parametrize('parse', [parts.parse, parts.parse_sum])
def test_wrong_texts_are_one_line(parse):
  for text in WRONG:
    with pytest.raises(config_lib.UserError) as error:
      parse(text, KEY)
    assert re.fullmatch(r'config\.model\.mlp .{5,700}', str(error.value))


def test_an_error_says_what_is_wrong():
  with pytest.raises(config_lib.UserError, match="'\\(' was never closed"):
    parts.parse('mlp(x=1', KEY)
  with pytest.raises(config_lib.UserError, match=r'y=p:Q\.r\[0\] is no lit'):
    parts.parse('mlp(x=1, y=p:Q.r[0])', KEY)
  with pytest.raises(config_lib.UserError, match=r"is '': .*write a name"):
    parts.parse('', KEY)


LETTERS = st.sampled_from([*'ab:.(),=+-*[]{}\'"#\\\n 1_·ː', 'lambda ', 'None'])


@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(LETTERS, max_size=30).map(''.join))
def test_random_texts_are_parts_or_one_line(text):
  try:
    parsed = parts.parse_sum(text, KEY)
  except config_lib.UserError as e:
    assert '\n' not in str(e)
  else:
    assert all(parts.parse(str(x), KEY) == x for x in parsed)


def test_quotients_of_numbers_are_numbers():
  part = parts.parse('crop(3/4, ratio=(1 / 3, 4.0/2))', KEY)
  assert part.args == (0.75,) and part.options == {'ratio': (1 / 3, 2.0)}
  for text in ('crop(1/0)', 'crop(1/a)', 'crop(2**9)', 'crop(1/(1/2))'):
    with pytest.raises(config_lib.UserError, match='is no literal'):
      parts.parse(text, KEY)
