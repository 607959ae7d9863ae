"""The plan refuses before anything is spent, and its digests name what they should."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain import serving
from headway.domain.calibration import bundled_digest
from headway.domain.hardware import ACCELERATORS
from headway.domain.model import ModelShape
from headway.domain.profile import Engine, Profile
from headway.domain.release import ReleasePlan, Validated
from headway.domain.weights import BUILDABLE, CALIBRATED, GROUPED, UNTRIED, Scheme
from headway.errors import ConfigError, HeadwayError, PlanInfeasible
from headway.release import plan
from headway.units import GIB
from tests.factories import make_llama_70b, make_plan, make_profile, make_selection, make_shape, make_validated
from tests.unit.test_serving import SMOLLM2

TEXTS = "c" * 64
"""Digest of the calibration texts."""


def planned(profile: Profile, shape: ModelShape | None = None, **options: Any) -> ReleasePlan:
    """A plan for SmolLM2 with its matrices, or for another model."""
    return plan.make(
        profile,
        make_selection(),
        Validated(shape=shape or make_shape(linears=SMOLLM2), checks=()),
        **{"serving_image": "image@sha256:0", "model_root": "/node", "calibration_digest": TEXTS, **options},
    )


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


def test_smaller_groups_need_more_memory() -> None:
    """Each has a scale; the figure is that of the files, 111.0 and 107.9 MiB for SmolLM2."""
    device, shape = ACCELERATORS["NVIDIA-L4"], make_shape()
    small, large = (
        plan.budget(shape, Engine(), "w4a16-gptq", device, 1, group_size=size).weights_bytes / 2**20
        for size in (32, 64)
    )

    assert (round(small, 1), round(large, 1)) == (111.0, 107.9)


def test_digests_of_the_example_are_what_they_were() -> None:
    """A new headway alone is no release (design rule 13.1). The digests are those of the version that came first."""
    profile = make_profile(
        model="smollm2-135m",
        engine={"max_model_len": 1024, "max_num_seqs": 8, "kv_cache_gib": 0.5, "dtype": "float32"},
        weights={"schemes": ["fp8-dynamic"]},
    )

    made = plan.make(
        profile,
        make_selection(model="smollm2-135m"),
        make_validated(),
        serving_image="image@sha256:0",
        model_root="/node",
    )

    assert made.artifact_digest == "c28ba05e13decab32d93125dd9720fee6a2a3aeed4933ac3c971de9dbc4e30cb"
    assert made.cluster_digest == "8a7d5f09c063d0549b6be414409742b34b26b5ffe03b09b3f9f3cb5d22eabf1c"
    assert made.cluster.name == "smollm2-135m-8a7d5f09c063"


def test_a_plan_of_the_version_before_is_read() -> None:
    """Its record has none of the later fields."""
    made = make_plan()
    old = made.to_json()
    for field in ("contenders", "passed_over"):
        del old[field]
    for field in ("calibration_samples", "calibration_tokens", "group_size", "kv_cache_scales"):
        del old["recipe"][field]
    old["profile"]["weights"] = {"schemes": ["fp8-dynamic"], "signer": None}
    del old["validated"]["shape"]["linears"]

    assert ReleasePlan.model_validate(old) == made


def test_a_refused_scheme_is_passed_over_with_its_reason() -> None:
    """The report says why the first choice was not taken."""
    made = planned(make_profile(weights={"schemes": ["fp8", "nvfp4", "w8a8", "none"]}))

    assert made.recipe.scheme == "w8a8"
    assert [text.partition(": ")[0] for text in made.passed_over] == ["fp8", "nvfp4"]
    assert "no CPU kernel" in made.passed_over[0]


def test_memory_passes_over_too() -> None:
    """Half a terabyte is no reason to ask for another profile if the next scheme fits."""
    made = planned(
        make_profile(hardware={"accelerator": "NVIDIA-H200"}, weights={"schemes": ["none", "fp8-dynamic"]}),
        make_llama_70b(),
    )

    assert made.recipe.scheme == "fp8-dynamic"
    assert made.passed_over[0].startswith("none: it needs 13")


def test_all_refused_says_each_reason_and_what_would_do() -> None:
    """Before any device is used."""
    profile = make_profile(hardware={"accelerator": "NVIDIA-B200"}, weights={"schemes": ["w8a8", "w4a16-awq"]})

    with pytest.raises(ConfigError) as caught:
        planned(profile)

    text = str(caught.value)
    assert "w8a8: vLLM has no kernel for it from compute capability 10.0 on" in text
    assert "w4a16-awq: q_proj has 576 inputs, which is no multiple of `weights.group_size: 128`" in text
    assert "this would do: `weights.group_size: 64`" in text


def test_another_scheme_is_named_with_its_groups() -> None:
    """On a T4 without room for eight bits only four are left, in groups that fit."""
    shape = make_shape(linears=SMOLLM2, parameters=20 * GIB, linear_parameters=20 * GIB)
    profile = make_profile(hardware={"accelerator": "Tesla-T4"}, weights={"schemes": ["fp8-dynamic"]})

    with pytest.raises(PlanInfeasible) as caught:
        planned(profile, shape)

    advice = str(caught.value).partition("this would fit: ")[2]
    assert advice == (
        "`weights.schemes: [w4a16-awq]` with `weights.group_size: 64` or "
        "`weights.schemes: [w4a16-gptq]` with `weights.group_size: 64`"
    )


def test_a_scheme_of_the_form_is_taken_or_refused() -> None:
    """It is never replaced by one of the profile."""
    profile = make_profile(weights={"schemes": ["none"]})

    assert planned(profile, scheme="w8a8").recipe.scheme == "w8a8"
    with pytest.raises(ConfigError, match=r"scheme fp8 cannot serve on cpu: vLLM has no CPU kernel"):
        planned(profile, scheme="fp8")


@pytest.mark.parametrize(
    ("hardware", "engine", "message"),
    [
        ("NVIDIA-L4", {"kv_cache_dtype": "auto"}, "kv_cache_dtype` is auto.*say `engine.kv_cache_dtype: fp8`"),
        ("Tesla-T4", {"kv_cache_dtype": "fp8"}, "Tesla-T4 has 7.5; take `auto`"),
        ("cpu", {}, "FP8 KV cache on CPU needs AVX-512.*would do: `weights.kv_cache_scales: false`"),
    ],
)
def test_scales_that_the_engine_would_not_use_are_refused(hardware: str, engine: dict[str, Any], message: str) -> None:
    """Calibrating them would be for nothing, or change what the plan counted."""
    profile = make_profile(
        hardware={"accelerator": hardware},
        engine={"max_model_len": 1024, **engine},
        weights={"schemes": ["fp8-dynamic"], "kv_cache_scales": True},
    )

    with pytest.raises(ConfigError, match=message):
        planned(profile)


def test_scales_make_another_artifact() -> None:
    """They are stored with the weights, and calibrated on the texts."""
    plain, scaled = (
        planned(
            make_profile(
                hardware={"accelerator": "NVIDIA-L4"},
                engine={"max_model_len": 1024, "kv_cache_dtype": "fp8"},
                weights={"schemes": ["fp8-dynamic"], "kv_cache_scales": scales},
            )
        )
        for scales in (False, True)
    )

    assert (scaled.recipe.kv_cache_scales, scaled.recipe.calibration_digest) == (True, TEXTS)
    assert scaled.artifact_digest != plain.artifact_digest
    assert scaled.memory.kv_bytes_per_token == plain.memory.kv_bytes_per_token


@pytest.mark.parametrize("scheme", sorted(BUILDABLE))
def test_a_recipe_names_only_what_its_result_depends_on(scheme: Scheme) -> None:
    """Other texts or groups must not rename what they do not touch."""
    uri = {"uri": "s3://texts/a.jsonl", "samples": 7, "max_tokens": 99}
    profile = make_profile(
        hardware={"accelerator": "NVIDIA-L4"}, weights={"schemes": [scheme], "group_size": 64, "calibration": uri}
    )
    made = planned(profile)

    calibrated = scheme in CALIBRATED
    recipe = made.recipe
    assert recipe.calibration_digest == (TEXTS if calibrated else None)
    assert (recipe.calibration_samples, recipe.calibration_tokens) == ((7, 99) if calibrated else (None, None))
    assert recipe.group_size == (64 if scheme in GROUPED else None)
    assert made.calibration_uri == ("s3://texts/a.jsonl" if calibrated else None)
    same = planned(profile, calibration_digest="d" * 64)
    assert (same.artifact_digest == made.artifact_digest) == (not calibrated)


def test_calibration_without_the_digest_of_its_texts_is_refused() -> None:
    """The artifact could not be named. Those of headway have one, and what needs no texts needs no digest."""
    theirs = {"schemes": ["w8a8"], "calibration": {"uri": "s3://texts/a.jsonl"}}

    with pytest.raises(ConfigError, match=r"w8a8 is calibrated.*s3://texts/a\.jsonl is not known"):
        planned(make_profile(weights=theirs), calibration_digest=None)

    ours = planned(make_profile(weights={"schemes": ["w8a8"]}), calibration_digest=None)
    assert (ours.recipe.calibration_digest, ours.calibration_uri) == (bundled_digest(), None)
    plain = planned(make_profile(weights={**theirs, "schemes": ["none", "w8a8"]}), calibration_digest=None)
    assert plain.recipe.calibration_digest is None


def race(**changes: Any) -> ReleasePlan:
    """Schemes in no order of size, of which one does not serve."""
    schemes = ["none", "nvfp4", "w4a16-gptq", "fp8-dynamic", "w4a16-awq"]
    weights = {"schemes": schemes, "choose": "race", "group_size": 32}
    return planned(make_profile(hardware={"accelerator": "cpu"}, weights={**weights, **changes}))


def test_a_race_lists_what_serves_by_size() -> None:
    """The fewest bytes first; of equals the profile's order; the plan is made for the first."""
    made = race()

    assert [one.recipe.scheme for one in made.contenders] == ["w4a16-gptq", "w4a16-awq", "fp8-dynamic", "none"]
    assert made.passed_over == (f"nvfp4: {UNTRIED['nvfp4']}",)
    first = made.contenders[0]
    assert (made.recipe, made.artifact_digest, made.cluster_digest, made.memory) == (
        first.recipe,
        first.artifact_digest,
        first.cluster_digest,
        first.memory,
    )


