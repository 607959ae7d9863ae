"""What live requests show of a candidate."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.profile import Shift
from headway.judge import always_valid, live

CHECKOUT = Path(__file__).parents[3]

edges = st.lists(st.sampled_from(live.LADDER_S), min_size=1, max_size=12, unique=True).map(sorted)


@st.composite
def latencies(draw: st.DrawFn) -> list[float]:
    """Latencies that lie on the ladder."""
    return draw(st.lists(st.sampled_from(live.LADDER_S), max_size=60))


def buckets(taken: list[float]) -> dict[str, float]:
    """Return the buckets as the scraper keeps them: without edges that add nothing."""
    found: dict[str, float] = {}
    for edge in live.LADDER_S:
        count = sum(latency <= edge for latency in taken)
        if count > max(found.values(), default=0):
            found[f"{edge:g}"] = float(count)
    return {**found, live.ENDLESS: float(len(taken))}


def test_the_gateways_buckets_are_those_that_the_shift_reckons_with() -> None:
    """In Envoy's bootstrap they are milliseconds."""
    template = (CHECKOUT / "local" / "envoy" / "bootstrap.yaml").read_text()
    bootstrap = yaml.safe_load(re.sub(r"\$(\w+)", "1", template))
    settings = bootstrap["stats_config"]["histogram_bucket_settings"]

    assert [s["match"] for s in settings] == [{"suffix": "upstream_rq_time"}]
    assert settings[0]["buckets"] == pytest.approx([1000 * edge for edge in live.LADDER_S])
    assert all(len(f"{edge:g}".replace(".", "").strip("0")) <= 2 for edge in live.LADDER_S)


@given(latencies(), latencies(), st.sampled_from(live.LADDER_S))
def test_buckets_with_gaps_count_what_was_slower(before: list[float], meanwhile: list[float], edge: float) -> None:
    """At any edge, and between any two moments."""
    end, start = buckets(before + meanwhile), buckets(before)

    assert live.slower(end, edge) == sum(latency > edge for latency in before + meanwhile)
    assert live.slower(live.grown(end, start), edge) == sum(latency > edge for latency in meanwhile)
    assert live.slower(live.grown(end, {}), edge) == live.slower(end, edge)


@given(latencies(), st.floats(1.01, 5))
def test_the_yardstick_is_what_a_tenth_of_stable_exceeds(taken: list[float], ratio: float) -> None:
    """And the candidate is never allowed less than the profile says."""
    fixed = live.yardstick(buckets(taken), Shift(max_latency_ratio=ratio))

    if len(taken) < live.MIN_REQUESTS:
        assert fixed is None
    elif fixed is not None:
        assert sum(latency > fixed.stable_s for latency in taken) == fixed.slow <= len(taken) / 10
        assert fixed.candidate_s >= fixed.stable_s * ratio * (1 - 1e-6)
        assert fixed.candidate_s <= 1.65 * fixed.stable_s * ratio
    else:
        assert sorted(taken)[int(len(taken) * 0.9)] * ratio > live.LADDER_S[-1] * 0.6


def test_each_step_and_check_gets_its_part_of_the_budget() -> None:
    """All parts together are the budget."""
    shift = Shift(steps_pct=(5, 25, 50, 100), alpha=0.02)

    assert live.alpha_of_check(shift) * len(shift.steps_pct) * live.WATCHED == pytest.approx(0.02)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 30))
def test_failures_breach_only_when_the_bound_says_so(errors: int, others: int, start: int) -> None:
    """The lower bound in the text is above the limit then, and only then."""
    shift = Shift(max_error_pct=2.0)
    found = live.failing([live.Failures(start, errors, errors + others)], shift)
    alpha = always_valid.alpha_of_start(live.alpha_of_check(shift), start)
    bound = always_valid.lower_bound(errors, errors + others, alpha, burst=shift.burst) if errors else 0.0

    if abs(bound - 0.02) > 1e-9:
        assert (found is not None) == (bound > 0.02)


def test_any_start_may_show_a_breach() -> None:
    """The step as a whole looks good; what came since the last start does not."""
    good, bad = live.Failures(0, 30, 10_000), live.Failures(7, 30, 60)

    assert live.failing([good], Shift()) is None
    assert "30 of 60" in (live.failing([good, bad], Shift()) or "")


def test_more_counted_failures_than_requests_do_not_break_the_count() -> None:
    """The gateway counts a request that fails on both sides more than once."""
    assert "20 of 20" in (live.failing([live.Failures(0, 31, 20)], Shift()) or "")


def fixed() -> live.Yardstick:
    """A yardstick: stable is slow above 0.5 s, the candidate above 1 s."""
    return live.Yardstick(stable_s=0.5, candidate_s=1.0, slow=100, requests=1000)


def ended(slow: int, of: int, stable_slow: int, stable_of: int) -> live.Ended:
    """Requests of both sides since the step."""
    return live.Ended(
        0, buckets([2.0] * slow + [0.1] * (of - slow)), buckets([2.0] * stable_slow + [0.1] * (stable_of - stable_slow))
    )


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_equal_sides_are_never_surely_different(share: float) -> None:
    """However many of the requests are slow on both."""
    for of in (100, 1000, 10_000):
        for slow in (0.1, 0.5, 0.9):
            mine, theirs = int(of * share), int(of * (1 - share))
            seen = ended(int(mine * slow), mine, int(theirs * slow), theirs)
            assert live.slowing([seen], fixed(), share, Shift()) is None


def test_the_candidates_part_of_the_slow_requests_gives_it_away() -> None:
    """It has a quarter of the traffic and two thirds of the slow requests."""
    found = live.slowing([ended(100, 250, 50, 750)], fixed(), 0.25, Shift())

    assert found is not None
    assert "100 of 250 live requests took over 1 s" in found
    assert "50 of 750 of stable's took over 0.5 s" in found


def test_alone_it_is_held_against_what_stable_showed_before() -> None:
    """A tenth was slow before; what that tenth may be at most is the limit."""
    assert live.slowing([ended(100, 1000, 0, 0)], fixed(), 1.0, Shift()) is None
    assert "at most" in (live.slowing([ended(400, 1000, 0, 0)], fixed(), 1.0, Shift()) or "")
