"""Nothing that breaks a rule gets near an engine, and every finding is listed at once."""

import hashlib
import json
from typing import Any

import pytest

from headway.domain.model import ModelVersion, Selection, SourceFile
from headway.domain.profile import Weights
from headway.domain.release import Validated
from headway.errors import ModelRejected
from headway.release import validate
from tests.fakes import FakeWeightStore
from tests.unit.test_safetensors import file_of, header_of

ROOT = "s3://mlflow/m/"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
    "max_position_embeddings": 64,
}
TENSORS: dict[str, tuple[str, list[int]]] = {
    "model.embed_tokens.weight": ("BF16", [10, 8]),
    "model.layers.0.input_layernorm.weight": ("BF16", [8]),
    "model.layers.0.mlp.up_proj.weight": ("BF16", [16, 8]),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", [8, 8]),
    "lm_head.weight": ("BF16", [10, 8]),
}
INDEX = "model.safetensors.index.json"


def shard(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file."""
    return file_of(*header_of(tensors))


def model(**changes: Any) -> dict[str, bytes]:
    """A good model, with files changed by name (none removes; keys spell dots as `__`)."""
    files: dict[str, bytes | None] = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}).encode(),
        "model.safetensors": shard(TENSORS),
        **changes,
    }
    return {path: body for path, body in files.items() if body is not None}


def selected(files: dict[str, bytes]) -> Selection:
    """Select a model of these files."""
    return Selection(
        model=ModelVersion(name="tiny", version=1, source_uri=ROOT),
        layout="plain",
        files=tuple(
            SourceFile(path=path, uri=ROOT + path, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
            for path, body in files.items()
        ),
        selected_by="version 1",
    )


def check(files: dict[str, bytes], rules: Weights | None = None) -> Validated:
    """Validate a model of these files."""
    weights = FakeWeightStore(objects={ROOT + path: body for path, body in files.items()})
    return validate.run(selected(files), weights, rules)


def findings(files: dict[str, bytes]) -> list[str]:
    """Return what is found."""
    with pytest.raises(ModelRejected) as caught:
        check(files)
    report: list[str] = caught.value.facts["report"]
    assert all(finding in caught.value.message for finding in report)
    return report


def test_a_good_model_passes_and_its_shape_is_read() -> None:
    """The plan's memory comes from here."""
    checked = check(model())

    assert checked.shape.parameters == 80 + 8 + 128 + 64 + 80
    assert checked.shape.linear_parameters == 128 + 64, "neither embeddings, norms nor the head"
    assert (checked.shape.kv_heads, checked.shape.head_dim, checked.shape.dtype) == (1, 4, "BF16")
    assert checked.chat_template_sha256
    assert checked.checks


def test_only_headers_of_weights_are_read() -> None:
    """A 140 GB model is checked in seconds."""
    read: list[tuple[str, int]] = []

    class Watching(FakeWeightStore):
        def read(self, uri: str, *, start: int = 0, length: int | None = None) -> bytes:
            body = super().read(uri, start=start, length=length)
            read.append((uri, len(body)))
            return body

    files = model(**{"model.safetensors": shard({"model.layers.0.up_proj.weight": ("F32", [1000, 1000])})})
    weights = Watching(objects={ROOT + path: body for path, body in files.items()})
    validate.run(selected(files), weights)

    assert sum(size for uri, size in read if uri.endswith(".safetensors")) < 1000


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch_model.bin", "pickle"),
        ("weights.pt", "pickle"),
        ("modeling_tiny.py", "program"),
        ("../outside.safetensors", "plain file name"),
        ("sub/config.json", "plain file name"),
        (".hidden.json", "plain file name"),
        ("a\nb.json", "plain file name"),
        ("run.sh", "unknown kind"),
        ("LICENSE", "unknown kind"),
        ("Config.json", "but for its case"),
    ],
)
def test_a_file_that_has_no_business_there_is_named(name: str, said: str) -> None:
    """Allowed is what is known to be data; everything else is not."""
    report = findings(model(**{name: shard(TENSORS) if name.endswith("safetensors") else b"{}"}))

    assert any(said in finding for finding in report), report


