"""The gateway on a real Envoy: what clients see while headway moves things behind it."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep

import pytest
import requests

from headway.adapters.local.metrics import LocalMetrics
from headway.adapters.local.scrape import Scraper
from headway.adapters.local.traffic import LocalTraffic
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable, CanaryFailed, IntegrityError
from headway.judge import live
from headway.release import shift
from tests.component.conftest import Gateway
from tests.factories import make_plan
from tests.fakes import FakeClusters, FakeObjects

STABLE = Backend(cluster="a", release="r-a", version=1, cluster_digest="1" * 64)
CANDIDATE = Backend(cluster="b", release="r-b", version=2, cluster_digest="2" * 64)


def wait_until(condition: Callable[[], bool], within_s: float = 20) -> None:
    """Look until the condition holds."""
    end = monotonic() + within_s
    while not condition():
        assert monotonic() < end, f"waited {within_s} s"
        sleep(0.2)


def releases(gateway: Gateway, count: int) -> Counter[str]:
    """Ask that many times and count the releases that answered; every answer must be good."""
    seen: Counter[str] = Counter()
    for _ in range(count):
        answer = gateway.ask()
        assert answer.status_code == 200, answer.text
        seen[answer.headers["x-headway-release"]] += 1
    return seen


def test_clients_reach_the_model_by_its_path_and_the_cluster_sees_v1(two_clusters: Gateway) -> None:
    """An OpenAI client changes only its base URL."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE))

    assert two_clusters.ask("/tiny/v1/chat/completions?x=1").headers["x-headway-release"] == "r-a"
    assert two_clusters.upstreams["a"].paths == ["/v1/chat/completions?x=1"]


def test_the_split_is_what_clients_get(two_clusters: Gateway) -> None:
    """30 % within five standard deviations of a binomial of 1,000."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=30))

    seen = releases(two_clusters, 1000)

    assert 227 < seen["r-b"] < 373


@pytest.mark.parametrize(("pct", "expected"), [(0, "r-a"), (100, "r-b")])
def test_zero_and_all_are_exact(two_clusters: Gateway, pct: int, expected: str) -> None:
    """No request goes where nobody sent it."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=pct))

    assert releases(two_clusters, 50) == Counter({expected: 50})


def test_only_the_internal_listener_lets_a_client_choose(two_clusters: Gateway) -> None:
    """The header is the benchmark's; a user's is taken away."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE))

    assert two_clusters.ask_inside("candidate").headers["x-headway-release"] == "r-b"
    assert two_clusters.ask_inside("stable").headers["x-headway-release"] == "r-a"
    assert two_clusters.ask(**{"x-headway-cluster": "candidate"}).headers["x-headway-release"] == "r-a"
    assert all("x-headway-cluster" not in {k.lower() for k in h} for h in two_clusters.upstreams["a"].headers)


@pytest.mark.parametrize("failure", ["refuses connections", "answers 500"])
@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_side_that_fails_costs_no_client_a_request(two_clusters: Gateway, broken: str, failure: str) -> None:
    """The other side answers instead, and the header says who it was."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=50))
    if failure == "answers 500":
        two_clusters.upstreams[broken].status = 500
    else:
        two_clusters.upstreams[broken].close()

    seen = releases(two_clusters, 60)

    assert seen == Counter({"r-b" if broken == "a" else "r-a": 60})


def test_the_benchmark_sees_a_sides_own_failures(two_clusters: Gateway) -> None:
    """Nobody saves the candidate from being found out."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE))
    two_clusters.upstreams["b"].status = 500

    assert [two_clusters.ask_inside("candidate").status_code for _ in range(8)] == [500] * 8


def test_an_unjudged_candidate_does_not_save_stable(two_clusters: Gateway) -> None:
    """A user never lands on what has not been judged, not even when stable fails."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=0))
    two_clusters.upstreams["a"].status = 500

    assert two_clusters.ask().status_code == 500
    assert two_clusters.upstreams["b"].paths == []


