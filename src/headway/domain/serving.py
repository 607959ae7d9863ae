"""What serves where: which scheme has a kernel on which device, for which shapes and types, and how we know.

The facts are those of vLLM 0.29.0 and llm-compressor 0.14.0.1. Where both are at hand, a run counts more than a source;
each row says which of the two it rests on. On CPU headway brings two kernels of its own (`adapters/local/vllm_cpu.py`),
so that the embedded stack serves on any CPU what it can show. Files of vLLM are named below `vllm/model_executor/`, or
from the root of its repository (`v1/`, `platforms/`, `csrc/`).
"""

import re
from collections.abc import Iterable, Iterator

from headway.domain.hardware import Accelerator
from headway.domain.model import LinearShape, ModelShape
from headway.domain.safetensors import Tensor
from headway.domain.value import Value
from headway.domain.weights import BITS_PER_WEIGHT, GROUPED, UNTRIED, Scheme

SCALE_BITS = 16
"""Bits of the scale of a group of weights (compressed-tensors stores it in the model's own 16 bit type)."""

GROUP_SIZES = (128, 64, 32)
"""Groups for which vLLM's GPU kernels are compiled (`MARLIN_SUPPORTED_GROUP_SIZES`), the fewest bytes first."""

BFLOAT16_CAPABILITY = 8.0
"""From here on devices have bfloat16 (`platforms/cuda.py`, `check_if_supports_dtype`)."""

FP8_CACHE_CAPABILITY = 8.0
"""From here on FlashInfer keeps an FP8 KV cache (`v1/attention/backends/flashinfer.py`) ..."""

FP8_CACHE_HEADS = (64, 128, 256, 512)
"""... for heads of these sizes (`get_supported_head_sizes`) ..."""

FP8_CACHE_ANY_HEAD = 8.9
"""... and from here on Triton does for any (`v1/attention/backends/triton_attn.py`)."""

ROW_PARALLEL = frozenset(
    {"o_proj", "out_proj", "down_proj", "dense", "dense_4h_to_h", "fc2", "fc_out", "c_proj", "wo", "w2"}
)
"""Matrices that tensor parallelism splits along their inputs (`RowParallelLinear` in `models/`)."""

REPLICATED = frozenset({"kv_a_proj_with_mqa", "q_a_proj", "fused_qkv_a_proj"})
"""Matrices that each device holds whole (`ReplicatedLinear`)."""

BY_HEADS = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv"})
"""Matrices that are split by heads, which the plan checks apart; few KV heads are repeated rather than split."""

EXPERTS = "experts."
"""Beginning of the names of matrices that belong to experts."""

EXPERT_PLACE = re.compile(r"(^|\.)experts\.")
"""Where the weights of experts are, in one tensor or in many."""


class Serves(Value):
    """Where one scheme is served."""

    scheme: Scheme
    least: float
    """Compute capability from which vLLM has a kernel; 0: no lower limit of its own."""
    below: float | None = None
    """Compute capability from which it has none any more."""
    native: float | None = None
    """Compute capability from which the device computes in these numbers; before, only the weights are small. None:
    by design only the weights are small."""
    gpu_source: str
    cpu: bool
    """Whether it serves on any x86 CPU that vLLM runs on (AVX2)."""
    cpu_source: str


SERVES: dict[Scheme, Serves] = {
    row.scheme: row
    for row in (
        Serves(
            scheme="none",
            least=0,
            gpu_source="the model's own type",
            cpu=True,
            cpu_source="ran with AVX2, in bfloat16 and float32",
        ),
        Serves(
            scheme="fp8-dynamic",
            least=7.5,
            native=8.9,
            gpu_source="`CompressedTensorsW8A8Fp8` from 8.9; before, `CompressedTensorsW8A16Fp8` with "
            "`MarlinFP8ScaledMMLinearKernel`",
            cpu=True,
            cpu_source="ran with AVX2, in bfloat16 and float32 (`WidenedFP8Kernel` of headway)",
        ),
        Serves(
            scheme="fp8",
            least=7.5,
            native=8.9,
            gpu_source="as fp8-dynamic",
            cpu=False,
            cpu_source="ran and failed: `static_scaled_fp8_quant`, by which weights are loaded, has no CPU kernel",
        ),
        Serves(
            scheme="w8a8",
            least=7.5,
            below=10.0,
            native=7.5,
            gpu_source="`CompressedTensorsW8A8Int8`, `CutlassInt8ScaledMMLinearKernel`; none for Blackwell "
            "(vllm issue 54311)",
            cpu=True,
            cpu_source="ran with AVX2, in bfloat16 and float32 (`CPUInt8ScaledMMLinearKernel`)",
        ),
        Serves(
            scheme="w4a16-gptq",
            least=7.5,
            gpu_source="`CompressedTensorsWNA16`, `MarlinLinearKernel`; `MacheteLinearKernel` on 9.0",
            cpu=True,
            cpu_source="ran with AVX2, in float32 (`WidenedWNA16Kernel` of headway; vLLM's own kernel is only in "
            "its build for AVX-512)",
        ),
        Serves(
            scheme="w4a16-awq",
            least=7.5,
            gpu_source="as w4a16-gptq",
            cpu=True,
            cpu_source="as w4a16-gptq",
        ),
        Serves(
            scheme="nvfp4",
            least=7.5,
            native=10.0,
            gpu_source="`CompressedTensorsW4A4Fp4`, `CutlassNvFp4LinearKernel`; before 10.0 "
            "`MarlinNvFp4LinearKernel`; not tried",
            cpu=False,
            cpu_source="no kernel of `kernels/linear/nvfp4` is for CPUs",
        ),
        Serves(
            scheme="fp8-block",
            least=7.5,
            native=9.0,
            gpu_source="`CutlassFp8BlockScaledMMKernel`; before 9.0 `MarlinFP8ScaledMMLinearKernel`; not tried",
            cpu=False,
            cpu_source="ran and failed: `CPUFp8BlockScaledMMKernel` needs AMX",
        ),
    )
}
"""One row for each scheme."""

