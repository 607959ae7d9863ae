"""The report explains every ending, and needs nothing beside it."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from headway.domain import texts
from headway.domain.profile import Quality
from headway.domain.release import Check, QualityFigures, StepRecord, Verdict
from headway.domain.weight_jobs import LayerError
from headway.judge.quality import served_checks
from headway.judge.records import block_line, header_line, request_line
from headway.judge.verdict import judge
from headway.release import report
from headway.release.record import Ending
from tests.factories import make_plan, make_profile, make_ref
from tests.unit.judge.data import make_canary, make_run

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
PLAN = make_plan(make_profile(canary=make_canary(demo_margins=True).to_json()))
CHECK = Check(name="served perplexity", measured=1.01, limit=1.05, passed=True, sentence="as good as its source")


def make_steps(last: str = "shift", error: str = "", message: str = "") -> list[StepRecord]:
    steps, at = [], NOW
    for name in ("select", "validate", "plan", "quantize", "stage", "rollout", "canary", "shift"):
        ended = at + timedelta(seconds=10)
        failed = name == last and error
        detail = {"message": message, "facts": {}} if failed else {"checks": ["a rule"]} if name == "validate" else {}
        steps.append(
            StepRecord(
                release="r",
                step=name,
                started_at=at.isoformat(),
                ended_at=ended.isoformat(),
                outcome=error if failed else "done",
                detail=detail,
            )
        )
        at = ended + timedelta(seconds=2)
        if name == last:
            break
    return steps


def make_verdict(**run: float) -> tuple[Verdict, bytes]:
    canary = PLAN.profile.canary
    records, summaries = make_run(canary, **{"shared": 0.05, "spread": 0.1, **run})  # type: ignore[arg-type]
    lines = [header_line("d" * 64)]
    for summary in summaries:
        lines += [request_line(r) for r in records if r.block == summary.block]
        lines.append(block_line(summary))
    verdict = judge(records, summaries, canary, [CHECK])
    return verdict.model_copy(update={"records_uri": "s3://headway/x"}), ("\n".join(lines) + "\n").encode()


class Page(HTMLParser):
    """Reads a page, and knows whether its tags are balanced."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "circle"})

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.pictures = 0
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pictures += tag == "svg"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def render(end: Ending, steps: list[StepRecord], verdict: Verdict | None = None, records: bytes | None = None) -> Page:
    page, _ = report.render(make_ref(), PLAN, steps, verdict, end, now=NOW, records=records)
    read = Page(page)
    assert read.unbalanced == []
    assert read.open == []
    assert all(address.startswith("#") for address in read.addresses), "the page must not load anything"
    assert b"@import" not in page
    assert not re.search(rb"url\((?!#)", page)
    return read


def test_a_promotion_shows_effects_blocks_distributions_and_time() -> None:
    verdict, records = make_verdict()

    page = render(Ending(outcome="promoted", reason=verdict.sentence), make_steps(), verdict, records)

    assert verdict.decision == "PROMOTE"
    assert page.pictures == 5
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

    assert page.pictures == 2


def test_damaged_records_do_not_cost_the_report() -> None:
    verdict, records = make_verdict()

    page = render(Ending(outcome="held", reason="the records are damaged"), make_steps(), verdict, records[100:])

    assert "the records are damaged" in page.text


def test_a_refusal_before_the_canary_has_a_report_with_its_reason() -> None:
    reason = 'perplexity of the <source> is 400 times that of "stable" & above the limit'

    page = render(Ending(outcome="rejected", reason=reason), make_steps("quantize", "QualityRejected", reason))

    assert reason in page.text
    assert "QualityRejected" in page.text
    assert page.pictures == 1


def test_a_refusal_before_the_plan_has_a_report() -> None:
    page, numbers = report.render(
        make_ref(), None, make_steps("select")[:1], None, Ending(outcome="rejected", reason="pickle"), now=NOW
    )

    assert "pickle" in Page(page).text
    assert numbers["select_s"] == 10


def test_text_from_outside_cannot_become_markup() -> None:
    attack = "</p><script>alert(1)</script>"
    page, _ = report.render(
        make_ref(release=attack),
        PLAN,
        make_steps("plan", attack, attack),
        None,
        Ending(outcome="failed", reason=attack),
        now=NOW,
    )

    assert b"<script" not in page


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

    assert page.pictures == 4, "effects, divergence by text, error by layer, time"
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

    assert render(Ending(outcome="promoted", reason="r"), steps, with_quality()).pictures == 3


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
