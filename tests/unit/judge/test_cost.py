"""The cost of a token follows from price, devices, requests in flight and time per token."""

import pytest

from headway.domain.bench import RequestRecord, Side
from headway.domain.release import MetricEffect
from headway.judge.cost import occupied_cost, token_cost
from headway.judge.metrics import summary
from tests.factories import make_profile

SIDES: tuple[tuple[Side, float], ...] = (("stable", 4.0), ("candidate", 2.0))
EFFECTS = [
    MetricEffect(metric="ttft_p50", stable=100, candidate=90, unit="ms"),
    MetricEffect(metric="tpot_p50", stable=40, candidate=20, unit="ms"),
]


def test_two_devices_at_a_price_an_hour() -> None:
    """3.60 an hour is 0.001 a second; 2 devices, 10 in flight at 20 ms make 500 tokens a second: 4 a million."""
    profile = make_profile(gpu_hour_price=3.60, replicas={"target_ongoing": 10})
    wide = profile.model_copy(update={"hardware": profile.hardware.model_copy(update={"per_replica": 2})})

    cost = token_cost(wide, EFFECTS)

    assert cost is not None
    assert cost.candidate == pytest.approx(4.0)
    assert cost.stable == pytest.approx(8.0)


def test_without_a_price_or_a_time_there_is_no_cost() -> None:
    """Nothing is made up."""
    assert token_cost(make_profile(), EFFECTS) is None
    assert token_cost(make_profile(gpu_hour_price=1.0), EFFECTS[:1]) is None


def test_a_first_release_has_the_candidates_cost_only() -> None:
    """There is no stable side."""
    alone = [MetricEffect(metric="tpot_p50", stable=None, candidate=20, unit="ms")]
    cost = token_cost(make_profile(gpu_hour_price=1.0), alone)
    assert cost is not None
    assert cost.stable is None
    assert cost.candidate is not None


def test_a_token_costs_the_time_that_its_request_occupies_a_place() -> None:
    """Requests of 2 s with 100 tokens each: 20 ms a token, so 500 tokens a second from 10 places (Little's law)."""
    records = [
        RequestRecord(
            block=0,
            side=side,
            index=n,
            prompt_sha256="p",
            scheduled_s=n,
            sent_s=n,
            first_token_s=n + 1.0,
            ended_s=n + seconds,
            output_tokens=100,
        )
        for side, seconds in SIDES
        for n in range(5)
    ]
    profile = make_profile(gpu_hour_price=3.60, replicas={"target_ongoing": 10})

    cost = occupied_cost(profile, summary(records))

    assert cost is not None
    assert cost.candidate == pytest.approx(2.0)
    assert cost.stable == pytest.approx(4.0)


def test_without_a_price_or_tokens_nothing_is_occupied_at_a_cost() -> None:
    """A side that answers nothing is not free of charge: its cost is missing."""
    failed = [
        RequestRecord(block=0, side="candidate", index=0, prompt_sha256="p", scheduled_s=0, sent_s=0, error="no answer")
    ]

    assert occupied_cost(make_profile(), summary(failed)) is None
    assert occupied_cost(make_profile(gpu_hour_price=1.0), summary(failed)) is None
