"""Step 3: everything is resolved into one plan, or refused before anything is spent."""

import math
from collections.abc import Iterator, Sequence

from headway.domain.cluster import ClusterSpec
from headway.domain.hardware import ACCELERATORS, Accelerator
from headway.domain.model import ModelShape, Selection
from headway.domain.profile import Engine, Profile
from headway.domain.release import MemoryBudget, ReleasePlan, Validated
from headway.domain.value import digest, short, slug
from headway.domain.weights import BITS_PER_WEIGHT, BUILDABLE, Recipe, Scheme, artifact_digest
from headway.errors import ConfigError, PlanInfeasible
from headway.units import GIB, format_bytes

KV_BLOCK_TOKENS = 16
"""Tokens of vLLM's smallest KV-cache block (`--block-size` default on CUDA)."""

CPU_OVERHEAD_BYTES = 4 * GIB
"""Ray head, Serve and vLLM's own processes of one cluster on CPU without weights and KV cache, measured."""

GPU_OVERHEAD_BYTES = 2 * GIB
"""CUDA context, CUDA graphs and communication buffers of one device, beside the logits."""

ENGINE_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1}
MIN_CAPABILITY = {"fp8-dynamic": 7.5, "fp8": 7.5, "w8a8": 7.5, "w4a16-gptq": 7.5, "w4a16-awq": 7.5, "none": 0.0}
"""Smallest compute capability on which vLLM has a kernel (FP8: native from 8.9, weight-only Marlin from 7.5)."""


def make(
    profile: Profile,
    selection: Selection,
    validated: Validated,
    *,
    serving_image: str,
    model_root: str,
    scheme: Scheme | None = None,
) -> ReleasePlan:
    """Resolve profile, model version and hardware into a plan.

    Args:
        profile: Intent.
        selection: The frozen model version with its files.
        validated: Its shape, from checked files.
        serving_image: Image by digest; on the embedded stack the digest of the serving environment's lock.
        model_root: Directory on the node below which artifacts are staged.
        scheme: Take this scheme instead of the first of the profile that fits.

    Raises:
        ConfigError: The profile asks for what the model, the accelerator or headway cannot do.
        PlanInfeasible: No scheme of the profile fits; says what is missing and what would fit.
    """
    accelerator = _accelerator(profile)
    shape = validated.shape
    _check_engine(profile, shape, accelerator)
    chosen, memory = _choose(profile, shape, accelerator, (scheme,) if scheme else profile.weights.schemes)
    recipe = Recipe(scheme=chosen)
    artifact = artifact_digest(selection.source_digest, recipe)
    cluster = cluster_digest(artifact, profile, serving_image)
    return ReleasePlan(
        profile=profile,
        selection=selection,
        validated=validated,
        recipe=recipe,
        artifact_digest=artifact,
        cluster_digest=cluster,
        serving_image=serving_image,
        memory=memory,
        cluster=ClusterSpec(
            name=f"{slug(profile.model, 30)}-{short(cluster)}",
            model=profile.model,
            release="",
            version=selection.model.version,
            cluster_digest=cluster,
            artifact_digest=artifact,
            model_dir=f"{model_root.rstrip('/')}/{artifact}",
            engine=profile.engine,
            replicas=profile.replicas,
            accelerator=profile.hardware.accelerator,
            tensor_parallel=profile.hardware.per_replica,
            memory_bytes=memory.needed_bytes,
        ),
    )


def cluster_digest(artifact: str, profile: Profile, serving_image: str) -> str:
    """Name a cluster by what it is made of (design rule 13.1): artifact, engine, hardware and serving image.

    What applies in place (`replicas`, `canary`, `shift`, `prescale`, `keep_previous_s`) is not part of it.
    """
    return digest(
        {
            "artifact": artifact,
            "engine": profile.engine.to_json(),
            "hardware": profile.hardware.to_json(),
            "image": serving_image,
        }
    )


