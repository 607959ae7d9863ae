"""Figures of one side, by vLLM's definitions."""

import pytest

from headway.judge.quantiles import Rate, failure_rate, latencies, newcombe, quantile, wilson
from tests.unit.judge.data import failed, make_canary, make_run


def test_nothing_has_no_quantile() -> None:
    """A side that answered nothing is missing, never fast."""
    assert quantile([], 50) is None
    assert quantile([None], 95) is None


def test_the_95th_percentile_of_15_lies_between_the_two_slowest() -> None:
    values = [float(v) for v in range(1, 16)]

    assert quantile(values, 95) == pytest.approx(0.7 * 14 + 0.3 * 15)


def test_latencies_count_from_the_scheduled_arrival() -> None:
    records, _ = make_run(make_canary(), blocks=1)
    late = [r.model_copy(update={"scheduled_s": r.scheduled_s - 1}) for r in records]

    before, after = latencies(records), latencies(late)
    assert after["ttft_p50"] == pytest.approx((before["ttft_p50"] or 0) + 1000)
    assert after["tpot_p50"] == before["tpot_p50"]


def test_failures_have_no_latency() -> None:
    records, _ = make_run(make_canary(), blocks=1, alter=failed)

    assert set(latencies(records).values()) == {None}
    assert failure_rate(records) == Rate(30, 30)


def test_wilson_agrees_with_a_published_example() -> None:
    """Newcombe 1998 (Statistics in Medicine 17, 857-872), table I: 81 of 263."""
    assert wilson(Rate(81, 263), 1.959964) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_newcombe_agrees_with_a_published_example() -> None:
    """Newcombe 1998 (Statistics in Medicine 17, 873-890), table II, method 10, rows a and h."""
    assert newcombe(Rate(56, 70), Rate(48, 80), z_low=1.959964, z_high=1.959964) == pytest.approx(
        (0.0524, 0.3339), abs=1e-4
    )
    low, high = newcombe(Rate(0, 10), Rate(0, 20), z_low=1.959964, z_high=1.959964)
    assert (low, high) == pytest.approx((-0.1611, 0.2775), abs=1e-4)
