"""What looks that are minutes apart make of replicas that come and go."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import scaling
from headway.adapters.kubernetes.scaling import Seen

LIFE = "tiny-abc/head-1"


def look(seen: Seen, now_s: float, target: int, serving: int, *started_s: float, life: str = LIFE) -> Seen:
    """One look at a cluster."""
    return scaling.looked(seen, life, now_s, target=target, serving=serving, started_s=started_s)


def test_a_raised_floor_counts_from_when_it_was_raised() -> None:
    """And to the first look that sees it served, however late: never shorter than it was."""
    seen = look(Seen(), 100, 1, 1, 90)
    seen = scaling.asked(seen, 3, 200)
    seen = look(seen, 205, 1, 1, 90)
    seen = look(seen, 260, 3, 2, 90, 206, 206)
    assert not seen.came

    seen = look(seen, 320, 3, 3, 90, 206, 206)

    (up,) = seen.came
    assert (up.asked_at.timestamp(), up.ready_at.timestamp(), up.replicas) == (200, 320, 3)
    assert not seen.due


def test_what_serve_asks_for_by_itself_counts_from_the_start_of_the_new_replicas() -> None:
    """Load raised the number between two looks; when it did is known from the replicas."""
    seen = look(Seen(), 100, 1, 1, 90)

    seen = look(seen, 700, 3, 3, 90, 400, 410)

    (up,) = seen.came
    assert (up.asked_at.timestamp(), up.ready_at.timestamp(), up.replicas) == (400, 700, 3)


def test_the_first_start_and_a_new_life_are_no_scale_up() -> None:
    """A cluster that starts again starts all its replicas, which says nothing about one more; the past stays."""
    seen = look(Seen(), 100, 2, 0, 90, 90)
    seen = look(seen, 200, 2, 2, 90, 90)
    assert not seen.came
    came = look(scaling.asked(seen, 3, 300), 400, 3, 3)

    again = look(look(came, 500, 3, 0, life="tiny-abc/head-2"), 600, 3, 3, life="tiny-abc/head-2")

    assert again.came == came.came
    assert len(again.came) == 1


def test_a_floor_that_falls_again_before_it_was_reached_is_forgotten() -> None:
    """Nobody waited for it; but not in the moment in which Serve has not been told of it yet."""
    seen = scaling.asked(look(Seen(), 100, 1, 1), 4, 200)
    assert look(seen, 210, 1, 1).due

    seen = look(look(seen, 240, 1, 1), 300, 4, 4)

    assert [up.asked_at.timestamp() for up in seen.came] == [300], "the later rise is one of its own"


def test_a_floor_below_what_is_wanted_asks_for_nothing() -> None:
    """Lowering is no scale-up."""
    seen = look(Seen(), 100, 3, 3)

    assert scaling.asked(seen, 2, 200) == seen


def test_a_damaged_annotation_is_none() -> None:
    """They are measurements: without them lead times are learned anew."""
    for text in (
        None,
        "",
        "{",
        "[]",
        "3",
        '{"came": 3}',
        '{"due": [[1]]}',
        '{"target": "x"}',
        '{"came": [[1, 2]]}',
    ):
        assert scaling.parse(text) == Seen(), text


LOOKS = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=12)


@given(looks=LOOKS)
def test_the_annotation_says_all_and_a_scale_up_ends_after_it_began(looks: list[tuple[int, int, int, bool]]) -> None:
    """Whoever looks next goes on from it; nothing is due that is served."""
    seen, now = Seen(), 0.0
    for gap, target, serving, raised in looks:
        now += gap
        seen = scaling.asked(seen, target, now) if raised else look(seen, now, target, min(serving, target))
        assert scaling.parse(scaling.text(seen)) == seen
        assert all(up.asked_at <= up.ready_at <= datetime.fromtimestamp(now, UTC) for up in seen.came)
        if not raised:
            assert all(count > min(serving, target) for _, count in seen.due)
