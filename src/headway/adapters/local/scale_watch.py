"""Which replicas of a cluster were asked for and came, and how long they took, from looks at Serve.

The cluster's program looks and keeps what it saw in its folder; it runs in the serving environment, so this knows
nothing but the standard library.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = "scale_ups.json"
KEPT = 200
"""Scale-ups that a cluster remembers, newest last: more than its lead times are learned from."""


class Came(NamedTuple):
    """Replicas that were asked for and run now."""

    took_s: float
    replicas: int
    """How many run now."""


class ScaleWatch:
    """What one life of a cluster was seen to do; the replicas of its first look are its start, and no scale-up."""

    def __init__(self) -> None:
        self._target: int | None = None
        self._looked_s = 0.0
        self._awaited: list[tuple[float, int]] = []

    @property
    def waiting(self) -> bool:
        """Whether replicas were asked for that do not run yet."""
        return bool(self._awaited)

    def look(self, now_s: float, *, target: int, running: int) -> Sequence[Came]:
        """Take in what Serve shows, and return what came since the last look.

        A target that rose counts from the look before, so that a scale-up never seems shorter than it was. One that
        fell again before it was reached is forgotten: nobody waited for it.

        Args:
            now_s: A clock that only goes forward.
            target: Replicas that Serve wants.
            running: Replicas that take requests.
        """
        if self._target is not None and target > self._target:
            self._awaited.append((self._looked_s, target))
        wanted = [(asked_s, count) for asked_s, count in self._awaited if count <= target]
        came = [Came(now_s - asked_s, running) for asked_s, count in wanted if count <= running]
        self._awaited = [(asked_s, count) for asked_s, count in wanted if count > running]
        self._target, self._looked_s = target, now_s
        return came


def replicas(application: Mapping[str, Any], deployment: str) -> tuple[int, int | None]:
    """Return how many replicas run, and how many Serve wants; none before it has decided that.

    Args:
        application: As Ray's dashboard shows it.
        deployment: Name of the deployment with the model's replicas.
    """
    found = application.get("deployments", {}).get(deployment, {})
    running = sum(replica.get("state") == "RUNNING" for replica in found.get("replicas", ()))
    return running, int(found["target_num_replicas"]) if found.get("target_num_replicas") else None


def keep(folder: Path, came: Sequence[Came], now: float) -> None:
    """Add scale-ups to a cluster's file, by rename: whoever reads it sees all or none of them.

    Args:
        folder: The cluster's.
        came: Scale-ups that ended now.
        now: Seconds since the epoch.
    """
    new = [{"asked_at": now - one.took_s, "ready_at": now, "replicas": one.replicas} for one in came]
    part = folder / f".{FILE}.part"
    part.write_text(json.dumps([*kept(folder), *new][-KEPT:]))
    part.replace(folder / FILE)


def kept(folder: Path) -> list[dict[str, float]]:
    """Return what a cluster's file holds, oldest first; nothing where it is absent or no longer readable.

    They are measurements: without them lead times are learned anew, which is no reason to fail.

    Args:
        folder: The cluster's.
    """
    try:
        found = json.loads((folder / FILE).read_text())
        return [{key: float(one[key]) for key in ("asked_at", "ready_at", "replicas")} for one in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []
