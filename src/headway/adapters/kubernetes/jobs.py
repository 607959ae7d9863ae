"""Jobs as pods: the `Jobs` port on Kubernetes.

A job is a batch/v1 Job of its name and a ConfigMap with its input, which goes when the Job goes. What a job came to is
read from the Job and its pod, whoever asks and whenever; nothing is kept by the process that submitted it. Staging is
another thing (`stage_set`): not one run, but a state of all nodes of a kind.

How a run ended, and what that means:

| seen | phase |
|---|---|
| the program ended with 0 and left a result | succeeded |
| exit code 75, or a signal that was none of its own doing | retryable |
| evicted, preempted, drained, its node lost | retryable |
| exit code 1, or any other; killed for memory; the deadline passed | failed |
| cannot start for a reason that waiting does not change, for over a minute | ended, failed |
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headway.adapters.kubernetes import inputs, programs, reasons
from headway.adapters.kubernetes import program_results as results
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.job_objects import batch_job, job_labels
from headway.adapters.kubernetes.kinds import CONFIG_MAP, JOB, NODE, POD
from headway.adapters.kubernetes.objects import annotation, condition
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.stage_set import StageSets
from headway.domain.job import EXIT_RETRY, Job, JobPhase, JobStatus
from headway.errors import BackendUnavailable, HeadwayError

MAIN = "main"
OF_JOB = "batch.kubernetes.io/job-name"
"""Label that Kubernetes puts on the pods of a Job."""
WAITED_FOR, HOPELESS = "headway/waited-for", "headway/hopeless"
"""Annotations of a Job: what its pod was last waiting for, and why headway ended it."""
PATIENCE_S = 60.0
"""How long a pod may look as if it could never start (a Secret or an image may come a moment after the Job), and how
long it may linger after its time on a node that is not ready, until it counts as lost."""
GONE_WITHIN_S = 120.0
"""Longer than any pod's own time to end."""
POLL_S = 0.2
EXIT_CODE = re.compile(r"exit code (\d+)")
DISRUPTED = "DisruptionTarget"
SIGNALLED = 128
"""Exit codes above it are those of signals."""
LAST_LINES = 5


