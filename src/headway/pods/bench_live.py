"""Equal load on both sides (design rule 13.4).

Stable carries users, the candidate does not, so at equal test load an idle candidate would look faster than it is. The
rate of stable's users is read from Envoy's counter of the upstream cluster that only users reach (the benchmark has one
of its own) and added to the candidate as requests that are not measured. What their prompts are is not known; they look
like the benchmark's own.
"""

import asyncio
import json
import re

import aiohttp

from headway.domain.bench import BenchJob
from headway.errors import BackendUnavailable, NotFound
from headway.pods.bench_stream import Clock

READ_TRIES = 3


class LiveLoad:
    """Knows stable's live rate, which the candidate gets as well.

    Args:
        session: The client.
        job: Says where Envoy's statistics are, and which cluster in them carries stable's users.
        clock: The run's clock.
    """

    def __init__(self, session: aiohttp.ClientSession, job: BenchJob, clock: Clock) -> None:
        self._session, self._job, self._clock = session, job, clock
        self._seen: tuple[float, float] | None = None
        self.rate_per_s = 0.0

    @property
    def enabled(self) -> bool:
        """Whether there is a live side to be fair to."""
        return bool(self._job.live_rate_url and self._job.live_cluster and self._job.paired)

    async def read(self) -> float:
        """Read the counter, and return stable's live requests per second since the last reading (0 the first time).

        Raises:
            BackendUnavailable: If Envoy does not answer.
            NotFound: If it knows no such cluster.
        """
        if not self.enabled:
            return 0.0
        total, _ = await self._stats()
        now = self._clock.now()
        if self._seen is not None:
            before, at = self._seen
            # A counter that went back belongs to a restarted Envoy: keep the last rate.
            if total >= before and now > at:
                self.rate_per_s = (total - before) / (now - at)
        self._seen = (total, now)
        return self.rate_per_s

    async def wait_for_headroom(self) -> str:
        """Wait until stable has room for test load; return an empty string, or why it has none."""
        limit = self._job.headroom_active
        if not self.enabled or limit is None:
            return ""
        until = self._clock.now() + self._job.headroom_wait_s
        while True:
            _, active = await self._stats()
            if active <= limit:
                return ""
            if self._clock.now() >= until:
                return f"stable has {active:.0f} requests in flight, above its headroom of {limit}"
            await asyncio.sleep(1.0)

    async def _stats(self) -> tuple[float, float]:
        """Return all requests so far and those in flight, of stable's cluster."""
        cluster = self._job.live_cluster or ""
        query = {"format": "json", "filter": rf"^cluster\.{re.escape(cluster)}\.upstream_rq_(total|active)$"}
        last = ""
        for attempt in range(READ_TRIES):
            try:
                async with asyncio.timeout(5):
                    async with self._session.get(str(self._job.live_rate_url), params=query) as response:
                        response.raise_for_status()
                        found = json.loads(await response.read())
            except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as problem:
                last = f"{type(problem).__name__}: {problem}"
                await asyncio.sleep(attempt + 1.0)
                continue
            values = {s["name"].rsplit(".", 1)[-1]: float(s["value"]) for s in found.get("stats", ()) if "name" in s}
            if "upstream_rq_total" not in values:
                raise NotFound(
                    f"the gateway's statistics have no cluster {cluster!r}, so stable's live load is unknown; "
                    "check that the benchmark was given the name that the gateway uses",
                    cluster=cluster,
                )
            return values["upstream_rq_total"], values.get("upstream_rq_active", 0.0)
        raise BackendUnavailable(f"the gateway's statistics at {self._job.live_rate_url} did not answer: {last}")
