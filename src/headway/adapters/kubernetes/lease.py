"""The `Lease` port on Leases of Kubernetes: one object a key, changed only in the version that was read.

`leaseTransitions` grows with every grant, renewals included, so it is the fencing token. An object that was given back
stays without a holder, because its number must go on.
"""

import math
from datetime import UTC, datetime, timedelta

from headway.adapters.kubernetes import objects
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import LEASE
from headway.adapters.kubernetes.site import Site
from headway.domain.value import slug
from headway.errors import Conflict
from headway.ports import LeaseGrant

TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Kubernetes' MicroTime: UTC with six digits."""


class KubernetesLease:
    """One holder at a time, however many processes ask.

    Args:
        client: Access to the cluster.
        site: Where the leases are.
    """

    def __init__(self, client: Client, site: Site) -> None:
        self._client = client
        self._site = site

    def acquire(self, key: str, holder: str, ttl_s: float, now: datetime) -> LeaseGrant:
        """Take the lease, or take it again for the same holder.

        Args:
            key: What is held.
            holder: Who holds it.
            ttl_s: How long; whole seconds count, rounded up.
            now: Now, UTC.

        Raises:
            Conflict: Somebody else holds it, who is named, or changed it at the same moment.
        """
        found = self._get(key)
        current = _in_force(key, found, now) if found else None
        if current is not None and current.holder != holder:
            raise current.conflict()
        before = found["spec"] if found else {}
        wanted = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(ttl_s),
            "acquireTime": before.get("acquireTime") if current else _text(now),
            "renewTime": _text(now),
            "leaseTransitions": (before.get("leaseTransitions") or 0) + 1,
        }
        try:
            return _grant(key, self._put(key, found, wanted))
        except Conflict as error:
            return self._settled(key, holder, now, error)

    def holder(self, key: str, now: datetime) -> LeaseGrant | None:
        """Return the grant in force, none if free or expired.

        Args:
            key: What is held.
            now: Now, UTC.
        """
        found = self._get(key)
        return _in_force(key, found, now) if found else None

    def release(self, key: str, holder: str, now: datetime) -> None:
        """Give it back; not holding it is fine.

        Args:
            key: What is held.
            holder: Who gives it back.
            now: Now, UTC.

        Raises:
            Conflict: It changed at the same moment, and the holder still has it.
        """
        found = self._get(key)
        current = _in_force(key, found, now) if found else None
        if found is None or current is None or current.holder != holder:
            return
        spec = found["spec"]
        free = {field: spec[field] for field in ("acquireTime", "leaseTransitions") if field in spec}
        try:
            self._put(key, found, {**free, "renewTime": _text(now)})
        except Conflict:
            if (after := self.holder(key, now)) is not None and after.holder == holder:
                raise

    def _put(self, key: str, found: Object | None, spec: Object) -> Object:
        if found is not None:
            return self._client.replace(LEASE, {**found, "spec": spec})
        metadata = {
            "name": _name(key),
            "namespace": self._site.namespace,
            "labels": objects.labels("lease"),
            "annotations": {objects.ASKED: key},
        }
        content = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
        return self._client.create(LEASE, content)

    def _get(self, key: str) -> Object | None:
        name = _name(key)
        found = self._client.get(LEASE, name, self._site.namespace)
        owner = objects.annotation(found, objects.ASKED) if found else key
        if owner != key:
            raise Conflict(
                f"Lease {self._site.namespace}/{name} belongs to {owner or 'others'}, and {key} would need the same "
                "name; delete it if nobody needs it, or rename the model",
                lease=name,
            )
        return found

    def _settled(self, key: str, holder: str, now: datetime, error: Conflict) -> LeaseGrant:
        """Return this very grant where the server took it and its answer was lost; raise Conflict otherwise."""
        found = self._get(key)
        current = _in_force(key, found, now) if found else None
        if found is None or current is None:
            raise Conflict(f"somebody else changed the lease {key} at the same moment; try again") from error
        if current.holder != holder:
            raise current.conflict() from error
        if datetime.fromisoformat(found["spec"]["renewTime"]) != now:
            raise error
        return current


def _name(key: str) -> str:
    return f"headway-{slug(key)}"


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(TIME)


def _grant(key: str, found: Object) -> LeaseGrant:
    spec = found["spec"]
    renewed_at = datetime.fromisoformat(spec["renewTime"])
    expires_at = renewed_at + timedelta(seconds=spec["leaseDurationSeconds"])
    return LeaseGrant(key, spec["holderIdentity"], spec["leaseTransitions"], expires_at)


def _in_force(key: str, found: Object, now: datetime) -> LeaseGrant | None:
    """Return the grant of a lease if it still counts."""
    if not found["spec"].get("holderIdentity"):
        return None
    grant = _grant(key, found)
    return grant if grant.expires_at > now else None
