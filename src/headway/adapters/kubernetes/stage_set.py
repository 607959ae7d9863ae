"""Staging on Kubernetes: an artifact on every node of a kind of accelerator, as long as somebody may serve it.

A DaemonSet an artifact and accelerator. Its init container runs the stage program, its other one waits; ready means
that the artifact's directory is there, and the program makes that appear only when every byte is verified. Nodes that
join get the artifact without anybody asking. What asked for it (a job, by its name) is kept in a ConfigMap that belongs
to the set, so releases of one artifact share the set.

Serving pods do not rely on it: each runs the same program before its engine, and mostly finds everything there.
"""

import time
from collections.abc import Sequence

from pydantic import ValidationError

from headway.adapters.kubernetes import inputs, programs, reasons, room, stage_view
from headway.adapters.kubernetes import program_results as results
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.job_objects import ASKED_BY, SET, asked, set_name, stage_labels, stage_set
from headway.adapters.kubernetes.kinds import CONFIG_MAP, DAEMON_SET, EVENT, NODE, POD
from headway.adapters.kubernetes.objects import ASKED, DIGEST, annotation, selector
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.stage_view import STAGE, View
from headway.domain.job import Job, JobStatus
from headway.domain.value import short
from headway.domain.weight_jobs import StageJob, StageResult
from headway.errors import BackendUnavailable, ConfigError, HeadwayError, Refused

MOST_LOGS = 5
"""Pods whose progress a look asks for."""
GONE_WITHIN_S = 120.0
POLL_S = 0.2
KEPT_S = 3600
"""How long after its deadline a job still keeps its set from being swept: its release may be between two steps."""


