#!/usr/bin/env bash
# Downloads wheels for scripts/gpu_report.sh on a machine without a network.
#
#   scripts/gpu_wheels.sh FOLDER [PYTHON_VERSION]
#
# FOLDER gets, in 15 MB, what vit_jax needs beside JAX, Flax, Optax, Orbax,
# OpenCV, PyTorch and timm, which that machine has. PYTHON_VERSION is its
# Python, by default 3.12, on Linux (x86-64).
set -euo pipefail
folder=$1 version=${2:-3.12}
platforms=()
for glibc in 2_17 2_24 2_26 2_27 2_28 2_31 2_34 2_35; do
  platforms+=(--platform "manylinux_${glibc}_x86_64")
done
packages=(
  annotated-types array-record clu cmeel cmeel-mimalloc dm-tree
  docstring-parser googleapis-common-protos grain immutabledict
  importlib-resources ml-collections portpicker pydantic simple-parsing
  simplejpeg tensorboardX tensorflow-datasets tensorflow-metadata termcolor
  toml typing-inspection
)
download() {
  python3 -m pip download -q --no-deps --only-binary=:all: \
    --python-version "$version" --implementation cp "${platforms[@]}" \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    -d "$folder" "$@"
}
mkdir -p "$folder"
download "${packages[@]}"
# pydantic wants one version of its core.
core=$(unzip -p "$folder"/pydantic-*.whl '*/METADATA' |
  sed -n 's/^Requires-Dist: pydantic-core *//p' | tr -d ' ')
download "pydantic-core$core"
# This one has no wheel.
python3 -m pip wheel -q --no-deps -w "$folder" promise
du -sh "$folder"
