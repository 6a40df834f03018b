#!/usr/bin/env bash
# Makes a virtual environment at a path, in which the packages of the present one
# come after its own.
set -euo pipefail
python -m venv --without-pip "$1"
others=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$others')" \
  >"$(echo "$1"/lib/python3*/site-packages)/others.pth"
