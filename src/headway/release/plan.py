"""Step 3: everything is resolved into one plan, or refused before anything is spent."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from headway.domain import serving
from headway.domain.calibration import bundled_digest
from headway.domain.cluster import ClusterSpec
from headway.domain.hardware import ACCELERATORS, Accelerator
from headway.domain.model import ModelShape, Selection
from headway.domain.profile import Engine, Profile
from headway.domain.release import Contender, MemoryBudget, ReleasePlan, Validated
from headway.domain.value import digest, short, slug
from headway.domain.weights import BUILDABLE, CALIBRATED, GROUPED, Recipe, Scheme, artifact_digest
from headway.errors import ConfigError, HeadwayError, PlanInfeasible
from headway.units import GIB, format_bytes

KV_BLOCK_TOKENS = 16
"""Tokens of vLLM's smallest KV-cache block (`--block-size` default on CUDA)."""

CPU_OVERHEAD_BYTES = 4 * GIB
"""Ray head, Serve and vLLM's own processes of one cluster on CPU without weights and KV cache, measured."""

GPU_OVERHEAD_BYTES = 2 * GIB
"""CUDA context, CUDA graphs and communication buffers of one device, beside the logits."""

ENGINE_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1}

ADVISED: tuple[Scheme, ...] = ("fp8-dynamic", "w8a8", "fp8", "w4a16-awq", "w4a16-gptq", "none")
"""In this order schemes are proposed: those that change answers least first, the unquantized model last."""

ADVICE = 2
"""Changes of the profile that an error names."""


class _Option(NamedTuple):
    """One scheme of a profile on its hardware."""

    scheme: Scheme
    memory: MemoryBudget | None
    """None: it cannot be built or served at all."""
    reason: str | None
    """Why it will not do; none if it will."""


def make(
    profile: Profile,
    selection: Selection,
    validated: Validated,
    *,
    serving_image: str,
    model_root: str,
    scheme: Scheme | None = None,
    calibration_digest: str | None = None,
) -> ReleasePlan:
    """Resolve profile, model version and hardware into a plan.

    Args:
        profile: Intent.
        selection: The frozen model version with its files.
        validated: Its shape, from checked files.
        serving_image: Image by digest; on the embedded stack the digest of the serving environment's lock.
        model_root: Directory on the node below which artifacts are staged.
        scheme: Take this scheme instead of those of the profile.
        calibration_digest: sha256 of the calibration texts. It is needed where the profile names texts and a scheme
            that may be built looks at them; without it those of headway are meant.

    Raises:
        ConfigError: The profile asks for what the model, the accelerator or headway cannot do.
        PlanInfeasible: No scheme of the profile fits; says what is missing and what would fit.
    """
    accelerator = _accelerator(profile)
    _check_engine(profile, validated.shape, accelerator)
    asked = (scheme,) if scheme else tuple(dict.fromkeys(profile.weights.schemes))
    options = _options(profile, validated.shape, accelerator, asked)
    if validated.quantized is not None:
        why = f"the source is quantized already ({validated.quantized}), and only `none` leaves it as it is"
        options = [option if option.scheme == "none" else _Option(option.scheme, None, why) for option in options]
    takers = [option for option in options if option.reason is None]
    if not takers:
        raise _nothing_will_do(profile, validated.shape, accelerator, options)
    race = profile.weights.choose == "race" and scheme is None
    if race:
        takers.sort(key=lambda option: option.memory.weights_bytes if option.memory else 0)
        passed = [option for option in options if option.reason is not None]
    else:
        passed = options[: options.index(takers[0])]
    contenders = [
        _contender(option, profile, selection, serving_image, calibration_digest)
        for option in (takers if race else takers[:1])
    ]
    first = contenders[0]
    return ReleasePlan(
        profile=profile,
        selection=selection,
        validated=validated,
        recipe=first.recipe,
        artifact_digest=first.artifact_digest,
        cluster_digest=first.cluster_digest,
        serving_image=serving_image,
        memory=first.memory,
        cluster=ClusterSpec(
            name=_cluster_name(profile, first),
            model=profile.model,
            release="",
            version=selection.model.version,
            cluster_digest=first.cluster_digest,
            artifact_digest=first.artifact_digest,
            model_dir=f"{model_root.rstrip('/')}/{first.artifact_digest}",
            engine=profile.engine,
            replicas=profile.replicas,
            accelerator=profile.hardware.accelerator,
            tensor_parallel=profile.hardware.per_replica,
            memory_bytes=first.memory.needed_bytes,
            serving_image=serving_image,
        ),
        contenders=tuple(contenders) if race else (),
        passed_over=tuple(f"{option.scheme}: {option.reason}" for option in passed),
    )


