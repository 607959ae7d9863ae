"""The plan refuses before anything is spent, and its digests name what they should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.hardware import ACCELERATORS
from headway.domain.profile import Engine
from headway.domain.release import Validated
from headway.errors import ConfigError, PlanInfeasible
from headway.release import plan
from headway.units import GIB
from tests.factories import make_llama_70b, make_plan, make_profile, make_selection, make_shape, make_validated


def test_kv_cache_of_llama_70b_is_320_kib_a_token() -> None:
    """2 x 80 layers x 8 KV heads x 128 x 2 bytes: the figure that the literature gives."""
    memory = plan.budget(make_llama_70b(), Engine(), "none", ACCELERATORS["NVIDIA-H200"], 1)

    assert memory.kv_bytes_per_token == 327_680


def test_weights_of_llama_70b_in_fp8_take_half() -> None:
    """Linear weights are one byte each; embeddings and head stay at two."""
    device = ACCELERATORS["NVIDIA-H200"]
    full = plan.budget(make_llama_70b(), Engine(), "none", device, 1)
    small = plan.budget(make_llama_70b(), Engine(), "fp8-dynamic", device, 1)

    assert full.weights_bytes == 2 * 70_553_706_496
    assert small.weights_bytes == 70_553_706_496 + (70_553_706_496 - 68_451_041_280)


def test_a_plan_that_does_not_fit_says_what_is_missing_and_what_would_fit() -> None:
    """Nobody should have to guess the next try."""
    profile = make_profile(
        hardware={"accelerator": "NVIDIA-L4"}, engine={"max_model_len": 8192}, weights={"schemes": ["none"]}
    )

    with pytest.raises(PlanInfeasible, match=r"131\.4 GiB.*this would fit: `hardware.per_replica: 8`") as caught:
        plan.make(
            profile,
            make_selection(),
            Validated(shape=make_llama_70b(), checks=()),
            serving_image="i",
            model_root="/m",
        )

    assert caught.value.facts["needed_bytes"] > 131 * GIB > caught.value.facts["largest_bytes"]


def test_what_would_fit_fits() -> None:
    """Taking the advice of the error leads to a plan."""
    profile = make_profile(
        hardware={"accelerator": "NVIDIA-H200"}, engine={"max_model_len": 8192}, weights={"schemes": ["fp8-dynamic"]}
    )

    made = plan.make(
        profile, make_selection(), Validated(shape=make_llama_70b(), checks=()), serving_image="i", model_root="/m"
    )

    assert made.memory.kv_tokens > 8192


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hardware": {"accelerator": "NVIDIA-H1000"}}, "'NVIDIA-H1000'.*it knows cpu"),
        ({"hardware": {"accelerator": "cpu", "per_replica": 2}}, "9 attention heads with 3 KV heads.*1, 3, 9"),
        ({"engine": {"max_model_len": 9000}}, "9000.*8192 positions"),
        ({"engine": {"kv_cache_dtype": "fp8"}}, "kv_cache_dtype fp8"),
        ({"engine": {"max_model_len": 8192, "kv_cache_gib": 0.1}}, "kv_cache_gib. is 0.1.*360.0 MiB|180.0 MiB"),
        ({"weights": {"schemes": ["nvfp4", "fp8-block"]}}, "none of the schemes nvfp4, fp8-block"),
    ],
)
def test_what_no_machine_can_do_is_a_config_error(changes: dict[str, object], message: str) -> None:
    """Each says what was found and what it may be instead."""
    with pytest.raises(ConfigError, match=message):
        make_plan(make_profile(**changes))


def test_scheme_of_the_form_wins_over_the_profile() -> None:
    """A person who picks a scheme for one release gets that scheme."""
    made = plan.make(
        make_profile(), make_selection(), make_validated(), serving_image="i", model_root="/m", scheme="none"
    )

    assert made.recipe.scheme == "none"


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": {"max": 4}},
        {"canary": {"blocks": 3}},
        {"shift": {"steps_pct": [100]}},
        {"keep_previous_s": 1},
        {"prescale": {"enabled": True}},
        {"quality": {"max_ppl": 50}},
    ],
)
def test_what_applies_in_place_changes_no_digest(changes: dict[str, object]) -> None:
    """A changed margin or replica count is no release (design rule 13.1)."""
    before, after = make_plan(), make_plan(make_profile(**changes))

    assert (before.artifact_digest, before.cluster_digest) == (after.artifact_digest, after.cluster_digest)


@pytest.mark.parametrize(
    "changes",
    [{"engine": {"max_model_len": 512}}, {"hardware": {"accelerator": "NVIDIA-L4"}, "engine": {"max_model_len": 1024}}],
)
def test_a_changed_engine_or_hardware_is_a_release_without_quantizing(changes: dict[str, object]) -> None:
    """Only the cluster gets another name; the artifact is reused."""
    before, after = make_plan(), make_plan(make_profile(**changes))

    assert before.artifact_digest == after.artifact_digest
    assert before.cluster_digest != after.cluster_digest


def test_another_version_of_the_same_bytes_is_the_same_cluster() -> None:
    """Names come from content: re-registering a model costs nothing."""
    first = make_plan(selection=make_selection(version=1, content="b"))
    second = make_plan(selection=make_selection(version=2, content="b"))

    assert first.cluster.name == second.cluster.name


@given(st.integers(64, 8192), st.integers(1, 512), st.sampled_from(["none", "fp8-dynamic"]))
def test_more_asked_never_needs_less(max_model_len: int, max_num_seqs: int, scheme: str) -> None:
    """The arithmetic is monotone in length and concurrency."""
    device = ACCELERATORS["NVIDIA-L4"]
    small = plan.budget(make_shape(), Engine(max_model_len=max_model_len, max_num_seqs=max_num_seqs), scheme, device, 1)  # type: ignore[arg-type]
    large = plan.budget(
        make_shape(),
        Engine(max_model_len=max_model_len + 1, max_num_seqs=max_num_seqs + 1),
        scheme,  # type: ignore[arg-type]
        device,
        1,
    )

    assert small.needed_bytes < large.needed_bytes
