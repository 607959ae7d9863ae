"""When something is due: once a period, at the model's own moment, however ticks come."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.prescaling import Tick
from headway.prescale import schedule

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
EVERY = timedelta(minutes=10)


@given(
    model=st.text(min_size=1, max_size=20),
    gaps_min=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    hours=st.sampled_from([1, 24]),
)
def test_whatever_the_ticks_it_is_done_once_a_period_and_never_missed(
    model: str, gaps_min: list[int], hours: int
) -> None:
    """Late ticks make up for it; early ones do not do it twice."""
    period, now, last = timedelta(hours=hours), NOW, NOW
    done = [NOW]
    for gap in gaps_min:
        now += timedelta(minutes=gap)
        if schedule.due(model, last, now, period):
            last = now
            done.append(now)
        assert now - last < period, "a moment of the model came and nothing was done"

    moments = (now - NOW) / period
    assert len(done) - 1 <= moments + 1


def test_a_thousand_models_do_not_all_come_at_once() -> None:
    """A day has 144 ticks: of a thousand models about seven are due at each."""
    models = [f"model-{number}" for number in range(1000)]

    counts = [
        sum(schedule.due(model, at, at + EVERY, schedule.DAILY) for model in models)
        for at in (NOW + tick * EVERY for tick in range(144))
    ]

    assert sum(counts) == 1000
    assert max(counts) <= 20


def test_what_was_never_done_is_due() -> None:
    """A new model does not wait for its moment."""
    assert schedule.due("tiny", None, NOW, schedule.DAILY)


def test_two_missed_ticks_are_told_with_what_to_do() -> None:
    """One late tick is no alarm."""
    last = Tick.off("tiny", NOW, 7, "")

    assert schedule.overdue(last, NOW + 2 * EVERY) is None
    late = schedule.overdue(last, NOW + 2 * EVERY + timedelta(seconds=1)) or ""
    assert "20 min 01 s" in late
    assert "floor stays at 7" in late
    assert "the next tick sets the floor right" in late
