"""What every `Metrics` adapter promises."""

from datetime import UTC, datetime, timedelta

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