SHAPE_RULES: tuple[tuple[str, str, str], ...] = (
    (
        "inputs of each matrix are a multiple of `weights.group_size`",
        "4 bit schemes, everywhere",
        "llm-compressor, `validate_group_size_divisibility`",
    ),
    (
        "inputs on each device (`o_proj`, `down_proj`: inputs / `per_replica`) are such a multiple too",
        "4 bit schemes, accelerators",
        "`MarlinLinearKernel.can_implement`, `verify_group_size_divides_partition`",
    ),
    (
        "`per_replica` divides the outputs of each matrix; of `o_proj` and `down_proj` the inputs",
        "all schemes, accelerators",
        "`layers/linear.py`",
    ),
    (
        "nothing: outputs that are no multiple of 64 and inputs that are none of 128 are padded, which costs time",
        "4 bit and weight-only FP8, accelerators",
        "`marlin_padded_nk`",
    ),
    (
        "the model has no experts",
        "quantized schemes, `cpu`",
        "`CPUExpertsFp8`, `CPUExpertsInt8`, `CPUExpertsInt4` need AMX",
    ),
    (
        "no `dtype: bfloat16` below 8.0; with `auto` vLLM takes float16 there",
        "all schemes, accelerators",
        "`platforms/cuda.py`, `check_if_supports_dtype`",
    ),
    (
        "no `dtype: float32`",
        "quantized schemes, accelerators",
        "`cutlass_scaled_mm`, `marlin_gemm`",
    ),
    (
        "FP8 KV cache: from 8.0 with heads of 64, 128, 256 or 512, from 8.9 with any",
        "accelerators",
        "`v1/attention/backends/flashinfer.py`, `triton_attn.py`",
    ),
    (
        "no FP8 KV cache, and so no scales of one: with `auto` a checkpoint that has them turns it on",
        "`cpu`",
        "ran and failed with AVX2: it needs AVX-512 or AMX (`v1/attention/backends/cpu_attn.py`)",
    ),
)
"""What shapes and types must be: rule, where it holds, source."""


def linear_shapes(tensors: Iterable[Tensor], hidden_size: int) -> tuple[LinearShape, ...]:
    """Return each shape of a Linear once, by the last part of its name; experts' names begin with `EXPERTS`.

    Args:
        tensors: Of the headers, without those that no scheme shrinks.
        hidden_size: Of `config.json`; tells inputs from outputs where experts lie in one tensor.
    """
    found: dict[LinearShape, None] = {}
    for tensor in tensors:
        name = tensor.name.removesuffix(".weight")
        expert = EXPERT_PLACE.search(tensor.name) is not None
        stacked = expert and len(tensor.shape) == 3 and not name.endswith("bias")
        if not stacked and (len(tensor.shape) != 2 or name == tensor.name):
            continue
        last = name.rpartition(".")[2]
        rows, columns = tensor.shape[-2:]
        # Experts in one tensor lie as (outputs, inputs) in some models and the other way round in others.
        side = rows if last in ROW_PARALLEL else columns
        if stacked and side != hidden_size and hidden_size in (rows, columns):
            rows, columns = columns, rows
        found[LinearShape(name=f"{EXPERTS}{last}" if expert else last, out_features=rows, in_features=columns)] = None
    return tuple(found)


def bits_per_weight(scheme: Scheme, group_size: int | None) -> float:
    """Return the bits of a Linear weight with the scale of its group.

    Scales of whole rows are left out: for 1,000 inputs they are 0.016 bits. Measured with SmolLM2-135M: 107.9 MiB for
    groups of 64, 111.0 MiB for groups of 32; this gives 107.9 and 111.0.
    """
    bits = BITS_PER_WEIGHT[scheme]
    return bits + SCALE_BITS / group_size if scheme in GROUPED and group_size else bits