class KubernetesJobs:
    """The `Jobs` port.

    Args:
        client: Access to the API server.
        site: The cluster.
        read: Reads an `s3://` address: results that no termination message takes.
        patience_s: How long a pod may look as if it could never start, or as if it could never end.
    """

    def __init__(self, client: Client, site: Site, read: results.Read, *, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        self._site = site
        self._read = read
        self._patience_s = patience_s
        self.stages = StageSets(client, site, read, patience_s=patience_s)

    def submit(self, job: Job) -> JobStatus:
        """Start the job, or adopt the one of this name (running or ended well). A failed one is started anew.

        Raises:
            ConfigError: Kubernetes does not take its name, or its input is too large.
            Conflict: Something else of that name is there.
            Refused: Rights, quota or admission forbid it, or no node has its accelerator; nothing of it stays.
        """
        programs.checked_name(job.name)
        if job.program == "stage":
            return self.stages.submit(job)
        known = self.status(job.name)
        if known.phase not in ("running", "succeeded"):
            if known.phase != "absent":
                self._remove(job.name)
            self._start(job)
        # Also where the process that submitted it died before it came to this.
        made = self._client.get(JOB, job.name, self._site.namespace)
        if made is not None:
            inputs.own(self._client, job.name, made)
        return self.status(job.name)

    def status(self, name: str) -> JobStatus:
        """Tell where the job stands; phase `absent` if there is none."""
        found = self._client.get(JOB, name, self._site.namespace)
        if found is None:
            return self.stages.status(name)
        programs.require_ours(found)
        if found["metadata"].get("deletionTimestamp"):
            return JobStatus(name=name, phase="retryable", reason="somebody is deleting it")
        pod = results.newest(self._pods(name))
        if (condition(found, "Complete") or {}).get("status") == "True":
            return self._succeeded(name, pod)
        if hopeless := annotation(found, HOPELESS):
            return JobStatus(name=name, phase="failed", reason=hopeless)
        failed = condition(found, "Failed") or {}
        if failed.get("status") == "True":
            return self._failed(name, found, failed, pod)
        return self._running(name, found, pod)

    def cancel(self, name: str) -> None:
        """End the job and all its processes; absent is fine. Returns when its pod is gone; what ended well stays."""
        if self._client.get(JOB, name, self._site.namespace) is None:
            self.stages.cancel(name)
            inputs.drop(self._client, name, self._site.namespace)
        elif self.status(name).phase != "succeeded":
            self._remove(name)

    def log_tail(self, name: str, lines: int = 40) -> str:
        """Return the last lines of what the program printed; empty if there is none."""
        if lines <= 0:
            return ""
        pod = results.newest(self._pods(name))
        if pod is None:
            return self.stages.log_tail(name, lines)
        return results.log_of(self._client, pod, MAIN, lines)

    # --- Starting and ending ------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        """Make the input, then the Job; of a Job that is refused nothing stays."""
        namespace = self._site.namespace
        inputs.put(self._client, programs.config_map(self._site, job.name, job.payload, job_labels(job)))
        try:
            self._client.create(JOB, batch_job(self._site, job))
        except HeadwayError:
            # Somebody may have been quicker, or only the answer was lost: then it is adopted.
            if self._client.get(JOB, job.name, namespace) is None:
                self._client.delete(CONFIG_MAP, job.name, namespace)
                raise

    def _remove(self, name: str) -> None:
        """Delete a Job, its pods and its input; returns when none of them is left."""
        namespace = self._site.namespace
        self._client.delete(JOB, name, namespace, propagation="Foreground")
        # Not left to Kubernetes: it might take the input of the next run for that of this one.
        self._client.delete(CONFIG_MAP, name, namespace)
        ends = time.monotonic() + GONE_WITHIN_S
        while True:
            pods = self._pods(name)
            left = [*pods, *(one for one in (self._client.get(JOB, name, namespace),) if one is not None)]
            if not left:
                return
            for pod in pods:
                if self._is_lost(pod):
                    # Nobody is there to end it. A second run beside it does no harm: what programs make is named by
                    # its digest and published whole.
                    self._client.delete(POD, pod["metadata"]["name"], namespace, grace_s=0)
            if time.monotonic() > ends:
                names = ", ".join(f"{one.get('kind', 'Pod')} {one['metadata']['name']}" for one in left)
                raise BackendUnavailable(
                    f"{names} did not go within {GONE_WITHIN_S:.0f} s of being deleted; look for finalizers and at the "
                    "node; headway tries again",
                    name=name,
                )
            time.sleep(POLL_S)

    def _pods(self, name: str) -> Sequence[Object]:
        return self._client.list(POD, self._site.namespace, labelSelector=f"{OF_JOB}={name}")

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _succeeded(self, name: str, pod: Object | None) -> JobStatus:
        if pod is None:
            return JobStatus(
                name=name,
                phase="retryable",
                reason="it ended well, and its pod is gone with its result; start it again",
            )
        how = results.ended(results.container_status(pod, MAIN))
        result = results.said(how.message, self._read) if how else None
        if result is None:
            return JobStatus(name=name, phase="failed", reason="it ended well and left no result")
        return JobStatus(name=name, phase="succeeded", progress_pct=100, result=result)

    def _failed(self, name: str, found: Object, why: Object, pod: Object | None) -> JobStatus:
        if why.get("reason") == "DeadlineExceeded":
            waited_for = annotation(found, WAITED_FOR)
            limit_s = found["spec"].get("activeDeadlineSeconds")
            reason = f"it took longer than its deadline of {limit_s} s and was ended"
            return JobStatus(
                name=name,
                phase="failed",
                reason=f"{reason}; it had not started: {waited_for}" if waited_for else reason,
            )
        if pod is None:
            return without_pod(name, str(why.get("message") or ""))
        how = results.ended(results.container_status(pod, MAIN))
        told = reasons.told([pod], [])
        if told is not None and (how is None or is_disrupted(pod) or how.reason == reasons.OOM_KILLED):
            return JobStatus(name=name, phase="retryable" if told.retryable else "failed", reason=told.words)
        if how is None:
            return without_pod(name, str(why.get("message") or ""))
        return self._ended(name, pod, how)

    def _ended(self, name: str, pod: Object, how: results.Ended) -> JobStatus:
        """Judge a program by its exit code, and by what it said."""
        result = results.said(how.message, self._read)
        phase = phase_of(how.code)
        text = str((result or {}).get("error") or "")
        if not text:
            last = how.message or results.log_of(self._client, pod, MAIN, LAST_LINES)
            text = f"it ended with exit code {how.code}; its last line was: {(last.strip().splitlines() or [''])[-1]}"
        return JobStatus(name=name, phase=phase, reason=text, result=result)

    def _running(self, name: str, found: Object, pod: Object | None) -> JobStatus:
        if pod is not None and self._is_lost(pod):
            node = pod["spec"].get("nodeName")
            return JobStatus(name=name, phase="retryable", reason=f"its node {node} is lost, and the pod with it")
        if pod is not None and "running" in (results.container_status(pod, MAIN).get("state") or {}):
            if annotation(found, WAITED_FOR):
                self._note(name, {WAITED_FOR: None})
            said = results.progress_of(self._client, pod, MAIN)
            return JobStatus(name=name, phase="running", reason=said.words, progress_pct=said.pct)
        waits = (
            reasons.of_owner(self._client, self._site, JOB.name, name)
            if pod is None
            else reasons.of_pods(self._client, self._site, f"{OF_JOB}={name}")
        )
        if waits is None:
            return JobStatus(name=name, phase="running", reason="it is about to start")
        if not waits.retryable and programs.age_s(pod or found) > self._patience_s:
            # Ended by its own deadline, which is the end that a Job remembers.
            self._note(name, {HOPELESS: waits.words}, {"activeDeadlineSeconds": 1})
            return JobStatus(name=name, phase="failed", reason=waits.words)
        if annotation(found, WAITED_FOR) != waits.words:
            self._note(name, {WAITED_FOR: waits.words})
        return JobStatus(name=name, phase="running", reason=waits.words)

    def _note(self, name: str, notes: Mapping[str, str | None], spec: dict[str, Any] | None = None) -> None:
        change: Object = {"metadata": {"annotations": dict(notes)}, **({"spec": spec} if spec else {})}
        self._client.merge(JOB, name, change, self._site.namespace)

    def _is_lost(self, pod: Object) -> bool:
        """Tell whether a pod should have been gone for a while, and its node is not there to say so."""
        since = pod["metadata"].get("deletionTimestamp")  # already with its time to end
        if since is None or programs.seconds_since(since) < self._patience_s:
            return False
        name = pod["spec"].get("nodeName")
        node = self._client.get(NODE, name) if name else None
        return node is None or (condition(node, "Ready") or {}).get("status") != "True"


def phase_of(code: int) -> JobPhase:
    """Return what an exit code other than 0 means. A signal that was not for memory came from outside."""
    return "retryable" if code == EXIT_RETRY or code > SIGNALLED else "failed"


def is_disrupted(pod: Object) -> bool:
    """Tell whether a pod was taken away and did nothing wrong."""
    evicted = (pod.get("status") or {}).get("reason") == "Evicted"
    return evicted or (condition(pod, DISRUPTED) or {}).get("status") == "True"


def without_pod(name: str, message: str) -> JobStatus:
    """Return where a failed job stands whose pod is gone: what the Job remembers of it.

    Args:
        name: Of the job.
        message: Of the Job's condition `Failed`.
    """
    if DISRUPTED in message:
        return JobStatus(name=name, phase="retryable", reason=f"its pod was taken away: {message}")
    if match := EXIT_CODE.search(message):
        code = int(match[1])
        reason = f"it ended with exit code {code}, and its pod is gone with what it said"
        return JobStatus(name=name, phase=phase_of(code), reason=reason)
    return JobStatus(name=name, phase="retryable", reason=f"its pod is gone: {message or 'no reason given'}")
