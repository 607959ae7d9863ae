"""A quantized model is compared with its source from headers and configs: a whole one passes, every damage is named."""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.safetensors import ITEM_BITS, Tensor
from headway.domain.weights import GROUPED, Recipe, Scheme
from headway.errors import ConfigError, IntegrityError
from headway.pods import recipes, shards, structure
from headway.pods.structure import Model, findings

HIDDEN, INNER, HEADS_OUT, VOCABULARY = 128, 256, 64, 300
SCHEMES: tuple[Scheme, ...] = ("fp8-dynamic", "fp8", "w8a8", "w4a16-gptq", "w4a16-awq")
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HEADS_OUT, HIDDEN),
    "self_attn.v_proj": (HEADS_OUT, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, 0, 0)


def model(tensors: Mapping[str, Tensor], config: Mapping[str, Any], **fields: Any) -> Model:
    return Model(config=config, shards={"model.safetensors": list(tensors.values())}, **fields)


def source(*, layers: int = 2, tied: bool = True, moe: bool = False) -> Model:
    """A Llama, or one with experts, as a source has it."""
    found = [
        tensor("model.embed_tokens.weight", "BF16", VOCABULARY, HIDDEN),
        tensor("model.norm.weight", "BF16", HIDDEN),
    ]
    if not tied:
        found.append(tensor("lm_head.weight", "BF16", VOCABULARY, HIDDEN))
    for layer in range(layers):
        base = f"model.layers.{layer}"
        found.append(tensor(f"{base}.input_layernorm.weight", "BF16", HIDDEN))
        found += [tensor(f"{base}.{name}.weight", "BF16", *shape) for name, shape in LINEARS.items()]
        if moe:
            found.append(tensor(f"{base}.mlp.gate.weight", "BF16", 4, HIDDEN))
            found.append(tensor(f"{base}.mlp.experts.gate_up_proj", "BF16", 4, 2 * INNER, HIDDEN))
            found.append(tensor(f"{base}.mlp.experts.down_proj", "BF16", 4, HIDDEN, INNER))
    config = {"model_type": "llama", "tie_word_embeddings": tied, "vocab_size": VOCABULARY}
    others = {"tokenizer.json": "a" * 64, "generation_config.json": "b" * 64}
    return model({t.name: t for t in found}, config, others=others)


def recipe(scheme: Scheme, *, kv: bool = False) -> Recipe:
    return Recipe(scheme=scheme, group_size=64 if scheme in GROUPED else None, kv_cache_scales=kv)


def said(asked: Recipe) -> dict[str, Any]:
    """What llm-compressor would write into config.json."""
    weights: dict[str, Any] = {"num_bits": 8, "strategy": "channel", "symmetric": True, "observer": "mse"}
    inputs: dict[str, Any] | None = {"dynamic": True, "num_bits": 8, "observer": None}
    weights["type"] = "float" if asked.scheme.startswith("fp8") else "int"
    form = "int-quantized" if asked.scheme == "w8a8" else "float-quantized"
    if asked.scheme == "fp8":
        weights["strategy"], inputs = "tensor", {"dynamic": False}
    if asked.scheme in GROUPED:
        weights |= {"num_bits": 4, "strategy": "group", "group_size": asked.group_size}
        inputs, form = None, "pack-quantized"
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "ignore": ["re:.*"],
        "kv_cache_scheme": {"num_bits": 8} if asked.kv_cache_scales else None,
        "sparsity_config": {},
    }


def result(before: Model, asked: Recipe) -> Model:
    """What a faultless run makes of a source."""
    expected = structure.expectations(before, asked)
    found = {name: kept for name, kept in expected.kept.items() if name not in expected.optional}
    for name, rule in expected.made.items():
        found[name] = tensor(name, min(rule.dtypes), *rule.shapes[0])
    config = {**before.config, "quantization_config": structure.quantization_config(said(asked), before, asked)}
    return model(found, config, others=before.others)


def with_config(whole: Model, **changes: Any) -> Model:
    inner = {**whole.config["quantization_config"], **changes}
    return replace(whole, config={**whole.config, "quantization_config": inner})


def without(whole: Model, name: str) -> Model:
    return model({n: t for n, t in whole.tensors.items() if n != name}, whole.config, others=whole.others)


def having(whole: Model, *tensors: Tensor) -> Model:
    return model({**whole.tensors, **{t.name: t for t in tensors}}, whole.config, others=whole.others)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("moe", [True, False])
@pytest.mark.parametrize("kv", [True, False])
def test_a_whole_result_passes(scheme: Scheme, tied: bool, moe: bool, kv: bool) -> None:
    before, asked = source(tied=tied, moe=moe), recipe(scheme, kv=kv)

    assert findings(before, result(before, asked), asked) == []


