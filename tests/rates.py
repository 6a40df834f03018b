"""What the benchmark's tests ask of every entry with rates."""

import json


def check_rates(entry):
  """Checks that an entry's rates, ratio and spreads fit each other."""
  assert json.loads(json.dumps(entry)) == entry
  for key, ends in (
    ('images_per_second', 'range'),
    ('baseline', 'baseline_range'),
    ('ratio', 'ratio_range'),
  ):
    low, high = entry[ends]
    assert 0 < low <= entry[key] <= high
