"""A backtest forecasts and serves as if it were live: nothing knows what comes, and everybody is asked alike."""

from datetime import UTC, datetime, timedelta
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from headway.domain.series import Floats, Series
from headway.errors import ConfigError
from headway.prescale.backtest import (
    OURS,
    Backtest,
    Score,
    Served,
    Window,
    forecasts,
    frontier,
    live,
    run,
    scores,
    window,
)
from headway.prescale.backtest.baselines import (
    BASELINES,
    as_before,
    filled,
    high_quantile,
    hour_of_week,
    kalman,
    last_value,
    profile_level,
)
from headway.prescale.replay import HEADWAY, POLICIES
from tests.unit.prescale.backtested import LEADS_MIN, two_days
from tests.unit.prescale.data import DAY, daily, series

PAIRS = st.tuples(st.floats(0.9, 3), st.floats(0, 400))


def test_every_method_is_scored_and_every_policy_served() -> None:
    """At each distance, at each lead time: nobody is left out where it would look bad."""
    found = two_days()

    assert [(one.method, one.ahead_h) for one in found.scores] == [
        (method, hours) for method in (*BASELINES, OURS) for hours in (1, 24)
    ]
    assert [(one.lead_min, one.policy) for one in found.served] == [
        (lead, policy) for lead in LEADS_MIN for policy in POLICIES
    ]
    for one in found.served:
        if one.policy == "oracle":
            assert (one.cost, one.bad_min_a_day) == (1.0, 0.0)


def test_what_was_found_is_kept_whole() -> None:
    """The JSON is all of it, and every number of it is one."""
    found = two_days()

    assert Backtest.model_validate_json(found.model_dump_json()) == found
    assert "NaN" not in found.model_dump_json()
    assert len(found.trace.measured) == len(found.trace.median) == len(found.trace.high) == DAY - 5
    assert found.notes[0] == "Read <as> it was."


def test_a_forecast_knows_nothing_of_what_comes() -> None:
    """With another future the same is said."""
    values = daily(1.2)
    other = values.copy()
    other[DAY:] *= 7

    said = [next(live.forecasts(series(one), [DAY], steps=6)) for one in (values, other)]

    assert np.array_equal(said[0].values, said[1].values)


def test_a_change_of_the_clock_is_followed() -> None:
    """Berlin, 2026-03-29: what people do at eight they do at eight. The day after, the zone makes the error less."""
    start = datetime(2026, 3, 20, 23, tzinfo=UTC)  # midnight in Berlin
    change = datetime(2026, 3, 29, 1, tzinfo=UTC)
    at = [start + timedelta(minutes=10 * index) for index in range(10 * DAY)]
    local_h = np.array([((when - start).total_seconds() / 3600 + (when >= change)) % 24 for when in at])
    rates = Series(start, 600, 10 + 90 * np.exp(-((local_h - 9) ** 2)))
    origin = 9 * DAY - 6

    def error(zone: str) -> float:
        said = next(live.forecasts(rates, [origin], steps=DAY, zone=zone)).median
        return float(np.abs(said[: len(rates) - origin] - rates.values[origin : origin + DAY]).sum())

    assert error("Europe/Berlin") < 0.3 * error("UTC")


def test_a_day_that_repeats_is_no_error_for_who_repeats_it() -> None:
    """And our own error is small beside that of the last value."""
    shape = daily(1, noise=0.0)
    found = {(one.method, one.ahead_h): one for one in scores(window(series(np.tile(shape, 2))))}

    assert found["same as yesterday", 24].wape_pct == pytest.approx(0, abs=1e-9)
    assert found["same as yesterday", 24].mase is None, "yesterday had no error to compare with"
    assert found[OURS, 24].wape_pct < 0.5 * found["last value (Dynamo's constant)", 24].wape_pct


def test_two_weeks_are_learned_from_one_and_tested_on_the_other() -> None:
    used, first, notes = window(series(daily(20)))

    assert (len(used), first) == (14 * DAY, 7 * DAY)
    assert any("last 14" in note for note in notes)


@given(st.floats(2, 14))
def test_at_least_a_day_is_learned_from_and_whole_days_are_tested(days: float) -> None:
    used, first, _ = window(series(daily(days + 0.01)))

    assert first >= DAY
    assert (len(used) - first) % DAY == 0
    assert len(used) > first


