"""All tables: what a format names is written and read, the rest is refused.

A model of each kind of file gets random values of every field in turn. One that
the kind can store is kept, so that the file has many of them at once.
"""

import dataclasses
import itertools
import json
import re
import types
import typing

from flax import traverse_util
from foreign import flat
from foreign import random_model
import jax
import numpy as np
import pytest

import vit_jax
from vit_jax import models
from vit_jax.config import parts
from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import resnet
from vit_jax.models import values as values_lib
from vit_jax.weights.formats import export
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_parallel

SIZE = (32, 32)
KINDS = {
  kind.title: (form, kind) for form in foreign.FORMATS for kind in form.KINDS
}
# A model of each kind of file in each line, which it stores, with the keys in
# which it differs from `foreign.random_model`. A deeper line continues one.
# EXACT and other names stand for the lines that begin with them.
MODELS = """
EXACT    mlp=mlp(gelu='exact')
MIXER    name=Mixer-S/16; depth=2; num_classes=5
BIT      name=BiT-R50x1(stages=(1, 2), channels=(128, 256)); num_classes=5
HYBRID   name=R+ViT-Ti/16; patches=hybrid(width=32)
STAGES   name=R26+ViT-S/32; patches=hybrid(stages=(1,), width=64)
TOWER    num_classes=0; layer_norm_epsilon=1e-5
NO_BIAS  patches=patches(bias=False); pre_norm=True
MEAN     pool=mean(norm_after=True); class_token=True
AIM      norm=rms_norm; patches=normed; mlp=swiglu
BEIT     attention=attention(key_bias=False); class_token=True
ALL      pool=map(prefix=True, gelu='exact'); registers=1
SAPIENS  norm=rms_norm; positions=rope; mlp=swiglu; depth=4
DINO     positions=learned(tokens='class'); pool=token_and_mean
FLEX     EXACT; positions=learned(tokens='patches', resize='bicubic')

Google's ViT
  -
  pool=map; positions=learned(tokens='patches')
  HYBRID
  STAGES
Google's Mixer
  MIXER
Google's BiT
  BIT
timm's VisionTransformer
  EXACT
  EXACT; NO_BIAS
  EXACT; pool=map(mlp_dim=96, prefix=True, gelu='exact'); registers=1
  pool=map(mlp_dim=72)
  EXACT; MEAN; positions=learned(tokens='patches')
  pool=mean
  EXACT; distillation_token=True
  EXACT; block=parallel; attention=attention(qk_norm=True)
  EXACT; block=branches(3, layer_scale=0.1)
  EXACT; NO_BIAS; norm=rms_norm; block=branches(2);
    attention=attention(qk_norm=True)
  EXACT; attention=differential; registers=2
  mlp=mlp(gelu='exact', bias=False); attention=attention(out_bias=False)
  HYBRID; EXACT
  STAGES; EXACT
  EXACT; block=post_norm
  AIM; pool=mean; layer_norm_epsilon=1e-5
timm's Eva
  EXACT; BEIT; positions=learned + rope(kind='eva02', base=1e4)
  EXACT; NO_BIAS; ALL; positions=learned + rope(kind='rope_vit')
  SAPIENS; attention=grouped(key_heads=1, full_layers=1, qk_norm=True);
    block=block(layer_scale=1e-5, layer_scale_mlp=False)
  SAPIENS; attention=grouped(key_heads=2); hidden_size=48; num_heads=4
  EXACT; BEIT; block=post_norm
  EXACT; positions=rope(kind='rope_vit_mixed', base=10.0)
  EXACT; MEAN;
    positions=learned(tokens='patches')
    + rope(kind='rope_vit', grid=(3, 3), offset=1.0)
  EXACT; NO_BIAS; positions=learned + rope;
    pool=map(num_heads=2, mlp_dim=96, prefix=True, gelu='exact')
  EXACT; NO_BIAS; positions=learned + rope;
    pool=map(num_heads=1, mlp_dim=72, prefix=True, gelu='exact')
timm's Beit
  EXACT; BEIT; positions=relative_bias
  EXACT; BEIT; MEAN; positions=relative_bias(shared=False)
timm's VisionTransformerRelPos
  EXACT; positions=relative_mlp_bias(hidden_dim=8); pool=mean
  EXACT; MEAN; positions=relative_mlp_bias(hidden_dim=16)
  EXACT; positions=relative_mlp_bias(hidden_dim=8, shared=False);
    block=post_norm
timm's NaFlexViT
  FLEX; pool=mean
  FLEX; ALL
  FLEX; pool=map(mlp_dim=72, gelu='exact')
  FLEX; pool=map(mlp_dim=96, gelu='exact')
  FLEX; MEAN;
    positions=learned(tokens='patches', resize='corner', keep_aspect=True)
  EXACT; positions=factorized(grid=(4, 4)); pool=mean
  EXACT; positions=factorized(keep_aspect=True, grid=(4, 4))
timm's MlpMixer
  MIXER; EXACT
timm's ResNetV2
  BIT
transformers' ImageGPT
  name=iGPT-S; hidden_size=24; mlp_dim=48; num_heads=3; depth=2; colours=8;
    num_classes=0
transformers' BiT
  BIT
transformers' CLIP
  TOWER; NO_BIAS
transformers' Siglip
  TOWER; pool=map
  TOWER; EXACT; pool=map(gelu='exact')
transformers' AIMv2
  TOWER; AIM; pool=map(mlp_dim=0, query=False, gelu='exact')
  TOWER; AIM; pool=mean; attention=attention(qkv_bias=False, out_bias=False);
    positions=sincos2d(kind='sincos2d_mae')
  TOWER; AIM; pool=map(mlp_dim=0, query=False, bias=False, gelu='exact');
    attention=attention(qkv_bias=False, out_bias=False)
transformers' DINOv3
  TOWER; positions=rope; block=block(layer_scale=1.0); class_token=True
  TOWER; EXACT; BEIT; positions=rope; block=block(layer_scale=0.5)
transformers' BEiT
  BEIT; MEAN; positions=relative_bias
  BEIT; positions=relative_bias(shared=False)
  BEIT; num_classes=0; last_norm=False
transformers' DINOv2
  DINO; block=block(layer_scale=1.0)
  DINO; block=block(layer_scale=0.5); registers=3
transformers' ViT, DeiT and I-JEPA
  -
  distillation_token=True
  num_classes=0; head=linear(pre_logits=16)
  pool=mean
torchvision's VisionTransformer
  EXACT
"""
MODELS = re.sub(r'\n    +', ' ', MODELS)
# A format, a model, and what of it has no place there.
NO_PLACE = """
google       attention=attention(causal=True)  : attention(causal=True)
google       mlp=swiglu                        : mlp='swiglu'
google       pool=mean(norm_after=True)        : mean(norm_after=True)
google       pool=map; class_token=True
             : pool='map' beside class_token=True
google       TOWER; NO_BIAS                    : pre_norm=True
huggingface  TOWER; NO_BIAS; num_classes=3     : num_classes=3
huggingface  TOWER; NO_BIAS; registers=2       : registers=2
huggingface  TOWER; AIM; num_classes=3;
             pool=map(mlp_dim=0, query=False, gelu='exact')  : num_classes=3
huggingface  TOWER; AIM; registers=2;
             pool=map(mlp_dim=0, query=False, gelu='exact')    : registers=2
huggingface  TOWER; AIM; norm=layer_norm;
             pool=map(mlp_dim=0, query=False, gelu='exact')  : norm='layer_norm'
huggingface  TOWER; AIM; pool=map(mlp_dim=16, query=False, gelu='exact')
             : map(mlp_dim=16)
huggingface  TOWER; AIM; attention=attention(qkv_bias=False);
             pool=map(mlp_dim=0, query=False, gelu='exact')
             : attention(out_bias=True)
timm         TOWER; pre_norm=True
             : patches(bias=True) beside pre_norm=True
timm         TOWER; NO_BIAS; positions=learned + rope(kind='eva02')
             : mlp(gelu='tanh')
timm         EXACT; patches=normed
             : norm='layer_norm' beside patches='normed'
timm         EXACT; NO_BIAS; positions=learned + rope; pool=map(gelu='exact');
             class_token=True
             : map(prefix=False)
timm         EXACT; NO_BIAS; positions=learned + rope; patches=patches
             : patches(bias=True) beside pre_norm=True
timm         EXACT; positions=learned + rope;
             attention=attention(qk_norm=True); block=post_norm
             : attention(qk_norm=True) beside
timm         EXACT; positions=relative_mlp_bias(hidden_dim=8, shared=False);
             pool=mean; registers=2  : registers=2
timm         EXACT; pool=map(query=False, gelu='exact')  : map(query=False)
timm         positions=learned + rope; attention=attention(out_bias=False);
             mlp=mlp(gelu='exact', bias=False)  : attention(out_bias=False)
timm         EXACT; positions=learned + rope; block=branches(2)
             : block='branches'
timm         block=parallel; attention=attention(out_bias=False);
             mlp=mlp(gelu='exact', bias=False)
             : mlp(bias=False) beside block='parallel'
timm         mlp=swiglu; block=branches(2)     : mlp='swiglu' beside
timm         EXACT; attention=attention(qk_norm=True, norm=rms_norm)
             : attention(norm='rms_norm')
timm         EXACT; attention=grouped(key_heads=1); block=post_norm
             : attention='grouped'
timm         EXACT; attention=grouped(key_heads=1);
             positions=learned + relative_bias  : attention='grouped'
timm         SAPIENS; EXACT; ALL; attention=attention(qk_norm=True);
             block=block(layer_scale=1e-5, layer_scale_mlp=False)
             : norm='rms_norm' beside pool='map'
timm         EXACT; BEIT; positions=relative_bias; pool=token_and_mean
             : token_and_mean
huggingface  EXACT; BEIT; positions=relative_bias; pool=token_and_mean
             : token_and_mean
timm         EXACT; BEIT; positions=relative_bias;
             attention=attention(key_bias=False, qk_norm=True)  : qk_norm=True
huggingface  EXACT; BEIT; positions=relative_bias;
             attention=attention(key_bias=False, qk_norm=True)  : qk_norm=True
timm         EXACT; BEIT; positions=relative_bias; attention=attention
             : key_bias=True
huggingface  EXACT; BEIT; positions=relative_bias; attention=attention
             : key_bias=True
huggingface  EXACT; BEIT; positions=none; mlp=swiglu  : mlp='swiglu'
huggingface  EXACT; positions=rope; block=block(layer_scale=1.0);
             num_classes=3                     : num_classes=3
torchvision  EXACT; registers=2                : registers=2
torchvision  EXACT; num_classes=0              : num_classes=0
torchvision  EXACT; patch_size=(8, 16)         : patch_size=(8, 16)
timm         EXACT; attention=attention(out_bias=False)
             : mlp(bias=True) beside attention(out_bias=False)
"""
SHORT = dict(
  line.split(maxsplit=1)
  for line in MODELS.splitlines()
  if line.partition(' ')[0].isupper()
)


