"""Step 2: the files obey the rules, or nothing may load them. Only headers and small files are read."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headway.domain import strict_json
from headway.domain.model import ModelShape, Selection, SourceFile
from headway.domain.profile import Weights
from headway.domain.release import Validated
from headway.domain.safetensors import LENGTH_BYTES, HeaderError, Tensor, header_length, parse_header
from headway.domain.serving import linear_shapes
from headway.errors import ModelRejected
from headway.ports import Signatures, WeightStore
from headway.release import chat_template, config_rules, signed
from headway.units import MIB, format_bytes

INDEX = "model.safetensors.index.json"
ALLOWED = frozenset({"safetensors", "json", "txt", "model", "jinja", "md"})
"""Endings of files that carry data only. `model` is sentencepiece's; there is no pickle and no program among them."""

PICKLES = frozenset({"bin", "pt", "pth", "pkl", "pickle", "ckpt", "joblib", "npy", "npz", "h5", "msgpack"})
"""Endings whose loading runs code or may."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
VOCABULARIES = frozenset({"tokenizer.json", "vocab.json", "added_tokens.json", "merges.json", "tekken.json"})
"""Files whose keys may be any word of a language, `auto_map` too."""

ODD_DTYPES = frozenset({"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "C64", "F64"})
MAX_JSON_BYTES = 64 * MIB
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")
NOT_LINEAR = re.compile(r"embed|wte|wpe|lm_head|norm|router|mlp\.gate\.|shared_expert_gate|vision|visual|rotary|conv1d")
"""Names of weights that no scheme shrinks: `Recipe.ignore` and what is no Linear layer."""

CHECKS = (
    "plain file names, no folders",
    "data files only: no pickle, no program",
    "no configuration asks to run code (auto_map) or opens files elsewhere",
    "every safetensors header is well-formed and describes its whole file",
    "the index and the shards agree, no tensor is there twice",
    "config.json and the tokenizer are there, every JSON file is one that all readers read alike",
    "the chat template lays messages out and does nothing else",
)
NO_SIGNER = "a signature is there and was not looked at: the profile names no signer"


def run(
    selection: Selection,
    weights: WeightStore,
    rules: Weights | None = None,
    signatures: Signatures | None = None,
) -> Validated:
    """Check the files of a selection.

    Args:
        selection: What was chosen.
        weights: Where its files are.
        rules: What the profile asks for: a signer, one chat template, schemes. None: nothing.
        signatures: Verifies signatures; needed where the rules name a signer.

    Raises:
        ModelRejected: With every finding in `report`.
        ConfigError: A key of the signer cannot be read.
    """
    check = _Files(selection, weights)
    findings = [*check.names(), *check.code(), *check.tensors(), *check.completeness(), *check.templates(rules)]
    findings += check.quantization(rules)
    signed_by, wrong = signed.check(selection, weights, rules.signer if rules else None, signatures)
    findings += wrong
    shape = check.shape(findings) if check.config else None
    if findings or shape is None:
        listing = "\n".join(f"  - {finding}" for finding in findings)
        model = selection.model
        raise ModelRejected(
            f"{model.name} version {model.version} cannot be served:\n{listing}\n"
            "Correct the files, and register them as a new version",
            report=findings,
        )
    checks = [*CHECKS, *([f"signed by {signed_by}"] if signed_by else [])]
    if selection.signature is not None and signed_by is None:
        checks.append(NO_SIGNER)
    return Validated(
        shape=shape,
        checks=tuple(checks),
        chat_template_sha256=check.chat_template(),
        signed_by=signed_by,
        quantized=check.quantized,
    )


class _Files:
    """The files of one selection, each read at most once."""

    def __init__(self, selection: Selection, weights: WeightStore) -> None:
        self._files = {file.path: file for file in selection.files}
        self._weights = weights
        self._values: dict[str, dict[str, Any]] = {}
        self.quantized: str | None = None
        self.headers: dict[str, list[Tensor]] = {}
        self.config: dict[str, Any] = {}

    def names(self) -> Iterator[str]:
        """Find names that reach elsewhere, and files that may run."""
        folded = Counter(path.lower() for path in self._files)
        for path in self._files:
            ending = path.rpartition(".")[2] if "." in path else ""
            if not PLAIN_NAME.fullmatch(path) or ".." in path:
                yield f"`{path}` is no plain file name; files must lie side by side, without folders or `..`"
            elif ending.lower() == "py":
                yield f"`{path}` is a program; models that need their own code cannot be served"
            elif ending.lower() in PICKLES:
                yield f"`{path}` is a pickle or may be one, and loading it may run code; save the model as safetensors"
            elif ending not in ALLOWED:
                allowed = ", ".join(sorted(ALLOWED))
                yield f"`{path}` is of an unknown kind; allowed endings are {allowed}"
            elif folded[path.lower()] > 1:
                yield f"`{path}` has the name of another file but for its case"
            elif path.startswith("adapter_"):
                yield f"`{path}` belongs to an adapter (LoRA); merge it into the model, and register that"
            elif ending not in ("safetensors", "json") and self._looks_pickled(path):
                yield f"`{path}` is a pickle or an archive with the name of a text; loading it may run code"

    def code(self) -> Iterator[str]:
        """Read every JSON file; find configuration that asks to run a program, or to open files elsewhere."""
        for path in sorted(self._files):
            if not path.endswith(".json") or not PLAIN_NAME.fullmatch(path):
                continue
            try:
                value = self._json(path)
            except ValueError as error:
                if path != INDEX:  # which is reported where the shards are
                    yield f"`{path}` cannot be read: {error}"
                continue
            if path == "config.json":
                odd = list(config_rules.odd_figures(value))
                yield from odd
                # Nothing is computed with figures that cannot be.
                self.config = {} if odd else value
            if path not in VOCABULARIES and path != INDEX:
                for where, asked in config_rules.asking(value):
                    yield f"`{path}` has `{where}`, which {asked}; remove it"

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
        return next((sha256 for _, _, sha256 in self._templates()), None)

    def templates(self, rules: Weights | None) -> Iterator[str]:
        """Find chat templates that do more than they should, or that are not the one that the profile names."""
        try:
            found = list(self._templates())
        except ValueError as error:
            yield f"a chat template (*.jinja) cannot be read: {error}"
            return
        pinned = rules.chat_template_sha256 if rules else None
        if pinned is not None and not found:
            yield f"it has no chat template, and the profile names one ({pinned[:12]})"
        for where, template, sha256 in found:
            if pinned not in (None, sha256):
                yield (
                    f"the chat template in {where} is {sha256}, and the profile allows {pinned} only "
                    "(weights.chat_template_sha256); look at what changed"
                )
            for fault in chat_template.faults_of(template):
                yield f"the chat template in {where} {fault}"

    def quantization(self, rules: Weights | None) -> Iterator[str]:
        """Find sources that are quantized already where the profile would quantize them again."""
        told = self.config.get("quantization_config", self.config.get("compression_config"))
        if told is not None:
            method = told.get("quant_method") if isinstance(told, dict) else None
            if not isinstance(method, str) or not method:
                yield "`config.json` has a quantization_config without a quant_method; no engine can read that"
                return
            self.quantized = method
            if rules is not None and "none" not in rules.schemes:
                yield (
                    f"it is quantized already ({method}), and quantizing twice loses quality twice; put `none` into "
                    "weights.schemes to serve it as it is, or register the model that it was made from"
                )
            return
        odd = sorted(
            tensor.name
            for header in self.headers.values()
            for tensor in header
            if tensor.name.endswith("weight")
            and len(tensor.shape) > 1
            and (tensor.dtype in ODD_DTYPES or tensor.dtype.startswith(("F8", "F6", "F4")))
        )
        if odd:
            yield f"{_some(odd)} have a type of quantized weights, and config.json has no quantization_config"

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
            linears=linear_shapes([t for t in tensors if not NOT_LINEAR.search(t.name)], found["hidden_size"]),
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
        elif odd := sorted(name for name, path in weight_map.items() if not isinstance(path, str)):
            yield f"{INDEX} names no file for {_some(odd)}"
        else:
            yield from self._weight_map(weight_map, shards, home)

    def _weight_map(self, weight_map: Mapping[str, str], shards: list[str], home: Mapping[str, str]) -> Iterator[str]:
        named = sorted(set(weight_map.values()))
        for path in named:
            if not PLAIN_NAME.fullmatch(path):
                yield f"`{INDEX}` points at `{path}`, which is no plain file name; it would be loaded from elsewhere"
            elif path not in self._files:
                yield f"shard `{path}` is in {INDEX} and missing; upload it"
            elif not path.endswith(".safetensors"):
                yield f"`{INDEX}` points at `{path}`, which is no safetensors file"
        for path in shards:
            if path not in named:
                yield f"shard `{path}` is there and {INDEX} does not know it"
        wrong = sorted(name for name, path in weight_map.items() if path in self.headers and home.get(name) != path)
        if wrong:
            yield f"{INDEX} puts {_some(wrong)} into shards that do not hold them"
        unknown = sorted(name for name in home if name not in weight_map)
        if unknown:
            yield f"{INDEX} does not know {_some(unknown)}"

    def _header(self, file: SourceFile) -> list[Tensor]:
        first = self._weights.read(file.uri, length=LENGTH_BYTES)
        length = header_length(first, file.size_bytes)
        return parse_header(self._weights.read(file.uri, start=LENGTH_BYTES, length=length), file.size_bytes)

    def _looks_pickled(self, path: str) -> bool:
        first = self._weights.read(self._files[path].uri, length=4)
        return first[:2] == b"PK" or (first[:1] == b"\x80" and first[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"})

    def _templates(self) -> Iterator[tuple[str, Any, str]]:
        """Yield where each chat template is, itself and its sha256; the one that an engine takes comes first.

        Raises ValueError if a file of one cannot be read.
        """
        # The one that engines look for first.
        for path in sorted(self._files, key=lambda path: (path != "chat_template.jinja", path)):
            if path.endswith(".jinja"):
                yield f"`{path}`", self._body(path).decode(), self._files[path].sha256
        preferred = ["chat_template.json", "tokenizer_config.json", "processor_config.json"]
        others = sorted(path for path in self._values if path not in preferred and path not in VOCABULARIES)
        for path in (*preferred, *others):
            template = self._values.get(path, {}).get("chat_template")
            if template:
                text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
                yield f"`{path}`", template, hashlib.sha256(text.encode()).hexdigest()

    def _body(self, path: str) -> bytes:
        """Return a small file. Raises ValueError if it is too large, or no longer what was selected."""
        file = self._files[path]
        if file.size_bytes > MAX_JSON_BYTES:
            raise ValueError(f"it has {format_bytes(file.size_bytes)}, more than {format_bytes(MAX_JSON_BYTES)}")
        body = self._weights.read(file.uri)
        found = hashlib.sha256(body).hexdigest()
        if found != file.sha256:
            raise ValueError(f"its sha256 is {found[:12]}, selected was {file.sha256[:12]}; it was changed since")
        return body

    def _json(self, path: str) -> dict[str, Any]:
        """Return a JSON file. Raises ValueError that says why not."""
        if path not in self._values:
            value = strict_json.parse(self._body(path))
            if not isinstance(value, dict):
                raise ValueError("it is no JSON object")
            self._values[path] = value
        return self._values[path]


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return f"tensors {', '.join(names[:3])}" + (f" and {rest} more" if rest > 0 else "")