class StageSets:
    """Stage jobs, each a share in a DaemonSet.

    Args:
        client: Access to the API server.
        site: The cluster.
        read: Reads an `s3://` address: results that no termination message takes.
        patience_s: How long a pod may look as if it could never start.
    """

    def __init__(self, client: Client, site: Site, read: results.Read, *, patience_s: float) -> None:
        self._client = client
        self._site = site
        self._read = read
        self._patience_s = patience_s

    def submit(self, job: Job) -> JobStatus:
        """Let the nodes have the artifact, or find that they do or will. One that failed is tried again at once.

        Raises:
            ConfigError: The job is none that a set can do.
            Refused: No node has the accelerator, or rights, quota or admission forbid it; nothing of it stays.
            Conflict: Something else of that name is there.
        """
        wanted = self._checked(job)
        known = self.status(job.name)
        if known.phase in ("running", "succeeded"):
            return known
        self._require_nodes(job.accelerator)
        name = set_name(wanted.artifact_digest, job.accelerator)
        there = self._client.get(DAEMON_SET, name, self._site.namespace)
        programs.require_ours(there)
        if there is not None and there["metadata"].get("deletionTimestamp"):
            self._delete([name])
            there = None
        programs.require_ours(self._client.get(CONFIG_MAP, job.name, self._site.namespace))
        # Its age is what the deadline counts from.
        self._client.delete(CONFIG_MAP, job.name, self._site.namespace)
        if there is not None:
            self._try_again(name, job.accelerator)
        self._apply(job, name, there)
        if wanted.pins:
            self.sweep(wanted.pins)
        return self.status(job.name)

    def status(self, name: str) -> JobStatus:
        """Tell where the nodes stand that a job asked for; phase `absent` if there is no such job."""
        record = self._client.get(CONFIG_MAP, name, self._site.namespace)
        job = _job_of(record)
        if record is None or job is None:
            return JobStatus(name=name, phase="absent")
        of_set = record["metadata"]["labels"][SET]
        view = self._look(of_set, job.accelerator)
        if view.whole:
            return self._whole(name, view)
        if view.failure is not None:
            said = results.said(view.failure.message, self._read)
            text = (said or {}).get("error") or view.failure.message.strip() or "it ended with exit code 1"
            return JobStatus(name=name, phase="failed", reason=f"node {view.failure.node}: {text}", result=said)
        if view.emptied:
            names = ", ".join(stage_view.node_of(pod) for pod in view.emptied[: stage_view.NAMED])
            reason = f"{view.words}: on {names} it was there and has made room for others; it has to come again"
            return JobStatus(name=name, phase="retryable", reason=reason)
        told, progress_pct = self._slowest(of_set, view)
        far = f"{view.words}{f': {told.words}' if told else ''}"
        if told is not None and not told.retryable and programs.age_s(record) > self._patience_s:
            return JobStatus(name=name, phase="failed", reason=far)
        if programs.age_s(record) > job.deadline_s:
            reason = f"it took longer than its deadline of {job.deadline_s} s: {far}"
            return JobStatus(name=name, phase="failed", reason=reason)
        return JobStatus(name=name, phase="running", reason=far, progress_pct=progress_pct)

    def cancel(self, name: str) -> None:
        """Forget a job; its set goes unless another job has asked for the same. What ended well stays, absent is fine.

        Returns when no pod of the set is left.
        """
        record = self._client.get(CONFIG_MAP, name, self._site.namespace)
        if record is None or _job_of(record) is None or self.status(name).phase == "succeeded":
            return
        of_set = record["metadata"]["labels"][SET]
        # The record goes last: as long as it is there, the next call goes on where this one was killed.
        if [one["metadata"]["name"] for one in self._records(f"{SET}={of_set}")] == [name]:
            self._delete([of_set])
        self._client.delete(CONFIG_MAP, name, self._site.namespace)
        # Of two that are cancelled at once each has seen the other.
        if not self._records(f"{SET}={of_set}"):
            self._delete([of_set])

    def log_tail(self, name: str, lines: int = 40) -> str:
        """Return the last lines of the program's log on a node that does not have the artifact yet, or on any."""
        record = self._client.get(CONFIG_MAP, name, self._site.namespace)
        job = _job_of(record)
        if record is None or job is None:
            return ""
        view = self._look(record["metadata"]["labels"][SET], job.accelerator)
        pod = next(iter((*view.behind, *view.finished)), None)
        return results.log_of(self._client, pod, STAGE, lines) if pod else ""

    def remove(self, artifact_digest: str) -> None:
        """Let nodes have an artifact no longer: its sets go, and what lies on nodes may make room for others.

        Returns when none of their pods is left.
        """
        sets = self._client.list(
            DAEMON_SET, self._site.namespace, labelSelector=selector("stage", digest=artifact_digest)
        )
        self._delete([one["metadata"]["name"] for one in sets])

    def sweep(self, pins: Sequence[str]) -> None:
        """Remove the sets of artifacts that no cluster has and no release is about to serve.

        Args:
            pins: Digests of the artifacts that must stay on nodes.
        """
        pinned = {short(pin) for pin in pins}
        busy = {
            record["metadata"]["labels"][SET]
            for record in self._records(ASKED_BY)
            if (job := _job_of(record)) is None or programs.age_s(record) < job.deadline_s + KEPT_S
        }
        sets = self._client.list(DAEMON_SET, self._site.namespace, labelSelector=selector("stage"))
        for one in sets:
            metadata = one["metadata"]
            if metadata["name"] not in busy and metadata["labels"].get(DIGEST) not in pinned:
                self._client.delete(DAEMON_SET, metadata["name"], self._site.namespace)

    # --- Making -------------------------------------------------------------------------------------------------------

    def _checked(self, job: Job) -> StageJob:
        try:
            wanted = StageJob.model_validate(job.payload)
        except ValidationError as error:
            raise ConfigError(f"job {job.name} is no stage job: {error}") from error
        if wanted.mode != "stage" or not wanted.artifact_digest:
            raise ConfigError(f"job {job.name} names no artifact to stage; nodes get one artifact with each job")
        if wanted.dest_root.rstrip("/") != self._site.node_root.rstrip("/"):
            raise ConfigError(
                f"job {job.name} stages below {wanted.dest_root}, and the nodes' volumes are at "
                f"{self._site.node_root}; plan the release again",
                dest_root=wanted.dest_root,
            )
        return wanted

    def _require_nodes(self, accelerator: str) -> None:
        """Refuse if no node could ever have it."""
        tolerations = _tolerations(self._site, accelerator)
        nodes = self._nodes(accelerator)
        reasons_away = {one["metadata"]["name"]: room.away(one, tolerations) for one in nodes}
        if any(not why.startswith("taint") for why in reasons_away.values()):
            return
        if nodes:
            named = "; ".join(f"{name}: {why}" for name, why in list(reasons_away.items())[: stage_view.NAMED])
            raise Refused(
                f"every node with {accelerator or 'Linux'} keeps headway's pods away ({named}); take the taint away, "
                "or name an accelerator of other nodes in `hardware.accelerator`",
                accelerator=accelerator,
            )
        counts: dict[str, int] = {}
        for node in self._client.list(NODE):
            if product := room.product_of(node):
                counts[product] = counts.get(product, 0) + 1
        has = ", ".join(f"{product} ({count} nodes)" for product, count in sorted(counts.items()))
        raise Refused(
            f"no node of the cluster has {accelerator}; it has {has or 'no accelerators'}; correct "
            "`hardware.accelerator` of the profile, or add such nodes",
            accelerator=accelerator,
            has=sorted(counts),
        )

    def _apply(self, job: Job, name: str, there: Object | None) -> None:
        """Bring up the set and what belongs to it; of a new one that is refused nothing stays."""
        namespace = self._site.namespace
        try:
            content = programs.config_map(self._site, name, job.payload, stage_labels(job))
            inputs.put(self._client, content, there)
            made = self._client.apply(DAEMON_SET, stage_set(self._site, job), force=True)
            inputs.own(self._client, name, made)
            record = programs.config_map(
                self._site,
                job.name,
                job.payload,
                {**stage_labels(job), SET: name, ASKED_BY: job.name},
                annotations={ASKED: asked(job)},
            )
            inputs.put(self._client, record, made)
        except HeadwayError:
            if there is None:
                for kind, own in ((DAEMON_SET, name), (CONFIG_MAP, name), (CONFIG_MAP, job.name)):
                    self._client.delete(kind, own, namespace)
            raise

    def _try_again(self, of_set: str, accelerator: str) -> None:
        """Replace the pods that will not get on by themselves: what failed, and what has lost the artifact."""
        view = self._look(of_set, accelerator)
        for pod in (*view.stuck, *view.emptied):
            metadata = pod["metadata"]
            self._client.delete(POD, metadata["name"], self._site.namespace, uid=metadata["uid"])

    def _delete(self, sets: Sequence[str]) -> None:
        """Delete sets; returns when no pod of them is left."""
        for name in sets:
            self._client.delete(DAEMON_SET, name, self._site.namespace, propagation="Foreground")
        ends = time.monotonic() + GONE_WITHIN_S
        while left := [name for name in sets if self._client.get(DAEMON_SET, name, self._site.namespace) is not None]:
            if time.monotonic() > ends:
                raise BackendUnavailable(
                    f"{', '.join(left)} did not go within {GONE_WITHIN_S:.0f} s of being deleted; look at its pods and "
                    "their nodes; headway tries again"
                )
            time.sleep(POLL_S)

    # --- Looking ------------------------------------------------------------------------------------------------------

    def _look(self, of_set: str, accelerator: str) -> View:
        pods = self._client.list(POD, self._site.namespace, labelSelector=f"{SET}={of_set}")
        tolerations = _tolerations(self._site, accelerator)
        return stage_view.look(self._nodes(accelerator), pods, tolerations, time.time(), self._patience_s)

    def _nodes(self, accelerator: str) -> Sequence[Object]:
        wanted = self._site.node_selector(accelerator)
        return self._client.list(NODE, labelSelector=",".join(f"{key}={value}" for key, value in wanted.items()))

    def _records(self, wanted: str) -> Sequence[Object]:
        return self._client.list(CONFIG_MAP, self._site.namespace, labelSelector=f"{wanted},{ASKED_BY}")

    def _whole(self, name: str, view: View) -> JobStatus:
        """Return the result of the node that took longest."""
        found: list[StageResult] = []
        for pod in view.finished:
            how = results.ended(results.container_status(pod, STAGE))
            said = results.said(how.message, self._read) if how else None
            if said is not None and "error" not in said:
                found.append(StageResult.model_validate(said))
        if not found:
            return JobStatus(name=name, phase="failed", reason=f"{view.words}, and the program left no result")
        slowest = max(found, key=lambda one: one.seconds)
        return JobStatus(name=name, phase="succeeded", reason=view.words, progress_pct=100, result=slowest.to_json())

    def _slowest(self, of_set: str, view: View) -> tuple[reasons.Reason | None, float | None]:
        """Return what the node that is furthest behind waits for, and how far it is."""
        running = [pod for pod in view.behind if "running" in (results.container_status(pod, STAGE).get("state") or {})]
        waiting = [pod for pod in view.behind if pod not in running]
        if view.without_pod and (refused := reasons.of_owner(self._client, self._site, DAEMON_SET.name, of_set)):
            return refused, 0.0
        if waiting:
            events = self._client.list(EVENT, self._site.namespace, fieldSelector="type=Warning")
            return reasons.told(waiting, events), 0.0
        if not running:
            return None, 0.0
        said = [(results.progress_of(self._client, pod, STAGE), pod) for pod in running[:MOST_LOGS]]
        slowest, pod = min(said, key=lambda one: one[0].pct or 0.0)
        words = f"{stage_view.node_of(pod)}: {slowest.words or 'the program starts'}"
        return reasons.Reason(words, retryable=True), slowest.pct


def _job_of(record: Object | None) -> Job | None:
    """Return the job that a record is of; none if it is no record of a stage job."""
    kept = annotation(record, ASKED) if record and SET in (record["metadata"].get("labels") or {}) else None
    try:
        return Job.model_validate_json(kept) if kept else None
    except ValidationError:
        return None


def _tolerations(site: Site, accelerator: str) -> Sequence[Object]:
    found: Sequence[Object] = programs.place(site, accelerator).get("tolerations") or []
    return found
