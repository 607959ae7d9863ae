"""The steps of a release as tasks. Each says what it does; how is in `headway.release`."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import BaseTrigger

from headway.domain.cluster import ClusterStatus
from headway.domain.job import JobStatus
from headway.domain.model import Selection
from headway.domain.release import Check, Reference, ReleasePlan, Verdict, record_key
from headway.domain.value import slug
from headway.errors import CanaryFailed, HeadwayError, IntegrityError
from headway.judge import records
from headway.prescale import throughput
from headway.release import calibration, canary, plan, quality, quantize, recall, rollout, shift, stage, tasks, validate
from operators.approve import ApproveOperator
from operators.base import OpenRelease, ReleaseOperator, WaitingOperator
from operators.record import RecordOperator
from operators.select import SelectOperator
from operators.triggers import ClusterTrigger, JobTrigger, RoomTrigger, ShiftTrigger
from operators.waiting import poll

if TYPE_CHECKING:
    from operators.hook import Backend

__all__ = [
    "ApproveOperator",
    "CanaryOperator",
    "PlanOperator",
    "QuantizeOperator",
    "RecordOperator",
    "RolloutOperator",
    "SelectOperator",
    "ShiftOperator",
    "StageOperator",
]

PROFILE_SCHEME = "profile"

SILENT = ""
"""Stands for the benchmark that was not begun, because the candidate's engine does not report enough."""

SHORT_SHIFT_S = 60.0
"""Seconds that all the bakes of a shift may take to be watched in the task itself."""

PEAKS_S = 12 * 3600.0
"""Seconds that a shift may wait for the load to stop rising: a morning and an evening."""


class PlanOperator(ReleaseOperator):
    """Checks the files and resolves everything into one plan; skips the rest if stable serves that already."""

    step = "plan"
    template_fields: Collection[str] = ("model", "ref", "scheme")

    def __init__(self, *, scheme: str = PROFILE_SCHEME, **kwargs: Any) -> None:
        """Keep the arguments.

        Args:
            scheme: A quantization scheme, or `profile` for the first of the profile that fits.
            kwargs: Of the base.
        """
        super().__init__(**kwargs)
        self.scheme = scheme

    def work(self, release: OpenRelease) -> None:
        """Validate, plan, and see whether there is anything to do."""
        backend = release.backend
        made = release.recall("plan", ReleasePlan)
        if made is None:
            selection = release.recall("select", Selection)
            if selection is None:
                raise IntegrityError(f"release {release.release} selected nothing; start a new release")
            profile = backend.profile(release.model)
            validated = validate.run(selection, backend.weights, profile.weights, backend.signatures)
            checked = release.keep(validated, "validate")
            made = release.keep(
                plan.make(
                    profile,
                    selection,
                    checked,
                    serving_image=backend.serving_image(profile),
                    model_root=backend.model_root,
                    scheme=None if self.scheme in ("", PROFILE_SCHEME) else self.scheme,  # type: ignore[arg-type]
                    calibration_digest=calibration.run(profile, backend.weights, backend.checks),
                )
            )
        self._skip_what_serves(release, made)

    def _skip_what_serves(self, release: OpenRelease, made: ReleasePlan) -> None:
        stable = release.backend.traffic.route(release.model).stable
        if stable is None or stable.cluster_digest != won(release.backend, made).cluster_digest:
            return
        if release.backend.clusters.status(stable.cluster).phase in ("starting", "ready"):
            raise AirflowSkipException(f"{stable.cluster} has all the traffic and is what this release would make")


def won(backend: "Backend", made: ReleasePlan) -> ReleasePlan:
    """Return the plan of a race that was run before, with the same contenders and limits; otherwise the plan itself."""
    known = backend.ledger.read(quantize.race_key(made)) if made.contenders else None
    return recall.in_force(made, known)


