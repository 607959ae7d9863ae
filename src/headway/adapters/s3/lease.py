"""Leases as numbered objects: `leases/<key>/<number>.json`, each put only if absent; the newest is in force.

A number is claimed by exactly one writer, and numbers only grow, so the number is the fencing token. Conditional
*overwrites* (`If-Match` on PUT) are not needed, which not every S3 server has.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from headway.adapters.s3.client import OwnBucket, join
from headway.domain.value import canonical_json, slug
from headway.errors import BackendError, Conflict, NotFound
from headway.ports import LeaseGrant

KEPT = 3
"""Newest numbers of a lease that stay, for a person who looks; older ones go."""


class S3Lease(OwnBucket):
    """One holder at a time, however many processes ask."""

    def acquire(self, key: str, holder: str, ttl_s: float, now: datetime) -> LeaseGrant:
        """Take the lease, or take it again for the same holder. Raises Conflict that names the holder."""
        numbers = self._numbers(key)
        newest = numbers[-1] if numbers else 0
        current = self._in_force(key, newest, now)
        if current is not None and current.holder != holder:
            raise current.conflict()
        grant = LeaseGrant(key, holder, newest + 1, now + timedelta(seconds=ttl_s))
        self._claim(grant, {"holder": holder, "acquired_at": now.isoformat(), "released": False}, now)
        self._tidy(key, numbers)
        return grant

    def holder(self, key: str, now: datetime) -> LeaseGrant | None:
        """Return the grant in force, none if free or expired."""
        numbers = self._numbers(key)
        return self._in_force(key, numbers[-1], now) if numbers else None

    def release(self, key: str, holder: str, now: datetime) -> None:
        """Give it back; not holding it is fine."""
        numbers = self._numbers(key)
        current = self._in_force(key, numbers[-1], now) if numbers else None
        if current is None or current.holder != holder:
            return
        free = LeaseGrant(key, holder, current.fencing + 1, now)
        try:
            self._claim(free, {"holder": holder, "acquired_at": now.isoformat(), "released": True}, now)
        except Conflict:
            if (after := self.holder(key, now)) is not None and after.holder == holder:
                raise

    def _claim(self, grant: LeaseGrant, note: Mapping[str, Any], now: datetime) -> None:
        """Put the next number, and make sure that it *is* the newest.

        A writer that slept between listing and putting may find its number free again because it was tidied away;
        the second listing shows it that others went on.
        """
        body = {"key": grant.key, "expires_at": grant.expires_at.isoformat(), **note}
        uri = self._uri(grant.key, grant.fencing)
        try:
            self.client.put(uri, canonical_json(body), if_absent=True)
        except Conflict as error:
            raise self._overtaken(grant, now) from error
        if self._numbers(grant.key)[-1:] != [grant.fencing]:
            self.client.delete(uri)
            raise self._overtaken(grant, now)

    def _overtaken(self, grant: LeaseGrant, now: datetime) -> Conflict:
        current = self.holder(grant.key, now)
        if current is None:
            return Conflict(f"somebody else changed the lease {grant.key} at the same moment; try again")
        return current.conflict()

    def _in_force(self, key: str, number: int, now: datetime) -> LeaseGrant | None:
        """Return the grant of a number if it still counts."""
        note = self.client.read_json(self._uri(key, number)) if number else None
        if note is None or note["released"]:
            return None
        expires_at = datetime.fromisoformat(str(note["expires_at"]))
        return LeaseGrant(key, str(note["holder"]), number, expires_at) if expires_at > now else None

    def _tidy(self, key: str, numbers: list[int]) -> None:
        """Delete old numbers. They count for nothing, so a failure here must not fail the lease."""
        for number in numbers[: -KEPT + 1]:
            try:
                self.client.delete(self._uri(key, number))
            except (BackendError, NotFound):
                return

    def _numbers(self, key: str) -> list[int]:
        names = (item.uri.rsplit("/", 1)[1] for item in self.client.list(join(self._bucket, f"leases/{slug(key)}/")))
        return sorted(int(name[:12]) for name in names if len(name) == 17 and name[:12].isdigit())

    def _uri(self, key: str, number: int) -> str:
        return join(self._bucket, f"leases/{slug(key)}/{number:012d}.json")
