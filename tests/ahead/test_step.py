"""Steps that are compiled for TPUs and GPUs that are not here."""

import importlib.util
import json
import re

import commands
import pytest
import tiny

from vit_jax.ahead import compiled
from vit_jax.ahead import hlo
from vit_jax.ahead import products
from vit_jax.config import UserError
from vit_jax.parallel import hardware
from vit_jax.parallel import topologies
from vit_jax.summary import __main__ as summary

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='needs libtpu: vit_jax[compile-tpu]',
)
V5E = hardware.named('v5e')

# A step as the compiler of TPUs writes it, cut down: a product that is a
# convolution, a loop over a stack of arrays, and a value that stays on the
# chip, in memory space 1.
PROGRAM = (tiny.TESTS / 'ahead' / 'step_v5e.hlo').read_text()


def test_traffic_products_and_sources():
  operations = compiled.operations(hlo.parse(PROGRAM), V5E)
  by_name = {x.name: x for x in operations}
  assert set(by_name) == {'up', 'copy.1', 'layer_fusion', 'next', 'go'}
  up = by_name['up']
  assert up.flops == 2 * 128 * 64 * 32
  # The kernel is on the chip: it is not read from memory.
  assert up.bytes == 2 * (128 * 64 + 128 * 32)
  assert up.module == 'blocks_0/mlp/up'
  assert up.source == '/here/vit_jax/models/parts/mlp.py:57'
  assert by_name['copy.1'].bytes == 2 * 2 * 128 * 64
  # A loop counts with all its rounds; each reads one layer of the stack.
  layer = by_name['layer_fusion']
  assert layer.executions == 6
  assert layer.bytes == 6 * (2 * 4 * 128 * 32 + 4)
  for x in operations:
    assert x.seconds == pytest.approx(
      max(x.flops / V5E.peak_flops, x.bytes / V5E.memory_bandwidth)
    )


@pytest.mark.parametrize(
  ('attributes', 'lhs', 'kernel', 'out', 'flops'),
  [
    # [B, T, D] times [D, H, K]: H is a window of which one place is inside.
    (
      'window={size=12 pad=11_11 rhs_reversal=1}, dim_labels=0bf_0oi->0bf',
      (1, 197, 768),
      (12, 64, 768),
      (12, 197, 64),
      2 * 197 * 768 * 768,
    ),
    # A batched product: its batch is a dilated window.
    (
      'window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0oi->0bf',
      (8, 16, 32),
      (8, 4, 32),
      (8, 16, 4),
      8 * 2 * 16 * 32 * 4,
    ),
    # A usual 3 x 3 convolution with padding 1.
    (
      'window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f',
      (2, 4, 4, 5),
      (3, 3, 5, 7),
      (2, 4, 4, 7),
      2 * 2 * 5 * 7 * (4 * 3 - 2) ** 2,
    ),
  ],
)
def test_products_with_padding_do_not_count(
  attributes, lhs, kernel, out, flops
):
  def array(shape):
    return f'f32[{",".join(map(str, shape))}]'

  module = hlo.parse(f"""HloModule jit_train_step

ENTRY %main (a: f32[], b: f32[]) -> f32[] {{
  %a = {array(lhs)} parameter(0)
  %b = {array(kernel)} parameter(1)
  ROOT %c = {array(out)} convolution(%a, %b), {attributes}
}}
""")
  assert products.flops(module) == flops


def test_topologies():
  for text, size in (('v5e:4x4', 16), ('V5P:2x2x2', 8), ('h100:8', 8)):
    topology = topologies.parse(text)
    assert topology.size == size and str(topology) == text.lower()
  assert topologies.parse('v7x:2x2x1').size == 8  # two devices a chip
  assert topologies.parse('v5e:2x2', slices=2).size == 8
  for text, message in (
    ('v5e', 'write the shape of the topology, as v5e:4x4'),
    ('v5e:2x2x2', 'as v5e:4x4'),
    ('v5p:4x4', 'as v5p:2x2x4'),
    ('h100:2x2', 'as h100:8'),
    ('v5e:0x2', 'write the shape'),
    ('v9:2x2', 'choose one of'),
  ):
    with pytest.raises(UserError, match=message):
      topologies.parse(text)
  with pytest.raises(UserError, match='--slices=0'):
    topologies.parse('v5e:2x2', slices=0)


def summarize(*flags):
  config = f'--config={tiny.ROOT}/configs/digits.py'
  return commands.run(summary, config, *flags, '--nomemory')


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--hardware=v5e:2x2', '--devices=8'], '--devices=8 is not the number'),
    (['--hardware=v5e', '--slices=2', '--devices=4'], '--slices needs'),
    (['--hardware=v5e'], '--hardware needs --devices, or a topology'),
    (['--hardware=v5e:2x2', '--mesh=fsdp=3'], 'does not fit --devices=4'),
  ],
)
def test_wrong_flags(flags, message):
  with pytest.raises(UserError, match=message):
    summarize(*flags)


def test_without_the_compiler(monkeypatch, capsys, caplog):
  """The extra is named, and the step is planned on virtual CPU devices."""
  monkeypatch.setattr(topologies, 'missing_extra', lambda _: 'compile-tpu')
  assert summarize('--hardware=v5e:1x2', '--json') == 0
  report = json.loads(capsys.readouterr().out)
  assert "pip install -e '.[compile-tpu]'" in caplog.text
  assert report['ahead'] is None and report['plan']['devices'] == 2
  (estimate,) = report['plan']['estimates']
  assert estimate['hardware'] == 'TPU v5e'


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize(('scan', 'hidden_size'), [(False, 64), (True, 128)])
def test_compiled_for_a_tpu(scan, hidden_size, capsys):
  """With 128 channels, attention is a kernel."""
  flags = [
    f'--config.model.scan={scan}',
    f'--config.model.hidden_size={hidden_size}',
    '--config.train.dtype=bfloat16',
  ]
  assert summarize(*flags, '--hardware=v5e:2x2', '--json') == 0
  report = json.loads(capsys.readouterr().out)['ahead']
  assert report['devices'] == 4 and report['mesh']['data'] == 4
  assert not report['problem'] and 0 < report['total_gib'] < report['limit_gib']
  # The digits: 4 layers, 32 images, forward and backward.
  assert report['cost']['tflop'] * 1e12 == pytest.approx(
    report['model_flops'], rel=0.1
  )
  kinds = {c['kind'] for c in report['collectives']}
  assert 'all-reduce' in kinds
  assert all(c['axes'] == ['data'] for c in report['collectives'])
  assert len(report['cost']['slowest']) == 10
  assert all(x['source'] for x in report['cost']['slowest'] if x['module'])
  assert report['step_seconds'] > 0 and 0 < report['mfu'] < 1


@pytest.mark.slow
@needs_libtpu
def test_what_does_not_fit_is_said(capsys):
  flags = ['--config.train.batch_size=4_000_000', '--hardware=v5e:1x1']
  assert summarize(*flags) == 0
  output = capsys.readouterr().out
  assert re.search(r'does not fit: [\d,.]+ GiB of 15.75 .compiled.', output)
