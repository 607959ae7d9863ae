"""A running vLLM cluster, and the Serve config that both backends give to Ray."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from headway.domain.profile import Engine, Replicas
from headway.domain.value import Value
from headway.errors import ConfigError
from headway.units import GIB

CPU_ENVIRONMENT: Mapping[str, str] = {
    # Without a C++ compiler the first sampled request would kill the engine.
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # vLLM would bind every engine of the machine to the same first core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # headway.adapters.local.vllm_cpu takes their place.
    "VLLM_DISABLED_KERNELS": "ChannelWiseTorchFP8ScaledMMLinearKernel,CPUWNA16LinearKernel",
}
"""What every vLLM engine on a CPU is started with, in a cluster and in the quality program."""

ClusterPhase = Literal["absent", "starting", "ready", "failed"]
APPLICATION = "llm"
GRACE_S = 60
"""How long a replica that is to go may finish its requests; Ray's default is 20 s, and streams take longer."""


class ClusterSpec(Value):
    """What to run. Two specs with one `cluster_digest` are the same cluster."""

    name: str
    model: str
    """The one served name that clients see (design rule 13.8)."""
    release: str
    version: int
    cluster_digest: str
    artifact_digest: str
    model_dir: str
    """Directory of the staged artifact on the node."""
    engine: Engine
    replicas: Replicas
    accelerator: str
    tensor_parallel: int
    memory_bytes: int
    """What one replica needs by the plan, for the capacity check."""
    serving_image: str = ""
    """Image by digest; on the embedded stack the digest of the serving environment's lock."""


class ClusterStatus(Value):
    """Where a cluster stands, by its application status and by an answer of its endpoint."""

    name: str
    phase: ClusterPhase
    reason: str = ""
    endpoint: str | None = None
    """Base address without `/v1`; on Kubernetes the one inside of the cluster."""
    replicas_ready: int = 0
    replicas_target: int = 0
    spec: ClusterSpec | None = None


class ScaleUp(NamedTuple):
    """Replicas that were asked for and came.

    A lead time is `ready_at - asked_at`, measured to the first moment at which a replica answers.
    """

    asked_at: datetime
    ready_at: datetime
    replicas: int
    """How many served then."""


class Room(Value):
    """Whether another cluster has a place, as the backend sees it now."""

    fits: bool
    """Whether as many replicas fit as the cluster starts with."""
    possible: bool
    """Whether one replica could fit if everything else were gone; if not, waiting is in vain."""
    replicas: int
    """Most replicas that fit now."""
    detail: str
    """What is needed and what is there, in words."""


def engine_arguments(engine: Engine, *, tensor_parallel: int, cpu: bool) -> dict[str, Any]:
    """Return the arguments of a vLLM engine, by the names that its Python interface has.

    Args:
        engine: The profile's settings.
        tensor_parallel: Accelerators of one replica.
        cpu: Whether it runs on CPU (embedded) or on accelerators.
    """
    return {
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "max_logprobs": engine.max_logprobs,
        "tensor_parallel_size": tensor_parallel,
        # Of a quantized checkpoint vLLM does not ask by itself whether every weight was there.
        "model_loader_extra_config": {"enable_weights_track": True},
        # Not by VLLM_CPU_KVCACHE_SPACE, which takes whole GiB only.
        **(
            {"enforce_eager": True, "kv_cache_memory_bytes": int(engine.kv_cache_gib * GIB)}
            if cpu
            else {"gpu_memory_utilization": engine.gpu_memory_utilization}
        ),
    }


def serve_config(spec: ClusterSpec, *, cpu: bool, http_port: int, host: str = "0.0.0.0") -> dict[str, Any]:  # noqa: S104
    """Build the body of Ray's `PUT /api/serve/applications/` for a cluster.

    The `deployments:` override is there from the first deploy, because its first appearance later would rebuild every
    replica; a changed number in it is applied in place, which is how the floor moves.

    Args:
        spec: The cluster.
        cpu: Whether vLLM runs on CPU (embedded) or on accelerators.
        http_port: Port of Serve's proxy.
        host: Address of Serve's proxy; all interfaces in a pod, loopback on one machine.
    """
    engine = spec.engine
    llm_config: dict[str, Any] = {
        "model_loading_config": {"model_id": spec.model, "model_source": spec.model_dir},
        "engine_kwargs": engine_arguments(engine, tensor_parallel=spec.tensor_parallel, cpu=cpu),
        "deployment_config": {
            "max_ongoing_requests": max(2 * engine.max_num_seqs, 16),
            # A model that cannot be loaded is not loaded again: Ray's own three tries take a minute or more each.
            "max_constructor_retry_count": 1,
        },
    }
    if cpu:
        llm_config["placement_group_config"] = {"bundles": [{"CPU": 1}]}
        # Ray gathers the tokens of 50 ms into one piece of a stream; a benchmark would measure that, not the engine.
        llm_config["experimental_configs"] = {"stream_batching_interval_ms": 0}
    # On accelerators Ray's own `accelerator_type` is left out: it knows other names than the device plugin does and
    # refuses those, and a cluster has one kind of accelerator anyway.
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": http_port, "keep_alive_timeout_s": 90},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [llm_config]},
                "deployments": [replica_override(spec.model, spec.replicas)],
            }
        ],
    }


def checked_range(replicas: Replicas) -> Replicas:
    """Return a replica range that Serve takes; one that contradicts itself would cost a running cluster its life.

    Args:
        replicas: As asked for, perhaps changed since it was checked as a part of a profile.

    Raises:
        ConfigError: The least is below one, or above the most.
    """
    if not 1 <= replicas.min <= replicas.max:
        raise ConfigError(
            f"a cluster of {replicas.min} to {replicas.max} replicas: the least must lie between 1 and the most; "
            "nothing was changed",
            min=replicas.min,
            max=replicas.max,
        )
    return replicas


def deployment_name(model: str) -> str:
    """Return the name that `build_openai_app` gives to the deployment of a model's replicas (Ray 2.60)."""
    return f"LLMServer:{model.replace('/', '--').replace('.', '_')}"


def replica_override(model: str, replicas: Replicas) -> dict[str, Any]:
    """Build the one entry of `deployments:`, whose numbers may change in place."""
    return {
        "name": deployment_name(model),
        "autoscaling_config": {
            "min_replicas": replicas.min,
            "max_replicas": replicas.max,
            "target_ongoing_requests": replicas.target_ongoing,
            "downscale_delay_s": replicas.downscale_delay_s,
        },
        "graceful_shutdown_timeout_s": GRACE_S,
    }
