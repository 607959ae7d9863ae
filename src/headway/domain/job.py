"""One run of a pod program."""

from typing import Any, Literal

from headway.domain.value import Value

Program = Literal["quantize", "quality", "stage", "bench", "tasks"]
Environment = Literal["quantize", "serve", "airflow", "tasks"]
JobPhase = Literal["absent", "running", "succeeded", "retryable", "failed"]

EXIT_DONE, EXIT_FAILED, EXIT_RETRY = 0, 1, 75
"""Exit codes of pod programs; 75 is EX_TEMPFAIL of sysexits.h."""


class Job(Value):
    """What to run. The name comes from a digest, so submitting twice finds the first."""

    name: str
    program: Program
    environment: Environment
    payload: dict[str, Any]
    """The program's JSON input. No secret: those come from the environment of the program."""
    deadline_s: int
    accelerator: str = ""
    """Whose nodes it belongs on, as the profile names it; empty: anywhere. The embedded stack has one node."""
    accelerators: int = 0
    """How many of them it needs for itself."""
    memory_bytes: int = 0
    """Main memory that it needs for its model, beside what the program itself takes."""
    disk_bytes: int = 0
    """Space that its working folder needs."""
    model: str = ""
    """The served model that it is for, as its users name it."""
    release: str = ""
    """Id of the release that asked for it; empty where several share it."""
    image: str = ""
    """Image that it must run in, by digest, where that matters; empty: the backend's own for the program. The embedded
    stack goes by `environment`."""


class JobStatus(Value):
    """Where a job stands."""

    name: str
    phase: JobPhase
    reason: str = ""
    """Why it failed, or what it is doing, in words."""
    progress_pct: float | None = None
    result: dict[str, Any] | None = None
    """The JSON that the program left, once it has ended well."""

    @property
    def ended(self) -> bool:
        """Whether waiting longer changes nothing."""
        return self.phase in ("succeeded", "retryable", "failed", "absent")
