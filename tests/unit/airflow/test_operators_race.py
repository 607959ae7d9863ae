"""A release whose profile lets schemes race, and one whose artifact the serving environment refuses."""

import json
from typing import Any

import pytest

from headway.domain.release import ReleasePlan, record_key
from operators.reconcile import desired
from operators.release import won
from tests.unit.airflow import played
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.walk import walk
from tests.unit.airflow.world import outcome, profile

RACE: dict[str, Any] = {"schemes": ["none", "w8a8", "fp8-dynamic"], "choose": "race"}


@pytest.fixture
def race(world: FakeBackend) -> FakeBackend:
    """A world in which the first of two schemes of one size answers badly."""
    world.kept_profiles["tiny"] = profile(weights=RACE, gpu_hour_price=2.0)
    world.jobs.plays["quality"] = played.quality(world.weights, ratios={"w8a8": 1.4})
    return world


def made(world: FakeBackend) -> list[str]:
    """Return the schemes that were quantized, in order."""
    return [job.payload["recipe"]["scheme"] for job in world.jobs.jobs.values() if job.program == "quantize"]


def test_the_winner_is_what_serves(race: FakeBackend) -> None:
    """Everything after the step quantize is about the winner, and the largest scheme was never made."""
    walked = walk()

    assert set(walked.states.values()) == {"success"}, walked.errors
    assert made(race) == ["w8a8", "fp8-dynamic"]
    [spec] = race.clusters.specs.values()
    [staged] = [job for job in race.jobs.jobs.values() if job.program == "stage"]
    assert spec.artifact_digest == staged.payload["artifact_digest"]
    stable = race.traffic.route("tiny").stable
    assert stable is not None
    assert stable.cluster_digest == spec.cluster_digest
    assert outcome(race, 1) == "promoted"


def test_the_report_shows_the_race(race: FakeBackend) -> None:
    """Each scheme with its size, how it did, and why."""
    walk()

    [(_, files)] = race.registry.reports.values()
    page = next(content.decode() for name, content in files.items() if name.endswith(".html"))
    assert "w8a8" in page
    assert "above the limit of 1.05" in page
    assert page.index("w8a8 <span") < page.index("fp8-dynamic <span")


def test_the_same_race_is_not_run_twice(race: FakeBackend) -> None:
    """Neither by a person nor by reconcile: the winner is remembered."""
    walk("one")

    again = walk("two", minute=1)

    wanted = desired(race, race.kept_profiles["tiny"], race.traffic.route("tiny"))
    stable = race.traffic.route("tiny").stable
    assert again.states["plan"] == "skipped"
    assert wanted is not None
    assert stable is not None
    assert wanted.cluster_digest == stable.cluster_digest


def test_other_limits_let_the_loser_win(race: FakeBackend) -> None:
    """What was made and measured is found; nothing is made again."""
    walk("one")
    race.kept_profiles["tiny"] = profile(weights=RACE, quality={"max_ppl_ratio": 1.5})

    walked = walk("two", minute=1)

    assert set(walked.states.values()) == {"success"}, walked.errors
    assert made(race) == ["w8a8", "fp8-dynamic"]
    specs = {spec.name: spec for spec in race.clusters.specs.values()}
    route = race.traffic.route("tiny")
    assert route.stable is not None
    assert route.previous is not None
    assert specs[route.stable.cluster].artifact_digest != specs[route.previous.cluster].artifact_digest


def test_a_race_without_a_winner_is_rejected_with_every_reason(race: FakeBackend) -> None:
    """And remembered, so that reconcile does not run it again."""
    race.jobs.plays["quality"] = played.quality(race.weights, ratios=dict.fromkeys(RACE["schemes"], 2.0))

    walked = walk()

    assert walked.states["quantize"] == "failed"
    assert all(f"{scheme}: " in str(walked.errors["quantize"]) for scheme in RACE["schemes"])
    assert outcome(race, 1) == "rejected"
    wanted = desired(race, race.kept_profiles["tiny"], race.traffic.route("tiny"))
    assert wanted is not None
    assert wanted.cluster_digest in json.loads(race.registry.tags("tiny", 1)["headway.state"])


def test_what_the_serving_environment_refuses_is_rejected_before_a_rollout(world: FakeBackend) -> None:
    """No cluster is started, and its words reach the registry."""
    world.jobs.plays["quality"] = played.quality(world.weights, "Extra inputs are not permitted: scale_dtype")

    walked = walk()

    assert "scale_dtype" in str(walked.errors["quantize"])
    assert world.clusters.specs == {}
    assert outcome(world, 1) == "rejected"


def test_without_a_race_the_plan_is_what_it_was(world: FakeBackend) -> None:
    """Nothing is looked up for it."""
    walked = walk()

    assert walked.ref is not None
    key = record_key("tiny", walked.ref["release"], "plan")

    plan = ReleasePlan.model_validate(world.ledger.records[key]["detail"])
    assert won(world, plan) is plan
