"""The tick itself: read, foresee, decide, act, keep. Nothing is lowered unless a load was measured that allows it."""

from collections.abc import Sequence
from datetime import datetime

from headway.domain.prescaling import Tick, history_key, learned_key, plan_key
from headway.domain.profile import Profile
from headway.domain.traffic import Route
from headway.errors import HeadwayError
from headway.prescale import schedule, state
from headway.prescale.history import to_parquet
from headway.prescale.tick.act import act, give_back, hold
from headway.prescale.tick.decide import decide
from headway.prescale.tick.foresight import foresee, recalled
from headway.prescale.tick.ports import Case, Ports
from headway.prescale.tick.read import last_plan, read
from headway.prescale.tick.replica import of_model
from headway.prescale.tick.words import Words


def tick(
    profile: Profile, ports: Ports, *, now: datetime, calendar: str | None = None, problems: Sequence[str] = ()
) -> Tick:
    """Plan one model, set its floor, hold room, and keep what the next tick, the page and the release need of it.

    The floor only falls here, and only by a load that was measured. Running it twice, late, or after one that died
    half-way ends in the same floor.

    Args:
        profile: Of the model.
        ports: The world.
        now: Now, UTC.
        calendar: Known events as ICS text; none without.
        problems: What the caller found wrong with the input.

    Returns:
        What was seen and decided. `load` is none where none could be read or believed: then the floor does not fall.

    Raises:
        HeadwayError: Store, gateway or cluster cannot be read or changed. The floor is as it was.
    """
    case = Case(profile, ports, now, Words(problems=list(problems)))
    route = ports.traffic.route(profile.model)
    if not profile.prescale.enabled:
        return _off(case, route, "The profile does not ask for it (`prescale.enabled`).")
    if route.stable is None:
        return _off(case, route, "No version of the model serves; there is nothing to plan.")
    found = read(case, route, route.stable)
    known = recalled(case)
    seen = foresee(case, found.history, known, calendar_text=calendar)
    replica = of_model(profile, route, ports.ledger, case.words)
    made, history = decide(profile, found, seen, replica, now=now, words=case.words)
    if made.mode in ("forecast", "reactive"):
        act(profile, route, found.cluster, made.floor, ports.clusters)
    made = _warmed(case, made)
    if len(found.history):
        # A history of this tick alone would hide from the next one that the days before were never read.
        ports.objects.write(history_key(profile.model), to_parquet(history))
    _keep_learned(case, known, seen.state)
    return _kept(case, made)


def _off(case: Case, route: Route, why: str) -> Tick:
    """Give the range of the profile back to what serves, and say that nothing is planned."""
    cluster = case.ports.clusters.status(route.stable.cluster) if route.stable else None
    if cluster is not None and not route.paused:
        give_back(case.profile, cluster, case.ports.clusters)
    before = last_plan(case)
    made = Tick.off(case.model, case.now, case.profile.replicas.min, why).model_copy(
        update={
            # A paused model gets its range back when it is resumed, so its ticks have to go on until then.
            "mode": "paused" if cluster is not None and route.paused else "off",
            "lead_times_s": before.lead_times_s if before else (),
        }
    )
    return _kept(case, _warmed(case, made))


def _warmed(case: Case, made: Tick) -> Tick:
    """Hold room as the plan asks. What cannot be held costs a sentence, never the floor."""
    if case.ports.warm is None:
        return made
    try:
        hold(case.profile, made, case.ports.warm)
    except HeadwayError as error:
        said = f"The room that is held for {case.model} could not be changed: {error.message}."
        return made.model_copy(update={"problems": (*made.problems, said)})
    return made


def _kept(case: Case, made: Tick) -> Tick:
    case.ports.objects.write(plan_key(made.model), made.model_dump_json().encode())
    return made


def _keep_learned(case: Case, before: state.State | None, after: state.State | None) -> None:
    """Store what was learned, once an hour: between, the few bins since are rolled in again."""
    if after is None:
        return
    anew = before is None or after.learned_at != before.learned_at
    if anew or schedule.due(case.model, after.kept_at, case.now, schedule.HOURLY):
        kept = state.State(after.learned, after.learned_at, case.now, after.offset_s)
        case.ports.objects.write(learned_key(case.model), state.to_npz(kept))
