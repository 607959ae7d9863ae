"""Whether a quantized model is whole: its files, tensors and config against those of its source.

vLLM loads a quantized checkpoint with missing tensors without a word and answers rubbish, so it is found here. The
rules are functions of headers and configs; only `inspect` and the scales read files.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.domain.safetensors import Tensor
from headway.domain.weights import GROUPED, Recipe
from headway.errors import IntegrityError
from headway.pods.recipes import ignored, matches
from headway.pods.shards import INDEX, Placed, locate
from headway.units import KIB

CONFIG = "config.json"
QUANTIZATION = "quantization_config"
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
DROPPED = re.compile(r"\.rotary_emb\.inv_freq$")
"""Tensors of old checkpoints that no engine reads: they are computed."""
FORMATS = {"fp8-dynamic": "float-quantized", "fp8": "float-quantized", "w8a8": "int-quantized"}
PACKED = "pack-quantized"
PACKED_ITEMS = 8
"""4 bit weights in an int32."""
KV_SCALES = ("k_scale", "v_scale")
EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Experts that transformers keeps in one tensor of three dimensions; llm-compressor writes a Linear for each."""
BF16_INFINITY = 0x7F80
PIECE_BYTES = 64 * KIB
SHOWN = 3
"""Names in a sentence."""


@dataclass(frozen=True)
class Model:
    """What can be said of a model directory without reading a weight."""

    config: Mapping[str, Any]
    shards: Mapping[str, Sequence[Tensor]]
    """Tensors by file."""
    index: Mapping[str, Any] | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    """sha256 by name of every file but weights, index and config."""
    remote_code: Sequence[str] = ()
    """Files that ask for code of their own (`auto_map`)."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {tensor.name: tensor for tensors in self.shards.values() for tensor in tensors}

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding."""
        return bool(self.config.get("tie_word_embeddings"))


def check(source: Path, target: Path, recipe: Recipe) -> None:
    """Compare a result with its source.

    Raises:
        IntegrityError: With everything that is wrong.
    """
    faults = [
        *findings(inspect(source), inspect(target), recipe),
        *scale_findings(target),
        *zero_findings(source, target),
    ]
    if faults:
        raise IntegrityError(f"llm-compressor made a broken model: {'; '.join(faults)}", faults=faults)


def inspect(folder: Path) -> Model:
    """Read headers, configs and the digests of small files.

    Raises:
        IntegrityError: A file is no whole safetensors file, or a tensor is in two files.
    """
    shards: dict[str, list[Tensor]] = {path.name: [] for path in sorted(folder.glob("*.safetensors"))}
    for where in locate(folder).values():
        shards[where.path.name].append(where.tensor)
    parsed = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    others = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.suffix != ".safetensors" and path.name not in (CONFIG, INDEX)
    }
    return Model(
        config=parsed.get(CONFIG, {}),
        shards=shards,
        index=parsed.get(INDEX),
        others=others,
        remote_code=[name for name, content in parsed.items() if isinstance(content, dict) and "auto_map" in content],
    )


def findings(before: Model, after: Model, recipe: Recipe) -> list[str]:
    """Return one sentence for each thing that is wrong; empty when the result is whole."""
    expected = expectations(before, recipe)
    return [
        *_index_findings(after),
        *_tensor_findings(before, after, expected),
        *_config_findings(before, after, recipe, expected),
        *_file_findings(before, after),
    ]


@dataclass(frozen=True)
class Expected:
    """What a result must hold."""

    quantized: Mapping[str, tuple[int, int]]
    """Shape (outputs, inputs) of each Linear that the recipe shrinks, by module."""
    kept: Mapping[str, Tensor]
    """Tensors that stay as they are, by name; norms may change their values, none its shape."""
    optional: frozenset[str]
    """Names that may be missing: a tied head and what is computed."""
    made: Mapping[str, "Rule"]
    """Tensors that quantizing makes, by name."""


