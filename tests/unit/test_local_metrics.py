"""The files of series: what is found in them, however long they are."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.metrics import LocalMetrics
from headway.ports import UPTIME

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
LABELS = {"model": "m", "side": "stable"}


def write(layout: LocalLayout, lines: list[tuple[datetime, list[tuple[str, dict[str, str], float]]]]) -> Path:
    """Write lines as the scraper does."""
    layout.metrics.mkdir(parents=True, exist_ok=True)
    path = layout.metrics / f"{lines[0][0]:%Y%m%d%H}.jsonl"
    path.write_text(
        "".join(
            json.dumps({"at": at.isoformat(), "samples": samples}, separators=(",", ":")) + "\n"
            for at, samples in lines
        )
    )
    return path


@pytest.mark.parametrize("width", [1, 100, 1500])
def test_every_moment_of_a_long_file_is_found(layout: LocalLayout, width: int) -> None:
    """The search by halves misses no line, whatever the lines' length."""
    padding = [(f"other_{i}", LABELS, 0.0) for i in range(width)]
    moments = [NOW + timedelta(seconds=2 * i) for i in range(300)]
    write(layout, [(at, [("n", LABELS, float(i)), *padding]) for i, at in enumerate(moments)])
    metrics = LocalMetrics(layout)

    for i in range(0, 300, 23):
        assert metrics.instant("n", LABELS, moments[i]) == i
        assert metrics.instant("n", LABELS, moments[i] + timedelta(seconds=1)) == i
        assert [s.value for s in metrics.range("n", LABELS, moments[i], moments[i])] == [i]
    assert [s.value for s in metrics.range("n", LABELS, NOW, moments[-1])] == list(range(300))
    assert metrics.instant("n", LABELS, NOW - timedelta(seconds=1)) is None


def test_a_line_that_is_being_written_ends_the_file(layout: LocalLayout) -> None:
    """What is whole before it counts."""
    path = write(layout, [(NOW, [("n", LABELS, 1.0)]), (NOW + timedelta(seconds=2), [("n", LABELS, 2.0)])])
    path.write_text(path.read_text()[:-20])

    assert LocalMetrics(layout).instant("n", LABELS, NOW + timedelta(seconds=5)) == 1.0


def test_buckets_of_before_a_restart_do_not_linger(layout: LocalLayout) -> None:
    """An edge that nothing has reached since the restart is gone, not as it was."""
    old = [("b", {**LABELS, "le": "0.1"}, 9.0), ("b", {**LABELS, "le": "+Inf"}, 10.0)]
    write(layout, [(NOW, old), (NOW + timedelta(seconds=6), [("b", {**LABELS, "le": "+Inf"}, 1.0)])])

    assert LocalMetrics(layout).instant_by("b", LABELS, "le", NOW + timedelta(seconds=7)) == {"+Inf": 1.0}


def test_a_gateway_that_is_not_read_any_more_is_not_counting(layout: LocalLayout) -> None:
    """A scraper that died leaves old figures, which say nothing of now."""
    write(layout, [(NOW, [(UPTIME, {}, 50.0)])])
    metrics = LocalMetrics(layout)

    assert metrics.counting_since(NOW + timedelta(seconds=59)) == NOW - timedelta(seconds=50)
    assert metrics.counting_since(NOW + timedelta(seconds=61)) is None
