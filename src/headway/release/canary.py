"""Step 7: candidate and stable get the same requests, and the records decide.

The bench program measures and stops early; the verdict is made here, from the records it left, by the same pure judge.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

from pydantic import ValidationError

from headway.domain.bench import BenchJob, BenchResult, Side, SideTarget
from headway.domain.job import Job, JobStatus
from headway.domain.release import Basis, Check, Reference, ReleasePlan, ReleaseRef, Verdict
from headway.domain.traffic import Route
from headway.domain.value import canonical_json, digest, slug
from headway.errors import BackendError, BackendUnavailable, ConfigError, Conflict, IntegrityError, NotFound
from headway.judge import records as record_rules
from headway.judge import replay
from headway.judge.quality import answers_check, served_checks
from headway.judge.sequential import undecidable
from headway.ports import Checks, Jobs, Metrics, WeightStore
from headway.release import contract, guards, load
from headway.release.quality import noise_key, reference_key

SUITE = "bench_records"
SIDE_HEADER = "x-headway-cluster"
"""The internal listener of the gateway sends a request with this header to the side it names (design rule 13.8)."""


def job_name(ref: ReleaseRef) -> str:
    """Name the benchmark of a release; releasing the same pair again measures again."""
    return f"bench-{slug(ref.release)}"


def begin(
    plan: ReleasePlan,
    ref: ReleaseRef,
    route: Route,
    jobs: Jobs,
    weights: WeightStore,
    *,
    metrics: Metrics,
    now: datetime,
    reference: Reference | None,
    gateway_url: str,
    stats_url: str | None = None,
    stats_cluster: str | None = None,
) -> JobStatus:
    """Start the benchmark, or adopt the one of this release.

    Args:
        plan: The plan of the candidate.
        ref: The release.
        route: The model's route as it is now; says which sides there are.
        jobs: Runs the bench program.
        weights: Says where the records go, and holds a recorded trace and prompts.
        metrics: Knows how stable's users came, for replayed arrivals.
        now: UTC.
        reference: Figures and tokens of the candidate's source; none leaves out perplexity.
        gateway_url: Base address of the gateway's internal listener.
        stats_url: Envoy's `/stats`, to be fair to a stable side that carries users (design rule 13.4).
        stats_cluster: Envoy's name of the upstream cluster of stable's users; none: `<slug of the model>_stable`.

    Raises:
        ConfigError: The profile's margins could not be met by a flawless candidate with this many requests, or its
            trace or prompts cannot be used.
        Conflict: The route does not name the plan's cluster: another release took over.
    """
    found = jobs.status(job_name(ref))
    if found.phase in ("running", "succeeded"):
        return found
    job = make_job(
        plan,
        ref,
        route,
        weights,
        reference=reference,
        gateway_url=gateway_url,
        stats_url=stats_url,
        stats_cluster=stats_cluster,
    )
    asked = load.resolve(plan, weights, metrics, now)
    job = job.model_copy(update={"arrivals_s": asked.arrivals_s, "prompts_sha256": asked.prompts_sha256})
    hopeless = undecidable(plan.profile.canary) if job.paired else []
    if hopeless:
        raise ConfigError(
            f"the canary of profile {plan.model} has too few blocks to promote an equal candidate: "
            f"{'; '.join(hopeless)}",
            reasons=hopeless,
        )
    return jobs.submit(
        Job(
            name=job_name(ref),
            program="bench",
            environment="airflow",
            payload=job.to_json(),
            deadline_s=plan.profile.deadlines.canary_s,
            model=plan.model,
            release=ref.release,
        )
    )


def make_job(
    plan: ReleasePlan,
    ref: ReleaseRef,
    route: Route,
    weights: WeightStore,
    *,
    reference: Reference | None,
    gateway_url: str,
    stats_url: str | None = None,
    stats_cluster: str | None = None,
) -> BenchJob:
    """Return what the bench program is asked to do; see `begin`."""
    sides = _sides(plan, route)
    stable = route.stable if "stable" in sides else None
    return BenchJob(
        release=ref.release,
        targets=tuple(
            SideTarget(
                side=side,
                base_url=f"{gateway_url.rstrip('/')}/{gateway_path(plan.model)}",
                headers={SIDE_HEADER: header},
                served_model=plan.model,
                release=release,
            )
            for side, (header, release) in sides.items()
        ),
        canary=plan.profile.canary,
        seed=int(digest([plan.cluster_digest, ref.release])[:8], 16),
        quality=plan.profile.quality,
        # The figures are short; tokens and log-probabilities are not, and the program reads them itself.
        reference=reference.figures if reference else None,
        reference_uri=beside(weights, reference_key(reference.source_digest)) if reference else "",
        reference_digest=digest(reference) if reference else "",
        scheme=plan.recipe.scheme,
        noise_uri=beside(weights, noise_key(plan)) if reference else "",
        live_rate_url=stats_url if stable else None,
        live_cluster=(stats_cluster or f"{slug(plan.model)}_stable") if stable else None,
        headroom_active=plan.profile.replicas.min * plan.profile.replicas.target_ongoing,
        records_uri=_records_uri(weights, ref),
    )


class Found(NamedTuple):
    """What the candidate is judged by beside its records."""

    reference: Reference | None
    """The one that `begin` was given."""
    tasks: Sequence[Check] = ()
    """Accuracy on tasks, where the profile asks for it."""


def finish(
    plan: ReleasePlan,
    ref: ReleaseRef,
    route: Route,
    jobs: Jobs,
    weights: WeightStore,
    *,
    metrics: Metrics,
    found: Found,
    checks: Checks | None = None,
) -> Verdict:
    """Judge the ended benchmark, and leave beside its records what else the verdict rests on.

    Args:
        plan: The plan of the candidate.
        ref: The release.
        route: The model's route; says which cluster is stable.
        jobs: Where the benchmark ran.
        weights: Where its records are.
        metrics: What the engines reported of themselves meanwhile.
        found: What else is known of the candidate.
        checks: Checks the table of records before anything is computed from it.

    Raises:
        BackendUnavailable: The benchmark did not end well for a reason that may pass.
        BackendError: It failed for good; that says nothing about the candidate.
        IntegrityError: The records are not those that the benchmark wrote.
    """
    result = _result(jobs.status(job_name(ref)), ref)
    content = weights.read(result.records_uri)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != result.records_sha256:
        raise IntegrityError(
            f"the records at {result.records_uri} have digest {sha256[:12]}, the benchmark wrote "
            f"{result.records_sha256[:12]}; somebody changed them: run the release again",
            uri=result.records_uri,
        )
    run = record_rules.parse(content)
    basis = Basis(
        release=ref.release,
        model=ref.model,
        version=ref.version,
        canary=plan.profile.canary,
        paired=result.paired,
        checks=(
            *_quality(plan, result, found.reference),
            *found.tasks,
            *_engines(plan, result, route, metrics),
        ),
        faults=tuple(checks.check(SUITE, record_rules.rows(run.records))) if checks and run.records else (),
        records_sha256=sha256,
    )
    weights.put(basis_uri(result.records_uri), canonical_json(basis))
    update = {
        "records_uri": result.records_uri,
        "records_sha256": sha256,
        "served": result.served,
        "noise": result.noise,
    }
    return replay.decide(run, basis).model_copy(update=update)


def reports(plan: ReleasePlan, metrics: Metrics, now: datetime) -> Check:
    """Tell whether the candidate's engine reports all that is going to be asked of it."""
    return contract.check(metrics, model=plan.model, cluster=plan.cluster.name, now=now)


