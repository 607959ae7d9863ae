"""What llm-compressor is told for each scheme. Runs in the quantize environment; only the rules need no torch."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.domain.weights import BUILDABLE, CALIBRATED, UNTRIED, Recipe
from headway.errors import ConfigError

ALWAYS_IGNORED = (
    "re:.*lm_head$",
    "re:.*embed.*",
    "re:.*(wte|wpe)$",
    "re:.*(block_sparse_moe|feed_forward|moe)\\.gate$",
    "re:.*visual.*",
    "re:.*audio_tower.*",
    "re:.*multi_modal_projector.*",
)
"""Modules that no recipe may touch, beside those it names. They are no part of a recipe, and of no artifact's name,
because a result without them was never whole: a quantized router ends in a `KeyError` of the serving engine, and
llm-compressor without a model's code takes an embedding for a Linear."""

SMOOTHING_STRENGTH = 0.8
"""How much of the activations' spread goes into the weights (SmoothQuant, Xiao et al. 2023; 0.8 suits Llama)."""

KV_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
"""One scale for the keys and one for the values of each layer, which is what vLLM reads."""

PRESETS = {"fp8-dynamic": "FP8_DYNAMIC", "fp8": "FP8", "w8a8": "W8A8"}
"""llm-compressor's names of the schemes that have one."""


def require_buildable(recipe: Recipe) -> None:
    """Refuse what this version cannot build.

    Raises:
        ConfigError: With the reason, and what it can build.
    """
    if recipe.scheme in BUILDABLE and not recipe.keeps_bytes:
        return
    why = UNTRIED.get(recipe.scheme, "it leaves the source's bytes as they are")
    built = ", ".join(sorted(BUILDABLE - {"none"}))
    raise ConfigError(f"scheme {recipe.scheme} is not built: {why}. Choose one of {built}")


def is_calibrated(recipe: Recipe) -> bool:
    """Tell whether the result depends on the calibration texts."""
    return recipe.scheme in CALIBRATED or recipe.kv_cache_scales


def ignored(recipe: Recipe) -> tuple[str, ...]:
    """Return the rules for the modules that stay as they are, in llm-compressor's spelling."""
    return (*recipe.ignore, *(rule for rule in ALWAYS_IGNORED if rule not in recipe.ignore))


def matches(module: str, rules: Sequence[str]) -> bool:
    """Tell whether a module's name obeys one of the rules: `re:` and a pattern from its start on, or the name."""
    return any(
        re.match(rule.removeprefix("re:"), module) is not None if rule.startswith("re:") else rule == module
        for rule in rules
    )


def modifiers(recipe: Recipe) -> list[Any]:
    """Return llm-compressor's modifiers, in order.

    Raises:
        ConfigError: This version does not build the scheme.
    """
    require_buildable(recipe)
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    common: dict[str, Any] = {"targets": ["Linear"], "ignore": list(ignored(recipe))}
    if recipe.kv_cache_scales:
        common["kv_cache_scheme"] = dict(KV_CACHE)
    match recipe.scheme:
        case "w8a8":
            smooth = SmoothQuantModifier(smoothing_strength=SMOOTHING_STRENGTH)
            return [smooth, GPTQModifier(scheme=PRESETS["w8a8"], **common)]
        case "w4a16-gptq":
            return [GPTQModifier(config_groups=_four_bit(recipe), **common)]
        case "w4a16-awq":
            return [AWQModifier(), QuantizationModifier(config_groups=_four_bit(recipe), **common)]
        case _:
            return [QuantizationModifier(scheme=PRESETS[recipe.scheme], **common)]


def _four_bit(recipe: Recipe) -> dict[str, Any]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    if recipe.group_size is None:
        raise ConfigError(f"the recipe for {recipe.scheme} names no group size; plan the release again")
    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=recipe.group_size)
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}


def without_pinning() -> None:
    """Let AWQ run where there is no accelerator.

    Version 0.14 pins memory for transfers to a device without asking whether there is one, and torch refuses that.
    """
    import torch
    from llmcompressor.pipelines.cache import IntermediatesCache

    def stay(self: Any, *args: Any, **options: Any) -> None:
        """Leave the batch where it is."""

    if not torch.accelerator.is_available():
        IntermediatesCache.pin_memory = stay


@contextmanager
def telling(steps: Sequence[Any], layers: int, told: Callable[[int, int], None]) -> Iterator[None]:
    """Tell after each layer how many are done, and how many there are.

    llm-compressor calls one function when a layer is done; it goes through all layers once for each modifier that
    looks at activations, and counts what is in no layer as one more. The other modifiers are done at once.

    Args:
        steps: The modifiers.
        layers: Number of decoder layers.
        told: Gets both numbers, the passes added up.
    """
    from llmcompressor.core import LifecycleCallbacks

    stock = LifecycleCallbacks.sequential_epoch_end
    total = sum(layers + 1 if step.requires_calibration_data else 1 for step in steps)
    done = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal done
        answer = stock(*args, **options)
        done += 1
        told(done, max(total, done))
        return answer

    LifecycleCallbacks.sequential_epoch_end = counted
    try:
        yield
    finally:
        LifecycleCallbacks.sequential_epoch_end = stock
