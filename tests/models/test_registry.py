"""Parts by name: filling, options, own classes, and texts of what was built."""

import math
import pathlib
import random
import re

import jax
import jax.numpy as jnp
import pytest

import vit_jax
from vit_jax import config as config_lib
from vit_jax.models import attention
from vit_jax.models import block as block_lib
from vit_jax.models import describing
from vit_jax.models import mistakes
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.context import Context
from vit_jax.models.parts import experts
from vit_jax.models.parts import norms

VALUES = {
  'num_heads': 4,
  'mlp_dim': 64,
  'hidden_size': 32,
  'patch_size': (4, 4),
  'dtype': jnp.bfloat16,
  'dropout_rate': 0.1,
  'attention_dropout_rate': 0.2,
  'stochastic_depth': None,
  'layer_norm_epsilon': 1e-5,
  'initializers': 'mixer',
  'attention_implementation': 'plain',
  'block': 'block',
  'attention': 'attention',
  'mlp': 'mlp',
  'norm': 'rms_norm',
  'positions': 'learned',
  'pool': 'token',
  'patches': 'patches',
  'head': 'linear',
  'num_classes': 3,
}
OWN_PARTS = """
from typing import Any
from flax import linen as nn
import jax.numpy as jnp
from vit_jax.models import attention

class Window(nn.Module):
  num_heads: int
  mlp_dim: int
  window: int = 2
  scale: float = 1.0
  norm: nn.Module | None = None
  inner: Any = None

  @nn.compact
  def __call__(self, x, context):
    if self.window == 7:
      raise KeyError('no such window')
    return nn.Dense(x.shape[-1])(x)

class Strict(Window):
  def __post_init__(self):
    if self.window > 9:
      raise ZeroDivisionError('too wide')
    super().__post_init__()

class Above(attention.Attention):
  def join(self, y, context):
    return y / jnp.ones(self.num_heads + 1)

class Free(nn.Module):
  rate: float
  pool: str = 'max'
  patch_size: int = 0
  offsets: tuple[int, ...] = ()
"""


@pytest.fixture(scope='module')
def own_parts(tmp_path_factory):
  """The file of a module of the user's."""
  path = tmp_path_factory.mktemp('own') / 'own_parts.py'
  path.write_text(OWN_PARTS)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(path.parent))
    yield path


def build(kind, text, **values):
  return registry.build(kind, text, VALUES | values, f'model.{kind}')


def test_a_name_alone_is_complete():
  assert build('attention', 'attention') == attention.Attention(
    4,
    dropout_rate=0.2,
    norm=norms.RMSNorm(1e-5, jnp.bfloat16),
    implementation='plain',
    initializers='mixer',
    dtype=jnp.bfloat16,
  )
  block = build('block', 'block', attention='attention(qk_norm=True)')
  assert block.attention == build('attention', 'attention(qk_norm=True)')
  assert (block.mlp, block.dropout_rate) == (build('mlp', 'mlp'), 0.1)
  assert block.stochastic_depth == 0  # which the values do not set
  assert block.parent is block.mlp.parent is None


def test_values_without_a_name_go_to_the_class_first():
  assert build('mlp', 'swiglu(512)').hidden_dim == 512
  assert build('block', 'branches(3)').count == 3
  assert build('attention', 'grouped(2)').key_heads == 2
  head = build('head', "linear(pre_logits=8, norm='batch')")
  assert head == vit.Linear(3, 8, 'batch', initializers='mixer')
  norm = build('patches', 'normed(layer_norm(epsilon=0.01))').patch_norm
  assert norm == block_lib.LayerNorm(0.01, jnp.bfloat16)


def test_parts_in_parts():
  part = build('mlp', 'experts(8, mlp=geglu(16), layers=[2, 4], noise=2)')
  assert part.mlp == build('mlp', 'geglu(16)')
  assert (part.layers, part.noise) == ((2, 4), 2.0)
  assert isinstance(part.noise, float)
  # The text of the values that is being built is not built again.
  block = build('block', 'block', mlp='experts(8)')
  assert block.mlp == experts.Experts(
    8, build('mlp', 'mlp'), dropout_rate=0.1, dtype=jnp.bfloat16
  )


def test_sums():
  built = registry.build_sum(
    'positions', 'learned + rope(base=10)', VALUES, 'model.positions'
  )
  assert [type(x).__name__ for x in built] == ['Learned', 'Rope']
  for positions in ('learned + rope(base=10.0)', 'none'):
    model = vit_jax.create_model('ViT-Ti/16', 1, positions=positions)
    assert describing.key_values(model)['positions'] == positions
  assert registry.build_sum('positions', 'none', VALUES, 'k') == ()


NEEDS = {'experts': '(8)'}  # what a part cannot be without


