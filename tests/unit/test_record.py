"""However a release ends, stable keeps its traffic and somebody can read why."""

from datetime import UTC, datetime, timedelta

import pytest

from headway.domain.model import ModelVersion
from headway.domain.release import StepRecord, Verdict, record_key
from headway.domain.traffic import Route
from headway.errors import IntegrityError
from headway.release import record, rollout
from tests.factories import make_plan, make_ref, make_selection
from tests.fakes import FakeClusters, FakeLedger, FakeRegistry, FakeTraffic

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PLAN = make_plan()
STABLE = make_plan(selection=make_selection(content="1"))
REF = make_ref()


def step(name: str, outcome: str = "done", message: str = "") -> StepRecord:
    """A step's record."""
    return StepRecord(
        release=REF.release,
        step=name,
        started_at=NOW.isoformat(),
        ended_at=NOW.isoformat(),
        outcome=outcome,
        detail={"message": message} if message else {},
    )


def verdict(decision: str) -> Verdict:
    """A verdict with a sentence."""
    return Verdict.model_validate({"decision": decision, "sentence": f"it is {decision}", "reasons": []})


@pytest.mark.parametrize(
    ("steps", "said", "promoted", "outcome"),
    [
        ([step("plan")], verdict("PROMOTE"), True, "promoted"),
        ([step("validate", "ModelRejected", "a pickle")], None, False, "rejected"),
        ([step("quantize", "QualityRejected", "perplexity")], None, False, "rejected"),
        ([step("quantize", "BackendUnavailable", "S3 is away")], None, False, "failed"),
        ([step("canary")], verdict("ROLLBACK"), False, "rolled_back"),
        ([step("canary")], verdict("HOLD"), False, "held"),
        ([step("canary"), step("shift", "CanaryFailed", "errors")], verdict("PROMOTE"), False, "rolled_back"),
        ([step("plan")], None, False, "failed"),
    ],
)
def test_the_world_and_the_records_say_how_it_ended(
    steps: list[StepRecord], said: Verdict | None, promoted: bool, outcome: str
) -> None:
    """What the gateway shows counts first; a stop without a verdict may be tried again."""
    assert record.ending(steps, said, promoted=promoted).outcome == outcome


def test_a_release_that_serves_is_promoted_whatever_failed_after() -> None:
    """A report that could not be written does not take traffic away."""
    assert record.ending([step("shift", "BackendUnavailable")], verdict("PROMOTE"), promoted=True).outcome == "promoted"


def world() -> tuple[FakeClusters, FakeTraffic]:
    """Stable serves 90 %, a candidate 10 %."""
    clusters, traffic = FakeClusters(), FakeTraffic()
    clusters.apply(STABLE.cluster)
    clusters.apply(PLAN.cluster)
    traffic.shift(
        Route(
            model="tiny",
            stable=rollout.backend_of(STABLE, make_ref("old")),
            candidate=rollout.backend_of(PLAN, REF),
            candidate_pct=10,
        )
    )
    return clusters, traffic


@pytest.mark.parametrize("outcome", ["rolled_back", "rejected", "failed"])
def test_any_failure_puts_the_split_back_and_deletes_the_candidate(outcome: str) -> None:
    """Stable has everything, and nothing of the candidate is left."""
    clusters, traffic = world()
    end = record.Ending.model_validate({"outcome": outcome, "reason": "why"})

    record.settle_traffic("tiny", PLAN.cluster.name, end, traffic=traffic, clusters=clusters, hold_s=60, now=NOW)
    record.settle_traffic("tiny", PLAN.cluster.name, end, traffic=traffic, clusters=clusters, hold_s=60, now=NOW)

    route = traffic.route("tiny")
    assert route.candidate is None
    assert route.split.stable_pct == 100
    assert list(clusters.specs) == [STABLE.cluster.name]


def test_a_held_candidate_stays_for_a_person_without_traffic() -> None:
    """Until `hold_until`, then reconcile deletes it (design rule 13.3)."""
    clusters, traffic = world()

    record.settle_traffic(
        "tiny",
        PLAN.cluster.name,
        record.Ending(outcome="held", reason="undecided"),
        traffic=traffic,
        clusters=clusters,
        hold_s=60,
        now=NOW,
    )

    route = traffic.route("tiny")
    assert route.candidate is not None
    assert (route.candidate_pct, route.hold_until) == (0, (NOW + timedelta(seconds=60)).isoformat())
    assert PLAN.cluster.name in clusters.specs


def test_the_cluster_that_serves_is_never_deleted() -> None:
    """A failed release of what is stable already leaves it alone."""
    clusters, traffic = world()

    record.settle_traffic(
        "tiny",
        STABLE.cluster.name,
        record.Ending(outcome="failed", reason="why"),
        traffic=traffic,
        clusters=clusters,
        hold_s=60,
        now=NOW,
    )

    assert STABLE.cluster.name in clusters.specs


def test_the_ending_is_on_the_version_and_in_the_ledger() -> None:
    """A person finds the reason in the registry, a program in the ledger."""
    registry, ledger = FakeRegistry(), FakeLedger()
    registry.add(ModelVersion(name="tiny", version=1, source_uri="s3://m/"))
    end = record.Ending(outcome="rejected", reason="perplexity 41234.1")

    for _ in range(2):
        record.remember(
            REF, PLAN, end, registry=registry, ledger=ledger, metrics={}, report_html=b"<html>", started_at=NOW, now=NOW
        )

    tags = registry.tags("tiny", 1)
    assert record.read_state(tags)[PLAN.cluster_digest].outcome == "rejected"
    assert tags["headway.reason"] == "perplexity 41234.1"
    kept = ledger.read(record_key("tiny", REF.release, "release"))
    assert kept is not None
    assert (kept["outcome"], kept["report"]) == ("rejected", tags["headway.report"])


def test_a_report_that_the_registry_refuses_does_not_cost_the_memory() -> None:
    """Otherwise the version that was refused comes back five minutes later."""
    registry, ledger = FakeRegistry(refuses_reports=True), FakeLedger()
    end = record.Ending(outcome="rejected", reason="perplexity")

    record.remember(
        REF, PLAN, end, registry=registry, ledger=ledger, metrics={}, report_html=b"", started_at=NOW, now=NOW
    )

    assert record.read_state(registry.tags("tiny", 1))[PLAN.cluster_digest].outcome == "rejected"
    kept = ledger.read(record_key("tiny", REF.release, "release"))
    assert kept is not None
    assert kept["report"] == "not kept: the registry refuses the report"


def test_endings_of_other_pairs_are_kept_and_the_oldest_go() -> None:
    """The memory is per cluster digest, and bounded."""
    registry = FakeRegistry()
    for number in range(record.MAX_KEPT + 5):
        at = (NOW + timedelta(minutes=number)).isoformat()
        state = record.VersionState(outcome="failed", release=f"r{number}", at=at)
        record.remember_state(registry, "tiny", 1, f"digest-{number}", state)

    kept = record.read_state(registry.tags("tiny", 1))
    assert len(kept) == record.MAX_KEPT
    assert "digest-0" not in kept
    assert "digest-24" in kept


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}', '{"a": {"outcome": "fine"}}'])
def test_an_edited_memory_is_an_error_and_not_an_empty_memory(text: str) -> None:
    """Forgetting would release a refused model again."""
    with pytest.raises(IntegrityError, match="delete the tag"):
        record.read_state({record.STATE_TAG: text})
