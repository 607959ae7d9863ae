"""What the benchmarks share that start mock servers."""

import subprocess
import time
from pathlib import Path

START_S = 30.0
POLL_S = 0.02


def port_of(server: "subprocess.Popen[bytes]", port_file: Path) -> int:
    """Wait until a mock server answers, and return its port.

    Args:
        server: The process, started with `--port-file`.
        port_file: That file.
    """
    until = time.monotonic() + START_S
    while not port_file.exists():
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit("a mock server did not start; run `python -m headway.pods.mock_vllm` to see why")
        time.sleep(POLL_S)
    return int(port_file.read_text())
