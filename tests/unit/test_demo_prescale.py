"""The demonstration of the pre-scaling, without a stack: its clock, its traffic, and what it takes for shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headway.adapters.local.layout import LocalLayout
from headway.cli import made_traffic, morning
from headway.cli.demo import DemoFailed
from headway.cli.demo_prescale import PrescaleDemo
from headway.cli.follow import utcnow
from headway.cli.morning import SPEED, Replayed, Script, Seen, judged, over, script
from headway.cli.morning_page import page
from headway.cli.warp import FastPorts, Memory, Warp, WarpedClusters, WarpedMetrics
from headway.domain.bench import RequestRecord
from headway.domain.cluster import ClusterStatus, ScaleUp
from headway.domain.prescaling import EVERY_S, Tick, history_key
from headway.domain.profile import Replicas
from headway.domain.series import DAY_S
from headway.domain.traffic import Backend, Route
from headway.errors import Conflict
from headway.ports import REQUESTS
from headway.prescale.history import STEP_S, History, to_parquet
from headway.prescale.tick import tick
from tests.conftest import CHECKOUT
from tests.factories import make_plan, make_profile
from tests.fakes import FakeClusters, FakeLease, FakeLedger, FakeMetrics, FakeTraffic
from tests.unit.pages import read

REAL = datetime(2026, 11, 30, 20, tzinfo=UTC)
VIRTUAL = datetime(2026, 3, 12, 8, tzinfo=UTC)
WARP = Warp(REAL, VIRTUAL, 60)
OWN = {"model": "tiny"}
TICK_AFTER_S = 180


@given(st.integers(0, 10**9))
def test_the_two_clocks_agree_with_each_other(seconds: int) -> None:
    """Whatever is asked by one clock is told by the same one."""
    virtual = VIRTUAL + timedelta(seconds=seconds)

    assert abs(WARP.virtual(WARP.real(virtual)) - virtual) < timedelta(seconds=1)


@given(st.integers(1, 20), st.integers(1, 9))
def test_a_rate_is_what_was_measured_however_fast_the_clock_runs(bins: int, per_s: int) -> None:
    """A replica computes no faster for it, so a rate must not be multiplied."""
    metrics = FakeMetrics()
    for second in range(bins * STEP_S // WARP.speed + 1):
        metrics.put(REQUESTS, OWN, REAL + timedelta(seconds=second), per_s * second)

    end = VIRTUAL + timedelta(seconds=bins * STEP_S)
    found = WarpedMetrics(metrics, WARP).rate(REQUESTS, OWN, VIRTUAL - timedelta(days=1), end, STEP_S)

    assert [sample.at for sample in found] == [VIRTUAL + timedelta(seconds=STEP_S * one) for one in range(bins)]
    # A counter's first sample tells no growth yet.
    assert [sample.value for sample in found[1:]] == pytest.approx([per_s] * (bins - 1))


def test_what_was_before_the_replay_is_not_there() -> None:
    """The requests that measured a replica are no traffic of the morning."""
    metrics = FakeMetrics()
    for second in range(-30, 11):
        metrics.put(REQUESTS, OWN, REAL + timedelta(seconds=second), 5.0 * second)
    warped = WarpedMetrics(metrics, WARP)

    assert warped.rate(REQUESTS, OWN, VIRTUAL - timedelta(hours=1), VIRTUAL, STEP_S) == []
    assert warped.range(REQUESTS, OWN, VIRTUAL - timedelta(hours=1), VIRTUAL - timedelta(minutes=1)) == []
    assert warped.range(REQUESTS, OWN, VIRTUAL - timedelta(hours=1), VIRTUAL)[0].at == VIRTUAL


def test_a_window_too_short_to_be_measured_is_read_over_a_longer_time() -> None:
    """Two minutes of the fast clock are two seconds, in which a counter may not be read even twice."""
    metrics = FakeMetrics()
    for second in range(0, 61, 4):
        metrics.put(REQUESTS, OWN, REAL + timedelta(seconds=second), 3.0 * second)

    end = VIRTUAL + timedelta(seconds=60 * WARP.speed)
    (found,) = WarpedMetrics(metrics, WARP).rate(REQUESTS, OWN, end - timedelta(seconds=120), end, 120)

    assert found.at == end - timedelta(seconds=120)
    assert found.value == pytest.approx(3.0)


def test_scale_ups_are_told_by_the_fast_clock_and_those_before_it_are_not_told() -> None:
    """A start of vLLM in a minute is a lead time of an hour for the plan."""
    clusters = FakeClusters()
    clusters.apply(make_plan().cluster.model_copy(update={"name": "c"}))
    before = ScaleUp(REAL - timedelta(seconds=90), REAL + timedelta(seconds=1), 2)
    clusters.scaled["c"] = [before, ScaleUp(REAL + timedelta(seconds=10), REAL + timedelta(seconds=70), 2)]

    (found,) = WarpedClusters(clusters, WARP).scale_ups("c", VIRTUAL - timedelta(days=1))

    assert found.ready_at - found.asked_at == timedelta(hours=1)


@given(st.floats(1, 30), st.integers(0, 99))
def test_the_requests_of_a_morning_are_as_many_as_its_load_says(requests_per_s: float, seed: int) -> None:
    """The load that is planned for is the load that is sent."""
    end = VIRTUAL + timedelta(hours=4)
    seconds = np.arange(0.0, 4 * 3600, 60)
    expected = made_traffic.busy(VIRTUAL, seconds, 1.0).mean() * requests_per_s * 4 * 3600 / SPEED

    found = made_traffic.arrivals_s(VIRTUAL, end, peak_h=1.0, requests_per_s=requests_per_s, speed=SPEED, seed=seed)

    assert all(before < after for before, after in pairwise(found))
    assert found[0] > 0
    assert found[-1] < 4 * 3600 / SPEED
    assert abs(len(found) - expected) < 5 * expected**0.5 + 0.02 * expected


@given(st.floats(1, 30), st.integers(0, 99))
def test_the_made_fortnight_has_the_peak_of_the_day_that_follows(requests_per_s: float, seed: int) -> None:
    """What was at the hour of the peak on working days is more than one replica sustains, and at night far less."""
    rates = made_traffic.history(
        VIRTUAL, days=14, step_s=STEP_S, peak_h=2.0, requests_per_s=requests_per_s, counted_s=1000.0, seed=seed
    )
    start = VIRTUAL - timedelta(days=14)
    at = [start + timedelta(seconds=STEP_S * (one + 0.5)) for one in range(len(rates))]
    busy = rates / requests_per_s
    working = np.array([one.weekday() < 5 for one in at])
    peak = np.array([11 <= one.hour < 12 for one in at])
    night = np.array([one.hour < 6 for one in at])

    assert len(rates) == 14 * DAY_S // STEP_S
    assert busy[working & peak].mean() > 1.0
    assert busy[night].mean() < 0.5


class NoFaults:
    """Checks that find nothing."""

    def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return no fault."""
        return []