def choose(plan: ReleasePlan, scheme: Scheme) -> ReleasePlan:
    """Return the plan with the recipe, digests, memory and cluster of one of its contenders.

    Raises:
        ConfigError: The scheme takes no part in the race.
    """
    if scheme == plan.recipe.scheme:
        return plan
    chosen = next((one for one in plan.contenders if one.recipe.scheme == scheme), None)
    if chosen is None:
        known = ", ".join(one.recipe.scheme for one in plan.contenders) or plan.recipe.scheme
        raise ConfigError(f"the plan of {plan.model} has no scheme {scheme}; it has {known}")
    root = plan.cluster.model_dir.rpartition("/")[0]
    return plan.model_copy(
        update={
            "recipe": chosen.recipe,
            "artifact_digest": chosen.artifact_digest,
            "cluster_digest": chosen.cluster_digest,
            "memory": chosen.memory,
            "cluster": plan.cluster.model_copy(
                update={
                    "name": _cluster_name(plan.profile, chosen),
                    "cluster_digest": chosen.cluster_digest,
                    "artifact_digest": chosen.artifact_digest,
                    "model_dir": f"{root}/{chosen.artifact_digest}",
                    "memory_bytes": chosen.memory.needed_bytes,
                }
            ),
        }
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
    shape: ModelShape,
    engine: Engine,
    scheme: Scheme,
    accelerator: Accelerator,
    per_replica: int,
    *,
    group_size: int = 128,
    kv_cache_scales: bool = False,
) -> MemoryBudget:
    """Add up what one accelerator of a replica must hold.

    Weights: Linear weights at the scheme's bits with the scales of their groups, the rest at the source's dtype, over
    the tensor parallel size.
    KV cache: `2 x layers x KV heads per accelerator x head size x bytes` a token (Pope et al. 2022, section 3.3, with
    grouped-query attention), for one sequence of `max_model_len` and a block for each other of `max_num_seqs`: with
    less vLLM refuses to start or preempts at once. The rest of the memory becomes cache too.
    """
    on_cpu = accelerator.is_cpu
    rest = shape.parameters - shape.linear_parameters
    full_bytes = _dtype_bytes(shape, engine)
    linear_bytes = shape.linear_parameters * (
        full_bytes if scheme == "none" else serving.bits_per_weight(scheme, group_size) / 8
    )
    weights = math.ceil((linear_bytes + rest * full_bytes) / per_replica)
    per_token = kv_bytes_per_token(shape, engine, per_replica, kv_cache_scales=kv_cache_scales)
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


def kv_bytes_per_token(shape: ModelShape, engine: Engine, per_replica: int, *, kv_cache_scales: bool = False) -> int:
    """Return the KV cache of one token on one accelerator of a replica.

    vLLM makes the cache FP8 by itself where the weights bring scales for it and the engine says `auto`.
    """
    kv_bytes = 1 if engine.kv_cache_dtype == "fp8" or kv_cache_scales else _dtype_bytes(shape, engine)
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
    if accelerator.is_cpu:
        _check_cpu(profile, shape, accelerator)
        return
    if engine.kv_cache_dtype == "fp8" and (why := serving.kv_cache_refusal(accelerator, shape.head_dim)) is not None:
        raise ConfigError(f"`engine.kv_cache_dtype` is fp8: {why}; take `auto` or other hardware")
    if profile.weights.kv_cache_scales and engine.kv_cache_dtype != "fp8":
        raise ConfigError(
            "`weights.kv_cache_scales` is true and `engine.kv_cache_dtype` is auto, with which the engine would change "
            "its cache unasked; say `engine.kv_cache_dtype: fp8`, or leave the scales out"
        )


