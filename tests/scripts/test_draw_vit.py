"""The diagram of a ViT: the file of the pages is what the script draws."""

import importlib.util

import pytest
import tiny

pytest.importorskip('matplotlib', reason='needs matplotlib: vit_jax[notebooks]')


def test_the_stored_file_is_drawn(tmp_path):
  """Coordinates may differ between versions of matplotlib, shapes do not."""
  path = tiny.ROOT / 'scripts' / 'draw_vit.py'
  spec = importlib.util.spec_from_file_location('draw_vit', path)
  script = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(script)
  script.main(['draw_vit.py', str(tmp_path / 'vit.svg')])
  drawn, stored = (
    folder.joinpath('vit.svg').read_text().count('<path')
    for folder in (tmp_path, tiny.ROOT / 'docs' / 'pictures')
  )
  assert drawn == stored
  with pytest.raises(script.UserError, match='give the path'):
    script.main(['draw_vit.py'])