def test_what_each_scheme_must_make() -> None:
    """Names, dtypes and shapes as compressed-tensors writes them."""
    before = source(layers=1)
    made = {scheme: structure.expectations(before, recipe(scheme)).made for scheme in SCHEMES}
    down = "model.layers.0.mlp.down_proj"

    assert made["w8a8"][f"{down}.weight"] == structure.Rule(frozenset({"I8"}), ((HIDDEN, INNER),))
    assert made["w4a16-gptq"][f"{down}.weight_packed"].shapes == ((HIDDEN, INNER // 8),)
    assert made["w4a16-gptq"][f"{down}.weight_scale"].shapes == ((HIDDEN, INNER // 64),)
    assert made["fp8-dynamic"][f"{down}.weight_scale"].shapes == ((HIDDEN, 1),)
    assert f"{down}.input_scale" in made["fp8"]
    assert "model.embed_tokens.weight_scale" not in made["fp8"]


def test_kv_scales_are_asked_for_by_layer() -> None:
    before, asked = source(layers=3), recipe("fp8-dynamic", kv=True)
    scales = [f"model.layers.{layer}.self_attn.{k}" for layer in range(3) for k in ("k_scale", "v_scale")]

    assert set(scales) <= set(structure.expectations(before, asked).made)
    for name in scales:
        [sentence] = findings(before, without(result(before, asked), name), asked)
        assert name in sentence


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_lost_tensor_is_named(data: st.DataObject) -> None:
    """The serving engine would not say a word."""
    asked = recipe(data.draw(st.sampled_from(SCHEMES)), kv=data.draw(st.booleans()))
    before = source(tied=data.draw(st.booleans()), moe=data.draw(st.booleans()))
    whole = result(before, asked)
    lost = data.draw(st.sampled_from(sorted(whole.tensors)))

    assert any("missing" in sentence and lost in sentence for sentence in findings(before, without(whole, lost), asked))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_changed_tensor_is_named(data: st.DataObject) -> None:
    """Another dtype or shape than the scheme has."""
    asked = recipe(data.draw(st.sampled_from(SCHEMES)))
    before = source()
    whole = result(before, asked)
    victim = whole.tensors[data.draw(st.sampled_from(sorted(whole.tensors)))]
    dtype = data.draw(st.sampled_from([d for d in ITEM_BITS if d not in structure.FLOATS | {victim.dtype}]))
    changed = data.draw(st.sampled_from([victim._replace(dtype=dtype), victim._replace(shape=(*victim.shape, 2))]))
    if {victim.dtype, changed.dtype} == {"I32", "I64"} and victim.shape == changed.shape:
        return  # `weight_shape` may be either

    assert findings(before, having(whole, changed), asked)


def test_a_linear_that_was_left_alone_is_named() -> None:
    """It is neither quantized nor ignored."""
    before, asked = source(), recipe("w8a8")
    name = "model.layers.1.mlp.up_proj"
    left = having(without(result(before, asked), f"{name}.weight_scale"), before.tensors[f"{name}.weight"])

    assert any(
        "neither quantized nor ignored" in sentence and name in sentence for sentence in findings(before, left, asked)
    )


def test_a_head_of_its_own_is_refused_where_the_source_shares_it() -> None:
    before, asked = source(tied=True), recipe("w8a8")
    whole = result(before, asked)
    headed = having(whole, tensor("lm_head.weight", "BF16", VOCABULARY, HIDDEN))
    untied = replace(whole, config={**whole.config, "tie_word_embeddings": False})

    assert any("head of its own" in sentence for sentence in findings(before, headed, asked))
    assert any("tie_word_embeddings changed" in sentence for sentence in findings(before, untied, asked))


def test_a_router_stays_as_it_is_and_the_config_says_so() -> None:
    """Else the serving engine looks for its scale and ends in a KeyError."""
    before, asked = source(moe=True), recipe("fp8-dynamic")
    whole = result(before, asked)

    ignored = whole.config["quantization_config"]["ignore"]
    assert ignored == ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    assert "model.layers.0.mlp.experts.3.up_proj.weight_scale" in whole.tensors
    unsaid = with_config(whole, ignore=["lm_head"])
    assert any("model.layers.0.mlp.gate" in sentence for sentence in findings(before, unsaid, asked))
    experts = with_config(whole, ignore=[*ignored, "re:.*experts.*"])
    assert any("quantized Linears are ignored" in sentence for sentence in findings(before, experts, asked))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "gptq"}, "does not say that the weights are quantized"),
        ({"format": "pack-quantized"}, "expected int-quantized compressed"),
        ({"quantization_status": "frozen"}, "expected int-quantized compressed"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "has a kv_cache_scheme"),
        ({"config_groups": {}}, "does not target all Linears"),
        ({"config_groups": {"group_0": {"targets": ["Linear"], "weights": {}}}}, "which is not w8a8"),
    ],
)
def test_a_config_that_says_something_else_is_named(changes: dict[str, Any], words: str) -> None:
    before, asked = source(), recipe("w8a8")

    assert any(words in sentence for sentence in findings(before, with_config(result(before, asked), **changes), asked))