def test_the_warm_previous_cluster_saves_stable(two_clusters: Gateway) -> None:
    """It had all the traffic an hour ago."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE, previous=CANDIDATE))
    two_clusters.upstreams["a"].close()

    assert releases(two_clusters, 20) == Counter({"r-b": 20})


@pytest.mark.parametrize("path", ["/nobody/v1/models", "/tiny-2/v1/models", "/"])
def test_where_no_model_is_the_gateway_says_what_there_is(two_clusters: Gateway, path: str) -> None:
    """503 with a reason; a longer name is not taken for the shorter one."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE))

    answer = two_clusters.ask(path)

    assert answer.status_code == 503
    assert "/tiny, followed by /v1" in answer.json()["error"]["message"]


def test_without_stable_the_gateway_says_so(two_clusters: Gateway) -> None:
    """A first release that is on its way serves nobody yet."""
    two_clusters.traffic.shift(Route(model="tiny", candidate=CANDIDATE))

    answer = two_clusters.ask()

    assert (answer.status_code, two_clusters.ask_inside("candidate").status_code) == (503, 200)
    assert "no stable version" in answer.json()["error"]["message"]


def test_shifting_under_load_loses_nothing(two_clusters: Gateway) -> None:
    """Forty shifts, promotions and removals of the other side among them, while four clients ask without a pause."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE))
    for upstream in two_clusters.upstreams.values():
        upstream.delay_s = 0.02
    stop = threading.Event()
    statuses: Counter[int | str] = Counter()

    def client() -> None:
        with requests.Session() as session:
            while not stop.is_set():
                try:
                    answer = session.post(f"{two_clusters.layout.gateway_url}/tiny/v1/completions", json={}, timeout=10)
                    statuses[answer.status_code] += 1
                except requests.RequestException as error:
                    statuses[repr(error)] += 1

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for turn in range(10):
        one, other = (STABLE, CANDIDATE) if turn % 2 == 0 else (CANDIDATE, STABLE)
        two_clusters.traffic.shift(Route(model="tiny", stable=one, candidate=other, candidate_pct=10))
        two_clusters.traffic.shift(Route(model="tiny", stable=one, candidate=other, candidate_pct=100))
        two_clusters.traffic.shift(Route(model="tiny", stable=other, previous=one))
        two_clusters.traffic.shift(Route(model="tiny", stable=other))
    stop.set()
    for thread in clients:
        thread.join()

    assert set(statuses) == {200}, statuses
    assert statuses[200] > 50


def test_a_gateway_that_is_down_is_an_error_and_the_state_is_kept(two_clusters: Gateway, layout: object) -> None:
    """The same call again, when it is back, ends in the same state."""
    import psutil

    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE))
    for child in psutil.Process().children():
        if "envoy" in child.name():
            child.kill()
            child.wait()

    with pytest.raises(BackendUnavailable, match="does not answer"):
        two_clusters.traffic.shift(Route(model="tiny", stable=CANDIDATE))

    assert two_clusters.traffic.route("tiny").stable == CANDIDATE


def test_a_state_file_that_somebody_broke_is_not_taken_for_an_empty_one(two_clusters: Gateway) -> None:
    """Reading it as empty would take every model's traffic away at the next shift."""
    two_clusters.traffic.shift(Route(model="tiny", stable=STABLE))
    (two_clusters.layout.envoy / "routes.json").write_text("{")

    with pytest.raises(IntegrityError, match=r"routes\.json"):
        two_clusters.traffic.shift(Route(model="other", stable=CANDIDATE))

    assert two_clusters.ask().status_code == 200


