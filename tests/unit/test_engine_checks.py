"""The metric contract and the guards: what engines report of themselves."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain import engine_series
from headway.domain.profile import Guards
from headway.domain.release import Check
from headway.release import contract, guards
from tests.fakes import FakeMetrics

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
FIRST_EVENT = {series.name for series in engine_series.TABLE if series.born_with == "first event"}
NEEDED = [series for series in engine_series.TABLE if series.born_with == "start"]


def labels(cluster: str) -> dict[str, str]:
    """Labels of an engine's series."""
    return {"model": "tiny", "cluster": cluster}


def report(metrics: FakeMetrics, cluster: str, at: datetime, **values: float) -> None:
    """Let an engine have given these, by the names of the table without `vllm_`."""
    for name, value in values.items():
        metrics.put(f"vllm_{name}", labels(cluster), at, value)


def whole(metrics: FakeMetrics, cluster: str = "new", *, without: str = "", at: datetime = NOW) -> None:
    """Let an engine have given everything that is born with its start, but one series."""
    for series in NEEDED:
        if series.name != without:
            for name in series.stored:
                metrics.put(name, labels(cluster), at, 4.0)


def held(metrics: FakeMetrics, now: datetime = NOW) -> Check:
    """Return the check of the contract."""
    return contract.check(metrics, model="tiny", cluster="new", now=now)


def test_an_engine_that_reports_all_keeps_the_contract() -> None:
    """Preemptions are not there before the first one, and need not be."""
    metrics = FakeMetrics()
    whole(metrics)

    check = held(metrics)

    assert (check.passed, check.measured, check.kind) == (True, 0.0, "contract")
    assert "vllm_num_preemptions_total" in FIRST_EVENT


@pytest.mark.parametrize("series", NEEDED, ids=lambda series: series.name)
def test_a_series_that_is_not_there_is_named_with_all_that_it_was_looked_for_as(series: engine_series.Series) -> None:
    """Whoever reads it can look into the engine's own text."""
    metrics = FakeMetrics()
    whole(metrics, without=series.name)

    check = held(metrics)

    assert (check.passed, check.measured) == (False, 1.0)
    assert series.name in check.sentence
    assert all(alias in check.sentence for alias in series.aliases())


def test_an_engine_that_nobody_reads_is_said_to_report_nothing() -> None:
    """Also when another engine of the model reports all."""
    metrics = FakeMetrics()
    whole(metrics, "old")

    check = held(metrics)

    assert not check.passed
    assert "reports nothing" in check.sentence


def test_what_was_there_long_ago_is_not_there() -> None:
    """The engine lives and works, and gives a gauge no more."""
    metrics = FakeMetrics()
    whole(metrics, at=NOW - timedelta(hours=1))
    whole(metrics, without="vllm_num_requests_waiting")
    report(metrics, "new", NOW, generation_tokens_total=90.0)

    assert "vllm_num_requests_waiting" in held(metrics).sentence


def test_gauges_of_an_idle_engine_may_be_gone() -> None:
    """Ray drops a gauge that is not set; counters stay, and show that nothing was done."""
    metrics = FakeMetrics()
    gauges = {series.name for series in NEEDED if series.kind == "gauge"}
    for minutes in range(0, 60, 5):
        whole(metrics, at=NOW + timedelta(minutes=minutes))
    for (name, _), samples in metrics.series.items():
        if name in gauges:
            del samples[1:]

    assert held(metrics, NOW + timedelta(minutes=55)).passed


def test_a_counter_is_missed_on_an_idle_engine_too() -> None:
    """Counters do not go away."""
    metrics = FakeMetrics()
    for minutes in range(0, 60, 5):
        whole(metrics, at=NOW + timedelta(minutes=minutes), without="vllm_prompt_tokens_total")

    assert "vllm_prompt_tokens_total" in held(metrics, NOW + timedelta(minutes=55)).sentence


def window(metrics: FakeMetrics, cluster: str, scrapes: int = 12, *, idle: int = 0, **gauges: float) -> None:
    """Let an engine have been read every five seconds with these gauges, the last readings while it was idle."""
    for i in range(scrapes):
        at = NOW + timedelta(seconds=5 * i)
        report(metrics, cluster, at, generation_tokens_total=10.0 * min(i, scrapes - idle))
        if i < scrapes - idle:
            report(metrics, cluster, at, **gauges)


def judged(metrics: FakeMetrics, requests: int = 200) -> dict[str, Check]:
    """Return the guards' checks by name."""
    found = guards.checks(
        metrics,
        Guards(),
        model="tiny",
        stable_cluster="old",
        candidate_cluster="new",
        start=NOW,
        end=NOW + timedelta(seconds=60),
        requests=requests,
    )
    assert all(check.kind == "guard" for check in found)
    return {check.name: check for check in found}