def drawn(option, kind, rng, depth=0):
  """Returns the text of a random value of an option; None: leave it out."""
  field, default = option.field, option.default
  if option.kind is not None:
    if depth == 2:
      return None
    name = rng.choice([*registry.PARTS[option.kind]])
    return drawn_part(option.kind, name, rng, depth + 1)
  if option.name == 'dtype':
    return repr(rng.choice(['float32', 'bfloat16']))
  if field.choices:
    return repr(rng.choice(field.choices))
  if isinstance(default, bool):
    return repr(rng.random() < 0.5)
  if option.hint == tuple[str, ...]:
    return repr((rng.choice(['query', 'up']),))
  if field.interval:
    return repr(rng.uniform(0.1, 0.9))
  least = 1 if field.least == -math.inf else int(field.least)
  number = rng.randint(least, least + 9)
  if option.name in ('grid', 'patch_size', 'layers', 'stages'):
    return repr([max(number, 1)] * 2)
  return repr(number)


def drawn_part(kind, name, rng, depth=0):
  """Returns a random text of a part."""
  options = registry.declared_options(
    type(build(kind, f'{name}{NEEDS.get(name, "")}'))
  )
  values = {
    name: drawn(option, kind, rng, depth)
    for name, option in options.items()
    if rng.random() < 0.5 or name == 'count'
  }
  texts = [f'{name}={x}' for name, x in values.items() if x is not None]
  return f'{name}({", ".join(texts)})'


@pytest.mark.parametrize('kind', registry.PARTS)
def test_a_part_is_built_from_its_description(kind):
  rng = random.Random(0)
  for name in registry.PARTS[kind]:
    for _ in range(10):
      text = drawn_part(kind, name, rng)
      part = build(kind, text)
      described = describing.describe(kind, part, VALUES)
      assert build(kind, described) == part, (text, described)


def test_a_description_has_what_differs_alone():
  for kind, names in registry.PARTS.items():
    for name in names:
      text = f'{name}{NEEDS.get(name, "")}'
      expected = text.replace('(8)', '(count=8)')
      assert describing.describe(kind, build(kind, text), VALUES) == expected
  part = build('block', 'block', attention='attention(qk_norm=True)')
  assert describing.describe('block', part, VALUES) == (
    'block(attention=attention(qk_norm=True))'
  )


def test_own_classes(own_parts):
  part = build('attention', 'own_parts:Window(window=3, scale=2)')
  assert (part.num_heads, part.mlp_dim, part.window) == (4, 64, 3)
  assert isinstance(part.scale, float)
  assert part.norm == build('norm', 'rms_norm')
  assert describing.describe('attention', part, VALUES) == (
    'own_parts:Window(window=3, scale=2.0)'
  )
  text = 'own_parts:Window(norm=None, inner=own_parts:Window(inner=glu(5)))'
  part = build('attention', text)
  assert part.norm is None
  assert part.inner.inner == build('mlp', 'glu(5)')
  assert (
    build('attention', describing.describe('attention', part, VALUES)) == part
  )
  # A text of a part fills fields that hold parts alone.
  text = 'own_parts:Free(rate=1.0, patch_size=3, offsets=(0, -1))'
  part = build('norm', text)
  assert part.pool == 'max'
  assert describing.describe('norm', part, VALUES) == text


@pytest.mark.parametrize(
  ('kind', 'text', 'message_part'),
  [
    ('attention', 'attentoin', "no attention 'attentoin': did you mean 'att"),
    ('attention', 'attentoin', 'There are attention, grouped, differential;'),
    ('attention', 'swiglu', "'swiglu' is a part of config.model.mlp, not of"),
    ('attention', 'attention(qk_nrom=True)', "did you mean 'qk_norm'? There"),
    ('attention', 'attention(num_heads=x)', 'attention.num_heads is x: it mus'),
    ('attention', 'attention(num_heads=0)', 'num_heads is 0: it must be from'),
    ('attention', 'attention(qk_norm=1)', 'qk_norm is 1: it must be of the t'),
    ('attention', 'attention(dropout_rate=1)', 'it must be in [0, 1)'),
    ('attention', 'attention(norm=mlp)', "'mlp' is a part of config.model.mlp"),
    ('attention', 'attention(norm=None)', 'norm is None: it must be a Module'),
    ('attention', "attention(norm='a')", 'must be a part: write it without q'),
    ('attention', 'attention(norm=layer_norm(2.0))', 'layer_norm.epsilon is 2'),
    ('attention', "attention(dtype='int8')", 'choose one of float32, bfloat1'),
    ('attention', 'attention(4, num_heads=4)', 'is given num_heads twice'),
    ('attention', 'attention(implementation=10)', 'must be of the type str'),
    ('mlp', f'mlp({"1, " * 20})', 'mlp has 20 values without a name, and 8 op'),
    ('mlp', 'experts', "experts needs the option 'count'"),
    ('mlp', 'mlp(hidden_dim=max(1, 2))', 'hidden_dim is max(1, 2): it must b'),
    ('mlp', 'mlp(hidden_dim=', 'was never closed'),
    ('mlp', 'missing_module:Mlp', "Python finds no module 'missing_module'"),
    ('mlp', 'json:JSONDecoder', 'json has another class'),
    ('attention', 'own_parts:Windw', "own_parts has no class 'Windw'"),
    ('attention', 'own_parts:Window(windw=1)', "did you mean 'window'? There"),
    ('attention', "own_parts:Window('a')", 'num_heads is \'a\': it must be of'),
    ('attention', 'own_parts:Window(inner=[a])', 'inner=[a] is no literal'),
    ('attention', 'own_parts:Window(inner=b)', "there is no part 'b'"),
    ('attention', 'own_parts:Free', "own_parts:Free needs the option 'rate'"),
    ('attention', 'own_parts:Free(1)', 'type int, of config.model.patch_size'),
    ('attention', 'own_parts:Strict(window=10)', 'ZeroDivisionError: too wid'),
  ],
)  # fmt: skip
def test_errors_are_one_line(kind, text, message_part, own_parts):
  with pytest.raises(config_lib.UserError) as error:
    build(kind, text)
  message = str(error.value)
  assert message_part in message, message
  assert re.fullmatch(rf'config\.model\.{kind}\b.*', message)