def test_files_beside_the_weights_are_the_source_s() -> None:
    """A saved tokenizer cuts at 2048 tokens, and a saved generation config loses its stop token."""
    before, asked = source(), recipe("w8a8")
    whole = result(before, asked)
    other = replace(whole, others={**whole.others, "tokenizer.json": "c" * 64})
    lost = replace(whole, others={"tokenizer.json": "a" * 64})
    coded = replace(whole, remote_code=["config.json"])

    assert any("tokenizer.json" in sentence for sentence in findings(before, other, asked))
    assert any("generation_config.json" in sentence for sentence in findings(before, lost, asked))
    assert any("auto_map" in sentence for sentence in findings(before, coded, asked))


def test_the_index_must_agree_with_the_files() -> None:
    before, asked = source(), recipe("w8a8")
    whole = result(before, asked)
    names = sorted(whole.tensors)
    halves = {
        "a.safetensors": [whole.tensors[name] for name in names[:9]],
        "b.safetensors": [whole.tensors[name] for name in names[9:]],
    }
    weight_map = {t.name: file for file, tensors in halves.items() for t in tensors}
    right = replace(whole, shards=halves, index={"weight_map": weight_map})

    assert findings(before, right, asked) == []
    assert any("no model.safetensors.index.json" in s for s in findings(before, replace(right, index=None), asked))
    wrong = replace(right, index={"weight_map": {**weight_map, names[0]: "b.safetensors"}})
    assert any(names[0] in sentence for sentence in findings(before, wrong, asked))
    absent = replace(right, index={"weight_map": {**weight_map, "more": "c.safetensors"}})
    assert any("more" in sentence for sentence in findings(before, absent, asked))
    assert any("weight_map" in s for s in findings(before, replace(right, index={}), asked))


def test_all_findings_come_at_once() -> None:
    before, asked = source(), recipe("w8a8")
    broken = with_config(without(result(before, asked), "model.norm.weight"), format="dense")

    assert len(findings(before, broken, asked)) == 2


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8-block", "none"])
def test_a_scheme_that_is_not_built_says_why(scheme: Scheme) -> None:
    with pytest.raises(ConfigError, match="Choose one of fp8, fp8-dynamic"):
        recipes.require_buildable(Recipe(scheme=scheme))


@pytest.mark.parametrize(
    ("module", "stays"),
    [
        ("lm_head", True),
        ("language_model.lm_head", True),
        ("model.layers.3.mlp.gate", True),
        ("model.layers.3.block_sparse_moe.gate", True),
        ("model.layers.3.feed_forward.router", True),
        ("model.layers.3.router.proj", True),
        ("model.layers.3.mlp.shared_expert_gate", True),
        ("model.vision_tower.blocks.0.attn.qkv", True),
        ("visual.blocks.0.mlp.fc1", True),
        ("model.embed_tokens", True),
        ("model.layers.3.mlp.gate_proj", False),
        ("model.layers.3.mlp.experts.7.gate_proj", False),
        ("model.layers.3.mlp.shared_expert.up_proj", False),
        ("model.layers.3.self_attn.q_proj", False),
    ],
)
def test_what_stays_as_it_is(module: str, stays: bool) -> None:
    assert recipes.matches(module, recipes.ignored(Recipe(scheme="w8a8"))) is stays


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], order: list[str]) -> None:
    header, body = {}, b""
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


TENSORS = {
    "a.weight": ("BF16", (2, 3), bytes(range(12))),
    "b.weight": ("F8_E4M3", (5,), bytes(range(20, 25))),
    "b.weight_scale": ("F32", (1,), b"\x00\x00\x80\x3f"),
    "c.weight_shape": ("I64", (2,), bytes(range(16))),
}


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(sorted(TENSORS)), cut=st.integers(0, 4), limit=st.sampled_from([1, 20, 1000]))
def test_shards_depend_on_the_tensors_alone(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], cut: int, limit: int
) -> None:
    """Whatever the order and the files they come in."""
    written = []
    for names, at in ((order, cut), (sorted(TENSORS), 4)):
        folder = tmp_path_factory.mktemp("shards")
        made, target = folder / "made", folder / "target"
        made.mkdir()
        target.mkdir()
        for name, part in (("one", names[:at]), ("two", names[at:])):
            if part:
                write(made / f"{name}.safetensors", TENSORS, part)
        shards.rewrite(made, target, shard_bytes=limit)
        assert list(made.iterdir()) == []
        written.append({path.name: path.read_bytes() for path in target.iterdir()})
        placed = shards.locate(target)
        for name, (dtype, shape, data) in TENSORS.items():
            where = placed[name]
            content = where.path.read_bytes()[where.body_start :]
            assert (where.tensor.dtype, where.tensor.shape) == (dtype, shape)
            assert content[where.tensor.start : where.tensor.end] == data
            assert (where.body_start + where.tensor.start) * 8 % ITEM_BITS[dtype] == 0, "aligned"
    assert written[0] == written[1]


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", TENSORS, ["a.weight"])
    write(tmp_path / "two.safetensors", TENSORS, ["a.weight", "b.weight"])

    with pytest.raises(IntegrityError, match=r"a\.weight is in one\.safetensors and in two"):
        shards.locate(tmp_path)
