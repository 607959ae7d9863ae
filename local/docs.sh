#!/usr/bin/env bash
# Builds the documentation into site/; a warning is an error.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
NO_MKDOCS_2_WARNING=true "$(local/env_path tools)/bin/mkdocs" build --strict --quiet "$@"
echo "documentation: site/index.html"
