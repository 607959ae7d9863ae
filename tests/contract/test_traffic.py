"""What every `Traffic` adapter promises."""

from headway.domain.traffic import Backend, Route
from headway.ports import Traffic

STABLE = Backend(cluster="a", release="r1", version=1, cluster_digest="1" * 64)
CANDIDATE = Backend(cluster="b", release="r2", version=2, cluster_digest="2" * 64)


def test_a_model_without_a_route_has_an_empty_one(traffic: Traffic) -> None:
    """A first release starts from it."""
    assert traffic.route("m") == Route(model="m")


def test_what_was_shifted_is_read_back_whole(traffic: Traffic) -> None:
    """All of the routing state lives with the gateway; nothing else keeps it."""
    route = Route(
        model="m",
        stable=STABLE,
        candidate=CANDIDATE,
        candidate_pct=10,
        candidate_pct_since="2026-03-02T09:00:00+00:00",
        paused=True,
    )
    traffic.shift(route)
    traffic.shift(route)

    assert traffic.route("m") == route
    assert list(traffic.routes()) == [route]


def test_each_state_of_a_release_is_read_back(traffic: Traffic) -> None:
    """From the first candidate to a rollback, whatever came before."""
    split = Route(model="m", stable=STABLE, candidate=CANDIDATE)
    states = [
        Route(model="m", candidate=STABLE),
        Route(model="m", stable=STABLE),
        *(split.model_copy(update={"candidate_pct": pct}) for pct in (0, 10, 100)),
        Route(model="m", stable=CANDIDATE, previous=STABLE, keep_previous_until="2026-03-03T09:00:00+00:00"),
        Route(model="m", stable=STABLE, previous=CANDIDATE),
        Route(model="m", stable=STABLE, candidate=CANDIDATE, hold_until="2026-03-03T09:00:00+00:00"),
        Route(model="m", paused=True),
    ]
    for state in states:
        traffic.shift(state)

        assert traffic.route("m") == state


def test_models_have_routes_of_their_own(traffic: Traffic) -> None:
    """One gateway, several models."""
    traffic.shift(Route(model="m", stable=STABLE))
    traffic.shift(Route(model="n", stable=CANDIDATE))
    traffic.remove("m")
    traffic.remove("m")

    assert [route.model for route in traffic.routes()] == ["n"]
    assert traffic.route("m").stable is None
