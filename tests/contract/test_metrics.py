"""What every `Metrics` adapter promises."""

from datetime import UTC, datetime, timedelta

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
