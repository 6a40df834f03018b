"""The cores that an input needs, with few images; no time is asserted."""

import json

import cv2
import numpy as np
import pytest

from benchmarks import core_rates


@pytest.mark.slow
def test_rows(tmp_path):
  rows = core_rates.measure(tmp_path, 32, [1, 2], 1, 1000.0)
  assert json.loads(json.dumps(rows, allow_nan=False)) == rows
  kinds = ['jpeg', 'jpeg_256', 'webp', 'avif', 'records']
  assert [(x['files'], x['threads']) for x in rows] == [
    (kind, threads) for kind in kinds for threads in (1, 2)
  ]
  for row in rows:
    assert row['images_per_second'] > 0
    assert row['cores'] == pytest.approx(row['processor_milliseconds'])
  sizes = {row['files']: row['kilobytes'] for row in rows}
  assert sizes['jpeg_256'] < sizes['jpeg'] == sizes['records']
  assert 'jpeg_256' in core_rates.table(rows)


def test_smaller_files_have_the_short_side():
  picture = np.zeros((30, 40, 3), np.uint8)
  _, file = cv2.imencode('.jpg', picture)
  (smaller,) = core_rates._encoded(
    [file.tobytes()], *core_rates._FORMS['jpeg'], short_side=15
  )
  decoded = cv2.imdecode(np.frombuffer(smaller, np.uint8), cv2.IMREAD_COLOR)
  assert decoded.shape == (15, 20, 3)
