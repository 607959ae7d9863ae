"""From traffic to replicas: how many are busy under a load, from what one replica was measured to sustain.

The unit here and in the plan is the *busy replica*: the load that one replica sustains. Rate, prompt length, output
length and the share of the prompt that the prefix cache holds move together, so they stay together in a path; the
quantile is taken of the replicas, at the end, and not of each input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from headway.domain.bench import RequestRecord
from headway.domain.series import DAY_S, Floats, QuantileForecast
from headway.errors import ConfigError

PROMPT_TOKEN_WORK = 0.1
"""Work of a prompt token that is not cached, against that of an output token, until it is measured for the model."""
LEAST_REQUESTS = 20
"""Below this many finished requests a throughput is chance."""
LEAST_BINS = 24
"""Bins with rate and lengths before paths are drawn from them."""
EPSILON = 1e-9
"""Replicas that rounding may add; without it 3.0000000001 busy replicas would ask for four."""


@dataclass(frozen=True)
class Throughput:
    """What one replica sustains, at the lengths at which that was measured.

    Args:
        requests_per_s: Finished requests each second.
        prompt_tokens: Mean prompt length.
        output_tokens: Mean output length.
        cached_share: Share (0 to 1) of the prompt tokens that the prefix cache held.
        prompt_token_work: Work of an uncached prompt token against that of an output token.
    """

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    cached_share: float = 0.0
    prompt_token_work: float = PROMPT_TOKEN_WORK

    def __post_init__(self) -> None:
        for name in ("requests_per_s", "output_tokens"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"a replica's {name} is {getattr(self, name)}; it must be above zero: measure again")
        for name in ("prompt_tokens", "prompt_token_work"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"a replica's {name} is {getattr(self, name)}; it must be zero or more")
        if not 0 <= self.cached_share <= 1:
            raise ConfigError(f"a replica's cached_share is {self.cached_share}; it is a share from 0 to 1")

    @property
    def work_per_s(self) -> float:
        """Work each second, in output tokens."""
        lengths = self.prompt_tokens, self.output_tokens, self.cached_share
        return self.requests_per_s * float(self.work(*(np.float64(length) for length in lengths)))

    def work(
        self, prompt_tokens: Floats | np.float64, output_tokens: Floats | np.float64, cached_share: Floats | np.float64
    ) -> Floats | np.float64:
        """Return the work of one request: its output tokens, and what its uncached prompt tokens are worth in these."""
        return output_tokens + self.prompt_token_work * prompt_tokens * (1 - cached_share)


def measured(
    records: Sequence[RequestRecord], *, warm_s: float, until_s: float, replicas: int = 1, cached_share: float = 0.0
) -> Throughput:
    """Return what a replica sustained under full load, after its warm-up.

    Only what began after the warm-up and ended well before `until_s` counts, so neither a cold start nor the slow end
    of a run, when the queue runs dry, can get into the figure. Requests that are cut at both ends make it a little too
    low, never too high.

    Args:
        records: Requests under full load; those that failed are left out.
        warm_s: End of the warm-up.
        until_s: When the last request was sent: from then on the load falls.
        replicas: How many shared the load.
        cached_share: Share (0 to 1) of the prompt tokens that the prefix cache held.

    Raises:
        ConfigError: Too few requests are left.
    """
    well = [(r, r.ended_s) for r in records if r.error is None and r.ended_s is not None]
    kept = [(r, ended_s) for r, ended_s in well if r.sent_s >= warm_s and ended_s <= until_s]
    if len(kept) < LEAST_REQUESTS or replicas < 1:
        raise ConfigError(
            f"{len(kept)} of {len(records)} requests lie between the warm-up ({warm_s:g} s) and the end "
            f"({until_s:g} s) on {replicas} replicas; {LEAST_REQUESTS} are needed: run the benchmark for longer"
        )
    # From the first begin: a request takes its time before it can end.
    span_s = max(ended_s for _, ended_s in kept) - min(r.sent_s for r, _ in kept)
    return Throughput(
        requests_per_s=len(kept) / span_s / replicas if span_s > 0 else math.nan,
        prompt_tokens=sum(r.prompt_tokens or 0 for r, _ in kept) / len(kept),
        output_tokens=sum(r.output_tokens or 0 for r, _ in kept) / len(kept),
        cached_share=cached_share,
    )


@dataclass(frozen=True, eq=False)
class Paths:
    """Possible futures: one row for each, one column for each step; what stands at one place happens together.

    Args:
        requests_per_s: Rate.
        prompt_tokens: Mean prompt length.
        output_tokens: Mean output length.
        cached_share: Share (0 to 1) of the prompt that the prefix cache holds.
    """

    requests_per_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    cached_share: Floats

    def __post_init__(self) -> None:
        shapes = {part.shape for part in self.parts}
        if len(shapes) != 1 or self.requests_per_s.ndim != 2 or 0 in self.requests_per_s.shape:
            raise ConfigError(
                f"the parts of the paths have the shapes {sorted(shapes)}; they must be of one, not empty"
            )
        if not all(np.isfinite(part).all() and (part >= 0).all() for part in self.parts):
            raise ConfigError("a path has a negative or missing value; clean the history that it was drawn from")

    @property
    def parts(self) -> tuple[Floats, ...]:
        """Rate, prompt, output and cache share."""
        return self.requests_per_s, self.prompt_tokens, self.output_tokens, self.cached_share


def joint_paths(rate: QuantileForecast, history: Paths) -> Paths:
    """Return one future for each bin of a history: its lengths, and the rate of the forecast at its rank.

    A bin's rank is that of its rate among the bins of the same time of day, so that "busier than usual" goes with the
    lengths that came with it. The rank holds for the whole path: what is busy now stays so.

    Args:
        rate: Forecast of the rate.
        history: One row: the cleaned bins with all four values, oldest first, in steps of the forecast.

    Raises:
        ConfigError: The history is too short.
    """
    bins = history.requests_per_s.shape[1]
    if len(history.requests_per_s) != 1 or bins < LEAST_BINS:
        raise ConfigError(
            f"a history of {bins} bins in {len(history.requests_per_s)} rows; paths need one row of {LEAST_BINS} bins"
        )
    past, *lengths = (part[0] for part in history.parts)
    day = DAY_S // rate.step_s
    if bins >= 2 * day:
        by_time = np.array([np.median(past[start::day]) for start in range(day)])
        usual = by_time[np.arange(bins) % day]
    else:
        usual = np.full(bins, np.median(past))
    rank = np.argsort(np.argsort(past / np.maximum(usual, EPSILON), kind="stable"), kind="stable")
    level = (rank + 0.5) / bins
    # The levels are the same at all steps, so two of them and the way between are found once.
    levels = np.array(rate.levels)
    upper = np.clip(np.searchsorted(levels, level), 1, len(levels) - 1)
    part = np.clip((level - levels[upper - 1]) / (levels[upper] - levels[upper - 1]), 0.0, 1.0)[:, None]
    rates = rate.values[upper - 1] * (1 - part) + rate.values[upper] * part
    return Paths(rates, *(np.repeat(part[:, None], rate.steps, axis=1) for part in lengths))


def busy(paths: Paths, throughput: Throughput) -> Floats:
    """Return how many replicas each path keeps busy at each step."""
    work = throughput.work(paths.prompt_tokens, paths.output_tokens, paths.cached_share)
    return np.asarray(paths.requests_per_s * work / throughput.work_per_s)


def busy_forecast(rate: QuantileForecast, history: Paths, throughput: Throughput) -> QuantileForecast:
    """Return the forecast of busy replicas: quantiles over the joint paths.

    Args:
        rate: Forecast of the rate.
        history: As for `joint_paths`.
        throughput: What a replica sustains.

    Raises:
        ConfigError: The history is too short.
    """
    loads = busy(joint_paths(rate, history), throughput)
    values = np.quantile(loads, rate.levels, axis=0)
    return QuantileForecast(rate.start_at, rate.step_s, rate.levels, values, rate.members, rate.notes)


def scaled_forecast(rate: QuantileForecast, requests_per_s: float) -> QuantileForecast:
    """Return the forecast of busy replicas where only rates are known: all requests are like the measured ones.

    Args:
        rate: Forecast of the rate.
        requests_per_s: What a replica sustains.

    Raises:
        ConfigError: A replica sustains nothing.
    """
    if not (math.isfinite(requests_per_s) and requests_per_s > 0):
        raise ConfigError(f"a replica sustains {requests_per_s} requests/s; it must be above zero: measure again")
    values = rate.values / requests_per_s
    return QuantileForecast(rate.start_at, rate.step_s, rate.levels, values, rate.members, rate.notes)


class Spare(NamedTuple):
    """What may be lost at once without the load exceeding what is left."""

    kind: Literal["none", "replica", "zone"] = "none"
    zones: int = 1
    """Over so many the replicas are spread, as evenly as they go."""

    def lost(self, count: int) -> int:
        """Return how many of some replicas a loss takes: of a zone as many as its fullest one has."""
        return {"none": 0, "replica": min(count, 1), "zone": -(-count // self.zones)}[self.kind]

    def least(self, count: int) -> int:
        """Return the least number of replicas of which so many are left after the loss (N and N-1).

        Args:
            count: What must be left; nothing is kept in spare where nothing is needed.

        Raises:
            ConfigError: There is only one zone, and with it everything is lost.
        """
        if count <= 0 or self.kind == "none":
            return count
        if self.kind == "replica":
            return count + 1
        if self.zones < 2:
            raise ConfigError(f"{self.zones} zone cannot be spared; name 2 zones or more (prescale.zones)")
        # Of n replicas floor(n (z - 1) / z) are outside the fullest of z zones.
        return -(-count * self.zones // (self.zones - 1))


NO_SPARE = Spare()


def replicas(busy_replicas: float, *, target: float = 1.0, spare: Spare = NO_SPARE) -> int:
    """Return how many replicas a load needs.

    Args:
        busy_replicas: The load.
        target: How busy a replica may be (above 0, at most 1) while all are there.
        spare: What may be lost: those that are left may then be busy all the time.

    Raises:
        ConfigError: The load or the target is no usable number.
    """
    if not (math.isfinite(busy_replicas) and busy_replicas >= 0):
        raise ConfigError(f"a load of {busy_replicas} busy replicas is no load; it must be zero or more")
    if not 0 < target <= 1:
        raise ConfigError(f"a target of {target}; a replica is busy by more than 0 and at most 1")
    count = math.ceil(busy_replicas / target - EPSILON)
    return max(count, spare.least(math.ceil(busy_replicas - EPSILON)))


@dataclass(frozen=True)
class Headroom:
    """What is left of some replicas under a load.

    Args:
        share: Share of them that is idle; negative where the load is too high.
        share_after_loss: The same after the loss of one replica, or of a zone; none where nothing is left then.
        reason: Both in a sentence.
    """

    share: float
    share_after_loss: float | None
    reason: str

    @property
    def survives_loss(self) -> bool:
        """Whether it may be lost."""
        return self.share_after_loss is not None and self.share_after_loss >= -EPSILON


def headroom(busy_replicas: float, count: int, spare: Spare = NO_SPARE) -> Headroom:
    """Return what is left, with all replicas and after a loss (N and N-1): of one replica, or of a zone.

    Args:
        busy_replicas: The load.
        count: Replicas that are up.
        spare: What may be lost; one replica where nothing is said.

    Raises:
        ConfigError: There is no replica, or the load is no number.
    """
    replicas(busy_replicas)
    if count < 1:
        raise ConfigError(f"{count} replicas have no headroom; at least one must be up")
    share = 1 - busy_replicas / count
    left = count - max(spare.lost(count), 1)
    there = "1 replica is" if count == 1 else f"{count} replicas are"
    lost = f"the fullest of {spare.zones} zones" if spare.kind == "zone" else "one"
    if left == 0:
        return Headroom(share, None, f"{there} {1 - share:.0%} busy; without {lost} nothing serves.")
    after = 1 - busy_replicas / left
    end = "the load still fits" if after >= -EPSILON else "the load does not fit"
    words = f"{there} {1 - share:.0%} busy, without {lost} {1 - after:.0%}: {end}."
    return Headroom(share, after, words)