def silent(missing: Check) -> Verdict:
    """Return the verdict on a candidate that was not measured, because its engine does not report enough.

    Args:
        missing: The check that says what is missing.

    Raises:
        BackendUnavailable: Nothing is missing any more, so measuring may begin now.
    """
    if missing.passed:
        raise BackendUnavailable("the candidate's engine reports now, later than it was waited for; measure again")
    return Verdict(
        decision="HOLD",
        sentence=f"HOLD: nothing was measured: {missing.sentence}",
        reasons=(missing.sentence,),
        checks=(missing,),
    )


def basis_uri(records_uri: str) -> str:
    """Return where the basis of a verdict lies: beside the records."""
    return f"{records_uri.rpartition('/')[0]}/{replay.BASIS_FILE}"


def read_records(verdict: Verdict | None, weights: WeightStore) -> bytes | None:
    """Return the records of a verdict for the report; none if there are none (any more)."""
    if verdict is None or not verdict.records_uri:
        return None
    try:
        return weights.read(verdict.records_uri)
    except NotFound:
        return None


def _quality(plan: ReleasePlan, result: BenchResult, reference: Reference | None) -> list[Check]:
    """Hold what the candidate answered against its source."""
    found = [answers_check(result.answers, reference.answers if reference else ())]
    if reference is not None:
        found += served_checks(
            result.served,
            reference.figures,
            plan.profile.quality,
            plan.recipe.scheme,
            why_missing=result.quality_error,
            noise=result.noise,
        )
    return found


