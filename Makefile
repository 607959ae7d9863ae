# Everything that is done with headway, as verbs. `make` alone lists them.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup up down demo demo-prescale doctor check test test-all rig node bench-staging bench-schemes bench-canary bench-live bench-generator bench-tick bench-decisions docs clean

help:  ## List the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/|/' | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'

setup:  ## Build the environments from local/locks (about 10 minutes and 10 GiB once, in ~/.cache/headway)
	@local/setup.sh

up: setup  ## Start the embedded stack: Airflow, MLflow, S3, gateway
	@bin/headway up

down:  ## End everything of the stack, and prove that nothing is left
	@bin/headway down

demo: setup  ## Release a real model, end to end, with live progress
	@bin/headway demo

demo-prescale: setup  ## Replay a morning faster than life: a real second replica is up before the peak (5 minutes)
	@bin/headway demo-prescale

doctor: setup  ## Say what this machine lacks, and what to do
	@bin/headway doctor

check: setup  ## Lint, format, types, import contracts, unit tests (under two minutes)
	@local/check.sh --tests

test: setup  ## Everything that passes on this machine, the demo included
	@local/test.sh

test-all: test node  ## The same, releases through Airflow on the rig, and one on a real one-node Kubernetes (as root; an hour more)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m pytest -q tests/cluster/test_release.py tests/cluster/test_scale.py
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m pytest -q tests/node -s

rig: setup  ## Build a real Kubernetes control plane for tests/cluster (about 20 minutes and 6 GiB once, Go caches included)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m tests.cluster.rig

node: rig  ## Build a real one-node Kubernetes for tests/node (as root; about 15 minutes and 4 GiB once, Go caches included)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m tests.node.machine

bench-staging:  ## Staging against curl, s5cmd, boto3, huggingface_hub and Run:ai's streamer (6 minutes, 10 GiB of disk)
	@local/setup.sh bench
	@PYTHONPATH=src:. "$$(local/env_path bench)/bin/python" -m benchmarks.staging

bench-schemes: setup  ## Every scheme and damaged copies on one small model: cost, answers, verdict (40 to 60 minutes)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.schemes

bench-canary: setup  ## The decision rule against its peers, 20,000 simulated benchmarks a row (3 minutes)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.canary_sim

bench-live: setup  ## The watch over a shift against plain limits, 10,000 looks a simulated shift (4 minutes)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.live_shift

bench-generator: setup  ## The load generator: streams a core, lag, and its figures against vLLM's own benchmark (10 minutes)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.generator

bench-tick: setup  ## A tick of the pre-scaling for 1, 100, 300 and 1,000 models: time, memory, growth (10 minutes)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.tick

bench-decisions: setup  ## 300 whole decisions on a server with known latencies, equal and slower (an hour)
	@PYTHONPATH=src:. "$$(local/env_path airflow)/bin/python" -m benchmarks.canary_real

docs: setup  ## Build the documentation into site/
	@local/docs.sh

clean: down  ## Delete the stack's state and what tools left in the checkout; keep environments and caches
	@rm -rf "$${HEADWAY_HOME:-.headway}" site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