def test_errors_about_filled_options_name_the_key():
  with pytest.raises(config_lib.UserError, match=r'of config\.model\.mlp_dim$'):
    build('mlp', 'mlp', mlp_dim=0)
  with pytest.raises(config_lib.UserError, match=r'or config\.model\.mlp_dim$'):
    build('mlp', 'mlp', mlp_dim=None)
  with pytest.raises(config_lib.UserError, match=r'^config\.model\.norm: '):
    build('mlp', 'mlp', norm='layernorm')


def test_what_a_class_of_the_user_raises_names_its_line(own_parts):
  lines = own_parts.read_text().splitlines()
  with pytest.raises(config_lib.UserError) as error:
    build('attention', 'own_parts:Strict(window=10)')
  line = 1 + next(i for i, x in enumerate(lines) if 'too wide' in x)
  assert str(error.value).endswith(
    'own_parts:Strict raises ZeroDivisionError: too wide'
    f' ({own_parts}, line {line})'
  )
  for name, raised, text in [
    ('Window(window=7)', 'KeyError', "'no such window'"),
    ('Above', 'ValueError', 'jnp.ones(self'),
  ]:
    model = build('block', 'block', attention=f'own_parts:{name}')
    with pytest.raises(Exception) as raw:
      jax.eval_shape(
        lambda model=model: model.init(
          jax.random.key(0), jnp.zeros((1, 3, 32)), Context()
        )
      )
    actual = mistakes.user_error(raw.value, model)
    line = 1 + next(i for i, x in enumerate(lines) if text in x)
    assert f'own_parts:{name.split("(")[0]} raises {raised}: ' in str(actual)
    assert str(actual).endswith(f' ({own_parts}, line {line})')
    assert '\n' not in str(actual)


def test_other_errors_are_not_the_users(own_parts):
  model = build('block', 'block')
  assert mistakes.user_error(ValueError('a'), model) is None
  model = build('block', 'block', attention='own_parts:Window')
  with pytest.raises(Exception) as raw:
    model.init(jax.random.key(0), 'no array', Context())
  mistakes.user_error(raw.value, model)
  assert mistakes.user_error(config_lib.UserError('a'), model) is None


def test_the_list_has_all_parts():
  listed = vit_jax.list_parts()
  names = {kind: [*names] for kind, names in registry.PARTS.items()}
  assert {
    kind: [x.name for x in vit_jax.list_parts(kind)] for kind in names
  } == names
  assert len(listed) == sum(map(len, names.values()))
  for entry in listed:
    assert entry.summary.endswith(('.', ').'))
    module, _, name = entry.class_name.partition(':')
    file = pathlib.Path(*module.split('.')).with_suffix('.py')
    text = (pathlib.Path(vit_jax.__file__).parents[1] / file).read_text()
    assert f'\nclass {name}(' in text
    part = build(entry.kind, f'{entry.name}{NEEDS.get(entry.name, "")}')
    options = registry.declared_options(type(part))
    assert {*entry.options} == {*options}
    # All of our fields say what they are.
    assert all(x.field is not registry.PLAIN for x in options.values())
  swiglu = next(x for x in listed if x.name == 'swiglu')
  assert swiglu.options['hidden_dim'] == 'config.model.mlp_dim'
  assert swiglu.options['bias'] == repr(block_lib.Mlp(1).bias)
  assert swiglu.options['dtype'] == 'config.train.dtype'
  assert swiglu.sources == ('2002.05202',)
  with pytest.raises(config_lib.UserError, match="did you mean 'mlp'"):
    vit_jax.list_parts('mpl')
