"""How a Ray head is started on one machine: its arguments and its environment."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from headway.adapters.local import cluster_files as files
from headway.adapters.local.cluster_files import ClusterRecord
from headway.adapters.local.layout import HOST, LocalLayout
from headway.domain.cluster import CPU_ENVIRONMENT
from headway.units import MIB

LOGICAL_CPUS = 32
"""Ray's CPUs are tickets, not cores: a replica takes 2, the ingress 1. Enough for any floor."""

OBJECT_STORE_BYTES = 80 * MIB
"""Ray's least is 75 MiB; Serve LLM puts next to nothing there."""

SHARE_OF_CORES = 4
"""An engine computes with a quarter of the cores. Two threads an engine on two busy cores are 25 times slower than one,
because each waits for the other at every layer."""

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Off by default on Linux; it is what keeps Ray on 127.0.0.1 instead of on every interface of the machine.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Idle workers: none is started ahead of need, and the one that built the application (0.6 GB) is ended.
    "RAY_num_prestart_python_workers": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_num_workers_soft_limit": "1",
    # Ray's default is 15, which starves a serving cluster beside a busy scheduler.
    "RAY_worker_niceness": "0",
    "RAY_ROTATION_MAX_BYTES": str(20 * MIB),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
}


def ray_arguments(record: ClusterRecord, temp_dir: Path) -> Sequence[str]:
    """Return the arguments of a Ray head that shares no port with another."""
    at = record.ports.at
    return [
        "--head",
        "--block",
        f"--node-ip-address={HOST}",
        f"--port={at(files.GCS)}",
        f"--dashboard-host={HOST}",
        f"--dashboard-port={at(files.DASHBOARD)}",
        f"--metrics-export-port={at(files.METRICS)}",
        f"--ray-client-server-port={at(files.CLIENT)}",
        f"--dashboard-agent-listen-port={at(files.AGENT_HTTP)}",
        f"--dashboard-agent-grpc-port={at(files.AGENT_GRPC)}",
        f"--runtime-env-agent-port={at(files.RUNTIME_ENV)}",
        f"--object-manager-port={at(files.OBJECTS)}",
        f"--node-manager-port={at(files.NODE)}",
        f"--min-worker-port={record.ports.worker_first}",
        f"--max-worker-port={record.ports.worker_last}",
        f"--num-cpus={LOGICAL_CPUS}",
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temp_dir}",
        "--include-log-monitor=false",
        "--log-style=record",
        "--log-color=false",
        "--disable-usage-stats",
        "--no-monitor",
    ]


def engine_environment(layout: LocalLayout) -> dict[str, str]:
    """Return what every process with a vLLM engine in it needs beside the environment of every child."""
    python_path = layout.child_env("serve")["PYTHONPATH"]
    threads = max(1, (psutil.cpu_count() or 1) // SHARE_OF_CORES)
    return {
        **CPU_ENVIRONMENT,
        "VLLM_CACHE_ROOT": str(layout.vllm_cache),
        "OMP_NUM_THREADS": str(threads),
        # With the entry point of headway.adapters.local.vllm_cpu.
        "PYTHONPATH": f"{python_path}:{layout.checkout / 'local' / 'serve'}",
    }


def ray_environment(layout: LocalLayout, record: ClusterRecord) -> dict[str, str]:
    """Return what the processes of a cluster need beside the environment of every child."""
    return {
        **engine_environment(layout),
        **RAY_ENVIRONMENT,
        "HEADWAY_CLUSTER": record.spec.name,
        # Ray runs what it is sent, and Serve's replicas listen on every interface whatever they are told.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(files.token_file(layout, record.spec.name)),
    }
