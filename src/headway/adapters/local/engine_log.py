"""Why an engine did not start, in its own words.

Serve only says that the deployment failed, and vLLM's own error says "see root cause above": the cause itself is a line
that one of vLLM's processes logged.
"""

import re
from pathlib import Path

CAUSE = re.compile(
    r"^\((?:Worker|EngineCore)[^)]*\) ERROR \S+ \S+ \[[^\]]*\] (?P<cause>(?:\w+\.)*\w*(?:Error|Exception): .+)$"
)
CONSEQUENCES = ("initialization failed", "cancelled")
"""What the other processes say when one of them has failed."""

LONGEST = 400


def root_cause(logs: Path) -> str:
    """Return the first error that a process of vLLM logged, without the module's name; empty if there is none.

    Args:
        logs: Ray's log folder of the session.
    """
    for path in sorted(logs.glob("worker-*.out")) + sorted(logs.glob("worker-*.err")):
        for line in path.read_text(errors="replace").splitlines():
            found = CAUSE.match(line)
            if found and not any(word in line for word in CONSEQUENCES):
                module, _, text = found["cause"].partition(": ")
                return f"{module.rpartition('.')[2]}: {text}"[:LONGEST]
    return ""


def last_line(text: str) -> str:
    """Return the last line of a message, which in a traceback is the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""
