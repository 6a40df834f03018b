#!/usr/bin/env bash
# Measures the speed of ViTs on the GPU of this machine; writes report.json and
# report.md to a directory, after each row.
#
#   scripts/gpu_report.sh [DIRECTORY] [FLAGS]
#
# FLAGS are those of `python -m benchmarks.gpu_report`. All parts take about 15
# minutes on an H100. In two commands of less than 10 minutes:
#
#   scripts/gpu_report.sh gpu_report --budget=500 --parts=train,profile
#   scripts/gpu_report.sh gpu_report --budget=300 --cifar10=FOLDER
#
# The second one goes on with the rows of the first.
#
# It needs Python (3.11 to 3.13) with JAX for CUDA, and compares with timm if
# that and PyTorch are installed. Other requirements of vit_jax are installed
# into a separate virtual environment. Without a network, WHEELS=FOLDER names
# what scripts/gpu_wheels.sh has downloaded; JAX, Flax, Optax, Orbax and OpenCV
# must be there then.
set -euo pipefail
out=$(realpath -m "${1:-gpu_report}")
shift || true
wheels=${WHEELS:+$(realpath "$WHEELS")}
root=$(realpath "$(dirname "$0")/..")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -n $wheels ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
    --target "$scratch/site" "$wheels"/*.whl
  export PYTHONPATH=$scratch/site:$root
else
  python3 -m venv "$scratch/venv"
  # The packages of this Python, which may be a virtual environment itself: with
  # --system-site-packages the new one would have those of the Python below.
  packages=$(python3 -c '
import sys
for path in sys.path:
  if path.endswith("-packages"):
    print(f"import site; site.addsitedir({path!r})")')
  # shellcheck disable=SC1091
  source "$scratch/venv/bin/activate"
  echo "$packages" > \
    "$(python3 -c 'import site; print(site.getsitepackages()[0])')/below.pth"
  pip install -q -e "$root"
  export PYTHONPATH=$root
fi
export VIT_JAX_CACHE=${VIT_JAX_CACHE:-$scratch/cache}
# The time of the installation counts, too.
python3 -m benchmarks.gpu_report --out="$out" --budget=$((840 - SECONDS)) "$@"
cat "$out/report.md"
