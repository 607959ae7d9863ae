"""What vLLM would refuse is refused before any device is used, and the reason says what the matter is."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain import serving
from headway.domain.hardware import ACCELERATORS
from headway.domain.model import LinearShape, ModelShape
from headway.domain.weights import BITS_PER_WEIGHT, BUILDABLE, GROUPED, UNTRIED, Scheme
from tests.factories import make_shape
from tests.unit.test_validate import CONFIG, check, model, shard

SMOLLM2 = tuple(
    LinearShape(name=name, out_features=outputs, in_features=inputs)
    for name, outputs, inputs in (
        ("q_proj", 576, 576),
        ("k_proj", 192, 576),
        ("v_proj", 192, 576),
        ("o_proj", 576, 576),
        ("gate_proj", 1536, 576),
        ("up_proj", 1536, 576),
        ("down_proj", 576, 1536),
    )
)
"""The matrices of SmolLM2-135M."""

SCHEMES = sorted(serving.SERVES)


def linear(name: str, outputs: int, inputs: int) -> ModelShape:
    """A model with one matrix."""
    return make_shape(linears=[LinearShape(name=name, out_features=outputs, in_features=inputs)])


def refused(
    scheme: Scheme,
    device: str,
    shape: ModelShape | None = None,
    *,
    group: int | None = 64,
    parallel: int = 1,
    dtype: str = "auto",
    scales: bool = False,
) -> str | None:
    """Put the question with everything as usual but what is named."""
    return serving.refusal(
        scheme,
        ACCELERATORS[device],
        shape or make_shape(linears=SMOLLM2),
        group_size=group,
        tensor_parallel=parallel,
        dtype=dtype,
        kv_cache_scales=scales,
    )


def test_every_scheme_has_a_row_with_its_sources() -> None:
    """A scheme that is added must be looked up."""
    assert set(serving.SERVES) == set(BITS_PER_WEIGHT) >= BUILDABLE | set(UNTRIED)
    assert all(row.gpu_source and row.cpu_source for row in serving.SERVES.values())


@pytest.mark.parametrize(
    ("device", "serves"),
    [
        ("cpu", BUILDABLE - {"fp8"}),
        ("Tesla-T4", BUILDABLE),
        ("NVIDIA-A10G", BUILDABLE),
        ("NVIDIA-L4", BUILDABLE),
        ("NVIDIA-H100-80GB-HBM3", BUILDABLE),
        ("NVIDIA-B200", BUILDABLE - {"w8a8"}),
    ],
)
def test_what_serves_where(device: str, serves: set[str]) -> None:
    """The table, device by device."""
    assert {scheme for scheme in SCHEMES if refused(scheme, device) is None} == serves


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("vLLM has no CPU kernel for it", refused("fp8", "cpu")),
        ("no kernel for it from compute capability 10.0 on, and NVIDIA-B200 has 10.0", refused("w8a8", "NVIDIA-B200")),
        ("never tried", refused("nvfp4", "NVIDIA-B200")),
        ("Tesla-T4 has no bfloat16.*it has float16", refused("none", "Tesla-T4", dtype="bfloat16")),
        ("16 bits, and `engine.dtype` is float32", refused("fp8-dynamic", "NVIDIA-L4", dtype="float32")),
        ("q_proj has 576 inputs.*group_size: 128", refused("w4a16-gptq", "NVIDIA-L4", group=128)),
        ("groups of 16 have no kernel.*128, 64 or 32", refused("w4a16-gptq", "NVIDIA-L4", group=16)),
        ("no place for `kv_cache_scales`", refused("none", "NVIDIA-L4", scales=True)),
        ("FP8 KV cache on CPU needs AVX-512", refused("fp8-dynamic", "cpu", scales=True)),
        ("FP8 KV cache needs compute capability 8.0, and Tesla-T4", refused("fp8-dynamic", "Tesla-T4", scales=True)),
    ],
)
def test_a_reason_says_what_was_found_and_what_is_needed(reason: str, found: str | None) -> None:
    """It stands in a report, where nobody has the sources at hand."""
    assert found is not None
    assert re.search(reason, found)


@pytest.mark.parametrize(
    ("scheme", "device", "dtype"),
    [
        ("none", "Tesla-T4", "auto"),
        ("w4a16-awq", "Tesla-T4", "float16"),
        ("none", "cpu", "float32"),
        ("fp8-dynamic", "cpu", "float32"),
        ("w8a8", "cpu", "float32"),
        ("w4a16-awq", "cpu", "float32"),
        ("none", "NVIDIA-L4", "float32"),
    ],
)
def test_types_that_serve(scheme: Scheme, device: str, dtype: str) -> None:
    """With `auto` vLLM takes float16 where there is no bfloat16."""
    assert refused(scheme, device, dtype=dtype) is None


def test_groups_must_fit_what_each_device_gets() -> None:
    """Row-parallel matrices are split along the inputs, the others along the outputs."""
    assert refused("w4a16-gptq", "NVIDIA-L4", linear("down_proj", 576, 1536), group=64, parallel=8) is None
    assert "192 inputs on each of 8 devices" in str(
        refused("w4a16-gptq", "NVIDIA-L4", linear("down_proj", 576, 1536), group=128, parallel=8)
    )
    assert refused("w4a16-gptq", "NVIDIA-L4", linear("up_proj", 1536, 128), group=128, parallel=8) is None


@pytest.mark.parametrize(
    ("name", "outputs", "inputs", "reason"),
    [
        ("up_proj", 1000, 64, "up_proj has 1000 outputs.*per_replica: 16. does not divide"),
        ("down_proj", 64, 1000, "down_proj has 1000 inputs.*per_replica: 16. does not divide"),
        ("experts.down_proj", 64, 1000, "experts.down_proj has 1000 inputs"),
        ("q_proj", 1000, 64, None),
        ("kv_a_proj_with_mqa", 1000, 64, None),
    ],
)
def test_a_matrix_must_divide_over_the_devices(name: str, outputs: int, inputs: int, reason: str | None) -> None:
    """Heads are counted elsewhere, and what each device holds whole need not divide."""
    found = refused("fp8-dynamic", "NVIDIA-L4", linear(name, outputs, inputs), parallel=16)

    assert (found is None) == (reason is None)
    assert reason is None or re.search(reason, str(found))


def test_shapes_off_the_tiles_of_a_kernel_serve() -> None:
    """Marlin pads, and the kernel for CPUs has no tiles."""
    odd = linear("o_proj", 100, 96)

    assert refused("w4a16-gptq", "NVIDIA-L4", odd, group=32) is None
    assert refused("w4a16-gptq", "cpu", odd, group=32) is None


def test_quantized_experts_do_not_serve_on_cpu() -> None:
    """Their kernels need AMX; unquantized ones do serve."""
    experts = linear("experts.up_proj", 128, 64)

    assert "experts need AMX" in str(refused("fp8-dynamic", "cpu", experts))
    assert refused("none", "cpu", experts) is None
    assert refused("fp8-dynamic", "NVIDIA-L4", experts) is None


def test_fp8_cache_by_head_size() -> None:
    """FlashInfer serves some head sizes from 8.0 on, Triton every one from 8.9 on."""
    served = {
        (device, size): serving.kv_cache_refusal(ACCELERATORS[device], size) is None
        for device in ("cpu", "Tesla-T4", "NVIDIA-A10G", "NVIDIA-L4")
        for size in (64, 80)
    }

    assert {key for key, good in served.items() if good} == {
        ("NVIDIA-A10G", 64),
        ("NVIDIA-L4", 64),
        ("NVIDIA-L4", 80),
    }


@pytest.mark.parametrize(
    ("scheme", "group", "bits"),
    [("none", None, 16), ("fp8", 128, 8), ("w4a16-awq", 32, 4.5), ("w4a16-awq", 64, 4.25), ("w4a16-gptq", 128, 4.125)],
)
def test_bits_grow_as_groups_shrink(scheme: Scheme, group: int | None, bits: float) -> None:
    """Each group has a scale of 16 bits; where there are no groups their size is of no account."""
    assert serving.bits_per_weight(scheme, group) == bits


SIZES = st.sampled_from([16, 32, 48, 64, 96, 100, 128, 192, 256, 576, 1536, 4096])
LINEARS = st.lists(
    st.builds(
        LinearShape,
        name=st.sampled_from(
            ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "experts.down_proj", "fc1"]
        ),
        out_features=SIZES,
        in_features=SIZES,
    ),
    max_size=5,
)


@given(
    linears=LINEARS,
    scheme=st.sampled_from(sorted(GROUPED)),
    device=st.sampled_from(sorted(ACCELERATORS)),
    parallel=st.sampled_from([1, 2, 4, 8]),
)
def test_smaller_groups_serve_wherever_larger_ones_do(
    linears: list[LinearShape], scheme: Scheme, device: str, parallel: int
) -> None:
    """32 divides 64 divides 128."""
    shape = make_shape(linears=linears)
    large, middle, small = (refused(scheme, device, shape, group=g, parallel=parallel) for g in (128, 64, 32))

    assert large is not None or middle is None
    assert middle is not None or small is None


@given(
    linears=LINEARS,
    scheme=st.sampled_from(SCHEMES),
    device=st.sampled_from(sorted(ACCELERATORS)),
    parallel=st.integers(1, 64),
    options=st.fixed_dictionaries(
        {
            "group": st.sampled_from([None, 1, 32, 64, 128]),
            "dtype": st.sampled_from(["auto", "bfloat16", "float16", "float32"]),
        }
    ),
)
def test_every_question_has_an_answer(
    linears: list[LinearShape], scheme: Scheme, device: str, parallel: int, options: dict[str, Any]
) -> None:
    """A reason in one line, or none; and what serves with scales of the cache serves without them too."""
    shape = make_shape(linears=linears)
    found = refused(scheme, device, shape, parallel=parallel, scales=True, **options)

    assert found is None or (found and "\n" not in found)
    assert found is not None or refused(scheme, device, shape, parallel=parallel, **options) is None


def shapes_of(tensors: dict[str, tuple[str, list[int]]]) -> set[tuple[str, int, int]]:
    """The matrices that `validate` reads out of the headers."""
    config = json.dumps(CONFIG).encode()
    shape = check(model(**{"config.json": config, "model.safetensors": shard(tensors)})).shape
    return {(found.name, found.out_features, found.in_features) for found in shape.linears}


def test_matrices_are_read_from_the_headers_once_each() -> None:
    """By the last part of the name; what no scheme shrinks is left out."""
    layers = {
        f"model.layers.{layer}.{name}": ("BF16", size)
        for layer in range(3)
        for name, size in {
            "self_attn.qkv_proj.weight": [24, 8],
            "self_attn.qkv_proj.bias": [24],
            "mlp.down_proj.weight": [8, 32],
            "mlp.gate.weight": [4, 8],
            "input_layernorm.weight": [8],
        }.items()
    }

    found = shapes_of({"model.embed_tokens.weight": ("BF16", [10, 8]), **layers, "lm_head.weight": ("BF16", [10, 8])})

    assert found == {("qkv_proj", 24, 8), ("down_proj", 8, 32)}


@pytest.mark.parametrize("turned", [False, True])
def test_experts_in_one_tensor_are_read_either_way_round(turned: bool) -> None:
    """Some models store them as (outputs, inputs), some the other way; the hidden size (8) tells which."""
    gate, down = ([4, 8, 32], [4, 16, 8]) if turned else ([4, 32, 8], [4, 8, 16])

    found = shapes_of(
        {
            "model.layers.0.mlp.experts.gate_up_proj": ("BF16", gate),
            "model.layers.0.mlp.experts.gate_up_proj_bias": ("BF16", [4, 32]),
            "model.layers.0.mlp.experts.down_proj": ("BF16", down),
            "model.layers.1.mlp.experts.0.down_proj.weight": ("BF16", [8, 16]),
        }
    )

    assert found == {("experts.gate_up_proj", 32, 8), ("experts.down_proj", 8, 16)}
