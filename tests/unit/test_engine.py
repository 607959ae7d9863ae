"""How the quality program starts an engine, and what it makes of one that ends."""

import pytest

from headway.domain.cluster import engine_arguments
from headway.domain.profile import Engine
from headway.errors import BackendUnavailable
from headway.pods.engine import EngineFailed, _failure, flags


def test_the_command_line_says_what_a_cluster_is_told() -> None:
    engine = Engine(max_model_len=512, kv_cache_gib=0.5, enable_prefix_caching=False)

    found = flags(engine_arguments(engine, tensor_parallel=2, cpu=True))

    assert "--max-model-len=512" in found
    assert "--no-enable-prefix-caching" in found
    assert "--enforce-eager" in found
    assert f"--kv-cache-memory-bytes={2**29}" in found
    assert "--tensor-parallel-size=2" in found
    assert '--model-loader-extra-config={"enable_weights_track": true}' in found
    assert not any(flag.startswith("--gpu-memory-utilization") for flag in found)


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (1, "ValueError: Following weights were not initialized from checkpoint: {'a'}", EngineFailed),
        (1, "ValueError: Quant type (uint8b128) not supported by CPUWNA16", EngineFailed),
        (1, "OutOfMemoryError: CUDA out of memory", BackendUnavailable),
        (
            1,
            "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -9}",
            BackendUnavailable,
        ),
        (1, "OSError: [Errno 98] Address already in use", BackendUnavailable),
        (-15, "it said nothing", BackendUnavailable),
    ],
)
def test_only_what_is_the_models_fault_counts_against_it(code: int, said: str, kind: type[Exception]) -> None:
    """The answer is kept for good, so a machine without memory must not look like broken weights."""
    error = _failure(code, said)

    assert type(error) is kind
    assert said in error.message
