#!/usr/bin/env bash
# Builds what headway runs on: uv, and virtual environments named by their lock files.
#   HEADWAY_CACHE/uv/<lock>/            the installer
#   HEADWAY_CACHE/envs/<name>-<lock>/   airflow, serve, quantize, tools; only by name: bench (peers of the
#                                       benchmarks), tasks (lm-evaluation-harness), rig (Go, where PATH has none),
#                                       pods (what the light image has)
# An environment that has its `.complete` mark is never touched again; one without it is built anew.
#
# usage: local/setup.sh [NAME...]       the four that headway runs on without a name
set -euo pipefail

checkout=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
locks=${checkout}/local/locks
cache=${HEADWAY_CACHE:-${HOME}/.cache/headway}
names=("$@")
[[ ${#names[@]} -gt 0 ]] || names=(airflow serve quantize tools)
attempts=3

# GiB on disk while it is built, packages on their way included.
declare -A room_gib=([airflow]=3 [serve]=4 [quantize]=8 [tools]=1 [bench]=8 [tasks]=3 [rig]=1 [pods]=1)

fail() { echo "setup: $*" >&2; exit 1; }
digest() { sha256sum "$1" | cut -c1-12; }

if [[ -n ${HEADWAY_ENVS_DIR:-} ]]; then
  echo "environments: those in ${HEADWAY_ENVS_DIR} (HEADWAY_ENVS_DIR)"
  exit 0
fi
for name in "${names[@]}"; do
  [[ -e ${locks}/${name}.lock ]] || fail "there is no environment ${name}; there are airflow, serve, quantize, tools, bench, tasks, rig, pods"
done
[[ $(uname -s)-$(uname -m) == Linux-x86_64 ]] || fail "the lock files are for Linux on x86-64, this is $(uname -sm)"

# A process that compiles itself at every start is slow; byte code is made once, below.
unset PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME VIRTUAL_ENV
export UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-120}
# uv does not read pip's settings; whoever has set an index or certificates for pip means them here too.
pip_setting() { # VARIABLE KEY
  local value=${!1:-}
  [[ -n ${value} ]] || value=$("${python}" -m pip config get "global.$2" 2>/dev/null || true)
  echo "${value}"
}

find_python() {
  python=$(command -v python3.11 || true)
  if [[ -z ${python} ]]; then
    try_apt python3.11
    python=$(command -v python3.11 || true)
  fi
  [[ -n ${python} ]] || fail "python3.11 is not on PATH; install Python 3.11"
  python=$(readlink -f "$("${python}" -c 'import sys; print(sys.executable)')")
}

# Only what is really missing, and only where it cannot ask for a password.
try_apt() {
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "setup: installing $* with apt-get"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null || true
  fi
}

bring_uv() {
  uv_dir=${cache}/uv/$(digest "${locks}/uv.lock")
  uv=${uv_dir}/bin/uv
  [[ -e ${uv_dir}/.complete ]] && return
  local started=${SECONDS}
  rm -rf "${uv_dir}"
  if ! "${python}" -m pip --version >/dev/null 2>&1 && ! "${python}" -m ensurepip --version >/dev/null 2>&1; then
    try_apt python3.11-venv
  fi
  local pip
  if "${python}" -m venv "${uv_dir}" >/dev/null 2>&1; then
    pip=("${uv_dir}/bin/python" -m pip install)
  elif "${python}" -m pip --version >/dev/null 2>&1; then
    pip=("${python}" -m pip install --target "${uv_dir}")
  else
    fail "${python} can make no virtual environment and has no pip; install the package python3.11-venv"
  fi
  retry "${pip[@]}" --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "${locks}/uv.lock" ||
    fail "cannot install uv; is the package index reachable?"
  touch "${uv_dir}/.complete"
  echo "uv           $("${uv}" --version | cut -d' ' -f2)  $((SECONDS - started)) s"
}

retry() {
  local attempt
  for ((attempt = 1; attempt <= attempts; attempt++)); do
    "$@" && return
    [[ ${attempt} == "${attempts}" ]] || { echo "setup: attempt ${attempt} of ${attempts} failed, trying again" >&2; sleep $((attempt * 5)); }
  done
  return 1
}

build() { # NAME DIRECTORY
  local name=$1 directory=$2 started=${SECONDS} free_gib
  free_gib=$(df --output=avail -BG "${cache}" | tail -1 | tr -dc '0-9')
  [[ ${free_gib} -ge ${room_gib[${name}]} ]] ||
    fail "${free_gib} GiB are free at ${cache}, environment ${name} needs ${room_gib[${name}]} GiB; make room or set HEADWAY_CACHE"
  rm -rf "${directory}"
  printf '%-12s building ...\n' "${name}"
  "${uv}" venv --quiet --no-project --python "${python}" "${directory}"
  retry "${uv}" pip install --quiet --python "${directory}/bin/python" --no-deps --no-build --require-hashes \
    --compile-bytecode -r "${locks}/${name}.lock" ||
    fail "cannot install environment ${name}; is the package index reachable? A second run goes on from here"
  touch "${directory}/.complete"
  printf '%-12s built    %4d s  %s\n' "${name}" $((SECONDS - started)) "$(du -sh "${directory}" | cut -f1)"
}

complete=true
for name in "${names[@]}"; do
  [[ -e ${cache}/envs/${name}-$(digest "${locks}/${name}.lock")/.complete ]] || complete=false
done
if ${complete}; then
  for name in "${names[@]}"; do printf '%-12s ready\n' "${name}"; done
  exit 0
fi

mkdir -p "${cache}/uv" "${cache}/envs"
exec 9>"${cache}/setup.lock"
if ! flock --nonblock 9; then
  echo "setup: another setup is at work in ${cache}; waiting for it"
  flock 9
fi

find_python
index=$(pip_setting PIP_INDEX_URL index-url)
[[ -z ${index} || -n ${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-} ]] || export UV_DEFAULT_INDEX=${index}
extra=$(pip_setting PIP_EXTRA_INDEX_URL extra-index-url)
[[ -z ${extra} || -n ${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-} ]] || export UV_INDEX=${extra}
certificates=$(pip_setting PIP_CERT cert)
[[ -z ${certificates} || -n ${SSL_CERT_FILE:-} ]] || export SSL_CERT_FILE=${certificates}
bring_uv
for name in "${names[@]}"; do
  directory=${cache}/envs/${name}-$(digest "${locks}/${name}.lock")
  if [[ -e ${directory}/.complete ]]; then
    printf '%-12s ready\n' "${name}"
  else
    build "${name}" "${directory}"
  fi
done