@pytest.mark.parametrize("path", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
def test_code_that_comes_with_a_model_is_refused(path: str) -> None:
    """Flags that forbid it have failed before; also when it is nested."""
    content = {**CONFIG, "deep": [{"auto_map": {"AutoModel": "evil.Model"}}]}

    assert any("auto_map" in finding for finding in findings(model(**{path: json.dumps(content).encode()})))


def test_a_pickle_with_the_right_ending_is_found() -> None:
    """By its first bytes."""
    body = b"\x80\x04\x95" + bytes(60)

    assert any("pickle" in finding for finding in findings(model(**{"model.safetensors": body})))


def test_a_cut_shard_is_found() -> None:
    """An upload that ended early."""
    assert any("cut off" in finding for finding in findings(model(**{"model.safetensors": shard(TENSORS)[:-5]})))


def sharded(weight_map: dict[str, str], **shards: bytes) -> dict[str, bytes]:
    """A model in two shards with an index."""
    files = model(**{"model.safetensors": None, INDEX: json.dumps({"weight_map": weight_map}).encode()})
    return {**files, **{f"{name}.safetensors": body for name, body in shards.items()}}


HALVES = dict(list(TENSORS.items())[:2]), dict(list(TENSORS.items())[2:])
MAP = {**dict.fromkeys(HALVES[0], "a.safetensors"), **dict.fromkeys(HALVES[1], "b.safetensors")}


def test_a_sharded_model_passes() -> None:
    """Index and headers agree."""
    assert check(sharded(MAP, a=shard(HALVES[0]), b=shard(HALVES[1]))).shape.parameters == 360


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (sharded(MAP, a=shard(HALVES[0])), "missing"),
        (sharded(MAP, a=shard(HALVES[0]), b=shard(HALVES[1]), c=shard({"x": ("U8", [1])})), "does not know"),
        (sharded(MAP, a=shard(HALVES[1]), b=shard(HALVES[0])), "do not hold them"),
        (sharded(MAP, a=shard(TENSORS), b=shard(HALVES[1])), "is in `a.safetensors` and in `b.safetensors`"),
        (sharded({**MAP, "x": "../../up.safetensors"}, a=shard(HALVES[0]), b=shard(HALVES[1])), "no plain file name"),
        (sharded({**MAP, "ghost.weight": "a.safetensors"}, a=shard(HALVES[0]), b=shard(HALVES[1])), "ghost.weight"),
        (sharded({}, a=shard(HALVES[0]), b=shard(HALVES[1])), "no weight_map"),
        (model(**{INDEX: b"not json"}), "cannot be read"),
        (model(**{"b.safetensors": shard({"x": ("U8", [1])})}), "no model.safetensors.index.json"),
    ],
)
def test_an_index_that_lies_is_found(files: dict[str, bytes], said: str) -> None:
    """Servers drop a missing shard without a word and answer rubbish."""
    report = findings(files)

    assert any(said in finding for finding in report), report


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config.json": None}, "config.json is missing"),
        ({"config.json": b"[1]"}, "no JSON object"),
        ({"config.json": b"{"}, "cannot be read"),
        ({"config.json": json.dumps({**CONFIG, "vocab_size": "many"}).encode()}, "vocab_size"),
        ({"config.json": json.dumps({**CONFIG, "architectures": []}).encode()}, "architectures"),
        ({"tokenizer.json": None}, "tokenizer is missing"),
        ({"model.safetensors": None}, "no *.safetensors"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], said: str) -> None:
    """Before a cluster starts."""
    report = findings(model(**changes))

    assert any(said in finding for finding in report), report


def test_all_findings_come_at_once() -> None:
    """A person corrects a model in one round."""
    report = findings(
        model(**{"config.json": None, "tokenizer.json": None, "model.safetensors": b"x", "evil.py": b"", "a.pt": b""})
    )

    assert len(report) == 5, report


def test_the_chat_template_is_pinned_wherever_it_is() -> None:
    """A changed template changes what every user's request becomes."""
    inside = check(model()).chat_template_sha256
    other = check(model(**{"tokenizer_config.json": b'{"chat_template": "{{ messages }}."}'})).chat_template_sha256
    beside = check(model(**{"chat_template.jinja": b"{{ messages }} "})).chat_template_sha256
    none = check(model(**{"tokenizer_config.json": b"{}"})).chat_template_sha256

    assert len({inside, other, beside, none}) == 4
    assert none is None
    assert check(model(**{"chat_template.jinja": b"{{ messages }}"})).chat_template_sha256 == inside
    assert check(model(), Weights(chat_template_sha256=inside)).chat_template_sha256 == inside
    with pytest.raises(ModelRejected, match="the profile allows"):
        check(model(), Weights(chat_template_sha256=other))
    with pytest.raises(ModelRejected, match="the profile names one"):
        check(model(**{"tokenizer_config.json": b"{}"}), Weights(chat_template_sha256=inside))
    # Engines differ in which of two they take.
    with pytest.raises(ModelRejected, match=r"chat_template\.jinja"):
        check(model(**{"chat_template.jinja": b"{{ messages }} "}), Weights(chat_template_sha256=inside))


def test_a_quantized_source_is_served_as_it_is_or_not_at_all() -> None:
    """Quantizing twice loses quality twice."""
    config = {**CONFIG, "quantization_config": {"quant_method": "compressed-tensors"}}
    files = model(**{"config.json": json.dumps(config).encode()})

    assert check(files).quantized == "compressed-tensors"
    assert check(files, Weights(schemes=("none",))).quantized == "compressed-tensors"
    assert check(model()).quantized is None
    with pytest.raises(ModelRejected, match="quantized already"):
        check(files, Weights(schemes=("fp8-dynamic",)))


def test_only_what_was_selected_is_believed() -> None:
    """A configuration that was replaced after its digest was taken is another one."""
    files = model()
    weights = FakeWeightStore(objects={ROOT + path: body for path, body in files.items()})
    selection = selected(files)
    weights.objects[ROOT + "config.json"] = json.dumps({**CONFIG, "vocab_size": 11}).encode()

    with pytest.raises(ModelRejected, match="was changed since"):
        validate.run(selection, weights)