def test_without_a_race_there_are_no_contenders() -> None:
    """Neither by the profile nor when a person names the scheme."""
    assert race(choose="first").contenders == ()
    profile = make_profile(weights={"schemes": ["none", "fp8-dynamic"], "choose": "race"})
    assert planned(profile, scheme="none").contenders == ()


@pytest.mark.parametrize("scheme", ["w4a16-gptq", "w4a16-awq", "fp8-dynamic", "none"])
def test_a_chosen_contender_is_the_plan_that_its_scheme_would_get(scheme: Scheme) -> None:
    """So an artifact and a cluster that exist are found again, whatever way they were asked for."""
    made = race()

    chosen = plan.choose(made, scheme)
    alone = planned(made.profile, scheme=scheme)

    assert chosen == alone.model_copy(update={"contenders": made.contenders, "passed_over": made.passed_over})
    assert plan.choose(chosen, made.recipe.scheme) == made


def test_who_takes_no_part_cannot_win() -> None:
    """Its reason is in the plan."""
    with pytest.raises(ConfigError, match=r"no scheme nvfp4; it has w4a16-gptq, w4a16-awq, fp8-dynamic, none"):
        plan.choose(race(), "nvfp4")
    with pytest.raises(ConfigError, match="no scheme none; it has fp8-dynamic"):
        plan.choose(make_plan(), "none")


