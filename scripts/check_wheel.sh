#!/usr/bin/env bash
# Builds the sdist and, from it, the wheel; installs the wheel beside the packages
# of this environment, outside the clone; and runs the commands there. Arguments
# go to `python -m build`, as --no-isolation.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH PYTHONHOME

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A copy: building leaves files behind.
mkdir "$scratch/checkout"
git ls-files -z --cached --others --exclude-standard |
  tar --null --files-from=- -c | tar -x -C "$scratch/checkout"
python -m build --outdir="$scratch/dist" "$@" "$scratch/checkout" >/dev/null
rm -rf "$scratch/checkout"

bash scripts/environment_beside.sh "$scratch/venv"
python -m pip --python="$scratch/venv/bin/python" install -q --no-deps \
  --force-reinstall --ignore-installed "$scratch"/dist/*.whl
cd "$scratch"
export PATH="$scratch/venv/bin:$PATH"
python - "$scratch" <<'PYTHON'
import pathlib, sys, zipfile, vit_jax
package = pathlib.Path(vit_jax.__file__).parent
assert package.is_relative_to(pathlib.Path(sys.argv[1]).resolve()), package
for name in (
  'configs/digits.py',
  'data/class_names/cifar10.txt',
  'data/templates/cifar.txt',
  'explore/page',
  'explore/templates',
):
  assert (package / name).exists(), name
# Nothing of the clone beside the package.
(wheel,) = pathlib.Path(sys.argv[1], 'dist').glob('*.whl')
for name in zipfile.ZipFile(wheel).namelist():
  assert name.startswith(('vit_jax/', 'vit_jax-')), name
PYTHON
vit-jax --help | grep evaluate
vit-jax --version
# By name, by the path that the pages have, and with an argument.
vit-jax train --config=digits --dry_run
vit-jax summary --config=configs/digits.py >/dev/null
python -m vit_jax.main --config=vit_i1k:S/16 --help >/dev/null
vit-jax train --config=digits --config.train.duration='2 steps' \
  --config.optim.warmup='0 steps' --workdir=run
vit-jax predict --help >/dev/null
if vit-jax tain 2>message; then exit 1; fi
grep -q "'tain' is no verb" message
echo 'the wheel works'