def _check_cpu(profile: Profile, shape: ModelShape, accelerator: Accelerator) -> None:
    engine, parallel = profile.engine, profile.hardware.per_replica
    if parallel != 1 or engine.kv_cache_dtype != "auto":
        raise ConfigError(
            f"on `{accelerator.name}` headway runs one device a replica with `kv_cache_dtype: auto`; "
            f"found per_replica {parallel} and kv_cache_dtype {engine.kv_cache_dtype}"
        )
    asked = engine.kv_cache_gib * GIB
    scales = profile.weights.kv_cache_scales
    least = kv_bytes_per_token(shape, engine, parallel, kv_cache_scales=scales) * engine.max_model_len
    if asked < least:
        raise ConfigError(
            f"`engine.kv_cache_gib` is {engine.kv_cache_gib}, and one sequence of {engine.max_model_len} tokens "
            f"needs {format_bytes(least)}; raise it or lower `engine.max_model_len`"
        )


def _options(profile: Profile, shape: ModelShape, accelerator: Accelerator, schemes: Iterable[Scheme]) -> list[_Option]:
    """Look at each scheme: can it be built and served, and does it fit?"""
    weights, engine, parallel = profile.weights, profile.engine, profile.hardware.per_replica
    options = []
    for scheme in schemes:
        why = serving.refusal(
            scheme,
            accelerator,
            shape,
            group_size=weights.group_size,
            tensor_parallel=parallel,
            dtype=engine.dtype,
            kv_cache_scales=weights.kv_cache_scales,
        )
        if why is not None:
            options.append(_Option(scheme, None, why))
            continue
        memory = budget(
            shape,
            engine,
            scheme,
            accelerator,
            parallel,
            group_size=weights.group_size,
            kv_cache_scales=weights.kv_cache_scales,
        )
        if memory.needed_bytes > memory.available_bytes:
            needed, available = format_bytes(memory.needed_bytes), format_bytes(memory.available_bytes)
            why = f"it needs {needed} on each {accelerator.name}, which gives {available}"
        options.append(_Option(scheme, memory, why))
    return options


def _contender(
    option: _Option, profile: Profile, selection: Selection, serving_image: str, calibration_digest: str | None
) -> Contender:
    if option.memory is None:
        raise ValueError(f"scheme {option.scheme} was refused ({option.reason}) and cannot be planned")
    recipe = _recipe(option.scheme, profile, calibration_digest)
    artifact = artifact_digest(selection.source_digest, recipe)
    return Contender(
        recipe=recipe,
        artifact_digest=artifact,
        cluster_digest=cluster_digest(artifact, profile, serving_image),
        memory=option.memory,
    )


def _recipe(scheme: Scheme, profile: Profile, calibration_digest: str | None) -> Recipe:
    """Return the recipe; it names only what its result depends on, since it is part of the artifact's name."""
    weights = profile.weights
    calibrated = scheme in CALIBRATED or weights.kv_cache_scales
    if calibrated and calibration_digest is None:
        if weights.calibration.uri is not None:
            raise ConfigError(
                f"scheme {scheme} is calibrated, and the digest of its texts at {weights.calibration.uri} is not "
                "known; read them before planning"
            )
        calibration_digest = bundled_digest()
    return Recipe(
        scheme=scheme,
        calibration_digest=calibration_digest if calibrated else None,
        calibration_samples=weights.calibration.samples if calibrated else None,
        calibration_tokens=weights.calibration.max_tokens if calibrated else None,
        group_size=weights.group_size if scheme in GROUPED else None,
        kv_cache_scales=weights.kv_cache_scales,
    )


def _cluster_name(profile: Profile, contender: Contender) -> str:
    # KubeRay's names begin with a letter: its Services are names of DNS as RFC 1035 has them.
    named = slug(profile.model, 30)
    named = named if named[0].isalpha() else f"m-{slug(profile.model, 28)}"
    return f"{named}-{short(contender.cluster_digest)}"