def _engines(plan: ReleasePlan, result: BenchResult, route: Route, metrics: Metrics) -> list[Check]:
    """Look at what the engines reported of themselves during the benchmark, the candidate's against stable's."""
    if not result.started_at:
        return []
    start, end = datetime.fromisoformat(result.started_at), datetime.fromisoformat(result.ended_at)
    found = [reports(plan, metrics, end)]
    if result.paired and route.stable is not None:
        found += guards.checks(
            metrics,
            plan.profile.canary.guards,
            model=plan.model,
            stable_cluster=route.stable.cluster,
            candidate_cluster=plan.cluster.name,
            start=start,
            end=end,
            requests=sum(block.planned for block in result.blocks),
        )
    return found


def _sides(plan: ReleasePlan, route: Route) -> dict[Side, tuple[str, str]]:
    """Return for each side the header that reaches it and the release that answers there."""
    if route.candidate is not None and route.candidate.cluster == plan.cluster.name:
        candidate = ("candidate", route.candidate.release)
        if route.stable is None:
            return {"candidate": candidate}
        return {"stable": ("stable", route.stable.release), "candidate": candidate}
    if route.stable is not None and route.stable.cluster == plan.cluster.name:
        # Released again while it serves already: there is nothing to compare it with but its limits.
        return {"candidate": ("stable", route.stable.release)}
    there = route.candidate.cluster if route.candidate else "none"
    raise Conflict(
        f"the candidate of {plan.model} should be {plan.cluster.name}, found {there}; another release took over"
    )


def gateway_path(model: str) -> str:
    """Return the part of the gateway's paths that names a model: its name if a URL can carry it as it is."""
    return model if quote(model, safe="") == model else slug(model)


def beside(weights: WeightStore, key: str) -> str:
    """Return the address of a key in headway's bucket."""
    return weights.artifact_uri("0").split("artifacts/")[0] + key


def _records_uri(weights: WeightStore, ref: ReleaseRef) -> str:
    return beside(weights, f"bench/{ref.release}/records.jsonl")


def _result(status: JobStatus, ref: ReleaseRef) -> BenchResult:
    if status.phase in ("absent", "running", "retryable"):
        raise BackendUnavailable(f"the benchmark {status.name} is {status.phase}: {status.reason or 'no reason given'}")
    if status.phase == "failed" or status.result is None:
        raise BackendError(
            f"the benchmark {status.name} failed, which says nothing about the candidate: "
            f"{status.reason or 'no reason given'}; read its log, then release again",
            job=status.name,
        )
    try:
        result = BenchResult.model_validate(status.result)
    except ValidationError as error:
        raise IntegrityError(f"the benchmark {status.name} left a result that cannot be read: {error}") from error
    if result.release != ref.release:
        raise IntegrityError(f"the benchmark {status.name} is of release {result.release}, expected {ref.release}")
    return result
