"""Runs one pod program under its deadline and leaves how it ended: `python -m ... MODULE DEADLINE_S` in its folder.

Standard library only: it runs in every environment.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 10
"""Seconds from TERM to KILL when the deadline has passed."""


def main(module: str, deadline_s: int) -> int:
    """Run the program; return its exit code, or 1 if its deadline passed."""
    program = subprocess.Popen([sys.executable, "-m", module, "job.json"])

    def forward(number: int, _frame: object) -> None:
        program.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    passed = False
    try:
        code = program.wait(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        passed = True
        program.terminate()
        try:
            code = program.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            code = program.wait()
    part = Path("ended.part")
    part.write_text(json.dumps({"exit_code": code, "deadline_passed": passed, "deadline_s": deadline_s}))
    part.replace("ended.json")
    return 1 if passed else code if code >= 0 else 128 - code


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
