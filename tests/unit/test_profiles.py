"""The shipped profiles, their schema, and what a wrong folder of profiles is told."""

import re
from pathlib import Path
from typing import Any

import pytest

from headway.cli import models
from headway.domain.model import ModelShape
from headway.errors import ConfigError
from headway.judge.sequential import undecidable
from headway.release import plan
from headway.wiring import find_profile, load_profiles
from tests.factories import make_llama_70b, make_profile, make_selection, make_shape, make_validated

FOLDER = Path(__file__).resolve().parents[2] / "profiles"


def make_llama_8b() -> ModelShape:
    """The figures of Llama 3.1 8B (its published config.json)."""
    return make_shape(
        hidden_size=4096,
        layers=32,
        attention_heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_position_embeddings=131072,
        parameters=8_030_261_248,
        linear_parameters=6_979_321_856,
        weights_bytes=16_060_522_496,
    )


SHAPES = {"smollm2-135m": make_shape(), "llama-3.1-8b": make_llama_8b(), "llama-3.3-70b": make_llama_70b()}


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_every_shipped_profile_is_planned_here() -> None:
    """A profile that is added gets a shape here, so that it is planned below."""
    assert set(load_profiles(FOLDER)) == set(SHAPES)


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_a_shipped_profile_fits_its_hardware(model: str) -> None:
    """Nobody starts from a profile that cannot work."""
    profile = load_profiles(FOLDER)[model]
    validated = make_validated().model_copy(update={"shape": SHAPES[model]})

    made = plan.make(
        profile, make_selection(model=model), validated, serving_image="image@sha256:0", model_root="/node"
    )

    assert made.memory.needed_bytes <= made.memory.available_bytes
    assert made.recipe.scheme == profile.weights.schemes[0]


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_a_flawless_candidate_passes_the_canary_of_a_shipped_profile(model: str) -> None:
    """Margins that so few requests cannot meet would hold every release."""
    assert list(undecidable(load_profiles(FOLDER)[model].canary)) == []


def test_the_schema_is_that_of_the_code() -> None:
    """Editors check profiles against it; `headway schema --write` renews it."""
    assert (FOLDER / models.SCHEMA_FILE).read_text() == models.schema_text()


def test_an_unknown_model_is_told_the_nearest_one() -> None:
    """A typing mistake is an answer, not a search."""
    with pytest.raises(ConfigError, match=r"no profile for model `smollm-135m`; did you mean `smollm2-135m`\?"):
        find_profile(load_profiles(FOLDER), "smollm-135m", FOLDER)
    with pytest.raises(ConfigError, match=r"there are profiles for llama.*Profiles are in"):
        find_profile(load_profiles(FOLDER), "x", FOLDER)


def test_two_profiles_of_one_model_are_refused(tmp_path: Path) -> None:
    """Which one would count?"""
    for name in ("a.yaml", "b.yaml"):
        write(tmp_path, name, "model: tiny\nhardware: {accelerator: cpu}\n")

    with pytest.raises(ConfigError, match=r"b\.yaml and a\.yaml are both for model tiny; keep one"):
        load_profiles(tmp_path)


@pytest.mark.parametrize(
    ("canary", "said"),
    [
        ("{goodput: {ttft: 5}}", "`canary.goodput.ttft`; did you mean `ttft_ms`?"),
        ("{goodput: {zzz: 5}}", "`canary.goodput.zzz`; known keys here: ttft_ms, tpot_ms, e2e_ms, margin_pct"),
        ("{evidence: {zzz: 5}}", "`canary.evidence.zzz`; known keys here: hardware, measured_at"),
        ("{evidence: {trials: [{zzz: 5}]}}", "`canary.evidence.trials.0.zzz`; known keys here: metric, slower_pct"),
        ("{guards: {max_wating: 5}}", "did you mean `max_waiting`?"),
    ],
)
def test_an_unknown_key_of_any_section_is_told_the_known_ones(canary: str, said: str, tmp_path: Path) -> None:
    """Of optional sections and of lists of them too."""
    write(tmp_path, "a.yaml", f"model: a\nhardware: {{accelerator: cpu, per_replica: 1}}\ncanary: {canary}\n")

    with pytest.raises(ConfigError) as caught:
        load_profiles(tmp_path)

    assert said in caught.value.message


def test_every_fault_of_every_file_comes_in_one_text(tmp_path: Path) -> None:
    """Nobody wants to find mistakes one run at a time."""
    write(tmp_path, "a.yaml", "model: a\nhardware: {accelerator: cpu}\ncannary: {}\n")
    write(tmp_path, "b.yaml", "model: [\n")
    write(tmp_path, "c.yaml", "- model\n")

    with pytest.raises(ConfigError) as caught:
        load_profiles(tmp_path)

    assert "did you mean `canary`?" in caught.value.message
    assert "b.yaml is not YAML" in caught.value.message
    assert "c.yaml is not a mapping" in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p50_margin": 7.5}, "7.5 is a share and means 750 %, more than 200 %; for 7.5 % write 0.075"),
        ({"p95_margin": float("inf")}, "finite"),
        ({"error_margin_pct": 500}, "less than or equal to 20"),
        ({"error_margin_pct": 1e-310}, "greater than or equal to 0.001"),
        ({"guards": {"max_waiting": float("inf")}}, "finite"),
        ({"rate_per_s": float("inf")}, "finite"),
        ({"arrivals": "replay"}, "names nothing to replay"),
        ({"arrivals": "replay", "trace": "yesterday"}, "expected `history` or an s3:// address"),
        ({"goodput": {"margin_pct": 1}}, "no limit"),
    ],
)
def test_a_canary_that_could_decide_nothing_is_refused(change: dict[str, Any], words: str) -> None:
    """Margins without end, or a percentage where a share belongs, would promote whatever comes."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_profile(canary=change)