@dataclass
class World:
    """A replica that takes its time, and users that ask as the script says."""

    story: Script
    took_s: float
    """Real seconds of a start."""
    seed: int = 1
    clusters: FakeClusters = field(default_factory=FakeClusters)

    def replayed(self) -> Replayed:
        """Replay the morning without waiting for it."""
        story, warp = self.story, Warp(REAL, self.story.start, SPEED)
        peak_h, per_s, model = story.peak_h, story.requests_per_s, story.profile.model
        arrivals = np.array(
            made_traffic.arrivals_s(
                story.start, story.end, peak_h=peak_h, requests_per_s=per_s, speed=SPEED, seed=self.seed
            )
        )
        metrics = FakeMetrics()
        for second in range(0, round((story.end - story.start).total_seconds() / SPEED) + 4, 2):
            count = float(np.searchsorted(arrivals, second))
            metrics.put(REQUESTS, {"model": model, "side": "stable"}, REAL + timedelta(seconds=second), count)
        rates = made_traffic.history(
            story.start,
            days=14,
            step_s=STEP_S,
            peak_h=peak_h,
            requests_per_s=per_s,
            counted_s=STEP_S / SPEED,
            seed=self.seed,
        )
        objects = Memory()
        past = History(story.start - timedelta(days=14), STEP_S, {"requests_per_s": rates})
        objects.write(history_key(model), to_parquet(past))
        self.clusters.apply(make_plan().cluster.model_copy(update={"name": "c", "model": model}))
        backend = Backend(cluster="c", release="r", version=1, cluster_digest="d")
        ports = FastPorts(
            metrics=WarpedMetrics(metrics, warp),
            clusters=WarpedClusters(self.clusters, warp),
            objects=objects,
            traffic=FakeTraffic(kept={model: Route(model=model, stable=backend)}),
            ledger=FakeLedger(),
            checks=NoFaults(),
        )
        ticks: list[Tick] = []
        seen: list[Seen] = []
        now = story.start + timedelta(seconds=EVERY_S + TICK_AFTER_S)
        asked_at = None
        while not seen or not over(story, ticks, seen[-1]):
            target = self.clusters.specs["c"].replicas.min
            asked_at = None if target == 1 else asked_at or now
            up = asked_at is not None and (now - asked_at).total_seconds() >= self.took_s * SPEED
            ready = target if target == 1 or up else 1
            self.clusters.phases["c"] = ClusterStatus(
                name="c", phase="ready", replicas_ready=ready, replicas_target=target
            )
            seen.append(Seen(now, ready, target))
            ticks.append(tick(story.profile, ports, now=now))
            now += timedelta(seconds=EVERY_S)
        rated = ports.metrics.rate(REQUESTS, {"model": model}, story.start, now, STEP_S)
        load = [(one.at, one.value / per_s) for one in rated]
        return Replayed(ticks, seen, load, answered=[record(10.0), record(200.0)], failures=[])


