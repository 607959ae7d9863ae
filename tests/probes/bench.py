"""Does as its payload says: what to `say`, `hold` to wait for a file `go`, `result` to leave, `exit` code at last."""

import json
import sys
import time
from pathlib import Path

GIVE_UP_S = 60


def main() -> int:
    """Run; return the exit code."""
    payload = json.loads(Path(sys.argv[1]).read_text())
    with Path("starts").open("a") as log:
        log.write("started\n")
    for line in payload.get("say", ()):
        print(line, flush=True)  # noqa: T201 - the job's log
    end = time.monotonic() + GIVE_UP_S
    while payload.get("hold") and not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    Path("result.json").write_text(json.dumps(payload.get("result", {})))
    return int(payload.get("exit", 0))


if __name__ == "__main__":
    sys.exit(main())
