"""The report explains every ending, and needs nothing beside it."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.domain import texts
from headway.domain.profile import Quality
from headway.domain.release import QualityFigures, StepRecord, Verdict
from headway.domain.weight_jobs import LayerError
from headway.judge.quality import served_checks
from headway.release import report
from headway.release.record import Ending
from tests.factories import make_ref
from tests.unit.judge.data import failed
from tests.unit.pages import CHECK, NOW, PLAN, Page, make_steps, make_verdict, read, render


def test_a_promotion_shows_effects_blocks_distributions_and_time() -> None:
    verdict, records = make_verdict()

    page = render(Ending(outcome="promoted", reason=verdict.sentence), make_steps(), verdict, records)

    assert verdict.decision == "PROMOTE"
    assert len(page.pictures) == 5
    for word in (
        "serves all the traffic",
        "median time to first token",
        "Demo margins",
        "as good as its source",
        "KV cache",
    ):
        assert word in page.text
    assert PLAN.cluster_digest in page.text
    assert "14.0 s of it between the steps" in page.text


def test_a_rollback_says_what_was_slower() -> None:
    verdict, records = make_verdict(slower=2.0)

    page = render(Ending(outcome="rolled_back", reason=verdict.sentence), make_steps("canary"), verdict, records)

    assert "the candidate is worse than stable: median time to first token" in page.text
    assert "gets no traffic" in page.text


def test_without_records_the_rest_is_there() -> None:
    verdict, _ = make_verdict()

    page = render(Ending(outcome="promoted", reason="r"), make_steps(), verdict)

    assert len(page.pictures) == 2


def test_damaged_records_do_not_cost_the_report() -> None:
    verdict, records = make_verdict()

    page = render(Ending(outcome="held", reason="the records are damaged"), make_steps(), verdict, records[100:])

    assert "the records are damaged" in page.text


def test_a_refusal_before_the_canary_has_a_report_with_its_reason() -> None:
    reason = 'perplexity of the <source> is 400 times that of "stable" & above the limit'

    page = render(Ending(outcome="rejected", reason=reason), make_steps("quantize", "QualityRejected", reason))

    assert reason in page.text
    assert "QualityRejected" in page.text
    assert len(page.pictures) == 1


def test_a_refusal_before_the_plan_has_a_report() -> None:
    page, numbers = report.render(
        make_ref(), None, make_steps("select")[:1], None, Ending(outcome="rejected", reason="pickle"), now=NOW
    )

    assert "pickle" in Page(page).text
    assert numbers["select_s"] == 10


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=40))
@example("</p><script>alert(1)</script>")
@example("$\\frac{1}{$ \\undefined")
@example("\ud800 half a character")
@example("safe\u202eesrever\x00\x1b[31m")
@settings(max_examples=2, deadline=None)
def test_text_from_outside_is_only_text(attack: str) -> None:
    """Servers, checkpoints and people write what they like; the page stays whole and shows nothing that hides."""
    kept = attack.encode(errors="replace").decode()  # as the generator writes it; a file cannot hold anything else
    verdict, records = make_verdict(alter=lambda r: failed(r, kept) if r.index == 0 and r.side == "stable" else r)
    steps = measured_steps()
    layer = LayerError.model_construct(name=attack, kind="output", relative_error=0.5)
    steps[3] = steps[3].model_copy(update={"detail": {**steps[3].detail, "layer_errors": [layer.to_json()]}})
    check = CHECK.model_copy(update={"name": kept, "sentence": kept, "kind": "guard", "passed": False})
    verdict = verdict.model_copy(update={"checks": (check,), "reasons": (kept,), "records_uri": attack})

    page, numbers = report.render(
        make_ref(release=attack),
        PLAN,
        [*steps, *make_steps("plan", attack, attack)],
        verdict,
        Ending(outcome="failed", reason=attack),
        now=NOW,
        records=records,
    )

    read(page)
    assert b"<script" not in page
    assert not re.search("[\x00-\x08\x1b\u202e]", page.decode())
    assert all(re.fullmatch(r"[\w\-. /:]+", name) for name in numbers), "MLflow accepts these characters only"


@pytest.mark.parametrize("outcome", ["promoted", "rolled_back", "rejected", "held", "failed"])
def test_every_outcome_has_words(outcome: str) -> None:
    assert render(Ending(outcome=outcome, reason="because"), []).text.count("because") == 1  # type: ignore[arg-type]


def test_checks_of_a_refusal_are_shown() -> None:
    steps = make_steps("quantize", "QualityRejected", "no")
    bad = CHECK.model_copy(update={"name": "source against stable", "passed": False, "sentence": "four hundred times"})
    detail = {"message": "no", "facts": {"report": {"checks": [bad.to_json()]}}}
    steps[-1] = steps[-1].model_copy(update={"detail": detail})

    assert "four hundred times" in render(Ending(outcome="rejected", reason="no"), steps).text


def test_numbers_are_plain_and_finite() -> None:
    verdict, records = make_verdict()
    _, numbers = report.render(
        make_ref(), PLAN, make_steps(), verdict, Ending(outcome="promoted", reason="r"), now=NOW, records=records
    )

    assert numbers["quantize_s"] == 10
    assert numbers["total_s"] == 94
    assert numbers["ttft_p50_ratio"] == pytest.approx(1, abs=0.2)
    assert numbers["check_served_perplexity"] == 1.01
    assert all(isinstance(value, float) and value == value for value in numbers.values())  # noqa: PLR0124 - NaN
    assert all(re.fullmatch(r"[\w\-. /:]+", name) for name in numbers), "MLflow accepts these characters only"


def test_the_same_release_draws_the_same_bytes() -> None:
    verdict, records = make_verdict()
    arguments = (make_ref(), PLAN, make_steps(), verdict, Ending(outcome="promoted", reason="r"))

    assert report.render(*arguments, now=NOW, records=records) == report.render(*arguments, now=NOW, records=records)


def make_figures(kl: float, *, count: int = 12) -> QualityFigures:
    """Figures of the fixed texts, the fourth of them much worse than the others."""
    worse = [4.0 if number == 3 else 1.0 for number in range(count)]
    return QualityFigures(
        prompt_set_digest=texts.prompt_set_digest(),
        engine="vllm",
        tokens=100 * count,
        nll=280.0 * count,
        per_text_nll=tuple(280.0 * w for w in worse),
        per_text_tokens=(100,) * count,
        per_text_kl=tuple(kl * 100 * w for w in worse),
        per_text_top1=(93,) * count,
    )


def measured_steps() -> list[StepRecord]:
    """Steps whose quantize left the source's figures and the errors of layers."""
    steps = make_steps()
    errors = [LayerError(name=f"model.layers.{k}", kind="output", relative_error=0.01 * k) for k in range(5)]
    errors.append(LayerError(name="model.layers.5", kind="output", relative_error=None))
    detail = {
        "reference": make_figures(0).model_copy(update={"per_text_kl": (), "per_text_nll": (279.0,) * 12}).to_json(),
        "layer_errors": [error.to_json() for error in errors],
    }
    return [step.model_copy(update={"detail": detail}) if step.step == "quantize" else step for step in steps]


