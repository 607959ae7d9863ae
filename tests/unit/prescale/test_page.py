"""The pages need nothing beside them, show what was found, and stand whatever a tick says."""

from datetime import timedelta

import numpy as np
import pytest

from headway.domain.prescaling import Fan, Rung, Standing, Tick, history_key
from headway.prescale.history import History, from_parquet
from headway.prescale.page import busy, render, render_backtest
from headway.prescale.replay import HEADWAY, POLICIES
from tests.unit.pages import read
from tests.unit.prescale.backtested import LEADS_MIN, two_days
from tests.unit.prescale.data import DAY, START, STEP_S, daily, flat
from tests.unit.prescale.world import NOON, World

DAYS = 4
NOW = START + timedelta(days=DAYS, seconds=20)


def history(*, ticked: bool = True) -> History:
    rates = daily(DAYS, level=5.0)
    columns = {"requests_per_s": rates}
    if ticked:
        needed = np.ceil(rates / 4)
        columns |= {"busy": rates / 4, "asked": needed, "reactive": needed + 1, "cron": needed + 2}
    return History(START, STEP_S, columns)


def tick(**changes: object) -> Tick:
    said = flat(np.full(288, 2.0), start=NOW)
    standings = [
        Standing(day="2026-03-04", policy=policy, cost=cost, bad_min=bad)
        for policy, cost, bad in (("headway", 1.1, 4.0), ("reactive", 1.2, 12.0), ("cron", None, 0.0))
    ]
    whole = {
        "model": "tiny",
        "at": NOW.isoformat(),
        "mode": "forecast",
        "floor": 3,
        "by": "growth",
        "wanted": 3,
        "growth": 1.4,
        "running": 2,
        "pending": 1,
        "load": 1.9,
        "load_at": NOW.isoformat(),
        "lead_s": 420.0,
        "requests_per_s": 4.0,
        "reasons": ("A load of 1.90 busy replicas grows by x1.40.",),
        "problems": (),
        "notes": ("An outage of 2 h is missing, not zero.",),
        "ladder": (Rung(name="pause pods", count=4, lead_s=1800, reason="Within 30 min, at 95 %: ready for 4."),),
        "fan": Fan(
            start_at=NOW.isoformat(),
            step_s=STEP_S,
            levels=said.levels,
            values=tuple(tuple(row) for row in said.values.tolist()),
        ),
        "lead_times_s": (400.0, 420.0),
        "headroom": "3 replicas are 63% busy.",
        "standings": tuple(standings),
    }
    return Tick.model_validate(whole | changes)


def test_the_page_shows_plan_ladder_and_what_others_cost() -> None:
    page = read(render(tick(), history()))

    assert len(page.pictures) == 2
    assert "the floor is 3" in page.told["Load, forecast and floor"]
    for shown in (
        "3 replicas must be up",
        "A load of 1.90 busy replicas grows by x1.40.",
        "2 serve, 1 are starting",
        "last: 6 min 40 s, 7 min",
        "ready for 4",
        "x1.10, 4 min short",
        "x1.20, 12 min short",
        "too little seen",
        "An outage of 2 h",
    ):
        assert shown in page.text


def test_what_is_wrong_stands_above_the_plan() -> None:
    """A reader sees late ticks, a demotion and broken input before any figure."""
    told = tick(
        mode="reactive",
        demoted="The forecast lost.",
        notes=("The forecast lost.",),
        problems=("No load was measured.",),
    )
    page = read(render(told, history(), late="tiny has had no tick for 40 min"))

    head, _, _ = page.text.partition("What is expected")
    for shown in ("no tick for 40 min", "The forecast lost.", "No load was measured."):
        assert shown in head
        assert page.text.count(shown) == 1


@pytest.mark.parametrize("mode", ["forecast", "reactive", "shadow", "paused"])
def test_a_plan_without_anything_known_is_a_page_too(mode: str) -> None:
    """The first tick of a model: no history, no forecast, no load, nobody knows what a replica sustains."""
    bare = tick(mode=mode, load=None, requests_per_s=None, fan=None, ladder=(), standings=(), headroom="", notes=())

    for kept in (None, History(START, STEP_S, {}), history(ticked=False)):
        assert "not measured" in read(render(bare, kept)).text


def test_a_model_that_is_not_planned_says_why() -> None:
    page = read(render(Tick.off("tiny", NOW, 1, "The profile does not ask for it."), None))

    assert "The profile does not ask for it." in page.text
    assert page.pictures == []


def test_what_a_tick_keeps_can_be_shown() -> None:
    """The page reads what the DAG writes: its plan, its forecast, and the standings of whole days."""
    world = World()
    world.remember(
        NOON, days=3, busy=np.full(3 * DAY, 2.0), asked=np.full(3 * DAY, 3.0), reactive=np.full(3 * DAY, 3.0)
    )
    made = world.tick()

    kept = from_parquet(world.objects.kept[history_key("tiny")])
    page = read(render(made, kept))

    assert len(page.pictures) == 2
    assert len({one.day for one in made.standings}) == 3, (
        "two whole days, and the one that began at noon as far as known"
    )
    assert "x1.50, 0 min short" in page.text


def test_no_text_of_a_tick_is_markup() -> None:
    evil = "<script>alert(1)</script>$x$"
    page = render(
        tick(model=evil, reasons=(evil,), problems=(evil,), notes=(evil,), demoted=evil, headroom=evil, by=evil),
        history(),
        late=evil,
    )

    assert b"<script" not in page
    read(page)


def test_the_load_is_what_ticks_saw_and_before_them_the_rate() -> None:
    """A model whose ticks have just begun shows its past as well."""
    seen, young = history(), history(ticked=False)

    assert busy(tick(), seen).values[-1] == seen.columns["busy"][-1]
    assert busy(tick(), young).values[-1] == young.columns["requests_per_s"][-1] / 4.0


def test_the_page_of_a_backtest_has_every_policy_and_picture() -> None:
    page = read(render_backtest(two_days()))

    assert len(page.pictures) == 1 + len(LEADS_MIN)
    assert "Read <as> it was." in page.text
    for policy in POLICIES:
        assert page.text.count(policy) >= len(LEADS_MIN)
    assert f"{HEADWAY}, planned every minute: at a lead time of 2 min" in page.text