def test_bins_of_an_hour_are_read_as_six_and_that_is_said() -> None:
    hourly = Series(datetime(2026, 3, 2, tzinfo=UTC), 3600, np.arange(1.0, 73.0))

    used, _, notes = window(hourly)

    assert used.values[:7].tolist() == [1, 1, 1, 1, 1, 1, 2]
    assert any("not seen" in note for note in notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (daily(0.125), "3 h 00 min of history"),
        (daily(1.9), "2 days or more"),
        (np.zeros(3 * DAY), "nothing but zeros"),
        (np.full(3 * DAY, np.nan), "of history"),
        (np.concatenate([daily(2), np.zeros(2 * DAY)]), "in the days of the test"),
        (
            np.concatenate([daily(2), np.full(20 * DAY, np.nan), [3.0]]),
            "nothing was measured before .*a time in the file",
        ),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence(values: Floats, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(series(values), name="made")


@pytest.mark.parametrize("leads", [(), (-1,), (5, 100_000)])
def test_a_lead_time_beyond_the_forecast_is_refused(leads: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="lead times of"):
        forecasts(Window(series(daily(3)), DAY, ()), leads)


@given(st.lists(PAIRS, min_size=1, max_size=20))
def test_nobody_beats_the_frontier_and_everybody_else_is_beaten(pairs: list[tuple[float, float]]) -> None:
    all_served = [
        Served(policy=f"p{index}", lead_min=5, cost=cost, bad_min_a_day=bad, replica_hours=1)
        for index, (cost, bad) in enumerate(pairs)
    ]

    def beats(one: Served, other: Served) -> bool:
        no_worse = one.cost <= other.cost and one.bad_min_a_day <= other.bad_min_a_day
        return no_worse and (one.cost, one.bad_min_a_day) != (other.cost, other.bad_min_a_day)

    oracle = Served(policy="oracle", lead_min=5, cost=1.0, bad_min_a_day=0.0, replica_hours=1)

    best = frontier([oracle, *all_served])

    assert not [one for one in best if any(beats(other, one) for other in all_served)]
    for other in all_served:
        alike = any((one.cost, one.bad_min_a_day) == (other.cost, other.bad_min_a_day) for one in best)
        assert alike or any(beats(one, other) for one in best)


def test_the_baselines_say_what_their_names_promise() -> None:
    day = 24
    y = np.arange(1.0, 14 * day + 1)
    week = np.tile(np.arange(7 * day, dtype=float), 2)

    assert last_value(y, 3, day).tolist() == [y[-1]] * 3
    assert as_before(y, 30, day, days=1)[:2].tolist() == [y[-24], y[-23]]
    assert as_before(y, 30, day, days=1)[24] == y[-24], "beyond a day, the same day again"
    assert as_before(y[:48], 3, day, days=7)[0] == y[24], "no week yet: a day ago"
    assert hour_of_week(week, 10, day).tolist() == week[:10].tolist()
    assert hour_of_week(week[:48], 1, day)[0] == 12.0, "an hour of a week not seen yet is that hour of the day"
    assert kalman(y, 5, day) == pytest.approx(y[-1] + np.arange(1, 6), rel=1e-3), "it goes on along a line"


def test_a_profile_at_another_level_goes_on_at_that_level() -> None:
    """The last hour had twice what is usual: the next bin has it too, and a day later the day's own level counts."""
    shape = 100 + 20 * np.sin(2 * np.pi * np.arange(DAY) / DAY)
    y = np.tile(shape, 8)
    y[-6:] *= 2

    said = profile_level(y, DAY, DAY)

    assert said[0] > 1.7 * shape[0]
    assert said[-1] < 1.2 * shape[-1]


def test_missing_is_as_the_day_before_and_never_zero() -> None:
    values = np.arange(1.0, 11.0)
    values[[1, 7, 8]] = np.nan

    assert filled(values, 5).tolist() == [1, 1, 3, 4, 5, 6, 7, 3, 4, 10]


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_the_high_quantile_covers_what_it_says(seed: int) -> None:
    """Errors without habits: nine of ten bins lie at or below it, from the origins on that know a day of errors."""
    rng = np.random.default_rng(seed)
    y = 100 + 10 * rng.standard_normal(1500)
    origins = np.arange(100, 1400, 12)
    point = np.full((len(origins), 24), 100.0)

    high = high_quantile(point, y, origins, 0.9, least=point)[20:]

    at = origins[20:, None] + np.arange(24)[None, :]
    assert 0.86 < float((y[at] <= high).mean()) < 0.95


def test_our_plan_is_cheaper_than_the_peak_all_day() -> None:
    """Nothing is worth a plan that pays for the peak at night."""
    by_policy = {one.policy: one for one in two_days().served if one.lead_min == LEADS_MIN[0]}

    assert by_policy[HEADWAY].cost < 0.9 * by_policy["static peak"].cost


score = partial(Score, mase=None, wql90=0.1, cover_pct=90)


def test_distances_and_lead_times_are_those_that_were_asked_for() -> None:
    found = two_days()
    more = found.model_copy(update={"scores": (score(method="a", ahead_h=6, wape_pct=1),)})

    assert found.leads_min == LEADS_MIN
    assert more.aheads_h == (6,)
