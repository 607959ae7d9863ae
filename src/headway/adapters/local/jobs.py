"""Jobs as child processes: the `Jobs` port on one machine.

A job is a supervised process, so it outlives the Airflow task that submitted it, and a folder `jobs/<name>` that
outlives both: what a job came to is read from the folder, whoever asks and whenever.

    job.json       the payload, the program's input
    wanted.json    the whole job, written at submission
    progress.json  what the program is doing (optional)
    result.json    what the program left
    ended.json     how the process ended, written by the runner
    log            what it printed
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headway.adapters.local.environments import how_to_build
from headway.adapters.local.layout import LocalLayout, S3Role
from headway.adapters.local.processes import Supervisor, end_strays
from headway.adapters.local.ray_head import engine_environment
from headway.domain.job import EXIT_DONE, EXIT_RETRY, Job, JobStatus, Program
from headway.errors import ConfigError, NotFound

ROLES: Mapping[Program, S3Role] = {
    "quantize": "quantize",
    "quality": "quantize",
    "stage": "stage",
    "bench": "headway",
    "tasks": "headway",
}
"""The S3 identity of each program: the least that it needs."""

STOP_WAIT_S = 20


class LocalJobs:
    """The `Jobs` port.

    Args:
        layout: Where the stack is.
        programs: Package that holds the pod programs.
    """

    def __init__(self, layout: LocalLayout, *, programs: str = "headway.pods") -> None:
        self._layout = layout
        self._programs = programs
        self._supervisor = Supervisor(layout)

    def submit(self, job: Job) -> JobStatus:
        """Start the job, or adopt the one of this name (running or ended well). A failed one is started anew.

        Raises:
            ConfigError: Its environment is not built.
        """
        known = self.status(job.name)
        if known.phase in ("running", "succeeded"):
            return known
        python = self._layout.python(job.environment)
        if not python.exists():
            raise ConfigError(
                f"the program {job.program} needs the environment {job.environment}, which is not built: there is no "
                f"{python}; run `{how_to_build(job.environment)}` and start the release again",
                environment=job.environment,
            )
        if known.phase != "absent":
            # A process that has just said how it ended may still be on its way out, and would be adopted.
            self._supervisor.stop(_process(job.name))
        folder = self._folder(job.name)
        folder.mkdir(parents=True, exist_ok=True)
        for stale in ("ended.json", "result.json", "progress.json"):
            (folder / stale).unlink(missing_ok=True)
        _write(folder / "job.json", job.payload)
        _write(folder / "wanted.json", job.to_json())
        self._supervisor.start(
            _process(job.name),
            [
                str(self._layout.python(job.environment)),
                "-m",
                "headway.adapters.local.job_main",
                f"{self._programs}.{job.program}",
                str(job.deadline_s),
            ],
            env=self._layout.child_env(job.environment, role=ROLES[job.program], extra=self._extra(job)),
            directory=folder,
            log=folder / "log",
            stop_wait_s=STOP_WAIT_S,
        )
        return self.status(job.name)

    def status(self, name: str) -> JobStatus:
        """Tell where the job stands; phase `absent` if there is none."""
        folder = self._folder(name)
        if not (folder / "wanted.json").exists():
            return JobStatus(name=name, phase="absent")
        ended = _read(folder / "ended.json")
        if ended is None:
            try:
                process = self._supervisor.state(_process(name))
            except NotFound:
                process = None
            if process is not None and process.phase in ("running", "starting", "stopping"):
                progress = _read(folder / "progress.json") or {}
                return JobStatus(
                    name=name,
                    phase="running",
                    reason=str(progress.get("message", "")),
                    progress_pct=progress.get("progress_pct"),
                )
            # Between the look at the file and the look at the process it may have ended well.
            ended = _read(folder / "ended.json")
        if ended is None:
            return JobStatus(name=name, phase="retryable", reason="its process is gone without a result; it was killed")
        return self._ended(name, ended, _read(folder / "result.json"))

    def cancel(self, name: str) -> None:
        """End the job and all its processes; absent is fine."""
        self._supervisor.remove(_process(name))
        end_strays({"HEADWAY_STACK": self._layout.stack_mark, "HEADWAY_JOB": name})
        if self.status(name).phase != "succeeded":
            shutil.rmtree(self._folder(name), ignore_errors=True)

    def log_tail(self, name: str, lines: int = 40) -> str:
        """Return the last lines of what the program printed; empty if there is none."""
        try:
            text = (self._folder(name) / "log").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""

    def _ended(self, name: str, ended: Mapping[str, Any], result: Mapping[str, Any] | None) -> JobStatus:
        code = ended.get("exit_code")
        if code == EXIT_DONE and result is not None:
            return JobStatus(name=name, phase="succeeded", progress_pct=100, result=dict(result))
        said = str((result or {}).get("error") or "")
        if ended.get("deadline_passed"):
            reason = f"it took longer than its deadline of {ended.get('deadline_s')} s and was ended"
            return JobStatus(name=name, phase="failed", reason=reason)
        if code == EXIT_DONE:
            return JobStatus(name=name, phase="failed", reason="it ended well and left no result.json")
        if code == EXIT_RETRY or (code is not None and code < 0):
            reason = said or (f"it was killed by signal {-code}" if code < 0 else "it asks to be tried again")
            return JobStatus(name=name, phase="retryable", reason=reason, result=dict(result) if result else None)
        last = self.log_tail(name, 1)
        reason = said or f"it ended with exit code {code}; its last line was: {last}"
        return JobStatus(name=name, phase="failed", reason=reason, result=dict(result) if result else None)

    def _extra(self, job: Job) -> dict[str, str]:
        extra = {"HEADWAY_JOB": job.name}
        # Each program gets its half of the pair, and only as a path. A stack that is up since before there was a pair
        # has none; a pair of one's own that is missing is the program's error.
        layout = self._layout
        if job.program == "quantize" and (layout.own_signing_key or layout.signing_key.exists()):
            extra["HEADWAY_SIGNING_KEY"] = str(layout.signing_key)
        if job.program == "stage" and (layout.own_artifact_key or layout.artifact_key.exists()):
            extra["HEADWAY_ARTIFACT_KEY"] = str(layout.artifact_key)
        if job.environment != "airflow":
            extra |= {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if job.program == "quality":
            extra |= engine_environment(self._layout)
        return extra

    def _folder(self, name: str) -> Path:
        return self._layout.jobs / name


def wanted(folder: Path) -> Job | None:
    """Return the job that a folder was made for, none if it is no job's folder."""
    kept = _read(folder / "wanted.json")
    try:
        return Job.model_validate(kept) if kept else None
    except ValidationError:
        return None


def _process(name: str) -> str:
    return f"job-{name}"


def _write(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1))
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        return {"error": f"{path.name} is no JSON: {error}"}
    return value if isinstance(value, dict) else {"error": f"{path.name} is no JSON object"}