def keys_of_model(line):
  """Returns the keys of a line, as 'EXACT; pool=map'."""
  keys = {}
  for text in line.split('; '):
    if text in SHORT:
      keys |= keys_of_model(SHORT[text])
    elif text != '-':
      key, value = text.split('=', 1)
      keys[key] = parts.literal(value)
  return keys


def models_text(title):
  """Returns the lines of the models of a kind of file."""
  lines = MODELS.partition(f'\n{title}\n')[2].splitlines()
  return '\n'.join(itertools.takewhile(lambda x: x.startswith('  '), lines))


def make_models(title):
  """Returns the keys of these models."""
  return [keys_of_model(x.strip()) for x in models_text(title).splitlines()]


# Values that a file's arrays or keys could say, though it has one of each.
ONE_VALUE = {
  "transformers' CLIP": {'num_classes'},
  "transformers' Siglip": {'num_classes'},
  "transformers' AIMv2": {'mlp.gelu'},
  "transformers' BEiT": {'pool.norm_after'},
  "timm's VisionTransformer": {'head.distillation'},
  "timm's Eva": {'pool.gelu'},
  "timm's NaFlexViT": {'positions.learned.grid'},  # of square images
}


def other_values(rng, path, values, family):
  """Returns other values of a field, in random order."""
  if path not in values or path in values_lib.OF_SIZE:
    return []
  value = values[path]
  kind, _, name = path.partition('.')
  if path in values_lib.SINGLE:
    return changed_values(rng, registry.PARTS[path], value)
  if kind == values_lib.SUM and '.' not in name:
    return [not value]
  if path == 'num_heads':
    divisors = [n for n in range(1, 13) if values['hidden_size'] % n == 0]
    return changed_values(rng, divisors, value)
  if path in ('hidden_size', 'mlp_dim'):
    return changed_values(rng, [24, 48, 72, 96], value)
  if path == 'depth':
    return changed_values(rng, [1, 2, 3, 4], value)
  # Of a ResNet.
  if path in ('stem_width', 'patches.width', 'num_groups'):
    numbers = [4, 8, 32] if path == 'num_groups' else [32, 64]
    return changed_values(rng, numbers, value)
  if path == 'channels':
    stages = len(values['stages'])
    widths = [tuple(128 * int(n) for n in rng.integers(2, 5, stages))]
    return changed_values(rng, widths, value)
  if path == 'patch_size':
    return changed_values(rng, [(4, 4), (8, 8), (16, 16), (8, 16)], value)
  declared = values_lib.option(path, values, family)
  if declared.kind is not None:  # a part in a part
    names = registry.PARTS[declared.kind or 'norm']
    return changed_values(rng, names, value)
  hints = {*typing.get_args(declared.hint), declared.hint}
  if declared.field.choices:
    return changed_values(rng, declared.field.choices, value)
  if bool in hints:
    return [not value]
  if any(typing.get_origin(x) is tuple for x in hints):
    sides = tuple(int(n) for n in rng.integers(1, 3, len(value or (1, 1))))
    return [x for x in (sides, (4, 4)) if x != value]
  least = declared.field.least
  low = 0 if types.NoneType in hints else int(max(least, 0))
  number = float(rng.uniform(0.01, 0.99))
  if int in hints:
    number = int(rng.integers(low, low + 6))
  choices = [number, number + low + 1] if int in hints else [number]
  empty = [None] if types.NoneType in hints else []
  return [x for x in (*choices, *empty) if x != value]