def refusal(
    scheme: Scheme,
    accelerator: Accelerator,
    shape: ModelShape,
    *,
    group_size: int | None,
    tensor_parallel: int,
    dtype: str,
    kv_cache_scales: bool = False,
) -> str | None:
    """Say why this cannot be built or served, none if it can.

    Args:
        scheme: How the weights are quantized.
        accelerator: The device.
        shape: The model. Without `linears` (a plan of an older version) shapes are not checked.
        group_size: Weights that share a scale; only the 4 bit schemes look at it.
        tensor_parallel: Devices that share each matrix.
        dtype: `engine.dtype`.
        kv_cache_scales: Whether scales of an FP8 KV cache are stored with the weights.
    """
    reasons = (
        *_device(scheme, accelerator),
        *_dtype(scheme, accelerator, dtype),
        *(_scales(scheme, accelerator, shape) if kv_cache_scales else ()),
        *_shapes(scheme, group_size, accelerator, shape, tensor_parallel),
    )
    return reasons[0] if reasons else None


def kv_cache_refusal(accelerator: Accelerator, head_dim: int) -> str | None:
    """Say why the device keeps no FP8 KV cache for heads of this size, none if it does."""
    if accelerator.is_cpu:
        return "an FP8 KV cache on CPU needs AVX-512 or AMX, which `cpu` does not promise"
    capability = accelerator.compute_capability
    if capability < FP8_CACHE_CAPABILITY:
        found = f"{accelerator.name} has {capability:.1f}"
        return f"an FP8 KV cache needs compute capability {FP8_CACHE_CAPABILITY:.1f}, and {found}"
    if capability < FP8_CACHE_ANY_HEAD and head_dim not in FP8_CACHE_HEADS:
        heads = ", ".join(map(str, FP8_CACHE_HEADS))
        return (
            f"on {accelerator.name} (compute capability {capability:.1f}) an FP8 KV cache needs heads of {heads}, "
            f"and these are {head_dim}"
        )
    return None


def _device(scheme: Scheme, accelerator: Accelerator) -> Iterator[str]:
    row, capability = SERVES[scheme], accelerator.compute_capability
    if scheme in UNTRIED:
        yield UNTRIED[scheme]
    elif accelerator.is_cpu and not row.cpu:
        yield "vLLM has no CPU kernel for it"
    elif not accelerator.is_cpu and capability < row.least:
        yield f"it needs compute capability {row.least:.1f}, and {accelerator.name} has {capability:.1f}"
    elif row.below is not None and capability >= row.below:
        found = f"{accelerator.name} has {capability:.1f}"
        yield f"vLLM has no kernel for it from compute capability {row.below:.1f} on, and {found}"


def _dtype(scheme: Scheme, accelerator: Accelerator, dtype: str) -> Iterator[str]:
    if accelerator.is_cpu:
        return
    if dtype == "bfloat16" and accelerator.compute_capability < BFLOAT16_CAPABILITY:
        yield f"{accelerator.name} has no bfloat16, which `engine.dtype` asks for; it has float16"
    elif dtype == "float32" and scheme != "none":
        yield "its kernels compute in 16 bits, and `engine.dtype` is float32"


def _scales(scheme: Scheme, accelerator: Accelerator, shape: ModelShape) -> Iterator[str]:
    if scheme == "none":
        yield "it leaves the source's bytes as they are, so they have no place for `kv_cache_scales`"
    elif (why := kv_cache_refusal(accelerator, shape.head_dim)) is not None:
        yield f"`kv_cache_scales` turns on an FP8 KV cache: {why}"


def _shapes(
    scheme: Scheme, group_size: int | None, accelerator: Accelerator, shape: ModelShape, tensor_parallel: int
) -> Iterator[str]:
    grouped = scheme in GROUPED
    if grouped and group_size not in GROUP_SIZES:
        yield f"groups of {group_size} have no kernel; `weights.group_size` may be 128, 64 or 32"
        return
    for linear in shape.linears:
        last = linear.name.removeprefix(EXPERTS)
        inputs, outputs = linear.in_features, linear.out_features
        by_inputs = last in ROW_PARALLEL
        split = inputs if by_inputs else outputs
        if last not in REPLICATED | BY_HEADS and split % tensor_parallel:
            side = "inputs" if by_inputs else "outputs"
            yield f"{linear.name} has {split} {side}, which `hardware.per_replica: {tensor_parallel}` does not divide"
        if accelerator.is_cpu and scheme != "none" and linear.name.startswith(EXPERTS):
            yield "vLLM's CPU kernels for quantized experts need AMX, and headway has not tried them"
        if grouped and group_size and inputs % group_size:
            yield f"{linear.name} has {inputs} inputs, which is no multiple of `weights.group_size: {group_size}`"
        elif grouped and group_size and by_inputs and inputs // tensor_parallel % group_size:
            yield (
                f"{linear.name} has {inputs // tensor_parallel} inputs on each of {tensor_parallel} devices, "
                f"which is no multiple of `weights.group_size: {group_size}`"
            )