@dataclass(frozen=True)
class Rule:
    """What a tensor must be."""

    dtypes: frozenset[str]
    shapes: tuple[tuple[int, ...], ...]

    def broken(self, tensor: Tensor) -> str | None:
        """Say what is wrong with a tensor, none if nothing."""
        if tensor.dtype in self.dtypes and tensor.shape in self.shapes:
            return None
        wanted = f"{'/'.join(sorted(self.dtypes))}{list(self.shapes[0])}"
        return f"{tensor.name} is {tensor.dtype}{list(tensor.shape)}, expected {wanted}"


def expectations(before: Model, recipe: Recipe) -> Expected:
    """Work out what the result of a recipe must hold."""
    rules = ignored(recipe)
    quantized: dict[str, tuple[int, int]] = {}
    kept: dict[str, Tensor] = {}
    for name, tensor in before.tensors.items():
        linears = {module: shape for module, shape in _linears(tensor) if not matches(module, rules)}
        if linears:
            quantized.update(linears)
        else:
            kept[name] = tensor
    optional = {name for name in kept if DROPPED.search(name) or (before.tied and name == "lm_head.weight")}
    made = {name: rule for module, shape in quantized.items() for name, rule in _made(module, shape, recipe)}
    if recipe.kv_cache_scales:
        scale = Rule(FLOATS, ((1,), ()))
        attention = {module.rpartition(".")[0] for module in quantized if module.endswith(".k_proj")}
        made.update({f"{module}.{name}": scale for module in sorted(attention) for name in KV_SCALES})
    return Expected(quantized, kept, frozenset(optional), made)


def indivisible(before: Model, recipe: Recipe) -> list[str]:
    """Return the Linears whose inputs are no multiple of the recipe's groups, with their number."""
    group = recipe.group_size
    if group is None:
        return []
    shapes = expectations(before, recipe).quantized
    return [f"{module} ({columns})" for module, (_, columns) in shapes.items() if columns % group]


