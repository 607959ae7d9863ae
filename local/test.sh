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

# pytest's own limit is for one test; this one is for a test that cannot be interrupted.
tests() { # SECONDS ARGUMENTS...
  timeout --kill-after=30 "$1" "${airflow}/python" -m pytest -q "${@:2}"
}

heading "check"
local/check.sh
heading "unit tests"
tests 1200 tests/unit --numprocesses auto --dist worksteal
heading "the rig: a Kubernetes control plane, built where it is not there yet (20 minutes, once)"
PYTHONPATH=src:. "${airflow}/python" -m tests.cluster.rig
heading "contract tests"
tests 1800 tests/contract
heading "documentation"
local/docs.sh
heading "component tests: real services"
tests 3600 tests/component --timeout=1200
heading "cluster tests: the rig"
# In two processes, each with a rig of its own: most of the time something is waited for.
tests 3600 tests/cluster --ignore tests/cluster/test_release.py --ignore tests/cluster/test_scale.py \
  --numprocesses 2 --dist loadfile
echo "left to make test-all: releases through Airflow on the rig, 1,000 clusters, and a real node (tests/node)"
heading "end to end: the demo"
# In the order of the file: each test leaves the stack as the next one expects it, and the last takes it down.
tests 3600 tests/e2e -p no:randomly --timeout=3000 -s
