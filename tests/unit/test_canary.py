"""The canary as a release sees it: what is measured, and what becomes of the records."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway.domain.bench import BenchJob, BenchResult, BlockSummary, CanaryAnswer, RequestRecord
from headway.domain.release import Basis, Check, QualityFigures, Reference, Verdict
from headway.domain.traffic import Backend, Route
from headway.domain.value import digest
from headway.errors import BackendError, BackendUnavailable, ConfigError, Conflict, IntegrityError
from headway.judge import replay
from headway.judge.records import block_line, header_line, parse, request_line
from headway.release import canary
from headway.release.quality import noise_key, reference_key
from tests.factories import make_plan, make_profile, make_ref
from tests.fakes import FakeJobs, FakeMetrics, FakeWeightStore
from tests.unit.judge.data import make_canary, make_run

PROFILE = make_profile(canary=make_canary(demo_margins=True).to_json())
PLAN = make_plan(PROFILE)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REF = make_ref("20260101-000000-abcdef")
FIGURES = QualityFigures(
    prompt_set_digest="p", engine="transformers", tokens=2, nll=4.0, per_text_nll=(4.0,), per_text_tokens=(2,)
)
REFERENCE = Reference(source_digest="a" * 64, figures=FIGURES, token_ids=((1, 2, 3),))


def backend(cluster: str, release: str) -> Backend:
    return Backend(cluster=cluster, release=release, version=1, cluster_digest="c")


STABLE = backend("tiny-old", "old")
CANDIDATE = backend(PLAN.cluster.name, REF.release)
PAIRED = Route(model="tiny", stable=STABLE, candidate=CANDIDATE)


def begin(jobs: FakeJobs, route: Route = PAIRED, **changes: Any) -> BenchJob:
    arguments: dict[str, Any] = {
        "metrics": FakeMetrics(),
        "now": NOW,
        "reference": REFERENCE,
        "gateway_url": "http://gw:1/",
        "stats_url": "http://gw:2/stats",
    }
    status = canary.begin(changes.pop("plan", PLAN), REF, route, jobs, FakeWeightStore(), **{**arguments, **changes})
    return BenchJob.model_validate(jobs.jobs[status.name].payload)


def test_both_sides_are_asked_through_the_gateway() -> None:
    job = begin(FakeJobs())

    assert [(t.side, t.base_url, t.headers, t.release) for t in job.targets] == [
        ("stable", "http://gw:1/tiny", {"x-headway-cluster": "stable"}, "old"),
        ("candidate", "http://gw:1/tiny", {"x-headway-cluster": "candidate"}, REF.release),
    ]
    assert (job.live_rate_url, job.live_cluster) == ("http://gw:2/stats", "tiny_stable")
    assert job.records_uri == f"s3://headway/bench/{REF.release}/records.jsonl"


def test_the_reference_travels_by_name() -> None:
    """A job must fit into a ConfigMap (1 MiB); tokens and log-probabilities of a source would not."""
    job = begin(FakeJobs())

    assert job.reference == FIGURES
    assert (job.reference_token_ids, job.scheme) == ((), "fp8-dynamic")
    assert job.reference_uri == f"s3://headway/{reference_key(REFERENCE.source_digest)}"
    assert job.reference_digest == digest(REFERENCE)


def test_the_noise_belongs_to_a_source_and_an_engine() -> None:
    """Quantized or not, the same address; on another engine another."""
    other = make_profile(engine={"max_model_len": 1024, "max_num_seqs": 8, "dtype": "float32"})
    same = make_profile(weights={"schemes": ["none"]}, shift={"steps_pct": [100]})

    assert noise_key(make_plan(same)) == noise_key(PLAN)
    assert noise_key(make_plan(other)) != noise_key(PLAN)
    assert noise_key(PLAN).startswith("references/")


def test_a_first_release_has_one_side_and_no_live_load() -> None:
    job = begin(FakeJobs(), Route(model="tiny", candidate=CANDIDATE))

    assert [t.side for t in job.targets] == ["candidate"]
    assert job.live_rate_url is None


def test_a_cluster_that_serves_already_is_held_to_its_limits() -> None:
    job = begin(FakeJobs(), Route(model="tiny", stable=backend(PLAN.cluster.name, "old")))

    assert [(t.side, t.headers["x-headway-cluster"], t.release) for t in job.targets] == [
        ("candidate", "stable", "old")
    ]


def test_another_candidate_on_the_route_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="should be"):
        begin(FakeJobs(), Route(model="tiny", stable=STABLE, candidate=backend("other", "x")))


def test_beginning_twice_measures_once() -> None:
    jobs = FakeJobs()

    assert begin(jobs) == begin(jobs)
    assert len(jobs.starts) == 1


def test_margins_that_cannot_be_met_are_refused_before_anything_is_measured() -> None:
    profile = make_profile(canary=make_canary(error_margin_pct=0.5).to_json())
    jobs = FakeJobs()

    with pytest.raises(ConfigError, match=r"it needs \d+ blocks"):
        begin(jobs, plan=make_plan(profile), route=PAIRED)
    assert jobs.starts == []


def _content(records: list[RequestRecord], summaries: list[BlockSummary]) -> bytes:
    lines = [header_line("d" * 64)]
    for summary in summaries:
        lines += [request_line(r) for r in records if r.block == summary.block]
        lines.append(block_line(summary))
    return ("\n".join(lines) + "\n").encode()


def ended(slower: float = 1.0, *, release: str = REF.release, **changes: Any) -> tuple[FakeJobs, FakeWeightStore]:
    """A benchmark that has ended, with its records in the store."""
    records, summaries = make_run(PROFILE.canary, slower=slower, shared=0.05, spread=0.1)
    content = _content(records, summaries)
    uri = f"s3://headway/bench/{REF.release}/records.jsonl"
    result = BenchResult(
        release=release,
        paired=True,
        blocks=tuple(summaries),
        served=FIGURES.model_copy(update={"engine": "vllm"}),
        answers=tuple(CanaryAnswer(side="candidate", prompt=p, text="Yes.", finish_reason="stop") for p in "ab"),
        records_path="records.jsonl",
        records_uri=uri,
        records_sha256=hashlib.sha256(content).hexdigest(),
    ).model_copy(update=changes)
    jobs = FakeJobs()
    jobs.end(canary.job_name(REF), phase="succeeded", result=result.to_json())
    return jobs, FakeWeightStore(objects={uri: content})


def judged(jobs: FakeJobs, store: FakeWeightStore, **changes: Any) -> Verdict:
    given: dict[str, Any] = {"metrics": FakeMetrics(), "found": canary.Found(REFERENCE), **changes}
    return canary.finish(PLAN, REF, PAIRED, jobs, store, **given)


class Broken:
    """Checks that always find something."""

    def check(self, suite: str, rows: Any) -> list[str]:
        return [f"{suite}: {len(rows)} rows break something"]


@pytest.mark.parametrize(("slower", "decision"), [(1.0, "PROMOTE"), (2.0, "ROLLBACK")])
def test_the_records_decide(slower: float, decision: str) -> None:
    jobs, store = ended(slower)

    verdict = judged(jobs, store)

    assert verdict.decision == decision, verdict.sentence
    assert verdict.records_sha256 == hashlib.sha256(store.objects[verdict.records_uri]).hexdigest()
    assert judged(jobs, store) == verdict


def test_the_report_reads_what_was_judged_if_it_is_still_there() -> None:
    jobs, store = ended()
    verdict = judged(jobs, store)

    assert canary.read_records(verdict, store) == store.objects[verdict.records_uri]
    assert canary.read_records(verdict, FakeWeightStore()) is None
    assert canary.read_records(None, store) is None


def test_a_table_that_fails_its_checks_holds() -> None:
    jobs, store = ended()

    verdict = judged(jobs, store, checks=Broken())

    assert (verdict.decision, verdict.reasons) == ("HOLD", ("bench_records: 300 rows break something",))


def test_a_missing_perplexity_holds() -> None:
    jobs, store = ended(served=None, quality_error="HTTP 400")

    assert judged(jobs, store).decision == "HOLD"


def test_the_verdict_carries_what_was_measured_for_the_report() -> None:
    """And the noise floor is in the sentence of its check."""
    served = FIGURES.model_copy(update={"engine": "vllm", "per_text_kl": (0.02,), "per_text_top1": (2,)})
    noise = served.model_copy(update={"per_text_kl": (0.0006,)})
    jobs, store = ended(served=served, noise=noise)

    verdict = judged(jobs, store)

    assert (verdict.served, verdict.noise) == (served, noise)
    assert any("the source itself has 0.0003 when served" in check.sentence for check in verdict.checks)


def test_a_divergence_beyond_the_limit_rolls_back() -> None:
    served = FIGURES.model_copy(update={"per_text_kl": (0.4,), "per_text_top1": (1,)})
    jobs, store = ended(served=served)

    verdict = judged(jobs, store)

    assert verdict.decision == "ROLLBACK"
    assert "diverges from the source's by 0.20 nats a token" in verdict.sentence


def test_changed_records_are_refused() -> None:
    jobs, store = ended()
    uri = next(iter(store.objects))
    store.objects[uri] = store.objects[uri].replace(b'"block":0', b'"block":1', 1)

    with pytest.raises(IntegrityError, match="somebody changed"):
        judged(jobs, store)


def test_a_result_of_another_release_is_refused() -> None:
    jobs, store = ended(release="another")

    with pytest.raises(IntegrityError, match="another"):
        judged(jobs, store)


@pytest.mark.parametrize(
    ("phase", "error"), [("retryable", BackendUnavailable), ("absent", BackendUnavailable), ("failed", BackendError)]
)
def test_a_benchmark_that_broke_says_nothing_about_the_candidate(phase: str, error: type[Exception]) -> None:
    jobs = FakeJobs()
    jobs.end(canary.job_name(REF), phase=phase, reason="disk full")

    with pytest.raises(error, match="disk full"):
        judged(jobs, FakeWeightStore())


def test_what_a_verdict_rests_on_lies_beside_its_records() -> None:
    """With both, anyone can make the decision again, and gets the same one byte for byte."""
    jobs, store = ended()
    verdict = judged(jobs, store, checks=Broken())
    basis = Basis.model_validate_json(store.objects[canary.basis_uri(verdict.records_uri)])

    again = replay.decide(parse(store.objects[verdict.records_uri]), basis)

    assert basis.faults == ("bench_records: 300 rows break something",)
    assert (again.decision, again.sentence, again.effects) == (verdict.decision, verdict.sentence, verdict.effects)
    assert basis.records_sha256 == verdict.records_sha256


def test_accuracy_on_tasks_counts_like_any_other_quality() -> None:
    jobs, store = ended()
    lost = Check(name="tasks", measured=0.2, limit=0.5, passed=False, sentence="it has lost half of its answers")

    verdict = judged(jobs, store, found=canary.Found(REFERENCE, (lost,)))

    assert verdict.decision == "ROLLBACK"
    assert "lost half" in verdict.sentence


def test_engines_that_reported_nothing_meanwhile_hold() -> None:
    """Missing data never promotes."""
    jobs, store = ended(started_at=NOW.isoformat(), ended_at=(NOW + timedelta(minutes=5)).isoformat())

    verdict = judged(jobs, store)

    assert verdict.decision == "HOLD"
    assert {check.kind for check in verdict.checks if not check.passed} == {"guard", "contract"}


def test_a_candidate_whose_engine_does_not_report_is_not_measured() -> None:
    """Rules, dashboards and guards would be blind to it."""
    missing = canary.reports(PLAN, FakeMetrics(), NOW)

    verdict = canary.silent(missing)

    assert (missing.kind, missing.passed) == ("contract", False)
    assert verdict.decision == "HOLD"
    assert "reports nothing" in verdict.sentence
    with pytest.raises(BackendUnavailable, match="measure again"):
        canary.silent(missing.model_copy(update={"passed": True}))
