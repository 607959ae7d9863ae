"""The users of the demonstration ask a real server over HTTP, and count honestly."""

from time import monotonic, sleep

import pytest

from headway.cli.users import Users
from headway.pods.mock_vllm import MockVllm

pytestmark = pytest.mark.component
MODEL = "tiny"
TOKENS = 4
ENDS_WITHIN_S = 30.0


def users_of(server: MockVllm) -> Users:
    """Return users of the server."""
    return Users(server.url, MODEL, release=server.behaviour.release, max_tokens=TOKENS)


def wait_for(users: Users, count: int) -> None:
    """Wait until so many requests have ended."""
    end = monotonic() + ENDS_WITHIN_S
    while len(users.records) < count:
        assert monotonic() < end, f"{len(users.records)} of {count} requests ended"
        sleep(0.02)


def test_requests_leave_when_they_are_due_however_slow_the_answers_are() -> None:
    """A server that is slow must not slow its users down, or its queue would never show."""
    arrivals_s = [0.05 * number for number in range(20)]

    with MockVllm(model=MODEL, ttft_ms=1500) as server, users_of(server) as users:
        users.follow(arrivals_s)
        wait_for(users, len(arrivals_s))

    assert users.failures == []
    assert sorted(record.scheduled_s for record in users.records) == arrivals_s
    # The last one left before the first was answered.
    assert max(record.sent_s for record in users.records) < min(record.ended_s or 0 for record in users.records)
    assert {record.output_tokens for record in users.records} == {TOKENS}


def test_so_many_are_under_way_at_all_times() -> None:
    """What a replica sustains is measured while it is full, and no fuller."""
    with MockVllm(model=MODEL, ttft_ms=20) as server, users_of(server) as users:
        users.saturate(4)
        wait_for(users, 40)

    assert users.failures == []
    moments = [(record.sent_s, 1) for record in users.records] + [(record.ended_s or 0, -1) for record in users.records]
    under_way, most = 0, 0
    for _, change in sorted(moments):
        under_way += change
        most = max(most, under_way)
    assert most == 4


def test_the_end_waits_for_the_answers_and_sends_nothing_more() -> None:
    """A replica that goes away must show: every request that was sent has an end."""
    with MockVllm(model=MODEL, ttft_ms=300) as server:
        with users_of(server) as users:
            users.follow([0.0, 0.0, 600.0])
            wait_for(users, 1)
        asked = server.seen["/v1/completions"]

    assert users.failures == []
    assert asked == len(users.records) == 2


def test_a_server_that_fails_is_told() -> None:
    """No failure is lost between the threads."""
    with MockVllm(model=MODEL, mode="http_500") as server, users_of(server) as users:
        users.follow([0.0])
        wait_for(users, 1)

    assert ["HTTP 500" in failure for failure in users.failures] == [True]