def _linears(tensor: Tensor) -> Iterator[tuple[str, tuple[int, int]]]:
    """Give the Linears that a tensor of the source holds: itself, or one for each expert."""
    module, _, last = tensor.name.rpartition(".")
    if tensor.dtype not in FLOATS:
        return
    if last == "weight" and len(tensor.shape) == 2:
        yield module, (tensor.shape[0], tensor.shape[1])
    stem = tensor.name.removesuffix(".weight")
    parent, _, last = stem.rpartition(".")
    if last in EXPERTS and len(tensor.shape) == 3:
        parts = EXPERTS[last]
        for expert in range(tensor.shape[0]):
            for part in parts:
                yield f"{parent}.{expert}.{part}", (tensor.shape[1] // len(parts), tensor.shape[2])


def _made(module: str, shape: tuple[int, int], recipe: Recipe) -> Iterator[tuple[str, Rule]]:
    rows, columns = shape
    if recipe.scheme in GROUPED:
        group = recipe.group_size or columns
        yield f"{module}.weight_packed", Rule(frozenset({"I32"}), ((rows, math.ceil(columns / PACKED_ITEMS)),))
        yield f"{module}.weight_scale", Rule(FLOATS, ((rows, columns // group),))
        yield f"{module}.weight_shape", Rule(frozenset({"I64", "I32"}), ((2,),))
        return
    stored = "I8" if recipe.scheme == "w8a8" else "F8_E4M3"
    yield f"{module}.weight", Rule(frozenset({stored}), (shape,))
    if recipe.scheme == "fp8":
        one = Rule(FLOATS, ((1,), ()))
        yield f"{module}.weight_scale", one
        yield f"{module}.input_scale", one
    else:
        yield f"{module}.weight_scale", Rule(FLOATS, ((rows, 1),))


def _tensor_findings(before: Model, after: Model, expected: Expected) -> Iterator[str]:
    there = after.tensors
    names = {*expected.kept, *expected.made}
    if not expected.quantized:
        yield "no weight was quantized; the recipe's `ignore` matches everything"
    untouched = [m for m in expected.quantized if f"{m}.weight" in there and there[f"{m}.weight"].dtype in FLOATS]
    yield from _some(untouched, "Linears are neither quantized nor ignored; name them in the recipe's `ignore`")
    left = {f"{module}.weight" for module in untouched}
    yield from _some(names - set(there) - expected.optional, "tensors are missing")
    yield from _some(set(there) - names - left, "tensors are not expected")
    if before.tied and "lm_head.weight" in there:
        yield "there is a head of its own, and the source shares it with the embedding"
    broken = [rule.broken(there[name]) for name, rule in expected.made.items() if name in there and name not in left]
    yield from (sentence for sentence in broken if sentence)
    changed = [
        name
        for name, tensor in expected.kept.items()
        if name in there and (there[name].shape, there[name].dtype) != (tensor.shape, tensor.dtype)
    ]
    yield from _some(changed, "tensors that stay as they are have another shape or dtype")


def _index_findings(after: Model) -> Iterator[str]:
    if not after.shards:
        yield "there is no safetensors file"
    if after.index is None:
        if len(after.shards) > 1:
            yield f"there are {len(after.shards)} files of weights and no {INDEX}"
        return
    weight_map = after.index.get("weight_map")
    if not isinstance(weight_map, Mapping):
        yield f"{INDEX} has no weight_map"
        return
    there = {tensor.name: name for name, tensors in after.shards.items() for tensor in tensors}
    wrong = [name for name in {*weight_map, *there} if weight_map.get(name) != there.get(name)]
    yield from _some(wrong, f"tensors are not where {INDEX} says")


def _config_findings(before: Model, after: Model, recipe: Recipe, expected: Expected) -> Iterator[str]:
    if after.tied != before.tied:
        yield "tie_word_embeddings changed, so the serving engine would look for a head that is not there"
    changed = [
        key
        for key in {*before.config, *after.config}
        if key not in (QUANTIZATION, "tie_word_embeddings") and before.config.get(key) != after.config.get(key)
    ]
    yield from _some(changed, f"entries of {CONFIG} differ from the source's")
    said = after.config.get(QUANTIZATION)
    if not isinstance(said, Mapping) or said.get("quant_method") != "compressed-tensors":
        yield f"{CONFIG} does not say that the weights are quantized"
        return
    wanted = FORMATS.get(recipe.scheme, PACKED)
    if (said.get("format"), said.get("quantization_status")) != (wanted, "compressed"):
        found = f"{said.get('format')} {said.get('quantization_status')}"
        yield f"{CONFIG} says format {found}, expected {wanted} compressed"
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or [group.get("targets") for group in groups.values()] != [["Linear"]]:
        yield f"{CONFIG} does not target all Linears by one group"
    else:
        yield from _weights_findings(next(iter(groups.values())), recipe)
    rules = said.get("ignore") or ()
    shared = ["lm_head"] if before.tied else []
    stay = [*shared, *(module for tensor in expected.kept.values() for module, _ in _linears(tensor))]
    unsaid = [module for module in stay if not matches(module, rules) and "embed" not in module]
    yield from _some(unsaid, f"Linears stay as they are, and {CONFIG} does not say so")
    yield from _some([m for m in expected.quantized if matches(m, rules)], f"quantized Linears are ignored in {CONFIG}")
    if bool(said.get("kv_cache_scheme")) != recipe.kv_cache_scales:
        there = "has no" if recipe.kv_cache_scales else "has a"
        yield f"{CONFIG} {there} kv_cache_scheme, and the recipe says otherwise"


def _weights_findings(group: Mapping[str, Any], recipe: Recipe) -> Iterator[str]:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits = ("float", 8) if recipe.scheme.startswith("fp8") else ("int", 4 if recipe.scheme in GROUPED else 8)
    strategy = "group" if recipe.scheme in GROUPED else "tensor" if recipe.scheme == "fp8" else "channel"
    found = tuple(weights.get(key) for key in ("type", "num_bits", "strategy", "group_size"))
    if found != (kind, bits, strategy, recipe.group_size if recipe.scheme in GROUPED else None):
        yield f"{CONFIG} says weights {found}, which is not {recipe.scheme}"
    dynamic = {"fp8-dynamic": True, "w8a8": True, "fp8": False}.get(recipe.scheme)
    if (inputs.get("dynamic") if isinstance(inputs, Mapping) else None) is not dynamic:
        yield f"{CONFIG} says input_activations {inputs}, which is not {recipe.scheme}"


def _file_findings(before: Model, after: Model) -> Iterator[str]:
    wrong = [name for name in {*before.others, *after.others} if before.others.get(name) != after.others.get(name)]
    yield from _some(wrong, "files are not the source's own bytes")
    yield from _some(after.remote_code, "files ask for code of their own (auto_map)")


def scale_findings(folder: Path) -> list[str]:
    """Read every scale: one that is NaN, infinite or zero makes its weights so."""
    wrong = [name for name, where in locate(folder).items() if name.endswith("_scale") and not _is_sound(where)]
    return list(_some(wrong, "scales are NaN, infinite, zero or negative"))


def zero_findings(source: Path, target: Path) -> list[str]:
    """Find weights of which nothing is left, although the source has some."""
    before = locate(source)
    wrong = [
        name
        for name, where in locate(target).items()
        if name.endswith((".weight", ".weight_packed"))
        and _is_zero(where)
        and not ((known := before.get(name.removesuffix("_packed"))) and _is_zero(known))
    ]
    return list(_some(wrong, "weights are nothing but zeros"))


def _is_zero(where: Placed) -> bool:
    """Tell whether a tensor's bytes are all zero; of one that is not, only the beginning is read."""
    left = where.tensor.end - where.tensor.start
    with where.path.open("rb") as file:
        file.seek(where.body_start + where.tensor.start)
        while left > 0:
            piece = file.read(min(left, PIECE_BYTES))
            if not piece or any(piece):
                return False
            left -= len(piece)
    return True


def _is_sound(where: Placed) -> bool:
    """Tell whether all items of a tensor are finite and above zero; it is mapped, not loaded."""
    import numpy as np

    kind = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}[where.tensor.dtype]
    start = where.body_start + where.tensor.start
    items: Any = np.memmap(where.path, dtype=kind, mode="r", offset=start, shape=(where.tensor.items,))
    if where.tensor.dtype == "BF16":
        # numpy has no bfloat16. The exponent of infinity and NaN is all ones; the sign is the first bit.
        return bool(((items > 0) & (items < BF16_INFINITY)).all())
    return bool((np.isfinite(items) & (items > 0)).all())


def quantization_config(made: Mapping[str, Any], before: Model, recipe: Recipe) -> dict[str, Any]:
    """Return the quantization config as it is stored: what llm-compressor says, in one spelling.

    Its two ways of quantizing list other modules under `ignore` and name other observers. What only says how scales
    were found, and empty fields, which an older serving engine may not know, are left out.
    """
    kept = expectations(before, recipe).kept
    names = {module for tensor in kept.values() for module, _ in _linears(tensor) if not _is_embedding(module)}
    plain = _plain({key: value for key, value in made.items() if key != "ignore"})
    groups = plain["config_groups"].values()
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {**plain, "config_groups": named, "ignore": sorted(names | {"lm_head"})}


def stored_dtype(before: Model) -> Callable[[str], str | None]:
    """Return a function that says in which dtype a result's tensor is stored: the source's own.

    Scales get the dtype that most of the source's tensors have; so does what has no name in the source. The quantized
    weights are integers or FP8 by then, and are never asked about.
    """
    dtypes = {name: tensor.dtype for name, tensor in before.tensors.items()}
    usual = Counter(dtypes.values()).most_common(1)[0][0] if dtypes else None

    def stored(name: str) -> str | None:
        found = dtypes.get(name, usual)
        return found if found in ("BF16", "F16") else None

    return stored


def _is_embedding(module: str) -> bool:
    return "embed" in module or module.endswith(("wte", "wpe"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v not in (None, {}) and not k.startswith("observer")}
    return value


def _some(names: Any, what: str) -> Iterator[str]:
    found = sorted(names)
    if found:
        more = ", ..." if len(found) > SHOWN else ""
        yield f"{len(found)} {what} ({', '.join(found[:SHOWN])}{more})"