def test_what_the_scraper_reads_is_what_the_gateway_did(two_clusters: Gateway) -> None:
    """Attempts, failures that were saved included, and seconds, by side."""
    gateway = two_clusters
    gateway.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=100))
    gateway.upstreams["a"].delay_s = 0.05
    for _ in range(10):
        assert gateway.ask().status_code == 200
    gateway.upstreams["b"].status = 500
    assert gateway.ask().headers["x-headway-release"] == "r-a"
    now = datetime.now(UTC)  # noqa: TID251 - the scraper's own clock
    scraper, metrics = Scraper(gateway.layout), LocalMetrics(gateway.layout)

    def seen(name: str, side: str) -> float | None:
        return metrics.instant(name, {"model": "tiny", "side": side}, now)

    # Envoy merges its workers' histograms every five seconds; its counters are there at once.
    wait_until(lambda: scraper.scrape(now) > 0 and (seen("headway_request_seconds_count", "candidate") or 0) >= 11)

    assert seen("headway_requests_total", "candidate") == 12
    assert seen("headway_request_errors_total", "candidate") == 1
    assert 0 < (seen("headway_request_seconds_sum", "candidate") or 0) < 5
    assert seen("headway_requests_total", "stable") in (None, 0)


def test_the_scraper_sees_how_long_requests_took_and_who_was_shut_out(two_clusters: Gateway) -> None:
    """Buckets have the edges that the shift reckons with, and a candidate that fails on and on is shut out twice."""
    gateway = two_clusters
    gateway.traffic.shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=50))
    gateway.upstreams["a"].delay_s = 0.04
    gateway.upstreams["b"].delay_s = 0.11
    releases(gateway, 40)
    scraper, metrics = Scraper(gateway.layout), LocalMetrics(gateway.layout)
    now = datetime.now(UTC)  # noqa: TID251 - the scraper's own clock

    def scrape() -> datetime:
        nonlocal now
        now += timedelta(seconds=6)
        scraper.scrape(now)
        return now

    def buckets(side: str) -> Mapping[str, float]:
        return metrics.instant_by("headway_request_seconds_bucket", {"model": "tiny", "side": side}, "le", scrape())

    wait_until(lambda: sum(buckets(side).get(live.ENDLESS, 0) for side in ("stable", "candidate")) == 40)
    stable, candidate = buckets("stable"), buckets("candidate")
    assert {float(edge) for edge in {*stable, *candidate} - {live.ENDLESS}} <= set(live.LADDER_S)
    assert live.slower(stable, 0.032) == stable[live.ENDLESS]
    assert live.slower(candidate, 0.1) == candidate[live.ENDLESS]
    since = metrics.counting_since(now)
    assert since is not None
    assert since < now

    gateway.upstreams["a"].delay_s = gateway.upstreams["b"].delay_s = 0.0
    gateway.upstreams["b"].status = 500

    def shut_out() -> float:
        gateway.ask()
        return metrics.instant("headway_ejections_total", {"model": "tiny", "side": "candidate"}, scrape()) or 0

    wait_until(lambda: shut_out() >= shift.SHUT_OUT)
    assert not metrics.instant("headway_ejections_total", {"model": "tiny", "side": "stable"}, now)


def test_a_broken_candidate_is_taken_back_before_any_user_notices(two_clusters: Gateway) -> None:
    """Real gateway, real scraper, real counters: every user gets an answer, and the shift ends within seconds."""
    gateway, plan, clusters = two_clusters, make_plan(), FakeClusters()
    clusters.apply(plan.cluster)
    candidate = CANDIDATE.model_copy(update={"cluster": plan.cluster.name})
    traffic = LocalTraffic(gateway.layout, lambda name: gateway.upstreams["a" if name == "a" else "b"].port)
    traffic.shift(Route(model="tiny", stable=STABLE, candidate=candidate))
    scraper, metrics = Scraper(gateway.layout), LocalMetrics(gateway.layout)

    def tick() -> shift.ShiftProgress:
        now = datetime.now(UTC)  # noqa: TID251 - the scraper's own clock
        scraper.scrape(now)
        return shift.tick(plan, traffic=traffic, clusters=clusters, metrics=metrics, objects=FakeObjects(), now=now)

    assert tick().candidate_pct == 10
    gateway.upstreams["b"].status = 500

    def use() -> None:
        end = monotonic() + 60
        while monotonic() < end:
            for _ in range(20):
                assert gateway.ask().status_code == 200
            tick()

    with pytest.raises(CanaryFailed, match=r"live requests failed on the candidate|shut the candidate out"):
        use()

    assert traffic.route("tiny").candidate_pct == 0
    assert len(gateway.upstreams["b"].paths) < 30
