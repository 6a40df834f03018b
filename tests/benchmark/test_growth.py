"""How a step grows: laws that are known, and one small curve measured."""

import json

import commands
import pytest

from benchmarks import growth_points


def curve(law, values=(1, 2, 4, 8)):
  """Returns points whose seconds are `law` of the value."""
  return [
    {
      'value': x,
      'seconds': law(x),
      'gflop': 3.0 * x,
      'state_mib': 5.0,
      'temporary_mib': 7.0 * x,
    }
    for x in values
  ]


@pytest.mark.parametrize('power', [0.0, 1.0, 1.5, 2.0])
def test_exponents(power):
  points = curve(lambda x: 0.25 * x**power)
  assert growth_points.exponent(points, 'seconds') == pytest.approx(power)
  assert growth_points.exponent(points, 'gflop') == pytest.approx(1.0)


def test_the_upper_end_alone_counts():
  """Below it a constant part hides the law."""
  points = curve(lambda x: max(8.0, x * x), values=(1, 2, 4, 8, 16))
  assert growth_points.exponent(points, 'seconds') > 1.4


def test_table_and_plot(tmp_path):
  pytest.importorskip('matplotlib')
  devices = [{'value': n, 'seconds': 0.5, 'gflop': 1.0} for n in (1, 2)]
  curves = {'tokens': curve(lambda x: 1e-3 * x * x), 'devices': devices}
  table = growth_points.table(curves)
  assert (
    'tokens: exponents at the upper end: time 2.00, products 1.00, state 0.00,'
    ' temporary memory 1.00\n'
  ) in table
  assert '| 8 | 64 | 375 | 5 | 56 |' in table
  assert (
    'devices: exponents at the upper end: time 0.00, products 0.00\n' in table
  )
  growth_points.plot(curves, tmp_path / 'growth.png')
  assert (tmp_path / 'growth.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_more_layers_take_more(monkeypatch):
  monkeypatch.setattr(growth_points, '_WIDTH', 64)
  monkeypatch.setitem(growth_points.AXES, 'depth', (1, 3))
  one, three = growth_points.measure('depth', blocks=1)
  assert (one['value'], three['value']) == (1, 3)
  assert 0 < one['least_seconds'] <= one['seconds'] <= one['most_seconds']
  # The embedding and the head are in both.
  assert 2 < three['gflop'] / one['gflop'] < 3
  for key in ('state_mib', 'temporary_mib'):
    assert three[key] > one[key] > 0
  assert json.loads(json.dumps(one)) == one


@pytest.mark.parametrize(
  'flag, error',
  [
    ('--only=height', 'choose --only from depth,width,tokens'),
    ('--blocks=0', '--blocks=0: 0 is not a positive integer'),
  ],
)
def test_what_cannot_be_measured(flag, error):
  result = commands.python('-m', 'benchmarks.growth', flag)
  assert result.returncode == 1
  assert error in result.stderr
