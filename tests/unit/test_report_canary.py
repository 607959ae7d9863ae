"""The report's comparison: nothing that decided is missing, everything is said in words too, and it can be replayed."""

import hashlib
import shlex
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.bench import RequestRecord
from headway.domain.profile import Canary, Evidence, Goodput, Trials
from headway.domain.release import Basis, Check, MetricEffect, ReleasePlan, Verdict
from headway.domain.value import canonical_json
from headway.judge import records as record_rules
from headway.judge import replay
from headway.judge.calibrate import rule_digest
from headway.judge.records import Run
from headway.release import figures_canary, report
from headway.release.record import Ending
from tests.factories import make_plan, make_profile, make_ref
from tests.unit.judge.data import make_canary, make_run
from tests.unit.pages import NOW, PLAN, URI, make_steps, make_verdict, read, render

PROMOTED = Ending(outcome="promoted", reason="r")
MARGIN = Trials(metric="p50", slower_pct=50, promoted=2, rolled_back=250, held=48, mean_blocks=8)
EQUAL = Trials(promoted=290, rolled_back=1, held=9, mean_blocks=6.5)


def make_evidence(canary: Canary, hardware: str = "cpu") -> Evidence:
    return Evidence(
        hardware=hardware,
        measured_at="2026-01-01T00:00:00+00:00",
        method="trials",
        rule=rule_digest(canary),
        recorded_blocks=600,
        trials=(EQUAL, MARGIN),
    )


def plan_of(canary: Canary) -> ReleasePlan:
    return make_plan(make_profile(canary=canary.to_json()))


ratios = st.floats(min_value=0.01, max_value=1e6)
marks: st.SearchStrategy[Literal["pass", "fail", "undecided"]] = st.sampled_from(["pass", "fail", "undecided"])


