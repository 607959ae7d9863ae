"""Applies a recipe with llm-compressor, and checks the structure of what came out."""

import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.domain.weight_jobs import LayerError
from headway.domain.weights import Recipe
from headway.errors import ConfigError
from headway.pods import calibration, layer_error, memory, recipes, shards, structure
from headway.pods.io import Progress
from headway.units import format_bytes

LOADED_SHARE = 0.4
"""Of the memory that the program may use: a source beyond it is quantized file by file where that is possible. A loaded
model of 270 MB took 2.0 times its size beside the libraries, and 3.1 to 3.8 times where it was widened to float32."""

MOST_SHARE = 0.8
"""A source beyond this cannot be loaded at all, so calibration is refused before the system ends the program."""

CPU_WIDENS = 2
"""On a CPU, which has no fast bfloat16, calibration computes in float32 where the twice larger model may be loaded:
eight times faster, and stored in the source's dtype again."""

SEED = 0


@dataclass(frozen=True)
class Compressed:
    """What came out beside the files."""

    layer_errors: tuple[LayerError, ...]
    loaded: bool


def compress(
    source: Path,
    target: Path,
    recipe: Recipe,
    rows: Sequence[dict[str, Any]] = (),
    *,
    progress: Progress,
    memory_bytes: int | None = None,
) -> Compressed:
    """Quantize a model directory into an empty one.

    All files but weights and config.json are copied byte for byte: what `save_pretrained` writes of tokenizer, chat
    template and generation config differs from the source (a stop token or a truncation gets lost). config.json is
    the source's with the quantization config added. The same input gives the same bytes on one kind of machine.

    Args:
        source: Plain Hugging Face directory.
        target: Empty directory. Beside it a directory of the name with `.made` is used in between.
        recipe: What to do.
        rows: Calibration texts; also those on which layers are compared.
        progress: Told how far it is.
        memory_bytes: What the program may use; asked of the machine by default.

    Raises:
        ConfigError: This version cannot build the recipe, its groups do not fit the model, or the memory is too small.
        IntegrityError: The result is not what the scheme promises.
    """
    recipes.require_buildable(recipe)
    calibrated = recipes.is_calibrated(recipe)
    if calibrated and not rows:
        raise ConfigError(f"the recipe for {recipe.scheme} needs calibration texts; plan the release again")
    before = structure.inspect(source)
    if odd := structure.indivisible(before, recipe):
        raise ConfigError(
            f"{len(odd)} Linears have inputs that are no multiple of the group size {recipe.group_size}, the first is "
            f"{odd[0]}; choose a smaller group size or a scheme without groups"
        )
    allowed = memory_bytes if memory_bytes is not None else memory.limit_bytes()
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    loaded = calibrated or size <= LOADED_SHARE * allowed
    if calibrated and size > MOST_SHARE * allowed:
        raise ConfigError(
            f"to calibrate for {recipe.scheme} the source must be loaded, and its {format_bytes(size)} do not fit "
            f"{format_bytes(allowed)} of memory; give the job more, or choose fp8-dynamic, which needs no loading"
        )
    made = target.with_name(target.name + ".made")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        if loaded:
            widen = calibrated and CPU_WIDENS * size <= LOADED_SHARE * allowed
            errors = _with_model(source, made, recipe, rows, widen=widen, progress=progress)
        else:
            errors = _file_by_file(source, made, recipe, progress)
        progress(90, "writing the weights")
        said = json.loads((made / structure.CONFIG).read_text(encoding="utf-8"))[structure.QUANTIZATION]
        head = ("lm_head.weight",) if before.tied else ()
        shards.rewrite(made, target, drop=head, narrow=structure.stored_dtype(before))
        config = {**before.config, structure.QUANTIZATION: structure.quantization_config(said, before, recipe)}
        (target / structure.CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        copy_rest(source, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    progress(96, "checking the structure")
    structure.check(source, target, recipe)
    return Compressed(errors or layer_error.weight_errors(source, target), loaded)


def copy_rest(source: Path, target: Path) -> None:
    """Copy everything but weights, their index and config.json."""
    for path in sorted(source.iterdir()):
        if path.suffix != ".safetensors" and path.name not in (structure.CONFIG, shards.INDEX):
            shutil.copyfile(path, target / path.name)


def _with_model(
    source: Path,
    made: Path,
    recipe: Recipe,
    rows: Sequence[dict[str, Any]],
    *,
    widen: bool,
    progress: Progress,
) -> tuple[LayerError, ...]:
    """Load the model, quantize it, compare its layers, and write it; `widen`: in float32 if this is a CPU."""
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import load_quantizable_moe
    from transformers import AutoModelForCausalLM

    _be_deterministic()
    progress(0, "loading the source")
    dtype = torch.float32 if widen and not torch.accelerator.is_available() else "auto"
    with load_quantizable_moe():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False, use_safetensors=True)
    model.eval()
    batches = calibration.batches(rows, source, recipe)
    progress(5, "measuring the layers of the source")
    errors = layer_error.OutputErrors(model, batches)
    total = len(layer_error.decoder_layers(model))

    def told(done: int, steps: int) -> None:
        progress(10 + 75 * done / steps, f"{recipe.scheme}: step {done} of {steps}, a layer each")

    steps = recipes.modifiers(recipe)
    recipes.without_pinning()
    given: dict[str, Any] = {}
    if recipes.is_calibrated(recipe):
        tokens = max(int(batch["input_ids"].shape[1]) for batch in batches)
        given = {
            "dataset": calibration.loader(batches),
            "num_calibration_samples": len(batches),
            "max_seq_length": tokens,
            "moe_calibrate_all_experts": True,
            "shuffle_calibration_samples": False,
        }
    progress(10, f"quantizing to {recipe.scheme}")
    with torch.no_grad(), recipes.telling(steps, total, told):
        oneshot(model=model, recipe=steps, **given)
    progress(85, "measuring the layers of the result")
    found = errors.measure()
    model.save_pretrained(made, save_compressed=True)
    return found


def _file_by_file(source: Path, made: Path, recipe: Recipe, progress: Progress) -> tuple[LayerError, ...]:
    """Quantize without loading the model: one file is in memory at a time."""
    import torch
    from llmcompressor import model_free_ptq

    progress(0, f"quantizing to {recipe.scheme} file by file: the source is larger than the memory allows to load")
    model_free_ptq(
        model_stub=source,
        save_directory=made,
        scheme=recipes.PRESETS[recipe.scheme],
        ignore=list(recipes.ignored(recipe)),
        max_workers=1,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    return ()


def _be_deterministic() -> None:
    """Let chance and scheduling change nothing."""
    import numpy as np
    import torch

    # cuBLAS is deterministic only with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - the one that libraries use
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
