"""The benchmark of a served model; no time is asserted."""

import json

import pytest
import rates
import tiny

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

from benchmarks import report as report_lib
from benchmarks import serving
from benchmarks import setting as setting_lib


@pytest.mark.slow
def test_each_number_of_clients_has_its_ratio(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(tiny.ROOT))
  monkeypatch.setattr(serving, '_LEAST_IMAGES', 64)
  setting_lib.write_images(tmp_path, 8, (8, 8))
  config = tiny.config(
    data__name=f'folder:{tmp_path}',
    data__channels=3,
    model__pool='token',
    train__batch_size=8,
  )
  entry = serving.measure(config, blocks=1)
  assert [*entry] == ['1 client', '8 clients', '64 clients']
  for row in json.loads(json.dumps(entry)).values():
    rates.check_rates(row)
    assert 0 < row['milliseconds'] <= row['milliseconds_p99']
    assert row['memory_mb'] > 0
  assert 'serve 64 clients' in report_lib.table({'serve': entry})
