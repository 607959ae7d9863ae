"""How much memory this process takes, and may take."""

import contextlib
import os
import resource
from pathlib import Path

from headway.units import KIB

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
RESET_PEAK = "5"
"""Sets the peak to what is resident now (Linux, proc_pid_clear_refs(5))."""
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the container, in the second and the first version of control groups."""


def reset_peak() -> None:
    """Forget the peak until now. Where the kernel does not let us, the peak stays that of the whole process."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text(RESET_PEAK)


def peak_rss_bytes() -> int:
    """Return the most memory that was resident since the last `reset_peak`."""
    with contextlib.suppress(OSError):  # not Linux: the figure of the whole process is all there is
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def limit_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less in a container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such version, or `max`
            found.append(int(path.read_text()))
    return min(found)
