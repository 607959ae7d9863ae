"""Applies a scheme with llm-compressor, and checks the structure of what came out."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from headway.domain.safetensors import LENGTH_BYTES, HeaderError, Tensor, header_length, parse_header
from headway.domain.weights import Recipe
from headway.errors import ConfigError, IntegrityError

INDEX = "model.safetensors.index.json"
QUANTIZED_DTYPES = {"fp8-dynamic": "F8_E4M3"}
"""What a Linear weight must be afterwards."""

SCHEMES = {"fp8-dynamic": "FP8_DYNAMIC"}
"""llm-compressor's names."""


def compress(source: Path, target: Path, recipe: Recipe) -> None:
    """Quantize a model directory into an empty one.

    Tokenizer, chat template and generation config are copied byte for byte: what `save_pretrained` writes of them
    differs from the source (a stop token or a truncation gets lost).

    Raises:
        ConfigError: This version cannot build the scheme.
        IntegrityError: The result is not what the scheme promises.
    """
    if recipe.scheme not in SCHEMES:
        raise ConfigError(f"scheme {recipe.scheme} cannot be built by this version; it builds {', '.join(SCHEMES)}")
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", trust_remote_code=False, use_safetensors=True)
    modifier = QuantizationModifier(targets="Linear", scheme=SCHEMES[recipe.scheme], ignore=list(recipe.ignore))
    oneshot(model=model, recipe=modifier)
    model.save_pretrained(target, save_compressed=True)
    copy_rest(source, target)
    check(source, target, recipe)


def copy_rest(source: Path, target: Path) -> None:
    """Make everything but weights and config.json the source's own bytes."""
    made = {"config.json", INDEX}
    for path in list(target.iterdir()):
        if path.name not in made and path.suffix != ".safetensors":
            path.unlink()
    for path in sorted(source.iterdir()):
        if path.name not in made and path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)


def check(source: Path, target: Path, recipe: Recipe) -> None:
    """Compare the structure of a result with its source.

    vLLM loads a quantized checkpoint with missing tensors without a word and answers rubbish, so it is found here.

    Raises:
        IntegrityError: With everything that is wrong.
    """
    before, after = tensors_of(source), tensors_of(target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    original = json.loads((source / "config.json").read_text(encoding="utf-8"))
    kept = {name.removesuffix("_packed") for name in after}
    tied = bool(original.get("tie_word_embeddings"))
    missing = [name for name in sorted(before) if name not in kept and not (tied and name == "lm_head.weight")]
    quantized = [name for name, tensor in after.items() if tensor.dtype == QUANTIZED_DTYPES[recipe.scheme]]
    faults = []
    if missing:
        faults.append(f"{len(missing)} tensors of the source are missing, the first is {missing[0]}")
    if not quantized:
        faults.append("no weight was quantized; the recipe's `ignore` matches everything")
    if without := [name for name in quantized if f"{name}_scale" not in after]:
        faults.append(f"{len(without)} quantized weights have no scale, the first is {without[0]}")
    if config.get("quantization_config", {}).get("quant_method") != "compressed-tensors":
        faults.append("config.json does not say that the weights are quantized")
    if bool(config.get("tie_word_embeddings")) != tied:
        faults.append("tie_word_embeddings changed, so the serving engine would look for a head that is not there")
    if faults:
        raise IntegrityError(f"llm-compressor made a broken model: {'; '.join(faults)}", faults=faults)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of a directory by name.

    Raises:
        IntegrityError: A file is no whole safetensors file.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found.update({tensor.name: tensor for tensor in _header(path)})
        except HeaderError as error:
            raise IntegrityError(f"{path.name} {error}") from error
    return found


def _header(path: Path) -> Sequence[Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        return parse_header(file.read(header_length(file.read(LENGTH_BYTES), size)), size)
