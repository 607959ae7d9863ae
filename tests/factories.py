"""Values for tests, each with a sensible default and everything overridable."""

from typing import Any

from headway.domain.model import ModelShape, ModelVersion, Selection, SourceFile
from headway.domain.profile import Profile, parse_profile
from headway.domain.release import ReleasePlan, ReleaseRef, Validated
from headway.release import plan


def make_profile(**changes: Any) -> Profile:
    """A small profile on CPU; nested fields are given as mappings."""
    data: dict[str, Any] = {
        "model": "tiny",
        "hardware": {"accelerator": "cpu"},
        "engine": {"max_model_len": 1024, "max_num_seqs": 8},
        "weights": {"schemes": ["fp8-dynamic"]},
        "shift": {"steps_pct": [10, 50, 100], "bake_s": 10},
        "canary": {"blocks": 10, "requests_per_block": 15, "p50_margin": 0.5, "p95_margin": 1.0},
    }
    return parse_profile({**data, **changes}, origin="test")


def make_shape(**changes: Any) -> ModelShape:
    """The figures of SmolLM2-135M."""
    data: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 576,
        "layers": 30,
        "attention_heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "parameters": 134_515_008,
        "linear_parameters": 106_168_320,
        "dtype": "BF16",
        "weights_bytes": 269_060_552,
    }
    return ModelShape(**{**data, **changes})


def make_llama_70b() -> ModelShape:
    """The figures of Llama 3.3 70B (its published config.json)."""
    return make_shape(
        hidden_size=8192,
        layers=80,
        attention_heads=64,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_position_embeddings=131072,
        parameters=70_553_706_496,
        linear_parameters=68_451_041_280,
        weights_bytes=141_107_412_992,
    )


def make_selection(version: int = 1, model: str = "tiny", content: str = "a") -> Selection:
    """A selection whose source digest depends on `content`."""
    uri = f"s3://mlflow/{model}/{version}/"
    return Selection(
        model=ModelVersion(name=model, version=version, source_uri=uri, run_id="run"),
        layout="plain",
        files=(
            SourceFile(path="model.safetensors", uri=uri + "model.safetensors", size_bytes=10, sha256=content * 64),
        ),
        selected_by=f"version {version}",
    )


def make_validated(**changes: Any) -> Validated:
    """A validated model of `make_shape`."""
    return Validated(shape=make_shape(**changes), checks=("checked",))


def make_plan(profile: Profile | None = None, selection: Selection | None = None, **changes: Any) -> ReleasePlan:
    """A plan for the small profile."""
    made = plan.make(
        profile or make_profile(),
        selection or make_selection(),
        make_validated(),
        serving_image="lock:test",
        model_root="/nodes",
        calibration_digest="c" * 64,
    )
    return made.model_copy(update=changes)


def make_ref(release: str = "tiny-v1-r1", version: int = 1) -> ReleaseRef:
    """A reference to a release."""
    return ReleaseRef(release=release, model="tiny", version=version, source_digest="a" * 64)
