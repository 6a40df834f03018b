#!/usr/bin/env bash
# Runs the tests with the newest versions of what vit_jax needs, or with the
# lowest that setup.py allows, in a virtual environment of its own.
#
#   bash scripts/check_versions.sh newest python3.13
#   bash scripts/check_versions.sh lowest python3.11 tests/train tests/models
#
# Prints the versions of the packages that JAX programs depend on, and ends with
# the tests that fail and with pytest's exit status. Arguments after the Python
# are pytest's; without them all tests run. The newest versions need a Python
# that they still support.
set -euo pipefail

case ${1-} in
  newest) resolution=highest ;;
  lowest) resolution=lowest-direct ;;
  *)
    echo "error: ${1-nothing}: the first argument is newest or lowest" >&2
    exit 1
    ;;
esac
python=${2:-python3}
shift $(($# < 2 ? $# : 2))
if ! command -v "$python" >/dev/null; then
  echo "error: there is no $python: name a Python, as python3.13" >&2
  exit 1
fi

cd "$(dirname "$0")/.."
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
"$python" -m venv "$environment"
export PATH="$environment/bin:$PATH" VIRTUAL_ENV=$environment
pip install --quiet uv
uv pip install --quiet --resolution="$resolution" --editable '.[test]'
uv pip list | grep -E '^(jax|jaxlib|flax|optax|orbax-checkpoint|grain|numpy) '
python -m pytest -ra "$@"
