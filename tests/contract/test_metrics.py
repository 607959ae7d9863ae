"""What every `Metrics` adapter promises."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway.ports import UPTIME
from tests.contract.conftest import MetricsCase

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return that many seconds after nine."""
    return NOW + timedelta(seconds=seconds)


def test_no_data_is_none_and_never_zero(metrics: MetricsCase) -> None:
    """Missing data must not look like an idle model."""
    assert metrics.port.instant("requests", {"model": "m"}, NOW) is None
    assert metrics.port.range("requests", {"model": "m"}, NOW, at(60)) == []


def test_an_instant_is_the_last_value_not_later_than_asked(metrics: MetricsCase) -> None:
    """What came after the moment does not count."""
    for second, value in ((0, 1.0), (10, 5.0), (20, 9.0)):
        metrics.put("requests", {"model": "m", "side": "stable"}, at(second), value)

    assert metrics.port.instant("requests", {"model": "m", "side": "stable"}, at(12)) == 5.0


def test_matching_series_are_summed(metrics: MetricsCase) -> None:
    """Labels that are not asked for are summed over."""
    metrics.put("requests", {"model": "m", "side": "stable"}, at(0), 3.0)
    metrics.put("requests", {"model": "m", "side": "candidate"}, at(0), 4.0)
    metrics.put("requests", {"model": "other", "side": "stable"}, at(0), 100.0)

    assert metrics.port.instant("requests", {"model": "m"}, at(1)) == 7.0
    assert [s.value for s in metrics.port.range("requests", {"model": "m"}, at(-1), at(1))] == [7.0]


def test_a_histogram_is_read_by_its_edges(metrics: MetricsCase) -> None:
    """Each value of the label asked for, summed over all others; series without the label do not count."""
    for side, edge, value in (("stable", "0.1", 2.0), ("stable", "+Inf", 5.0), ("candidate", "0.1", 1.0)):
        metrics.put("bucket", {"model": "m", "side": side, "le": edge}, at(0), value)
    metrics.put("bucket", {"model": "m", "side": "stable"}, at(0), 100.0)

    assert metrics.port.instant_by("bucket", {"model": "m", "side": "stable"}, "le", at(5)) == {"0.1": 2.0, "+Inf": 5.0}
    assert metrics.port.instant_by("bucket", {"model": "m"}, "le", at(5)) == {"0.1": 3.0, "+Inf": 5.0}
    assert metrics.port.instant_by("bucket", {"model": "m"}, "le", at(-5)) == {}
    assert metrics.port.instant_by("bucket", {"model": "other"}, "le", at(5)) == {}


def test_the_gateways_counters_began_when_its_uptime_says(metrics: MetricsCase) -> None:
    """A restart is seen even if a counter has grown beyond its old value since."""
    metrics.put(UPTIME, {}, at(0), 600.0)
    metrics.put(UPTIME, {}, at(20), 5.0)

    assert metrics.port.counting_since(at(10)) == at(-600)
    assert metrics.port.counting_since(at(21)) == at(15)


def count(metrics: MetricsCase, series: str, values: Iterable[tuple[float, float]], **labels: str) -> None:
    """Put the states of one counter of the model, as pairs of seconds after nine and value."""
    for second, value in values:
        metrics.put(series, {"model": "m", **labels}, at(second), value)


def steady(start: float, end: float, per_s: float, first: float = 0.0) -> list[tuple[float, float]]:
    """Return the states of a counter that is read every half minute."""
    return [(second, first + per_s * (second - start)) for second in range(round(start), round(end) + 1, 30)]


def rates(metrics: MetricsCase, start: float = 0, end: float = 1800, step_s: int = 600) -> dict[float, Any]:
    """Return the rate of each step that was measured, about, by the seconds after nine at which it begins."""
    samples = metrics.port.rate("requests", {"model": "m"}, at(start), at(end), step_s)
    return {(sample.at - NOW).total_seconds(): pytest.approx(sample.value, rel=0.06) for sample in samples}


def test_a_rate_is_the_growth_of_each_whole_step(metrics: MetricsCase) -> None:
    """The last step has not ended, and is left out."""
    count(metrics, "requests", [*steady(-60, 600, 2.0), *steady(630, 1800, 5.0, first=1470)])

    assert rates(metrics, end=1700) == {0: 2.0, 600: 5.0}


def test_the_rates_of_all_matching_series_are_summed(metrics: MetricsCase) -> None:
    """Demand is what both sides are asked for."""
    count(metrics, "requests", steady(-60, 700, 2.0), side="stable")
    count(metrics, "requests", steady(-60, 700, 3.0, first=1e6), side="candidate")
    for second, value in steady(-60, 700, 50.0):
        metrics.put("requests", {"model": "other"}, at(second), value)

    assert rates(metrics, end=600) == {0: 5.0}


def test_a_counter_that_begins_again_is_no_fall(metrics: MetricsCase) -> None:
    """A restart of the gateway must not look like an idle model, nor like a burst."""
    count(metrics, "requests", [*steady(-60, 300, 4.0, first=9e6), *steady(330, 700, 4.0, first=40)])

    assert rates(metrics, end=600) == {0: 4.0}


def test_a_replica_that_goes_takes_nothing_from_the_others(metrics: MetricsCase) -> None:
    """The sum of the counters falls when a replica goes; what was asked for does not."""
    count(metrics, "requests", steady(-60, 1900, 1.0), replica="a")
    count(metrics, "requests", steady(-60, 600, 3.0, first=5e5), replica="b")

    assert rates(metrics) == {0: 4.0, 600: 1.0, 1200: 1.0}


def test_a_replica_that_comes_is_no_burst(metrics: MetricsCase) -> None:
    """What it counted before anybody read it did not happen in this step."""
    count(metrics, "requests", steady(-60, 1900, 1.0), replica="a")
    count(metrics, "requests", steady(600, 1900, 2.0, first=7000), replica="b")

    assert rates(metrics) == {0: 1.0, 600: 3.0, 1200: 3.0}


def test_a_step_that_nobody_measured_is_missing_and_one_without_growth_is_zero(metrics: MetricsCase) -> None:
    """The difference between an outage of the metrics and a quiet night."""
    count(metrics, "requests", [*steady(-60, 600, 2.0), *steady(1800, 3100, 0.0, first=99_000)])

    assert rates(metrics, end=3000) == {0: 2.0, 1800: 0.0, 2400: 0.0}
    assert metrics.port.rate("absent", {"model": "m"}, NOW, at(1800), 600) == []


def test_a_step_that_was_measured_in_its_last_minutes_alone_is_missing(metrics: MetricsCase) -> None:
    """Its growth is that of the minutes: taken for all of the step it would be far too low."""
    count(metrics, "requests", steady(450, 1300, 6.0))

    assert rates(metrics, end=1200) == {600: 6.0}