def changed_values(rng, choices, value):
  different = [x for x in choices if x != value]
  return [different[i] for i in rng.permutation(len(different))]


def random_tree(shapes, seed=0):
  """Returns random arrays in a tree of shapes."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.standard_normal(x.shape, np.float32), shapes
  )


def drawn(kind, fields, seed, size=SIZE):
  """Returns a random model that a kind of file stores.

  Of each value that no entry has, another one must be refused; of each that
  their code computes otherwise, a note must say so.
  """
  rng = np.random.default_rng(seed)
  start = random_model(size, **fields).model
  model = start
  noted = {x.value_name for x in kind.fields if x.is_noted}
  paths = [*values_lib.model_values(model)]
  changes, noted_changes = [], []
  for path in [paths[i] for i in rng.permutation(len(paths))]:
    values = values_lib.model_values(model)
    for value in other_values(rng, path, values, kind.family):
      changed = with_value(kind, model, path, value)
      if changed is None or lacked(kind, path, changed):
        continue
      if path in noted:
        noted_changes.append((path, value))
      else:
        model = changed
        changes.append((path, value))
      break
  if kind.refusals(model, size):  # the arrays do not fit: this takes longer
    model = start
    for path, value in changes:
      changed = with_value(kind, model, path, value)
      if changed is not None and not kind.refusals(changed, size):
        model = changed
  changed_model = model
  for path, value in noted_changes:
    changed_model = (
      with_value(kind, changed_model, path, value) or changed_model
    )
  if changed_model is not model:
    assert any('this model has' in x for x in kind.notes(changed_model, size))
  return model


def with_value(kind, model, path, value):
  """Returns a model with another value; None: none has it beside the others."""
  values = values_lib.model_values(model)
  try:
    changed = kind.build({**values, path: value})
  except ValueError:
    return None
  after = values_lib.model_values(changed)
  # Some have no effect beside the others.
  return changed if after != values and after.get(path) == value else None


def lacked(kind, path, model):
  """Whether a kind of file has no place for a value, by its fields alone."""
  values = values_lib.model_values(model)
  entries = {x.value_name: x for x in kind.fields}
  try:
    refusals = kind.unnamed(values)
    lack = kind.lack({**values, 'image_size': SIZE})
  except ValueError:
    return True
  entry = entries.get(path)
  has_place = entry and (entry.is_noted or not entry.is_fixed)
  assert has_place or refusals, (path, values[path])
  return bool(refusals or lack)


def written(path, form, kind, model, monkeypatch):
  """Writes random parameters as a kind of file, without our own key."""
  params = random_tree(models.abstract_params(model, (*SIZE, 3)))
  random = random_model()
  loaded = dataclasses.replace(
    random,
    model=model,
    params=params,
    # Clusters of colours are stored for these.
    preprocess=dataclasses.replace(random.preprocess, mean=(0.5,), std=(0.5,)),
  )
  with monkeypatch.context() as patched:
    patched.setattr(form, 'KINDS', (kind,))
    export.write(loaded, path, form.NAME, 'here')
  config = json.loads((path / 'config.json').read_text())
  config.pop('vit_jax', None)
  (path / 'config.json').write_text(json.dumps(config))
  return traverse_util.flatten_dict(params, sep='/')


@pytest.mark.parametrize(
  'title',
  [
    # ResNets before a ViT take half a minute.
    pytest.param(x, marks=pytest.mark.slow) if 'HYBRID' in models_text(x) else x
    for x in KINDS
  ],
)
def test_every_field_is_written_and_read_or_refused(
  title, tmp_path, monkeypatch
):
  """To the bit, and each field that has a place with several values."""
  form, kind = KINDS[title]
  stored = {x.value_name: set() for x in kind.fields if can_vary(x)}
  for seed, fields in enumerate(make_models(title)):
    random = drawn(kind, fields, seed)
    for i, model in enumerate((random_model(**fields).model, random)):
      values = values_lib.model_values(model)
      for path in stored.keys() & values.keys():
        stored[path].add(str(values[path]))
      path = tmp_path / f'{seed}.{i}'
      params = written(path, form, kind, model, monkeypatch)
      given = {x.value_name for x in kind.fields if x.is_given}
      reread = vit_jax.load(
        path,
        position_size=SIZE,
        as_stored=True,
        unseen={name: values[name] for name in given},
      )
      noted = {x.value_name for x in kind.fields if x.is_noted}
      changed = values_lib.differences(
        values, values_lib.model_values(reread.model)
      )
      assert not changed.keys() - noted, changed
      assert flat(reread).keys() == params.keys()
      has_sums = timm_parallel.has_one_output(values)
      for name, array in flat(reread).items():
        if has_sums and name.endswith(('out/bias', 'down/bias')):
          continue  # timm has one bias for both
        np.testing.assert_array_equal(array, params[name], name)
  fixed = {path for path, texts in stored.items() if len(texts) < 2}
  assert fixed == ONE_VALUE.get(title, set())


def can_vary(entry):
  """Whether a kind of file has several values of an entry."""
  is_one = entry.is_fixed or entry.is_read_only or entry.is_noted
  return entry.value_name and not is_one


@pytest.mark.parametrize('line', tables.joined_lines(NO_PLACE))
def test_what_has_no_place_is_named(tmp_path, line):
  form, _, text = line.partition(' ')
  fields, _, lacked = (x.strip() for x in text.partition(' : '))
  with pytest.raises(UserError, match=r'no place for .*: use --to=') as e:
    model = random_model(**keys_of_model(fields))
    export.write(model, tmp_path / 'x', form, 'here')
  assert lacked in str(e.value) and '\n' not in str(e.value)
  assert not (tmp_path / 'x').exists()


@pytest.mark.parametrize('title', KINDS)
def test_an_activation_that_no_format_has(tmp_path, title):
  form, kind = KINDS[title]
  model = random_model(**make_models(title)[0])
  if kind.family is resnet.BiT or 'AIMv2' in title:
    return  # they have none, or a gate
  block = model.model.block
  block = block.clone(mlp=block.mlp.clone(gelu='mish'))
  model = dataclasses.replace(model, model=model.model.clone(block=block))
  with pytest.raises(UserError, match='has no place for'):
    export.write(model, tmp_path / 'x', form.NAME, 'here')


# The keys of all kinds, and others, which are drawn for each.
KEYS = sorted(
  {
    key.rpartition('.')[2]
    for _, kind in KINDS.values()
    for key in (*(x.key for x in kind.fields), *kind.unread_keys)
    if key
  }
)
WORDS = [True, 7, 0.5, -1, 'word', [2, 3], {'a': 1}, [], None]


@pytest.mark.parametrize(
  'title', [x for x, (_, kind) in KINDS.items() if kind.scope is not None]
)
def test_a_foreign_key_is_known_or_refused(title, tmp_path, monkeypatch):
  """Keys of this kind, of others and of none, with values of any type."""
  form, kind = KINDS[title]
  rng = np.random.default_rng(0)
  model = random_model(**make_models(title)[0]).model
  written(tmp_path / 'x', form, kind, model, monkeypatch)
  path = tmp_path / 'x' / 'config.json'
  content = json.loads(path.read_text())
  start = f'{kind.scope}.' if kind.scope else ''
  known = {x.key.removeprefix(start) for x in kind.fields} | {*kind.unread_keys}
  letters = np.array(list('abcdefghijklmnopqrstuvwxyz_'))
  outcomes = set()
  for _ in range(60):
    key = str(rng.choice(KEYS))
    if rng.random() < 0.3:
      key = ''.join(rng.choice(letters, 8))
    value = WORDS[rng.integers(len(WORDS))]
    changed = json.loads(json.dumps(content))
    (changed[kind.scope] if kind.scope else changed)[key] = value
    path.write_text(json.dumps(changed))
    try:
      vit_jax.load(tmp_path / 'x', position_size=SIZE)
      outcomes.add('read')
      assert key in known or not value, (key, value)
    except UserError as e:
      assert '\n' not in str(e)
      outcomes.add('refused')
      if key not in known:
        assert f'says {start}{key} ' in str(e), (key, value)
        assert 'not known here' in str(e)
      else:
        assert key in str(e) or 'config.json' not in str(e), (key, value)
  assert outcomes == {'read', 'refused'}