def record(scheduled_s: float) -> RequestRecord:
    """A request that ended after half a second."""
    return RequestRecord(
        block=0,
        side="stable",
        index=0,
        prompt_sha256="",
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        ended_s=scheduled_s + 0.5,
    )


@pytest.fixture(scope="module")
def told() -> tuple[Script, Replayed]:
    """A morning in which all went well."""
    story = script(make_profile(), requests_per_s=5.0, lead_s=75.0)
    return story, World(story, took_s=60.0).replayed()


def test_the_floor_rises_a_lead_time_before_the_peak_and_falls_after_it(told: tuple[Script, Replayed]) -> None:
    """What the demonstration shows is what the plan does, not a matter of luck with one machine's times."""
    story, replayed = told

    outcome = judged(story, replayed)

    floors = [made.floor for made in replayed.ticks]
    waited = [made.floor for made in replayed.ticks if outcome.asked_at <= made.made_at <= story.needed_at]
    assert floors[0] == floors[-1] == 1
    assert (story.needed_at - outcome.asked_at).total_seconds() >= 75.0 * SPEED - EVERY_S
    assert outcome.up_at < story.needed_at
    assert set(waited) == {2}, "what was asked for must not be given back before the peak"


def test_a_replica_that_comes_too_late_is_a_failure(told: tuple[Script, Replayed]) -> None:
    """The demonstration must not pass because it ran."""
    story, replayed = told
    late = [replace(seen, ready=1) if seen.at < story.needed_at else seen for seen in replayed.seen]

    with pytest.raises(DemoFailed, match="should serve before"):
        judged(story, replace(replayed, seen=late))


def test_a_failed_request_is_a_failure(told: tuple[Script, Replayed]) -> None:
    """Nobody may notice that a replica comes and goes."""
    story, replayed = told

    with pytest.raises(DemoFailed, match="1 of 3 requests failed; the first: HTTP 500"):
        judged(story, replace(replayed, failures=["HTTP 500"]))


def test_a_floor_that_stays_up_is_a_failure(told: tuple[Script, Replayed]) -> None:
    """What rises before a peak has to come down after it."""
    story, replayed = told

    with pytest.raises(DemoFailed, match="still 2"):
        judged(story, replace(replayed, ticks=[made for made in replayed.ticks if made.floor > 1]))


def test_a_machine_on_which_a_morning_is_too_short_is_told_so() -> None:
    """A replica that takes an hour cannot be shown in five minutes."""
    with pytest.raises(DemoFailed, match="end what else keeps the cores busy"):
        script(make_profile(), requests_per_s=5.0, lead_s=morning.MOST_LEAD_S + 1)


def test_the_page_needs_nothing_beside_it_and_says_in_words_what_it_shows(told: tuple[Script, Replayed]) -> None:
    """It opens anywhere, and for those who do not see the picture, too."""
    story, replayed = told
    outcome = judged(story, replayed)

    found = read(page(story, replayed, outcome))

    assert len(found.pictures) == 1
    assert f"{outcome.up_at:%H:%M}" in found.text
    assert all(f"{outcome.asked_at:%H:%M}" in words for words in found.told.values())


def demo_on(clusters: FakeClusters, layout: LocalLayout, **ports: Any) -> PrescaleDemo:
    """Return the demonstration on fakes."""
    backend = SimpleNamespace(clusters=clusters, lease=FakeLease(), traffic=FakeTraffic(), ledger=FakeLedger(), **ports)
    return PrescaleDemo(layout, cast("Any", backend), Console(file=StringIO()))


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    """A stack of which nothing runs."""
    return LocalLayout.make(home=tmp_path / "hw", cache=tmp_path, base_port=20000, checkout=CHECKOUT)


def test_the_cluster_is_as_before_whatever_happens(layout: LocalLayout) -> None:
    """A demonstration that breaks off leaves no replica behind."""
    clusters = FakeClusters()
    before = make_plan().cluster.model_copy(update={"name": "c", "replicas": Replicas(min=1, max=1)})
    clusters.apply(before)
    story = script(make_profile(), requests_per_s=5.0, lead_s=75.0)

    def broken_off() -> None:
        with demo_on(clusters, layout).wider(before, story):
            assert clusters.specs["c"].replicas.max == 2
            clusters.floor("c", Replicas(min=2, max=2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()

    assert clusters.specs["c"].replicas == before.replicas


def test_a_release_that_is_under_way_is_not_disturbed(layout: LocalLayout) -> None:
    """Its canary compares two clusters, and a replayed peak would be on one of them."""
    demo = demo_on(FakeClusters(), layout)
    demo._backend.lease.acquire("smollm2-135m", "release/r1", 900, utcnow())

    with pytest.raises(Conflict, match="release/r1"):
        demo.stable()
