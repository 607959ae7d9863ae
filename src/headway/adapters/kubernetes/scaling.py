"""Which replicas of a cluster were asked for and came, from looks at it that may be minutes apart.

What was seen is kept as JSON in an annotation of the RayService, so it does not matter who looks. A floor that rises is
noted with its own time; a range in which Serve asks for more by itself counts from when the new replica was started. A
replica has come at the first look that sees it serve: lead times are never taken for shorter than they were. The
replicas of a cluster's first start, and of one that starts again, are no scale-up.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from headway.domain.cluster import ScaleUp

KEPT = 100
"""Scale-ups that are remembered, newest last; an annotation has 256 KiB for all of them, and one takes 60 bytes."""


class Seen(NamedTuple):
    """What looks have seen."""

    life: str = ""
    """Which RayCluster; another one has started all its replicas anew."""
    target: int | None = None
    """Replicas that were wanted at the last look."""
    due: tuple[tuple[float, int], ...] = ()
    """Scale-ups under way: when they were asked for (seconds since the epoch), and up to how many."""
    came: tuple[ScaleUp, ...] = ()


def parse(text: str | None) -> Seen:
    """Return what an annotation holds; nothing where it is absent or was damaged: they are measurements."""
    try:
        found = json.loads(text or "{}")
        return Seen(
            life=str(found.get("life", "")),
            target=None if found.get("target") is None else int(found["target"]),
            due=tuple((float(asked_s), int(count)) for asked_s, count in found.get("due", ())),
            came=tuple(
                ScaleUp(_utc(asked_s), _utc(ready_s), int(count)) for asked_s, ready_s, count in found.get("came", ())
            ),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Seen()


def text(seen: Seen) -> str:
    """Return the annotation."""
    return json.dumps(
        {
            "life": seen.life,
            "target": seen.target,
            "due": [list(one) for one in seen.due],
            "came": [[up.asked_at.timestamp(), up.ready_at.timestamp(), up.replicas] for up in seen.came],
        },
        separators=(",", ":"),
    )


def asked(seen: Seen, replicas: int, now_s: float) -> Seen:
    """Note that a floor was set; one below what is wanted already asks for nothing."""
    if seen.target is None or replicas <= seen.target:
        return seen
    return seen._replace(target=replicas, due=(*seen.due, (now_s, replicas)))


def looked(seen: Seen, life: str, now_s: float, *, target: int, serving: int, started_s: Sequence[float] = ()) -> Seen:
    """Take in one look.

    Args:
        seen: What earlier looks have seen.
        life: Name of the RayCluster.
        now_s: Seconds since the epoch.
        target: Replicas that Serve wants.
        serving: Replicas that take requests.
        started_s: When each replica was started, those that do not serve yet too.
    """
    if seen.life != life:
        return Seen(life, target, (), seen.came)
    due = seen.due
    if seen.target is not None and target > seen.target:
        newest = sorted(started_s)[seen.target - target :]
        due = (*due, (min([*newest, now_s]), target))
    # Serve takes a new floor a moment after it was set: until then it wants fewer than what is due.
    wanted = max([target, *(count for asked_s, count in due if now_s - asked_s < SETTLES_S)])
    due = tuple(one for one in due if one[1] <= wanted)
    came = tuple(ScaleUp(_utc(asked_s), _utc(now_s), serving) for asked_s, count in due if count <= serving)
    left = tuple(one for one in due if one[1] > serving)
    return Seen(life, wanted, left, (*seen.came, *came)[-KEPT:])


SETTLES_S = 30.0
"""Within this many seconds the operator has given a new floor to Serve, and Serve has decided by it."""


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
