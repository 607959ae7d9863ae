"""Step 2: the files obey the rules, or nothing may load them. Only headers and small files are read."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headway.domain.model import ModelShape, Selection, SourceFile
from headway.domain.release import Validated
from headway.domain.safetensors import LENGTH_BYTES, HeaderError, Tensor, header_length, parse_header
from headway.errors import ModelRejected
from headway.ports import WeightStore
from headway.units import MIB, format_bytes

INDEX = "model.safetensors.index.json"
ALLOWED = frozenset({"safetensors", "json", "txt", "model", "jinja", "md"})
"""Endings of files that carry data only. `model` is sentencepiece's; there is no pickle and no program among them."""

PICKLES = frozenset({"bin", "pt", "pth", "pkl", "pickle", "ckpt", "joblib", "npy", "npz", "h5", "msgpack"})
"""Endings whose loading runs code or may."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
CODE_CARRIERS = (
    "config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "generation_config.json",
)
"""Files in which `auto_map` names a program to run."""

MAX_JSON_BYTES = 64 * MIB
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")
NOT_LINEAR = re.compile(r"embed|wte|wpe|lm_head|norm|router|mlp\.gate\.|shared_expert_gate|vision|visual|rotary|conv1d")
"""Names of weights that no scheme shrinks: `Recipe.ignore` and what is no Linear layer."""

CHECKS = (
    "plain file names, no folders",
    "data files only: no pickle, no program",
    "no configuration asks to run code (auto_map)",
    "every safetensors header is well-formed and describes its whole file",
    "the index and the shards agree, no tensor is there twice",
    "config.json and the tokenizer are there",
)


def run(selection: Selection, weights: WeightStore) -> Validated:
    """Check the files of a selection.

    Raises:
        ModelRejected: With every finding in `report`.
    """
    check = _Files(selection, weights)
    findings = [*check.names(), *check.code(), *check.tensors(), *check.completeness()]
    shape = check.shape(findings) if check.config else None
    if findings or shape is None:
        listing = "\n".join(f"  - {finding}" for finding in findings)
        model = selection.model
        raise ModelRejected(
            f"{model.name} version {model.version} cannot be served:\n{listing}\n"
            "Correct the files, and register them as a new version",
            report=findings,
        )
    return Validated(shape=shape, checks=CHECKS, chat_template_sha256=check.chat_template())


class _Files:
    """The files of one selection, each read at most once."""

    def __init__(self, selection: Selection, weights: WeightStore) -> None:
        self._files = {file.path: file for file in selection.files}
        self._weights = weights
        self._texts: dict[str, bytes] = {}
        self.headers: dict[str, list[Tensor]] = {}
        self.config: dict[str, Any] = {}

    def names(self) -> Iterator[str]:
        """Find names that reach elsewhere, and files that may run."""
        folded = Counter(path.lower() for path in self._files)
        for path in self._files:
            ending = path.rpartition(".")[2].lower() if "." in path else ""
            if not PLAIN_NAME.fullmatch(path) or ".." in path:
                yield f"`{path}` is no plain file name; files must lie side by side, without folders or `..`"
            elif ending == "py":
                yield f"`{path}` is a program; models that need their own code cannot be served"
            elif ending in PICKLES:
                yield f"`{path}` is a pickle or may be one, and loading it may run code; save the model as safetensors"
            elif ending not in ALLOWED:
                allowed = ", ".join(sorted(ALLOWED))
                yield f"`{path}` is of an unknown kind; allowed endings are {allowed}"
            elif folded[path.lower()] > 1:
                yield f"`{path}` has the name of another file but for its case"

    def code(self) -> Iterator[str]:
        """Find configuration that asks to run a program."""
        for path in CODE_CARRIERS:
            if path not in self._files:
                continue
            try:
                value = self._json(path)
            except ValueError as error:
                yield f"`{path}` cannot be read: {error}"
                continue
            if path == "config.json":
                self.config = value
            for where in _places_of("auto_map", value):
                yield f"`{path}` has `{where}`, which names code to run with the model; remove it"

    def tensors(self) -> Iterator[str]:
        """Read every header; compare them with the index."""
        shards = sorted(path for path in self._files if path.endswith(".safetensors"))
        for path in shards:
            try:
                self.headers[path] = self._header(self._files[path])
            except HeaderError as error:
                yield f"`{path}` {error}"
        if not shards:
            yield "there is no *.safetensors file; save the model as safetensors"
        home: dict[str, str] = {}
        for path, header in self.headers.items():
            for tensor in header:
                if tensor.name in home:
                    yield f"tensor {tensor.name} is in `{home[tensor.name]}` and in `{path}`"
                home[tensor.name] = path
        if INDEX in self._files:
            yield from self._index(shards, home)
        elif len(shards) > 1:
            yield f"there are {len(shards)} shards and no {INDEX} that says how they belong together"

    def completeness(self) -> Iterator[str]:
        """Find what is missing beside the weights."""
        if "config.json" not in self._files:
            yield "config.json is missing"
        if not any(name in self._files for name in TOKENIZERS):
            yield f"the tokenizer is missing; expected one of {', '.join(TOKENIZERS)}"

    def chat_template(self) -> str | None:
        """Return the sha256 of the chat template's text, none if the model has none."""
        if "chat_template.jinja" in self._files:
            return self._files["chat_template.jinja"].sha256
        for path in ("chat_template.json", "tokenizer_config.json"):
            if path in self._files and (template := self._json(path).get("chat_template")):
                text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
                return hashlib.sha256(text.encode()).hexdigest()
        return None

    def shape(self, findings: list[str]) -> ModelShape | None:
        """Read the figures that memory depends on; add a finding for each that is missing."""
        text = {**self.config, **dict(self.config.get("text_config") or {})}
        numbers = {
            "hidden_size": _number(text, "hidden_size", "n_embd", "d_model"),
            "layers": _number(text, "num_hidden_layers", "n_layer"),
            "attention_heads": _number(text, "num_attention_heads", "n_head"),
            "vocab_size": _number(text, "vocab_size"),
            "max_position_embeddings": _number(text, "max_position_embeddings", "n_positions"),
        }
        missing = [name for name, value in numbers.items() if value is None]
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            missing.append("architectures")
        if missing:
            findings.append(f"`config.json` does not say {', '.join(missing)}, so its memory cannot be planned")
            return None
        found = {name: value for name, value in numbers.items() if value is not None}
        heads = found["attention_heads"]
        tensors = [tensor for header in self.headers.values() for tensor in header]
        items: Counter[str] = Counter()
        for tensor in tensors:
            items[tensor.dtype] += tensor.items
        return ModelShape(
            architecture=str(self.config["architectures"][0]),
            kv_heads=_number(text, "num_key_value_heads") or heads,
            head_dim=_number(text, "head_dim") or found["hidden_size"] // heads,
            parameters=items.total(),
            linear_parameters=sum(t.items for t in tensors if len(t.shape) in (2, 3) and not NOT_LINEAR.search(t.name)),
            dtype=items.most_common(1)[0][0] if items else "BF16",
            weights_bytes=sum(self._files[path].size_bytes for path in self.headers),
            linears=(),
            **found,
        )

    def _index(self, shards: list[str], home: Mapping[str, str]) -> Iterator[str]:
        try:
            weight_map = self._json(INDEX).get("weight_map")
        except ValueError as error:
            yield f"`{INDEX}` cannot be read: {error}"
            return
        if not isinstance(weight_map, dict) or not weight_map:
            yield f"`{INDEX}` has no weight_map"
            return
        named = sorted({str(path) for path in weight_map.values()})
        for path in named:
            if not PLAIN_NAME.fullmatch(path):
                yield f"`{INDEX}` points at `{path}`, which is no plain file name; it would be loaded from elsewhere"
            elif path not in self._files:
                yield f"shard `{path}` is in {INDEX} and missing; upload it"
        for path in shards:
            if path not in named:
                yield f"shard `{path}` is there and {INDEX} does not know it"
        wrong = sorted(
            str(name)
            for name, path in weight_map.items()
            if path in self.headers and home.get(name) != path
        )  # fmt: skip
        if wrong:
            yield f"{INDEX} puts {_some(wrong)} into shards that do not hold them"
        unknown = sorted(name for name in home if name not in weight_map)
        if unknown:
            yield f"{INDEX} does not know {_some(unknown)}"

    def _header(self, file: SourceFile) -> list[Tensor]:
        first = self._weights.read(file.uri, length=LENGTH_BYTES)
        length = header_length(first, file.size_bytes)
        return parse_header(self._weights.read(file.uri, start=LENGTH_BYTES, length=length), file.size_bytes)

    def _json(self, path: str) -> dict[str, Any]:
        """Return a JSON file. Raises ValueError that says why not."""
        if path not in self._texts:
            size = self._files[path].size_bytes
            if size > MAX_JSON_BYTES:
                raise ValueError(f"it has {format_bytes(size)}, more than {format_bytes(MAX_JSON_BYTES)}")
            self._texts[path] = self._weights.read(self._files[path].uri)
        try:
            value = json.loads(self._texts[path])
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004 - the caller reports it as content
        return value


def _places_of(key: str, value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            where = f"{path}.{name}" if path else str(name)
            if name == key:
                yield where
            else:
                yield from _places_of(key, inner, where)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _places_of(key, inner, f"{path}[{position}]")


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return f"tensors {', '.join(names[:3])}" + (f" and {rest} more" if rest > 0 else "")
