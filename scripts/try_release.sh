#!/usr/bin/env bash
# Installs a wheel of vit_jax into a new environment, without a clone, and trains
# and predicts there.
#
#   bash scripts/try_release.sh python3.13 dist/vit_jax-0.2.0-py3-none-any.whl
#
# Prints the number of packages and their size.
set -euo pipefail
if [[ $# -ne 2 || ! -f $2 ]]; then
  echo "error: name a Python and a wheel, as: bash $0 python3.13 dist/*.whl" >&2
  exit 1
fi
wheel=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH PYTHONHOME
"$1" -m venv "$scratch/venv"
cd "$scratch"
export PATH="$scratch/venv/bin:$PATH"
pip install --quiet "$wheel"
pip list --format=freeze | grep -cv '^pip=\|^setuptools=' | sed 's/$/ packages/'
du -sm venv | sed 's/\s.*/ MiB/'

vit-jax --version
vit-jax --help >help
grep -q evaluate help
vit-jax train --config=digits --config.train.duration='2 steps' \
  --config.optim.warmup='0 steps' --workdir=digits
# Images in folders, one for each class.
python - <<'PYTHON'
import pathlib
import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
for split in ('train', 'val'):
  for i, name in enumerate(('dark', 'bright')):
    folder = pathlib.Path('images', split, name)
    folder.mkdir(parents=True)
    for k in range(8):
      pixels = rng.integers(128 * i, 128 * (i + 1), (32, 32, 3), np.uint8)
      Image.fromarray(pixels).save(folder / f'{k}.png')
PYTHON
vit-jax train --config=folder_small:folder:images \
  --config.train.duration='2 steps' --config.optim.warmup='0 steps' \
  --config.train.batch_size=4 --workdir=folder
vit-jax predict --from=folder images/val >answers
grep -q 'bright' answers
vit-jax evaluate --from=folder --data=folder:images --split=val >/dev/null
if vit-jax summary --from=hf:owner/name 2>message; then exit 1; fi
grep -q "vit_jax\[hub\]" message
echo "the wheel works on $(python --version)"