PROFILES = st.builds(
    make_profile,
    hardware=st.fixed_dictionaries(
        {"accelerator": st.sampled_from(sorted(ACCELERATORS)), "per_replica": st.sampled_from([1, 2, 3, 8])}
    ),
    engine=st.fixed_dictionaries(
        {
            "max_model_len": st.sampled_from([64, 1024, 8192]),
            "max_num_seqs": st.sampled_from([1, 64]),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "dtype": st.sampled_from(["auto", "bfloat16", "float16", "float32"]),
        }
    ),
    weights=st.fixed_dictionaries(
        {
            "schemes": st.lists(st.sampled_from(sorted(serving.SERVES)), min_size=1, max_size=4),
            "choose": st.sampled_from(["first", "race"]),
            "group_size": st.sampled_from([32, 64, 128]),
            "kv_cache_scales": st.booleans(),
        }
    ),
)
SHAPES = st.sampled_from(
    [
        make_shape(linears=SMOLLM2),
        make_shape(linears=SMOLLM2, head_dim=80),
        make_shape(parameters=9 * GIB, linear_parameters=8 * GIB, linears=SMOLLM2),
        make_llama_70b(),
    ]
)


@settings(deadline=None)  # Many plans an example.
@given(PROFILES, SHAPES)
def test_what_is_planned_serves_and_fits(profile: Profile, shape: ModelShape) -> None:
    """Whatever the profile: refused in one line, or every contender passes the rules, smallest first."""
    made = _planned_or_why(profile, shape)
    if not isinstance(made, ReleasePlan):
        assert "\n" not in str(made)
        return

    contenders = [plan.choose(made, one.recipe.scheme) for one in made.contenders] or [made]
    for one in contenders:
        assert one.memory.needed_bytes <= one.memory.available_bytes
        assert one.cluster.memory_bytes == one.memory.needed_bytes
        assert (
            serving.refusal(
                one.recipe.scheme,
                ACCELERATORS[profile.hardware.accelerator],
                shape,
                group_size=one.recipe.group_size,
                tensor_parallel=profile.hardware.per_replica,
                dtype=profile.engine.dtype,
                kv_cache_scales=one.recipe.kv_cache_scales,
            )
            is None
        )
    sizes = [one.memory.weights_bytes for one in contenders]
    assert sizes == sorted(sizes)
    told = {text.partition(":")[0] for text in made.passed_over}
    asked = set(profile.weights.schemes)
    assert told | {one.recipe.scheme for one in contenders} <= asked
    assert profile.weights.choose == "first" or told | {one.recipe.scheme for one in contenders} == asked
    assert ReleasePlan.model_validate(made.to_json()) == made