class JobOperator(WaitingOperator):
    """A step whose work is a job."""

    job_deadline: ClassVar[str]
    """Name of the limit under `deadlines` in the profile."""

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Look at the job."""
        return release.backend.jobs.status(subject).ended

    def deadline_s(self, release: OpenRelease) -> float:
        """Take the profile's limit."""
        return float(getattr(release.plan.profile.deadlines, self.job_deadline))

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Cancel the job and say how far it was."""
        status = release.backend.jobs.status(subject)
        release.backend.jobs.cancel(subject)
        far = "" if status.progress_pct is None else f" at {status.progress_pct:.0f} %"
        return f"job {subject} was {status.phase}{far}{f': {status.reason}' if status.reason else ''}"

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Watch the job."""
        return JobTrigger(name=subject, **common)


def own_reference(release: OpenRelease) -> Reference | None:
    """Return the figures of the release's own source, which the step quantize made sure of."""
    return quality.reference(release.plan.selection.source_digest, release.backend.weights)


def stable_reference(release: OpenRelease) -> Reference | None:
    """Return the figures of the source of what serves now, none if nothing does or they were never made."""
    stable = release.backend.traffic.route(release.model).stable
    if stable is None:
        return None
    record = release.backend.ledger.read(record_key(slug(release.model), stable.release, "select"))
    if record is None:
        return None
    source = Selection.model_validate(record["detail"]).source_digest
    return quality.reference(source, release.backend.weights)


class QuantizeOperator(JobOperator):
    """Makes the artifact, or finds it, and puts its quality to the gate; in a race one scheme after another."""

    step = "quantize"
    job_deadline = "quantize_s"

    def begin(self, release: OpenRelease) -> str:
        """Start the first job that is due, or adopt it; one that failed in an earlier try starts anew."""
        return self._advance(release, again=True).name

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Go on to the next job when one has ended."""
        return self._advance(release).ended

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Cancel the job that is at work now."""
        return super().abandon(release, self._advance(release).name)

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Watch the job that is at work now."""
        return super().trigger(release, self._advance(release).name, **common)

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Check the artifact and its quality; remember who won a race."""
        backend, made = release.backend, release.plan
        outcome = release.keep(quantize.finish(made, backend.jobs, backend.weights, stable_reference(release)))
        if made.contenders:
            backend.ledger.append(quantize.race_key(made), {"scheme": outcome.scheme, "release": release.release})

    def _advance(self, release: OpenRelease, *, again: bool = False) -> JobStatus:
        backend = release.backend
        return quantize.advance(release.plan, backend.jobs, backend.weights, stable_reference(release), again=again)


class StageOperator(JobOperator):
    """Brings the artifact to the node and verifies it there."""

    step = "stage"
    job_deadline = "stage_s"

    def begin(self, release: OpenRelease) -> str:
        """Start the job, or adopt it."""
        backend = release.backend
        pins = stage.pins(backend.clusters, backend.traffic, backend.ledger)
        return stage.begin(release.plan, backend.jobs, backend.weights, release=release.release, pins=pins).name

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Check what lies on the node."""
        backend = release.backend
        release.keep(stage.finish(release.plan, backend.jobs, backend.weights, release=release.release))


class RolloutOperator(WaitingOperator):
    """Brings the candidate up beside stable, with none of the traffic."""

    step = "rollout"

    def begin(self, release: OpenRelease) -> str:
        """Start the cluster, or adopt it; where the profile waits for room, it may not be there yet."""
        return self._begin(release).name

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Look whether it answers, or has failed; start it where it was waiting for room that has come."""
        status = release.backend.clusters.status(subject)
        if status.phase == "absent" and self._waits(release):
            return self._begin(release).phase not in ("absent", "starting")
        return status.phase != "starting"

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Make it reachable for the benchmark."""
        backend = release.backend
        release.keep(rollout.finish(release.plan, release.sure_ref, backend.clusters, backend.traffic, utcnow()))

    def inline_s(self, release: OpenRelease) -> float:
        """A cluster that does not run already takes minutes."""
        return 0.0

    def deadline_s(self, release: OpenRelease) -> float:
        """Take the profile's limit."""
        return float(release.plan.profile.deadlines.rollout_s)

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Leave the cluster to `record`, and say what it was doing."""
        status = release.backend.clusters.status(subject)
        if status.phase == "absent" and self._waits(release):
            return f"cluster {subject} waited for room: {release.backend.clusters.room(release.plan.cluster).detail}"
        return f"cluster {subject} was {status.phase}{f': {status.reason}' if status.reason else ''}"

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Watch the cluster, or the room that it waits for."""
        if self._waits(release) and release.backend.clusters.status(subject).phase == "absent":
            return RoomTrigger(spec=release.plan.cluster.to_json(), **common)
        return ClusterTrigger(name=subject, **common)

    def _begin(self, release: OpenRelease) -> ClusterStatus:
        backend = release.backend
        status = rollout.begin(release.plan, release.sure_ref, backend.clusters, backend.traffic)
        if status.phase == "absent":
            self.log.info("%s %s", status.name, status.reason)
        return status

    def _waits(self, release: OpenRelease) -> bool:
        return release.plan.profile.rollout.no_room == "wait"


