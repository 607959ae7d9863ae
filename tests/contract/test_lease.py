"""What every `Lease` adapter promises: one holder, however many ask."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from headway.errors import Conflict
from headway.ports import Lease

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def test_a_second_holder_is_refused_and_told_who_has_it(lease: Lease) -> None:
    """The error names the holder, so that a person knows where to look."""
    lease.acquire("model", "run-1", 60, NOW)

    with pytest.raises(Conflict, match="run-1"):
        lease.acquire("model", "run-2", 60, NOW)


def test_the_holder_renews_by_taking_it_again(lease: Lease) -> None:
    """A later task of the same release moves the end, and the fencing token grows."""
    first = lease.acquire("model", "run-1", 60, NOW)
    second = lease.acquire("model", "run-1", 60, NOW + timedelta(seconds=50))

    assert second.fencing > first.fencing
    held = lease.holder("model", NOW + timedelta(seconds=100))
    assert held is not None
    assert held.holder == "run-1"


def test_an_expired_lease_is_free_and_the_late_holder_has_a_smaller_token(lease: Lease) -> None:
    """A release that was dead for too long does not come between."""
    first = lease.acquire("model", "run-1", 60, NOW)
    later = NOW + timedelta(seconds=61)

    assert lease.holder("model", later) is None
    assert lease.acquire("model", "run-2", 60, later).fencing > first.fencing


def test_giving_back_frees_it_and_only_for_the_holder(lease: Lease) -> None:
    """Releasing what somebody else holds does nothing."""
    lease.acquire("model", "run-1", 60, NOW)
    lease.release("model", "run-2", NOW)
    held = lease.holder("model", NOW)
    assert held is not None
    assert held.holder == "run-1"

    lease.release("model", "run-1", NOW)
    lease.release("model", "run-1", NOW)
    assert lease.holder("model", NOW) is None


def test_models_do_not_block_each_other(lease: Lease) -> None:
    """The key is the model."""
    lease.acquire("model", "run-1", 60, NOW)

    assert lease.acquire("model-2", "run-2", 60, NOW).holder == "run-2"


def test_of_many_at_once_one_wins(lease: Lease) -> None:
    """The whole point."""

    def attempt(number: int) -> bool:
        try:
            lease.acquire("model", f"run-{number}", 60, NOW)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(8)))

    assert sum(won) == 1