@settings(max_examples=40, deadline=None)  # Up to 200 plans an example.
@given(PROFILES, SHAPES)
def test_every_proposal_is_accepted_when_it_is_put_into_the_profile(profile: Profile, shape: ModelShape) -> None:
    """An error that sends a person to the next error helps nobody."""
    for change in plan.alternatives(profile, shape):
        changed = plan.changed_by(profile, change)

        made = planned(changed, shape)

        assert made.recipe.scheme in changed.weights.schemes


@settings(deadline=None)  # Many plans an example.
@given(PROFILES, SHAPES)
def test_an_error_names_the_smallest_change(profile: Profile, shape: ModelShape) -> None:
    """Where a scheme could be served at all; other faults of the profile say themselves what to do."""
    why = str(_planned_or_why(profile, shape))

    if "this would" in why:
        first = next(plan.alternatives(profile, shape), None)
        assert (plan.say(first) if first else "that headway knows") in why


def _planned_or_why(profile: Profile, shape: ModelShape) -> ReleasePlan | HeadwayError:
    try:
        return planned(profile, shape)
    except (ConfigError, PlanInfeasible) as error:
        return error


def test_proposed_schemes_are_all_that_can_be_built() -> None:
    """One that is added must get its place in the order."""
    assert set(plan.ADVISED) == BUILDABLE


def test_a_source_that_is_quantized_already_is_served_as_it_is() -> None:
    """Quantizing it again would quantize its errors."""
    profile = make_profile(weights={"schemes": ["fp8-dynamic", "none"]})
    validated = make_validated().model_copy(update={"quantized": "gptq"})

    made = plan.make(profile, make_selection(), validated, serving_image="i", model_root="/m")

    assert made.recipe.scheme == "none"
    [why] = made.passed_over
    assert why == "fp8-dynamic: the source is quantized already (gptq), and only `none` leaves it as it is"
