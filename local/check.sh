#!/usr/bin/env bash
# What must hold before a commit: lint, format, types, import contracts, and with `--tests` the unit tests too.
# Runs all of them, then fails if one has failed.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
tools=$(local/env_path tools)/bin
airflow=$(local/env_path airflow)/bin
unset PYTHONDONTWRITEBYTECODE
export PYTHONPATH=src:.

failed=()
step() { # NAME COMMAND...
  local name=$1 started=${SECONDS}
  shift
  if "$@"; then
    printf '%-18s ok      %3d s\n' "${name}" $((SECONDS - started))
  else
    printf '%-18s FAILED  %3d s\n' "${name}" $((SECONDS - started))
    failed+=("${name}")
  fi
}

contracts() {
  local output
  output=$("${tools}/lint-imports" 2>&1) || { echo "${output}"; return 1; }
}

step lint "${tools}/ruff" check --quiet .
step format "${tools}/ruff" format --check --quiet .
step types "${tools}/mypy" --no-error-summary --python-executable "${airflow}/python"
step contracts contracts
[[ ${1:-} != --tests ]] || step unit timeout --kill-after=30 600 "${airflow}/python" -m pytest tests/unit -q --hypothesis-profile=quick --numprocesses auto --dist worksteal

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