def _nothing_will_do(
    profile: Profile, shape: ModelShape, accelerator: Accelerator, options: list[_Option]
) -> HeadwayError:
    """Return the error that says why not, scheme by scheme, and what would do."""
    asked = [option.scheme for option in options]
    tried = profile.model_copy(update={"weights": profile.weights.model_copy(update={"schemes": tuple(asked)})})
    advice = " or ".join(map(say, islice(_unlike(alternatives(tried, shape)), ADVICE)))
    budgets = [option.memory for option in options if option.memory is not None]
    if not budgets:
        cannot = f"serve on {accelerator.name}" if BUILDABLE.intersection(asked) else "be built by this version"
        reasons = "; ".join(f"{option.scheme}: {option.reason}" for option in options)
        what = f"none of the schemes {', '.join(asked)} can {cannot} ({reasons})"
        if len(options) == 1:
            what = f"scheme {asked[0]} cannot {cannot}: {options[0].reason}"
        return ConfigError(f"{what}; this would do: {advice or 'nothing that headway knows'}")
    smallest = min(budgets, key=lambda memory: memory.needed_bytes)
    refused = "".join(f"; {option.scheme}: {option.reason}" for option in options if option.memory is None)
    return PlanInfeasible(
        f"a replica of {profile.model} needs {format_bytes(smallest.needed_bytes)} on each of "
        f"{profile.hardware.per_replica} x {accelerator.name}, which gives {format_bytes(smallest.available_bytes)} "
        f"(weights {format_bytes(smallest.weights_bytes)}, KV cache {format_bytes(smallest.kv_cache_bytes)}, "
        f"overhead {format_bytes(smallest.overhead_bytes)}){refused}; "
        f"this would fit: {advice or 'no accelerator that headway knows'}",
        needed_bytes=smallest.needed_bytes,
        largest_bytes=smallest.available_bytes,
    )


def alternatives(profile: Profile, shape: ModelShape) -> Iterator[dict[str, Any]]:
    """Yield changes of a profile with which it can be planned, by dotted key, the smallest change first.

    Each was tried: the changed profile obeys every rule and fits.
    """
    for change in _changes(profile):
        changed = changed_by(profile, change)
        try:
            accelerator = _accelerator(changed)
            _check_engine(changed, shape, accelerator)
        except ConfigError:
            continue
        if any(option.reason is None for option in _options(changed, shape, accelerator, changed.weights.schemes)):
            yield change


def _unlike(changes: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out a change that differs from one before it only in the size of groups."""
    seen = []
    for change in changes:
        rest = {key: value for key, value in change.items() if key != "weights.group_size"}
        if rest not in seen:
            yield change
        seen.append(rest)


def changed_by(profile: Profile, change: Mapping[str, Any]) -> Profile:
    """Return the profile with the keys of a change, such as `{"hardware.per_replica": 2}`."""
    data = profile.to_json()
    for key, value in change.items():
        part, _, name = key.partition(".")
        data[part] = {**data[part], name: value}
    return Profile.model_validate(data)


def say(change: Mapping[str, Any]) -> str:
    """Return a change as it would stand in the profile."""
    told = []
    for key, value in change.items():
        text = f"[{', '.join(value)}]" if isinstance(value, list) else str(value).lower() if value is False else value
        told.append(f"`{key}: {text}`")
    return " with ".join((told[0], *([" and ".join(told[1:])] if told[1:] else [])))


def _changes(profile: Profile) -> Iterator[dict[str, Any]]:
    weights, hardware = profile.weights, profile.hardware
    groups = [size for size in serving.GROUP_SIZES if size != weights.group_size]
    if any(scheme in GROUPED for scheme in weights.schemes):
        yield from ({"weights.group_size": size} for size in groups)
    others: list[dict[str, Any]] = []
    for scheme in ADVISED:
        if scheme not in weights.schemes:
            others.append({"weights.schemes": [scheme]})
            if scheme in GROUPED:
                others += [{"weights.schemes": [scheme], "weights.group_size": size} for size in groups]
    yield from others
    if weights.kv_cache_scales:
        yield {"weights.kv_cache_scales": False}
    yield from ({"engine.dtype": dtype} for dtype in ("auto", "float16") if dtype != profile.engine.dtype)
    wider = [{"hardware.per_replica": more} for more in (2, 4, 8) if more > hardware.per_replica]
    yield from wider
    yield from (other | wide for wide in wider for other in others)
    for device in sorted(ACCELERATORS.values(), key=lambda a: a.memory_bytes):
        if device.is_cpu or device.name == hardware.accelerator:
            continue
        for width in dict.fromkeys((hardware.per_replica, 8)):
            same = width == hardware.per_replica
            on_device = {"hardware.accelerator": device.name, **({} if same else {"hardware.per_replica": width})}
            yield on_device
            yield from (on_device | other for other in others)
