"""Waiting without a worker. A trigger only looks; what follows is decided by the task, which looks again.

Rules that cost somebody something before they were rules (design rule 13.10): no trigger fires within
`FIRST_LOOK_S`; the deadline is a point in time, because a restarted trigger starts `run` again; outside work is
cancelled in `on_kill` (a person ended the task), never in `cleanup` (the triggerer was restarted).
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.timezone import utcnow
from airflow.triggers.base import BaseTrigger, TriggerEvent

from headway.domain.cluster import ClusterSpec
from headway.domain.release import ReleasePlan, record_key
from headway.domain.value import slug
from headway.errors import CanaryFailed, HeadwayError
from headway.release import shift
from operators.hook import HeadwayHook
from operators.lease import RENEW_EVERY_S, holder_of, keep_lease

FIRST_LOOK_S = 15.0
"""An event within 2 s of deferring met a task that was not yet deferred in the database, and failed the run."""

POLL_S = 5.0


class WorldTrigger(BaseTrigger):
    """Looks at the world until there is something to do for the task, and renews the model's lease meanwhile."""

    def __init__(
        self,
        *,
        deadline: str,
        model: str = "",
        holder: str = "",
        first_look_s: float = FIRST_LOOK_S,
        poll_s: float = POLL_S,
    ) -> None:
        """Args are plain JSON.

        Args:
            deadline: UTC time (ISO 8601) at which the trigger fires whatever it saw.
            model: Whose lease to renew; none if empty.
            holder: For which holder.
            first_look_s: Seconds before the first look.
            poll_s: Seconds between looks.
        """
        super().__init__()
        self.deadline = deadline
        self.model = model
        self.holder = holder
        self.first_look_s = first_look_s
        self.poll_s = poll_s

    def extra(self) -> dict[str, Any]:
        """Return the arguments that the subclass adds."""
        return {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, plain JSON."""
        return f"operators.triggers.{type(self).__name__}", {
            "deadline": self.deadline,
            "model": self.model,
            "holder": self.holder,
            "first_look_s": self.first_look_s,
            "poll_s": self.poll_s,
            **self.extra(),
        }

    @abstractmethod
    def look(self) -> dict[str, Any] | None:
        """Return what the task should look at now, none to go on waiting. Runs in a thread."""

    def end(self) -> None:
        """End the outside work, because a person ended the task. Runs in a thread."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once: something to see, or the deadline."""
        deadline = datetime.fromisoformat(self.deadline)
        renew_at = utcnow()
        await asyncio.sleep(self.first_look_s)
        while True:
            try:
                seen = await asyncio.to_thread(self.look)
                if self.model and utcnow() >= renew_at:
                    await asyncio.to_thread(keep_lease, HeadwayHook().backend, self.model, self.holder, utcnow())
                    renew_at = utcnow() + timedelta(seconds=RENEW_EVERY_S)
            except HeadwayError as error:
                # Retryable: a backend that is away for a minute must not cost the task a try. Otherwise the task
                # meets the same error when it looks, and says it with all its context.
                seen = None if error.retryable else {"error": error.message}
                self.log.warning("could not look: %s", error.message)
            if seen is None and utcnow() >= deadline:
                seen = {"deadline": self.deadline}
            if seen is not None:
                yield TriggerEvent(seen)
                return
            await asyncio.sleep(self.poll_s)

    async def on_kill(self) -> None:
        """End the outside work."""
        await asyncio.to_thread(self.end)


class JobTrigger(WorldTrigger):
    """Waits for a job to end."""

    def __init__(self, *, name: str, **kwargs: Any) -> None:
        """Args as above, and the name of the job."""
        super().__init__(**kwargs)
        self.name = name

    def extra(self) -> dict[str, Any]:
        """Add the name of the job."""
        return {"name": self.name}

    def look(self) -> dict[str, Any] | None:
        """Fire when the job has ended, well or not."""
        status = HeadwayHook().backend.jobs.status(self.name)
        return {"phase": status.phase} if status.ended else None

    def end(self) -> None:
        """Cancel the job."""
        HeadwayHook().backend.jobs.cancel(self.name)


class ClusterTrigger(WorldTrigger):
    """Waits for a cluster to answer or to fail."""

    def __init__(self, *, name: str, **kwargs: Any) -> None:
        """Args as above, and the name of the cluster."""
        super().__init__(**kwargs)
        self.name = name

    def extra(self) -> dict[str, Any]:
        """Add the name of the cluster."""
        return {"name": self.name}

    def look(self) -> dict[str, Any] | None:
        """Fire when the cluster is ready, failed or gone."""
        status = HeadwayHook().backend.clusters.status(self.name)
        return None if status.phase == "starting" else {"phase": status.phase}

    # No `end`: `record` runs after a person ended the task, and takes the candidate down there.


class RoomTrigger(WorldTrigger):
    """Waits until a cluster has a place beside what runs."""

    def __init__(self, *, spec: dict[str, Any], **kwargs: Any) -> None:
        """Args as above, and the cluster's `ClusterSpec` as JSON."""
        super().__init__(**kwargs)
        self.spec = spec

    def extra(self) -> dict[str, Any]:
        """Add the cluster."""
        return {"spec": self.spec}

    def look(self) -> dict[str, Any] | None:
        """Fire when it fits. The task looks again: another may have been faster."""
        room = HeadwayHook().backend.clusters.room(ClusterSpec.model_validate(self.spec))
        return {"room": room.detail} if room.fits or not room.possible else None


class LeaseTrigger(WorldTrigger):
    """Waits until nobody else holds the model's lease."""

    def __init__(self, *, lease_of: str, asker: str, **kwargs: Any) -> None:
        """Args as above, the model, and who wants the lease."""
        super().__init__(**kwargs)
        self.lease_of = lease_of
        self.asker = asker

    def extra(self) -> dict[str, Any]:
        """Add the model and who asks."""
        return {"lease_of": self.lease_of, "asker": self.asker}

    def look(self) -> dict[str, Any] | None:
        """Fire when the lease is free. Another may be faster: the task tries, and waits again if so."""
        other = holder_of(HeadwayHook().backend, self.lease_of, utcnow())
        return {"free": True} if other in (None, self.asker) else None


class ShiftTrigger(WorldTrigger):
    """Watches a long bake and takes its steps: a breach must not wait for a worker.

    The shift keeps all its state in the gateway, so it does not matter which process ticks.
    """

    def __init__(self, *, release: str, **kwargs: Any) -> None:
        """Args as above, and the id of the release, whose plan is in the ledger."""
        super().__init__(**kwargs)
        self.release = release
        self._plan: ReleasePlan | None = None
        self._told = ""

    def extra(self) -> dict[str, Any]:
        """Add the release."""
        return {"release": self.release}

    def look(self) -> dict[str, Any] | None:
        """Tick; fire when all traffic is moved, or when a limit broke (traffic is back on stable by then)."""
        backend = HeadwayHook().backend
        if self._plan is None:
            record = backend.ledger.read(record_key(slug(self.model), self.release, "plan"))
            if record is None:
                return {"error": "the plan is gone"}
            self._plan = ReleasePlan.model_validate(record["detail"])
        try:
            progress = shift.tick(
                self._plan,
                traffic=backend.traffic,
                clusters=backend.clusters,
                metrics=backend.metrics,
                objects=backend.objects,
                now=utcnow(),
            )
        except CanaryFailed as error:
            return {"breach": error.message, "verdict": error.facts["verdict"]}
        if progress.phase == "waiting" and progress.detail != self._told:
            self.log.info("%s", progress.detail)
            self._told = progress.detail
        return {"phase": progress.phase} if progress.phase == "done" else None
