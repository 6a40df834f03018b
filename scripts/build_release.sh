#!/usr/bin/env bash
# Builds the sdist and, from it, the wheel, and checks what PyPI will read.
#
#   bash scripts/build_release.sh dist
#
# Needs `pip install build twine`. The version must be that of CITATION.cff and
# of the newest section of CHANGELOG.md, and of the tag in $GITHUB_REF_NAME if
# there is one.
set -euo pipefail
if [[ $# -ne 1 ]]; then
  echo "error: name one folder for the files, as: bash $0 dist" >&2
  exit 1
fi
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
if [[ -e $out && -n $(ls -A "$out") ]]; then
  echo "error: $out is not empty: name another folder" >&2
  exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A copy: building leaves files behind.
git ls-files -z | tar --null --files-from=- -c | tar -x -C "$scratch"
python -m build --outdir="$out" "$scratch" >/dev/null
python -m twine check --strict "$out"/*

version=$(basename "$out"/*.tar.gz .tar.gz)
version=${version#vit_jax-}
check() {
  if [[ $1 != "$version" ]]; then
    echo "error: setup.py has the version $version, but $2 has $1" >&2
    exit 1
  fi
}
check "$(sed -n 's/^version: //p' CITATION.cff)" CITATION.cff
check "$(sed -n 's/^## \([^ ]*\).*/\1/p' CHANGELOG.md | head -1)" CHANGELOG.md
if [[ ${GITHUB_REF_TYPE-} == tag ]]; then
  check "${GITHUB_REF_NAME#v}" "the tag $GITHUB_REF_NAME"
fi
echo "built vit_jax $version in $out"