def with_quality() -> Verdict:
    """A verdict with served figures and noise."""
    verdict, _ = make_verdict()
    served, noise = make_figures(0.02), make_figures(0.0004)
    checks = served_checks(served, make_figures(0), Quality(), "fp8-dynamic", noise=noise)
    return verdict.model_copy(update={"served": served, "noise": noise, "checks": tuple(checks)})


def test_it_shows_where_the_candidate_is_furthest_from_its_source() -> None:
    page = render(Ending(outcome="promoted", reason="r"), measured_steps(), with_quality())

    assert len(page.pictures) == 4, "effects, divergence by text, error by layer, time"
    assert "text 4 def moving_average" in " ".join(page.text.split())
    assert "0.0800" in page.text
    assert "+8.4100" in page.text, "(4 * 280 - 279) / 100"
    assert "93.0 %" in page.text
    assert "the source itself has 0.0005 when served" in page.text
    assert "No finite number comes out of model.layers.5" in page.text


def test_figures_of_other_texts_are_shown_without_their_words() -> None:
    """An older verdict, or another version's texts."""
    verdict = with_quality()
    assert verdict.served is not None
    other = verdict.served.model_copy(update={"prompt_set_digest": "older"})

    page = render(
        Ending(outcome="promoted", reason="r"),
        make_steps(),
        verdict.model_copy(update={"served": other, "noise": None}),
    )

    assert "text 4" in page.text
    assert "moving_average" not in page.text


def test_records_of_another_kind_cost_the_picture_and_not_the_report() -> None:
    steps = [
        step.model_copy(update={"detail": {"reference": {"perplexity": 3}, "layer_errors": [{"layer": 1}]}})
        if step.step == "quantize"
        else step
        for step in make_steps()
    ]

    assert len(render(Ending(outcome="promoted", reason="r"), steps, with_quality()).pictures) == 3


def test_bounds_and_noise_are_numbers_of_the_registry() -> None:
    _, numbers = report.render(
        make_ref(), PLAN, measured_steps(), with_quality(), Ending(outcome="promoted", reason="r"), now=NOW
    )

    base = "check_served_divergence_from_source"
    assert numbers[base] == pytest.approx(0.025)
    assert numbers[f"{base}_low"] <= numbers[base] <= numbers[f"{base}_high"]
    assert numbers[f"{base}_noise"] == pytest.approx(0.0005)
    assert all(re.fullmatch(r"[\w\-. /:]+", name) for name in numbers), "MLflow accepts these characters only"


def test_the_quality_pictures_are_the_same_bytes_every_time() -> None:
    arguments = (make_ref(), PLAN, measured_steps(), with_quality(), Ending(outcome="promoted", reason="r"))

    assert report.render(*arguments, now=NOW) == report.render(*arguments, now=NOW)
