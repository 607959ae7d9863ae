#!/usr/bin/env bash
# Regenerates the lock files from *.in. Keeps what is locked already; `lock.sh --upgrade` takes the newest.
# Needs `uv` on PATH (or in UV); run from anywhere. A changed lock file is a new environment at the next `make setup`.
set -euo pipefail
cd "$(dirname "$0")"

for name in uv airflow serve quantize tools bench tasks rig pods; do
  override=()
  [[ -e ${name}.override ]] && override=(--override "${name}.override")
  # The light image has what the tests of its programs ran with.
  [[ ${name} == pods ]] && override=(--constraint airflow.lock)
  "${UV:-uv}" pip compile "${name}.in" "${override[@]}" -o "${name}.lock" "$@" \
    --quiet --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_31 \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "local/locks/lock.sh"
  if grep -nE '(^|[[:space:]])(-i|--(extra-)?index-url|--find-links)|file://|https?://' "${name}.lock"; then
    echo "${name}.lock names an index or a path of this machine; it must not" >&2
    exit 1
  fi
  echo "${name}.lock: $(grep -c '==' "${name}.lock") packages"
done