@st.composite
def effects(draw: st.DrawFn) -> MetricEffect:
    """Any effect a judge could find, with its interval in order."""
    metric = draw(st.sampled_from(["ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "error_rate", "goodput"]))
    if metric in ("error_rate", "goodput"):
        low, mean, high = sorted(draw(st.tuples(*[st.floats(min_value=-100, max_value=100)] * 3)))
        given = {"difference": mean, "difference_low": low, "difference_high": high, "unit": "%"}
    else:
        low, mean, high = sorted(draw(st.tuples(ratios, ratios, ratios)))
        given = {"ratio": mean, "ratio_low": low, "ratio_high": high, "unit": "ms"}
    margin = draw(st.floats(min_value=0.01, max_value=5)) * (-1 if metric == "goodput" else 1)
    return MetricEffect.model_validate(
        {"metric": metric, "stable": 1.0, "candidate": 2.0, "margin": margin, "verdict": draw(marks), **given}
    )


@given(st.lists(effects(), min_size=1, max_size=6, unique_by=lambda effect: effect.metric))
@settings(max_examples=12, deadline=None)
def test_every_effect_is_shown_with_its_interval(found: list[MetricEffect]) -> None:
    """In the table, and in the words of the picture for those who do not see it."""
    verdict = Verdict(decision="HOLD", sentence="s", reasons=("s",), effects=tuple(found))

    page = render(Ending(outcome="held", reason="s"), make_steps("canary"), verdict)

    told = page.told["Effect of every metric with its interval"]
    for effect in found:
        mean, between = figures_canary.change(effect)
        assert mean in page.text
        assert between in page.text
        assert f"{figures_canary.label(effect.metric)} {mean} ({between})" in told
    assert page.text.count("(guard: it only takes back)") == sum(effect.metric == "ttft_p99" for effect in found)


@given(effects())
def test_on_the_common_scale_worse_is_more(effect: MetricEffect) -> None:
    """Whatever the metric, the margin is 1 and a bound beyond it is beyond 1: more errors, but less goodput."""
    place = figures_canary.scaled(effect)

    assert place is not None
    assert place.low <= place.mean <= place.high
    if effect.metric == "goodput":
        assert (place.high > 1) == ((effect.difference_low or 0) / (effect.margin or 1) > 1)
    elif effect.difference_high is not None:
        assert (place.high > 1) == (effect.difference_high > (effect.margin or 0))


@pytest.mark.parametrize("kind", ["guard", "contract"])
def test_a_failed_guard_is_seen_first(kind: Literal["guard", "contract"]) -> None:
    """Whoever is called at night sees why before what was fine."""
    fine = Check(name="fine", measured=0.1, limit=1, passed=True, sentence="few sequences were preempted", kind=kind)
    bad = Check(name="bad", measured=30, limit=10, passed=False, sentence="the KV cache is 30 points fuller", kind=kind)
    verdict, records = make_verdict(checks=(fine, bad))

    page = render(Ending(outcome="rolled_back", reason=verdict.sentence), make_steps("canary"), verdict, records)

    engine = page.text[page.text.index("Engine during the benchmark") :]
    assert engine.index(bad.sentence) < engine.index("fail") < engine.index(fine.sentence)
    assert bad.sentence in page.text[: page.text.index("What to do next")]


def test_what_was_measured_is_shown_although_a_check_decided() -> None:
    """A candidate that is faster and answers worse: both are seen."""
    bad = Check(name="bad", measured=2, limit=1, passed=False, sentence="the answers diverge")
    verdict, records = make_verdict(checks=(bad,), slower=0.8)

    page = render(Ending(outcome="rolled_back", reason=verdict.sentence), make_steps("canary"), verdict, records)

    assert "A check decided, whatever the latencies" in page.text
    assert "TTFT median -2" in page.told["Effect of every metric with its interval"]


def test_unfit_records_show_no_effects() -> None:
    """Numbers that nobody may decide from must not look as if they had."""
    _, records = make_verdict()
    verdict = Verdict(decision="HOLD", sentence="HOLD: the records are unfit", reasons=("a column is missing",))

    page = render(Ending(outcome="held", reason=verdict.sentence), make_steps("canary"), verdict, records)

    assert "No metric was compared" in page.text
    assert "Bounds of every metric at each look" not in page.told


def test_checks_of_the_engine_are_none_of_quality() -> None:
    guard = Check(name="preemptions", measured=0.1, limit=1, passed=True, sentence="few", kind="guard")
    verdict, records = make_verdict(checks=(guard,))

    assert "Quality" not in render(PROMOTED, make_steps(), verdict, records).text


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30))
@settings(max_examples=12, deadline=None)
def test_the_command_to_decide_again_is_exact(name: str) -> None:
    """A shell reads it as the command, with this address and nothing else."""
    uri = f"s3://headway/bench/{name}/records.jsonl"
    verdict = Verdict(decision="HOLD", sentence="s", reasons=("s",), records_uri=uri, records_sha256="a" * 64)

    page = render(Ending(outcome="held", reason="s"), make_steps("canary"), verdict)

    assert ["headway", "judge", uri] in [shlex.split(line) for line in page.commands]


def test_deciding_again_prints_what_has_the_digest_of_the_page() -> None:
    """So "byte for byte" can be tried by anybody who has the records."""
    verdict, content = make_verdict()
    basis = Basis(
        release="r",
        model="tiny",
        version=1,
        canary=PLAN.profile.canary,
        paired=True,
        checks=verdict.checks,
        records_sha256=verdict.records_sha256,
    )
    again = replay.decide(record_rules.parse(content), basis, content=content)
    printed = hashlib.sha256(canonical_json(again)).hexdigest()

    page = render(PROMOTED, make_steps(), verdict, content)

    assert printed in page.text
    assert verdict.records_sha256 in page.text
    assert shlex.split(page.commands[-1]) == ["headway", "judge", URI, "--json", "|", "sha256sum"]


def test_margins_that_nobody_measured_are_flagged_at_the_top() -> None:
    verdict, records = make_verdict()

    page = render(PROMOTED, make_steps(), verdict, records)

    assert page.text.index("No proof of the margins") < page.text.index("Candidate against stable")
    assert "Nobody has measured it" in page.text


@pytest.mark.parametrize(("hardware", "flagged"), [("cpu", False), ("H100", True)])
def test_measured_error_rates_are_shown_with_their_intervals(hardware: str, flagged: bool) -> None:
    """Those of other hardware are shown too, and flagged."""
    canary = make_canary()
    plan = plan_of(canary.model_copy(update={"evidence": make_evidence(canary, hardware)}))
    verdict, records = make_verdict(plan)

    page = render(PROMOTED, make_steps(), verdict, records, plan)

    assert ("No proof of the margins" in page.text) is flagged
    for figure in ("equal to stable", "96.7 %", "94.0 to 98.4 %", "every latency +50 %", "0.7 %", "0.1 to 2.4 %"):
        assert figure in page.text, figure


def test_figures_of_all_requests_are_there() -> None:
    plan = plan_of(make_canary(goodput={"ttft_ms": 2000, "margin_pct": 5}))
    verdict, records = make_verdict(plan)

    page = render(PROMOTED, make_steps(), verdict, records, plan)

    for word in ("TTFT p50 / p95 / p99", "E2E p50", "output tokens/s", "goodput", "150 / 0", "100.0 %"):
        assert word in page.text, word
    assert "limits of goodput" in page.text


def test_page_and_registry_name_one_cost() -> None:
    """2 for an hour, 32 in flight; each of 16 tokens holds its place for (0.4 + 15 * 0.05) / 16 s and some luck."""
    plan = make_plan(make_profile(canary=make_canary().to_json(), gpu_hour_price=2))
    verdict, records = make_verdict(plan)

    page, numbers = report.render(make_ref(), plan, [], verdict, PROMOTED, now=NOW, records=records)
    _, of_verdict = report.render(make_ref(), plan, [], verdict, PROMOTED, now=NOW)

    stable = numbers["stable_cost_per_million_tokens"]
    assert stable == pytest.approx(2 / 3600 * 1e6 / 32 * 1.15 / 16, rel=0.1)
    assert f"cost {stable:.2f} for stable" in read(page).text
    assert of_verdict["stable_cost_per_million_tokens"] == pytest.approx(2 / 3600 * 1e6 / 32 * 0.05, rel=0.1)


@pytest.mark.parametrize(
    ("outcome", "words", "last"),
    [
        ("promoted", "Nothing.", "headway rollback tiny"),
        ("rolled_back", "worse than allowed", "headway release tiny --version 1 --wait"),
        ("rejected", "register a new version", "headway release tiny --version 1 --wait"),
        ("held", "A person decides within", "headway release tiny --version 1 --wait"),
        ("failed", "nothing is known about the model", "headway release tiny --version 1 --wait"),
    ],
)
def test_it_says_first_what_to_do(outcome: str, words: str, last: str) -> None:
    verdict = Verdict(decision="ROLLBACK", sentence="s", reasons=("s",)) if outcome == "rolled_back" else None

    page = render(Ending(outcome=outcome, reason="r"), make_steps(), verdict)  # type: ignore[arg-type]

    assert words in page.text
    assert page.commands[0] == last


def test_a_rollback_after_the_canary_is_not_said_to_be_the_benchmarks() -> None:
    """The live check or a person took it back; what the benchmark found is told beside it."""
    verdict, records = make_verdict()
    reason = "live requests take 3 times as long on the candidate as on stable"

    page = render(Ending(outcome="rolled_back", reason=reason), make_steps("shift", "CanaryFailed", reason), verdict)

    assert "taken back from real traffic" in page.text
    assert reason in page.text
    assert verdict.sentence in page.text
    assert records


def test_a_held_release_says_how_many_blocks_would_tell() -> None:
    """Twice as wide as allowed needs four times the blocks."""
    effect = MetricEffect(
        metric="error_rate",
        stable=1.0,
        candidate=1.0,
        unit="%",
        difference=0.0,
        difference_low=-2.0,
        difference_high=2.0,
        margin=1.0,
    )
    verdict = Verdict(decision="HOLD", sentence="s", reasons=("s",), blocks_used=10, effects=(effect,))

    assert "about 40 blocks would tell" in render(Ending(outcome="held", reason="s"), [], verdict).text


@pytest.mark.parametrize(("kind", "measured"), [("contract", 1.0), ("guard", None), ("quality", None)])
def test_what_was_not_measured_is_named_before_measuring_again(
    kind: Literal["quality", "guard", "contract"], measured: float | None
) -> None:
    """More blocks do not help where a figure is missing."""
    check = Check(name="x", measured=measured, limit=0, passed=False, sentence="vllm:x is missing", kind=kind)
    verdict = Verdict(decision="HOLD", sentence="s", reasons=("s",), checks=(check,))

    page = render(Ending(outcome="held", reason="s"), [], verdict)

    assert "measuring again ends the same: vllm:x is missing" in page.text


def test_a_page_of_twelve_thousand_requests_is_below_a_megabyte() -> None:
    """It goes into a browser over a bad line; what is drawn is thinned, and its slowest request stays."""
    canary = Canary(goodput=Goodput(ttft_ms=900))
    plan = plan_of(canary)

    def slowest(r: RequestRecord) -> RequestRecord:
        late = 77.0 if (r.block, r.index, r.side) == (3, 5, "candidate") else 0.0
        gaps = tuple([1.0] * 15)
        return r.model_copy(
            update={"first_token_s": (r.first_token_s or 0) + late, "ended_s": (r.ended_s or 0) + late, "itl_ms": gaps}
        )

    verdict, records = make_verdict(plan, alter=slowest)

    page, _ = report.render(make_ref(), plan, make_steps(), verdict, PROMOTED, now=NOW, records=records)

    assert len(page) < 1_000_000
    told = read(page).told["Latencies of both sides"]
    assert all(f"{name} of candidate" in told for name in ("TTFT", "TPOT", "E2E", "ITL"))


@given(st.integers(min_value=1, max_value=20_000))
def test_thinning_keeps_both_ends(count: int) -> None:
    """The fastest and the slowest request are always drawn, in few points."""
    points = figures_canary.worth_drawing(count)

    assert (points[0], points[-1]) == (0, count - 1)
    assert points == sorted(set(points))
    assert len(points) <= figures_canary.CURVE_POINTS + 2


def test_void_and_swapped_blocks_are_marked() -> None:
    canary = PLAN.profile.canary
    records, summaries = make_run(canary, spread=0.1, shared=0.05)
    summaries[2] = summaries[2].model_copy(update={"void": True, "reason": "the generator was late"})
    summaries[4] = summaries[4].model_copy(update={"placement": 1})
    content = record_rules.write(Run("d" * 64, tuple(records), tuple(summaries)))
    verdict = Verdict(decision="HOLD", sentence="s", reasons=("s",))

    text = render(Ending(outcome="held", reason="s"), [], verdict, content).text

    assert "block 3 is not used: the generator was late" in text
    assert "Grey: not used. Blue: hardware the other way round." in text
    assert "swapped between the sides: 2 times" in text


def test_a_first_release_is_shown_against_its_limits() -> None:
    """It has nothing beside it: no effects, no margins, and nothing to prove of them."""
    verdict, records = make_verdict(paired=False, blocks=3)

    page = render(PROMOTED, make_steps(), verdict, records)

    assert "First release: absolute limits" in page.text
    assert "2000 ms" in page.text
    assert "Latencies of both sides" in page.told
    for word in ("No proof of the margins", "How often such a verdict is wrong", "What every effect"):
        assert word not in page.text