class CanaryOperator(JobOperator):
    """Measures candidate against stable and comes to a verdict; fails on ROLLBACK."""

    step = "canary"
    job_deadline = "canary_s"
    first_metrics_s: ClassVar[float] = 90.0
    """How long a cluster that has just come up may take until its metrics are read: a few scrapes."""

    def begin(self, release: OpenRelease) -> str:
        """Start the benchmark, or adopt it; not before the candidate's engine reports what is asked of it."""
        backend = release.backend
        if backend.jobs.status(canary.job_name(release.sure_ref)).phase == "absent" and not self._reports(release):
            return SILENT
        return canary.begin(
            release.plan,
            release.sure_ref,
            backend.traffic.route(release.model),
            backend.jobs,
            backend.weights,
            metrics=backend.metrics,
            now=utcnow(),
            reference=own_reference(release),
            gateway_url=backend.gateway_url,
            stats_url=backend.stats_url,
        ).name

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Look at the benchmark; where the profile has tasks, and the candidate has not lost already, at these too."""
        return subject == SILENT or self._current(release, subject).ended

    def deadline_s(self, release: OpenRelease) -> float:
        """Take the profile's limits, of benchmark and tasks."""
        asked = release.plan.profile.quality.tasks
        return super().deadline_s(release) + (asked.deadline_s if asked else 0.0)

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Cancel the job that is at work now."""
        return super().abandon(release, self._current(release, subject).name)

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Watch the job that is at work now."""
        return super().trigger(release, self._current(release, subject).name, **common)

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Judge what was measured."""
        verdict = release.keep(self._final(release, subject))
        self.log.info("%s: %s", verdict.decision, verdict.sentence)
        if verdict.decision == "ROLLBACK":
            raise CanaryFailed(verdict.sentence, verdict=verdict.to_json())
        self._keep_throughput(release, verdict)

    def _keep_throughput(self, release: OpenRelease, verdict: Verdict) -> None:
        """Keep what a replica sustains, by which capacity is planned. A release does not fail for want of it."""
        backend, made = release.backend, release.plan
        content = canary.read_records(verdict, backend.weights)
        if content is None:
            return
        try:
            run = records.parse(content)
            cached = throughput.cached_share(backend.metrics, made.model, made.cluster.name, run.summaries)
            found = throughput.sustained(run.records, run.summaries, made.profile, cached_share=cached)
        except HeadwayError as error:
            if error.retryable:
                raise
            self.log.info("What a replica sustains is not known from this benchmark: %s", error.message)
            return
        backend.ledger.append(release.key(throughput.RECORD), found.to_json())
        self.log.info("%s", found.sentence)

    def _reports(self, release: OpenRelease) -> bool:
        """Give the metrics of a cluster that has just come up the time to be read."""
        return poll(lambda: self._contract(release).passed, bool, within_s=self.first_metrics_s)

    def _contract(self, release: OpenRelease) -> Check:
        return canary.reports(release.plan, release.backend.metrics, utcnow())

    def _final(self, release: OpenRelease, subject: str) -> Verdict:
        if subject == SILENT:
            return canary.silent(self._contract(release))
        verdict, jobs = self._verdict(release), release.backend.jobs
        if not tasks.due(release.plan, release.sure_ref, jobs.status(subject), jobs, lambda: verdict):
            return verdict
        return self._verdict(release, tasks.checks(release.plan, release.sure_ref, jobs))

    def _current(self, release: OpenRelease, subject: str) -> JobStatus:
        """Return where the benchmark stands, or after it the tasks, which start here."""
        backend = release.backend
        status = backend.jobs.status(subject)
        if not tasks.due(release.plan, release.sure_ref, status, backend.jobs, lambda: self._verdict(release)):
            return status
        return tasks.begin(
            release.plan,
            release.sure_ref,
            backend.traffic.route(release.model),
            backend.jobs,
            backend.weights,
            clusters=backend.clusters,
            gateway_url=backend.gateway_url,
        )

    def _verdict(self, release: OpenRelease, answered: Sequence[Check] = ()) -> Verdict:
        backend = release.backend
        return canary.finish(
            release.plan,
            release.sure_ref,
            backend.traffic.route(release.model),
            backend.jobs,
            backend.weights,
            metrics=backend.metrics,
            found=canary.Found(own_reference(release), answered),
            checks=backend.checks,
        )


class ShiftOperator(WaitingOperator):
    """Moves the traffic by steps, each watched, and back at the first breach."""

    step = "shift"
    every_s = 2.0
    late_hint = "the candidate does not reach the replicas for its share; look at its log and at the free capacity"

    def begin(self, release: OpenRelease) -> str:
        """Nothing to start: the first tick takes the first step."""
        return release.plan.cluster.name

    def inline_s(self, release: OpenRelease) -> float:
        """Watch short bakes in place, such as those of a demonstration: a deferral would take longer than they do."""
        shift_s = len(release.plan.profile.shift.steps_pct) * release.plan.profile.shift.bake_s
        return SHORT_SHIFT_S if shift_s <= SHORT_SHIFT_S else 0.0

    def seen(self, event: dict[str, Any]) -> None:
        """Fail on the breach that the trigger met; the traffic is back already, so a tick would begin anew."""
        if "breach" in event:
            raise CanaryFailed(event["breach"], verdict=event.get("verdict") or {})

    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Do what is due now."""
        backend = release.backend
        progress = shift.tick(
            release.plan,
            traffic=backend.traffic,
            clusters=backend.clusters,
            metrics=backend.metrics,
            objects=backend.objects,
            now=utcnow(),
        )
        self.log.info("%s at %s %%: %s", progress.phase, progress.candidate_pct, progress.detail)
        return progress.phase == "done"

    def finish(self, release: OpenRelease, subject: str) -> None:
        """Keep how the gateway routes now."""
        release.keep(release.backend.traffic.route(release.model))

    def deadline_s(self, release: OpenRelease) -> float:
        """Take twice the bakes, the time a cluster may need to grow at each step, and peaks that are waited for."""
        profile = release.plan.profile
        steps = len(profile.shift.steps_pct)
        peaks_s = PEAKS_S if profile.prescale.enabled else 0.0
        return steps * (2 * profile.shift.bake_s + profile.deadlines.rollout_s) + peaks_s

    def abandon(self, release: OpenRelease, subject: str) -> str:
        """Say where the shift was; `record` takes the candidate back."""
        route = release.backend.traffic.route(release.model)
        return f"the candidate had {route.candidate_pct} % of the traffic"

    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Go on ticking without a worker."""
        return ShiftTrigger(release=release.release, poll_s=5.0, **common)
