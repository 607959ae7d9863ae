"""Why an engine of a cluster did not start, in its own words.

Serve only says that the deployment failed; what vLLM's processes logged is in Ray's log folder.
"""

from pathlib import Path

from headway.domain import engine_error


def root_cause(logs: Path) -> str:
    """Return the first error that a process of vLLM logged, without the module's name; empty if there is none.

    Args:
        logs: Ray's log folder of the session.
    """
    for path in sorted(logs.glob("worker-*.out")) + sorted(logs.glob("worker-*.err")):
        if found := engine_error.root_cause(path.read_text(errors="replace").splitlines()):
            return found
    return ""


def last_line(text: str) -> str:
    """Return the last line of a message, which in a traceback is the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][: engine_error.LONGEST] if lines else ""