def budget(
    shape: ModelShape, engine: Engine, scheme: Scheme, accelerator: Accelerator, per_replica: int
) -> MemoryBudget:
    """Add up what one accelerator of a replica must hold.

    Weights: Linear weights at the scheme's bits, the rest at the source's dtype, over the tensor parallel size.
    KV cache: `2 x layers x KV heads per accelerator x head size x bytes` a token (Pope et al. 2022, section 3.3, with
    grouped-query attention), for one sequence of `max_model_len` and a block for each other of `max_num_seqs`: with
    less vLLM refuses to start or preempts at once. The rest of the memory becomes cache too.
    """
    on_cpu = accelerator.compute_capability == 0
    rest = shape.parameters - shape.linear_parameters
    full_bytes = _dtype_bytes(shape, engine)
    linear_bytes = shape.linear_parameters * (full_bytes if scheme == "none" else BITS_PER_WEIGHT[scheme] / 8)
    weights = math.ceil((linear_bytes + rest * full_bytes) / per_replica)
    per_token = kv_bytes_per_token(shape, engine, per_replica)
    tokens = engine.max_model_len + (engine.max_num_seqs - 1) * KV_BLOCK_TOKENS
    if on_cpu:
        cache = max(int(engine.kv_cache_gib * GIB), tokens * per_token)
        overhead, available = CPU_OVERHEAD_BYTES, accelerator.memory_bytes
    else:
        cache = tokens * per_token
        logits = 2 * 4 * engine.max_num_seqs * shape.vocab_size // per_replica
        overhead = GPU_OVERHEAD_BYTES + logits
        available = int(accelerator.memory_bytes * engine.gpu_memory_utilization)
    spare = max(0, available - weights - cache - overhead)
    return MemoryBudget(
        weights_bytes=weights,
        kv_cache_bytes=cache,
        overhead_bytes=overhead,
        available_bytes=available,
        kv_bytes_per_token=per_token,
        kv_tokens=(cache + (0 if on_cpu else spare)) // per_token,
    )


def kv_bytes_per_token(shape: ModelShape, engine: Engine, per_replica: int) -> int:
    """Return the KV cache of one token on one accelerator of a replica."""
    kv_bytes = 1 if engine.kv_cache_dtype == "fp8" else _dtype_bytes(shape, engine)
    kv_heads = max(1, math.ceil(shape.kv_heads / per_replica))
    return 2 * shape.layers * kv_heads * shape.head_dim * kv_bytes


def _dtype_bytes(shape: ModelShape, engine: Engine) -> int:
    """Return the size of a number as the engine computes: its own dtype, or that of the weights with `auto`."""
    return ENGINE_DTYPE_BYTES.get(engine.dtype, DTYPE_BYTES.get(shape.dtype, 2))


def _accelerator(profile: Profile) -> Accelerator:
    name = profile.hardware.accelerator
    if name not in ACCELERATORS:
        raise ConfigError(
            f"`hardware.accelerator` is {name!r}, which headway does not know; it knows {', '.join(ACCELERATORS)}",
            accelerator=name,
        )
    return ACCELERATORS[name]


def _check_engine(profile: Profile, shape: ModelShape, accelerator: Accelerator) -> None:
    engine, parallel = profile.engine, profile.hardware.per_replica
    if engine.max_model_len > shape.max_position_embeddings:
        raise ConfigError(
            f"`engine.max_model_len` is {engine.max_model_len}, and the model was trained for "
            f"{shape.max_position_embeddings} positions; lower it to at most that"
        )
    if shape.attention_heads % parallel or (shape.kv_heads % parallel and parallel % shape.kv_heads):
        fits = [
            n
            for n in range(1, 17)
            if shape.attention_heads % n == 0 and not (shape.kv_heads % n and n % shape.kv_heads)
        ]
        raise ConfigError(
            f"`hardware.per_replica` is {parallel}, and {shape.attention_heads} attention heads with {shape.kv_heads} "
            f"KV heads do not divide over it; it may be {', '.join(map(str, fits))}"
        )
    if accelerator.compute_capability == 0 and (parallel != 1 or engine.kv_cache_dtype != "auto"):
        raise ConfigError(
            "on `cpu` headway runs one device a replica with `kv_cache_dtype: auto`; "
            f"found per_replica {parallel} and kv_cache_dtype {engine.kv_cache_dtype}"
        )
    if accelerator.compute_capability == 0:
        asked = engine.kv_cache_gib * GIB
        least = kv_bytes_per_token(shape, engine, parallel) * engine.max_model_len
        if asked < least:
            raise ConfigError(
                f"`engine.kv_cache_gib` is {engine.kv_cache_gib}, and one sequence of {engine.max_model_len} tokens "
                f"needs {format_bytes(least)}; raise it or lower `engine.max_model_len`"
            )