KV, PREEMPTED, QUEUE = "mean KV cache use", "preemptions per 100 requests", "mean queue"


def both(kv_cache_usage_perc: float = 0.2, num_requests_waiting: float = 1.0) -> FakeMetrics:
    """Both engines, with this on the candidate's side."""
    metrics = FakeMetrics()
    window(metrics, "old", kv_cache_usage_perc=0.2, num_requests_waiting=1.0)
    window(metrics, "new", kv_cache_usage_perc=kv_cache_usage_perc, num_requests_waiting=num_requests_waiting)
    return metrics


def test_equal_engines_pass() -> None:
    """No preemption at all is no missing figure."""
    found = judged(both())

    assert [(check.measured, check.passed) for check in found.values()] == [(0.0, True)] * 3


@pytest.mark.parametrize(
    ("name", "new", "measured"),
    [(KV, {"kv_cache_usage_perc": 0.35}, 15.0), (QUEUE, {"num_requests_waiting": 4.0}, 3.0)],
)
def test_a_candidate_over_a_limit_fails_that_check_alone(name: str, new: dict[str, float], measured: float) -> None:
    """The text has both sides' figures and the limit."""
    found = judged(both(**new))

    assert [check.name for check in found.values() if not check.passed] == [name]
    assert found[name].measured == pytest.approx(measured)
    assert "is over the" in found[name].sentence


def test_preemptions_are_counted_from_their_first_event() -> None:
    """Absent means zero as long as the engine was read; a counter that fell was reset."""
    metrics = both()
    for second, value in ((20, 3.0), (40, 5.0), (50, 1.0)):
        report(metrics, "new", NOW + timedelta(seconds=second), num_preemptions_total=value)

    check = judged(metrics)[PREEMPTED]

    assert check.measured == pytest.approx(3.0)
    assert not check.passed


def test_preemptions_of_before_the_benchmark_do_not_count() -> None:
    """Nor where the engine was first read during it."""
    metrics = both()
    for cluster, seconds in (("old", (-5, 20)), ("new", (20, 40))):
        for second in seconds:
            report(metrics, cluster, NOW + timedelta(seconds=second), num_preemptions_total=500.0)
    for cluster in ("old", "new"):
        metrics.series[("vllm_generation_tokens_total", tuple(sorted(labels(cluster).items())))].pop(0)

    assert judged(metrics)[PREEMPTED].measured == 0.0


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("scrapes", [0, guards.MIN_SAMPLES - 1])
def test_an_engine_that_was_hardly_read_is_not_measured(side: str, scrapes: int) -> None:
    """None, which holds the release, and never zero."""
    metrics = FakeMetrics()
    for cluster in ("old", "new"):
        window(metrics, cluster, scrapes if cluster == side else 12, kv_cache_usage_perc=0.2, num_requests_waiting=1.0)

    found = judged(metrics)

    assert all(check.measured is None and not check.passed for check in found.values())
    assert all({"old": "stable", "new": "candidate"}[side] in check.sentence for check in found.values())


def test_a_gauge_that_was_never_given_is_not_measured() -> None:
    """The engine was busy and read, so idleness is no excuse."""
    metrics = FakeMetrics()
    window(metrics, "old", kv_cache_usage_perc=0.2, num_requests_waiting=1.0)
    window(metrics, "new", num_requests_waiting=1.0)

    found = judged(metrics)

    assert found[KV].measured is None
    assert found[QUEUE].passed


def test_an_idle_engine_has_no_queue_and_an_empty_cache() -> None:
    """A third of the time idle lowers the mean by a third."""
    metrics = FakeMetrics()
    window(metrics, "old", idle=4, kv_cache_usage_perc=0.3, num_requests_waiting=3.0)
    window(metrics, "new", kv_cache_usage_perc=0.3, num_requests_waiting=3.0)

    found = judged(metrics)

    assert found[KV].measured == pytest.approx(10.0)
    assert found[QUEUE].measured == pytest.approx(1.0)


def test_a_benchmark_without_requests_measures_no_preemptions() -> None:
    """Nothing can be divided by them."""
    assert judged(both(), requests=0)[PREEMPTED].measured is None


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_on_stable_never_takes_a_candidate_back(stable: float, candidate: float) -> None:
    """Guards look one way."""
    metrics = FakeMetrics()
    window(metrics, "old", kv_cache_usage_perc=max(stable, candidate), num_requests_waiting=9.0)
    window(metrics, "new", kv_cache_usage_perc=min(stable, candidate), num_requests_waiting=0.0)

    assert all(check.passed for check in judged(metrics).values())
