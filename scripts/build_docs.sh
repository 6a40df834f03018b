#!/usr/bin/env bash
# Builds the pages into build/site, or into the folder that is given; warnings,
# such as a link to a page that is not there, are errors. Needs `.[docs]`.
set -euo pipefail
cd "$(dirname "$0")/.."
site=${1:-build/site}
python -m sphinx -q -W --keep-going -E -c docs -b html . "$site"
echo "built $site/index.html"
