"""What one replica sustains, from the benchmark of its own release. An extrapolation, and it says so.

The benchmark's load is open loop and far below what a replica is able to carry: its requests a second say nothing of
that. What it does show is how long a request takes beside so many others. By Little's law (J. D. C. Little, Operations
Research 9, 1961) a replica that holds `n` requests, each for `w(n)` seconds, finishes `n / w(n)` a second. A step of an
engine takes longer the more sequences are in it, so `w(n) = a + b n` is fitted to the requests by least squares, and
taken at the number at which the autoscaler holds a replica (`replicas.target_ongoing`, at most what the engine runs at
once). With the time at the benchmark's own load alone, `n / w` would promise several times of what is there.

The slope is taken at the upper end of what the requests leave open, since too many replicas cost less than too few. A
load test says more: `prescale.requests_per_s` of the profile wins over all of this.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from pydantic import Field, ValidationError

from headway.domain import engine_series
from headway.domain.bench import BlockSummary, RequestRecord
from headway.domain.engine_series import Series
from headway.domain.profile import Profile
from headway.domain.release import record_key
from headway.domain.series import Floats
from headway.domain.value import Value, slug
from headway.errors import ConfigError, IntegrityError
from headway.judge.metrics import summary
from headway.ports import Ledger, Metrics
from headway.prescale.capacity import LEAST_REQUESTS, Throughput

RECORD = "throughput"
"""Name of the record among those of a release."""
LEAST_SPREAD = 0.01
"""Variance of the number in flight below which nobody knows how a request's time grows with it."""
STEPS = 20
"""Into so many the time of the benchmark is cut, to sum what counters grew by."""
SLOPE_Z = 1.2816
"""Standard errors by which the slope is taken above its estimate: its one-sided 90 % bound, if errors are normal."""