def _choose(
    profile: Profile, shape: ModelShape, accelerator: Accelerator, schemes: tuple[Scheme, ...]
) -> tuple[Scheme, MemoryBudget]:
    unknown = [scheme for scheme in schemes if scheme not in BUILDABLE]
    if len(unknown) == len(schemes):
        raise ConfigError(
            f"none of the schemes {', '.join(schemes)} can be built by this version; "
            f"it builds {', '.join(sorted(BUILDABLE))}"
        )
    unserved = []
    smallest: MemoryBudget | None = None
    for scheme in schemes:
        if scheme not in BUILDABLE:
            continue
        if 0 < accelerator.compute_capability < MIN_CAPABILITY[scheme]:
            unserved.append(scheme)
            continue
        memory = budget(shape, profile.engine, scheme, accelerator, profile.hardware.per_replica)
        if memory.needed_bytes <= memory.available_bytes:
            return scheme, memory
        if smallest is None or memory.needed_bytes < smallest.needed_bytes:
            smallest = memory
    if smallest is None:
        raise ConfigError(
            f"{accelerator.name} runs none of {', '.join(unserved)}: no kernel for its compute capability"
        )
    would = next(_alternatives(profile, shape, accelerator), "no accelerator that headway knows holds it")
    raise PlanInfeasible(
        f"a replica of {profile.model} needs {format_bytes(smallest.needed_bytes)} on each of "
        f"{profile.hardware.per_replica} x {accelerator.name}, which gives {format_bytes(smallest.available_bytes)} "
        f"(weights {format_bytes(smallest.weights_bytes)}, KV cache {format_bytes(smallest.kv_cache_bytes)}, "
        f"overhead {format_bytes(smallest.overhead_bytes)}); this would fit: {would}",
        needed_bytes=smallest.needed_bytes,
        largest_bytes=smallest.available_bytes,
    )


def _alternatives(profile: Profile, shape: ModelShape, accelerator: Accelerator) -> Iterator[str]:
    """Yield changes of the profile that would fit, the smallest change first."""
    schemes = sorted(BUILDABLE, key=lambda s: BITS_PER_WEIGHT[s])
    asked = [scheme for scheme in profile.weights.schemes if scheme in BUILDABLE]
    parallel = profile.hardware.per_replica
    for scheme in schemes:
        if scheme not in asked and _fits(profile.engine, shape, [scheme], accelerator, parallel):
            yield f"`weights.schemes: [{scheme}]`"
    wider = [more for more in (2, 4, 8) if more > parallel and accelerator.compute_capability]
    for more in wider:
        if _fits(profile.engine, shape, asked, accelerator, more):
            yield f"`hardware.per_replica: {more}`"
    for device in sorted(ACCELERATORS.values(), key=lambda a: a.memory_bytes):
        for wide in (parallel, 8):
            if device.compute_capability and _fits(profile.engine, shape, schemes, device, wide):
                yield f"`hardware: {{accelerator: {device.name}, per_replica: {wide}}}`"


def _fits(
    engine: Engine, shape: ModelShape, schemes: Sequence[Scheme], accelerator: Accelerator, parallel: int
) -> bool:
    """Tell whether one of the schemes fits."""
    if shape.attention_heads % parallel:
        return False
    budgets = [
        budget(shape, engine, scheme, accelerator, parallel)
        for scheme in schemes
        if not 0 < accelerator.compute_capability < MIN_CAPABILITY[scheme]
    ]
    return any(memory.needed_bytes <= memory.available_bytes for memory in budgets)
