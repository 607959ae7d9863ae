"""What counts as a scale-up, and how long it took."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.local import scale_watch
from headway.adapters.local.scale_watch import Came, ScaleWatch

LOOKS = st.lists(st.floats(0.01, 10), min_size=2, max_size=40).map(
    lambda gaps: [sum(gaps[: i + 1]) for i in range(len(gaps))]
)


@given(LOOKS, st.floats(0, 100), st.floats(0, 200))
def test_a_scale_up_never_seems_shorter_than_it_was(looks_s: list[float], asked_s: float, took_s: float) -> None:
    """A lead time that is too short leaves users without a replica; too long by the looks around it costs little."""
    watch, ready_s = ScaleWatch(), asked_s + took_s
    came = [
        (now_s, one)
        for now_s in looks_s
        for one in watch.look(now_s, target=2 if now_s >= asked_s else 1, running=2 if now_s >= ready_s else 1)
    ]

    seen = looks_s[0] < asked_s and ready_s <= looks_s[-1]
    assert len(came) == seen
    longest_gap_s = max(b - a for a, b in pairwise(looks_s))
    for now_s, one in came:
        assert one.replicas == 2
        assert now_s - one.took_s < asked_s
        assert 0 < one.took_s <= took_s + 2 * longest_gap_s + 1e-9


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_what_serve_did_not_ask_for_is_no_scale_up(seen: list[tuple[int, int]]) -> None:
    """Each rise of the target ends at most once, with as many replicas as it asked for; a dead one's return is none."""
    watch, rises = ScaleWatch(), [0]
    for number, (target, running) in enumerate(seen):
        rises.append(rises[-1] + (number > 0 and target > seen[number - 1][0]))
        came = watch.look(float(number), target=target, running=running)
        assert all(one.replicas == running for one in came)
        rises[-1] -= len(came)
        assert rises[-1] >= 0
        assert not (watch.waiting and running >= target)
    assert not ScaleWatch().waiting


def test_a_target_that_falls_before_it_is_reached_was_not_waited_for() -> None:
    """Otherwise the next peak's replicas would seem to have taken since the last one."""
    watch = ScaleWatch()
    watch.look(0, target=1, running=1)
    watch.look(1, target=3, running=1)
    watch.look(2, target=2, running=1)
    watch.look(600, target=3, running=2)

    assert watch.look(700, target=3, running=3) == [Came(took_s=698, replicas=3)]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    """The file does not grow without end."""
    assert scale_watch.kept(tmp_path) == []
    for number in range(scale_watch.KEPT + 5):
        scale_watch.keep(tmp_path, [Came(took_s=30.0, replicas=number)], now=1000.0 + number)

    kept = scale_watch.kept(tmp_path)

    assert [one["replicas"] for one in kept] == list(range(5, scale_watch.KEPT + 5))
    assert kept[0] == {"asked_at": 975.0, "ready_at": 1005.0, "replicas": 5.0}


@pytest.mark.parametrize("content", ["", "{", "3", '{"asked_at": 1}', '[{"asked_at": "x"}]', "[7]"])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, content: str) -> None:
    """Lead times can be learned again; a cluster that cannot write them serves all the same."""
    (tmp_path / scale_watch.FILE).write_text(content)
    assert scale_watch.kept(tmp_path) == []

    scale_watch.keep(tmp_path, [Came(took_s=30.0, replicas=2)], now=1000.0)

    assert [one["ready_at"] for one in scale_watch.kept(tmp_path)] == [1000.0]