class Sustained(Value):
    """What the benchmark of a release says one replica sustains."""

    schema_version: int = 1
    requests_per_s: float = Field(gt=0, allow_inf_nan=False)
    prompt_tokens: float = Field(ge=0, allow_inf_nan=False)
    """Mean length; zero where the server does not count."""
    output_tokens: float = Field(gt=0, allow_inf_nan=False)
    cached_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the prompt tokens that the prefix cache held."""
    requests: int
    """How many the figures rest on."""
    measured_in_flight: float
    """Mean number of requests in flight on a replica during the benchmark, as one of them saw it."""
    in_flight: float
    """The number that it was extrapolated to."""
    measured_requests_per_s: float
    """What a replica really did during the benchmark: at least so much it sustains."""
    sentence: str

    @property
    def throughput(self) -> Throughput:
        """The figures that a load is turned into replicas with."""
        return Throughput(self.requests_per_s, self.prompt_tokens, self.output_tokens, self.cached_share)


def sustained(
    records: Sequence[RequestRecord],
    blocks: Sequence[BlockSummary],
    profile: Profile,
    *,
    cached_share: float = 0.0,
) -> Sustained:
    """Return what a replica of the candidate sustains.

    The warm-up of the benchmark leaves no records, so neither a cold start nor a compilation gets into the figure. Nor
    do blocks that were void or ended early, nor requests that failed.

    Args:
        records: Requests of both sides.
        blocks: How the blocks went.
        profile: Of the release: how many replicas the candidate had, and how many requests one is to hold.
        cached_share: Share of the prompt tokens that the prefix cache held.

    Raises:
        ConfigError: Too few requests ended well to tell.
    """
    whole = {block.block for block in blocks if not (block.void or block.stopped)}
    sent = [r for r in records if r.side == "candidate" and r.block in whole]
    well = [r for r in sent if _counts(r)]
    if len(well) < LEAST_REQUESTS:
        raise ConfigError(
            f"{len(well)} of {len(sent)} requests of the benchmark ended well on the candidate and say how many tokens "
            f"they had; {LEAST_REQUESTS} are needed to tell what a replica sustains: raise canary.blocks, or set "
            "prescale.requests_per_s"
        )
    replicas = profile.replicas.min
    by_block = [_in_flight([r for r in sent if r.block == block]) for block in sorted(whole)]
    took_s, beside = (np.concatenate(parts) for parts in zip(*by_block, strict=True))
    beside = beside / replicas
    goal = float(min(profile.replicas.target_ongoing, profile.engine.max_num_seqs))
    figures = summary(well).candidate
    done = (figures.requests_per_s or 0.0) / replicas if figures else 0.0
    found = max(goal / _time_at(goal, beside, took_s), done)
    if not (math.isfinite(found) and done > 0):
        raise ConfigError(
            f"the benchmark's clock makes no sense: a replica would finish {done:g} requests/s, {found:g} when full; "
            "run the release again, or set prescale.requests_per_s"
        )
    prompts = [r.prompt_tokens for r in well if r.prompt_tokens is not None]
    return Sustained(
        requests_per_s=found,
        prompt_tokens=float(np.mean(prompts)) if prompts else 0.0,
        output_tokens=float(np.mean([r.output_tokens or 0 for r in well])),
        cached_share=cached_share,
        requests=len(well),
        measured_in_flight=float(beside.mean()),
        in_flight=goal,
        measured_requests_per_s=done,
        sentence=(
            f"A replica finished {done:.3g} requests/s with {beside.mean():.1f} in flight; extrapolated to "
            f"{goal:.0f} in flight it sustains {found:.3g} requests/s. A load test would say more: set "
            "prescale.requests_per_s to what it finds."
        ),
    )


def cached_share(metrics: Metrics, model: str, cluster: str, blocks: Sequence[BlockSummary]) -> float:
    """Return the share of the prompt tokens that the prefix cache of a cluster held during the benchmark.

    Zero where the engine did not say: a request then seems to be more work than it was, and a replica to sustain less
    of the users' requests that the cache helps.

    Args:
        metrics: What the engines reported.
        model: The served name.
        cluster: The candidate's.
        blocks: How the blocks went; they say when that was.
    """
    timed = [block for block in blocks if block.started_at]
    if not timed:
        return 0.0
    start = datetime.fromisoformat(timed[0].started_at)
    end = start + timedelta(seconds=max(timed[-1].ended_s - timed[0].started_s, 0.0))

    def grown(series: Series) -> float:
        step_s = max(int((end - start).total_seconds()) // STEPS, 1)
        labels = {"model": model, "cluster": cluster}
        return float(np.nansum([one.value for one in metrics.rate(series.name, labels, start, end, step_s)]))

    asked = grown(engine_series.PREFIX_QUERIES)
    return min(max(grown(engine_series.PREFIX_HITS) / asked, 0.0), 1.0) if asked > 0 else 0.0


def recorded(ledger: Ledger, model: str, release: str) -> Sustained | None:
    """Return what the benchmark of a release found, none if it left nothing.

    Args:
        ledger: Where releases are recorded.
        model: The served name.
        release: Its release.

    Raises:
        IntegrityError: The record cannot be read.
    """
    key = record_key(slug(model), release, RECORD)
    record = ledger.read(key)
    try:
        return None if record is None else Sustained.model_validate(record)
    except ValidationError as error:
        raise IntegrityError(
            f"{key} is not what headway wrote there ({error.error_count()} faults, first: {error.errors()[0]['msg']}); "
            "set prescale.requests_per_s, or release the version again",
            key=key,
        ) from error


def _counts(record: RequestRecord) -> bool:
    ended = record.ended_s is not None and record.ended_s > record.sent_s
    return ended and record.error is None and bool(record.output_tokens)


def _in_flight(sent: Sequence[RequestRecord]) -> tuple[Floats, Floats]:
    """Return of each good request of a block how long it took, and the mean number in flight meanwhile, itself too."""
    ended = [r for r in sent if r.ended_s is not None and r.ended_s > r.sent_s]
    begins = np.array([r.sent_s for r in ended])
    ends = np.array([r.ended_s or 0.0 for r in ended])
    edges = np.concatenate([begins, ends])
    order = np.argsort(edges, kind="stable")
    edges, steps = edges[order], np.repeat([1.0, -1.0], len(ended))[order]
    # Requests in flight after each edge, and their sum over time up to it.
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(steps)[:-1] * np.diff(edges))]) if ended else edges
    took_s = ends - begins
    beside = (np.interp(ends, edges, area) - np.interp(begins, edges, area)) / took_s if ended else took_s
    good = np.array([_counts(r) for r in ended], dtype=bool)
    return took_s[good], beside[good]


def _time_at(goal: float, beside: Floats, took_s: Floats) -> float:
    """Return how long a request takes with so many in flight; endless where the requests do not tell how that grows."""
    x, mean_s = beside - beside.mean(), float(took_s.mean())
    spread = float(x @ x)
    if goal <= beside.mean():
        return mean_s
    if spread < LEAST_SPREAD * len(x):
        return math.inf
    slope = float(x @ took_s) / spread
    left = took_s - mean_s - slope * x
    error = math.sqrt(float(left @ left) / (len(x) - 2) / spread)
    return mean_s + max(slope + SLOPE_Z * error, 0.0) * (goal - float(beside.mean()))
