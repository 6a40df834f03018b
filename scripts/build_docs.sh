#!/usr/bin/env bash
# Builds the pages into build/site, or into the folder that is given; warnings,
# such as a link to a page that is not there, are errors, and so is a page that
# scrolls sideways on a phone. Needs `.[docs]`.
set -euo pipefail
cd "$(dirname "$0")/.."
site=${1:-build/site}
python -m sphinx -q -W --keep-going -E -c docs -b html . "$site"
python scripts/check_pages.py "$site"
echo "built $site/index.html"
