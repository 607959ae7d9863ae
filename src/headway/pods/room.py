"""Room on the node: what is used least makes way, what serves stays, and what cannot fit is refused with numbers."""

import time
from collections.abc import Collection

from headway.domain.weights import Manifest
from headway.pods import disk
from headway.pods.node import Node
from headway.units import format_bytes

RECENT_S = 900.0
"""An artifact that was asked for this shortly ago stays: its release is between its stage and its cluster, and no pin
of another release knows of it yet."""


def make_room(
    node: Node, manifest: Manifest, needed_bytes: int, *, pins: Collection[str], high_pct: float, low_pct: float
) -> tuple[str, ...]:
    """Delete the least recently used artifacts, if the new one would fill the file system beyond its high mark.

    What others put on the same file system counts for the marks too: it is the file system that must not be full.

    Args:
        node: The store; its lock is held.
        manifest: What is about to be staged; never deleted, nor is a blob that it wants.
        needed_bytes: What it still lacks.
        pins: Digests of artifacts that must stay.
        high_pct: Use in percent, the new artifact included, at which deleting begins ...
        low_pct: ... until it is below this, or nothing is left that may go.

    Returns:
        Digests of what was deleted.

    Raises:
        Refused: It does not fit even so; says what is needed, what is free and what is in use.
    """
    root, wanted = node.root, {file.sha256 for file in manifest.files}
    stays = {*pins, manifest.artifact_digest}
    evicted: list[str] = []
    in_use: dict[str, int] = {}
    mark = high_pct
    if _short(node, needed_bytes, mark):
        node.tidy(manifest, all_of_it=True)
    for kept in node.artifacts():
        if kept.digest in stays or not _short(node, needed_bytes, mark):
            continue
        recent = time.time() - kept.used_at < RECENT_S
        if recent or not node.locks or not node.evict(kept.digest):
            in_use[kept.digest] = kept.size_bytes
            continue
        mark = low_pct
        node.drop_unused(wanted)
        evicted.append(kept.digest)
        node.say(f"deleted {kept.digest[:12]}, {format_bytes(kept.size_bytes)}, to make room")
    free = disk.free_bytes(root)
    if needed_bytes and needed_bytes + disk.SPARE_BYTES > free:
        in_use |= {kept.digest: kept.size_bytes for kept in node.artifacts() if kept.digest in pins}
        in_use.pop(manifest.artifact_digest, None)
        raise disk.no_space(root, needed_bytes + disk.SPARE_BYTES, free, pinned=in_use)
    return tuple(evicted)


def _short(node: Node, needed_bytes: int, mark_pct: float) -> bool:
    full = needed_bytes + disk.SPARE_BYTES > disk.free_bytes(node.root)
    return full or disk.used_pct(node.root, needed_bytes) >= mark_pct
