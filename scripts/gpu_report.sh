#!/usr/bin/env bash
# Measures the speed of ViTs on the GPU of this machine, in about 9 minutes;
# writes report.json and report.md to a directory.
#
#   scripts/gpu_report.sh [DIRECTORY]
#
# It needs Python (3.11 to 3.13) with JAX for CUDA, and compares with timm if
# that and PyTorch are installed. Other requirements of vit_jax are installed
# into a separate virtual environment, from PyPI or, with PIP_NO_INDEX=1 and
# PIP_FIND_LINKS=FOLDER, from wheels.
set -euo pipefail
out=$(realpath -m "${1:-gpu_report}")
cd "$(dirname "$0")/.."

start=$SECONDS
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
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
pip install -q -e .
export VIT_JAX_CACHE="$scratch/cache"
# The time of the installation is part of the nine minutes.
python -m benchmarks.gpu_report \
  --out="$out" --budget=$((520 - (SECONDS - start)))
cat "$out/report.md"
