#!/usr/bin/env bash
# Everything that passes on this machine: checks, tests in their layers, documentation, and the demo as the end-to-end test.
# Leaves nothing running.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
airflow=$(local/env_path airflow)/bin
unset PYTHONDONTWRITEBYTECODE

finish() {
  local code=$?
  trap - EXIT
  bin/headway down || code=1
  if [[ ${code} == 0 ]]; then echo "test: passed in ${SECONDS} s"; else echo "test: FAILED after ${SECONDS} s" >&2; fi
  exit "${code}"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading() { printf '\n== %s (%d s)\n' "$1" "${SECONDS}"; }

heading "check"
local/check.sh
heading "unit and contract tests"
"${airflow}/python" -m pytest tests/unit tests/contract -q
heading "documentation"
local/docs.sh
heading "component tests: real services"
"${airflow}/python" -m pytest tests/component -q --timeout=1200
heading "end to end: the demo"
"${airflow}/python" -m pytest tests/e2e -q --timeout=3000 -s
