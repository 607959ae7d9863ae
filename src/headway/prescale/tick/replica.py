"""What one replica sustains, and what a traffic comes to in busy replicas."""

from dataclasses import dataclass

import numpy as np

from headway.domain.profile import Profile
from headway.domain.series import Floats, QuantileForecast
from headway.domain.traffic import Route
from headway.errors import IntegrityError
from headway.ports import Ledger
from headway.prescale import throughput
from headway.prescale.capacity import LEAST_BINS, Paths, Throughput, busy_forecast, scaled_forecast
from headway.prescale.forecast.ensemble import DAY, STEP_S, filled
from headway.prescale.history import History, Load
from headway.prescale.tick.words import Words

PATH_DAYS = 4
"""Days of the history whose bins become paths: more of them change no quantile that a plan uses, and cost time."""
HOUR_BINS = 6
WIDEST_WORK = 10.0
"""A request's work is believed to differ from that of the measured ones by this factor at most."""


@dataclass(frozen=True)
class Replica:
    """One replica of a model.

    Args:
        requests_per_s: What it sustains, of requests like those it was measured with.
        throughput: The same with their lengths; none where somebody gave the rate alone.
    """

    requests_per_s: float
    throughput: Throughput | None = None

    def load(self, seen: Load, history: History) -> float | None:
        """Return a measured load in busy replicas, none if nothing was measured.

        Args:
            seen: What is asked for now.
            history: Where no request ended in the last minutes, they are like those of the last hour.
        """
        if seen.requests_per_s is None:
            return None
        prompt, output = seen.prompt_tokens, seen.output_tokens
        if self.throughput is None or prompt is None or output is None:
            ratio = self._lately(history)
        else:
            lengths = (np.array([value]) for value in (prompt, output, seen.cached_share or 0.0))
            ratio = float(_ratio(self.throughput, *lengths)[0])
        return seen.requests_per_s * ratio / self.requests_per_s

    def work_of(self, history: History) -> Floats:
        """Return the work of each bin's requests against that of the measured ones.

        Where lengths are not known it is that of the last hour in which they were; before that, of the first. An engine
        whose counters are gone must not make its requests seem short.
        """
        if self.throughput is None:
            return np.ones(len(history))
        prompt, output, cached = (history.columns[name] for name in ("prompt_tokens", "output_tokens", "cached_share"))
        found = _ratio(self.throughput, prompt, output, cached)
        known = np.isfinite(prompt) & np.isfinite(output)
        if known.all() or not known.any():
            return found
        measured = found[known]
        wide = np.concatenate([np.full(HOUR_BINS - 1, measured[0]), measured])
        lately = np.median(np.lib.stride_tricks.sliding_window_view(wide, HOUR_BINS), axis=1)
        return np.asarray(np.where(known, found, lately[np.maximum(np.cumsum(known) - 1, 0)]))

    def lengths_lost(self, seen: Load, history: History) -> bool:
        """Return whether requests are served whose lengths nobody measured for an hour, though they count."""
        if self.throughput is None or not seen.requests_per_s:
            return False
        rate, output = (history.columns[name][-HOUR_BINS:] for name in ("requests_per_s", "output_tokens"))
        return seen.output_tokens is None and bool((rate > 0).any()) and not np.isfinite(output).any()

    def _lately(self, history: History) -> float:
        """Return the work of the last hour's requests against that of the measured ones."""
        lately = self.work_of(history)[-HOUR_BINS:]
        return float(np.median(lately)) if len(lately) else 1.0

    def forecast(self, rate: QuantileForecast, history: History) -> QuantileForecast:
        """Return the forecast of busy replicas: over joint paths where lengths are known, else by the rate alone."""
        paths = _paths(history) if self.throughput is not None else None
        if self.throughput is None or paths is None:
            return scaled_forecast(rate, self.requests_per_s / self._lately(history))
        return busy_forecast(rate, paths, self.throughput)


def _paths(history: History) -> Paths | None:
    """Return the newest days as one path without gaps, none where lengths are hardly known."""
    last = slice(max(len(history) - PATH_DAYS * DAY, 0), len(history))
    rate, prompt, output, cached = (
        history.columns[name][last] for name in ("requests_per_s", "prompt_tokens", "output_tokens", "cached_share")
    )
    known = np.isfinite(rate) & np.isfinite(prompt) & np.isfinite(output)
    if history.step_s != STEP_S or known.sum() < LEAST_BINS:
        return None
    parts = (filled(rate, DAY), _or_median(prompt), _or_median(output), _or_median(cached))
    return Paths(*(np.maximum(part, 0.0)[None, :] for part in parts))


def _ratio(throughput: Throughput, prompt: Floats, output: Floats, cached: Floats) -> Floats:
    work = throughput.work(prompt, output, np.clip(np.where(np.isfinite(cached), cached, 0.0), 0.0, 1.0))
    ratio = np.clip(work / (throughput.work_per_s / throughput.requests_per_s), 1 / WIDEST_WORK, WIDEST_WORK)
    return np.asarray(np.where(np.isfinite(ratio), ratio, 1.0))


def _or_median(values: Floats) -> Floats:
    """Return the values with the median where one is missing; zeros where all are."""
    known = values[np.isfinite(values)]
    return np.asarray(np.where(np.isfinite(values), values, np.median(known) if len(known) else 0.0))


def of_model(profile: Profile, route: Route, ledger: Ledger, words: Words) -> Replica | None:
    """Return what a replica of what serves sustains, none if nobody knows.

    Args:
        profile: Its own figure goes first: where somebody made a load test, a canary's extrapolation is not asked.
        route: Which release serves.
        ledger: Where its canary kept what it measured.
        words: Where to say what is missing.
    """
    if profile.prescale.requests_per_s is not None:
        return Replica(profile.prescale.requests_per_s)
    found = None
    try:
        found = throughput.recorded(ledger, profile.model, route.stable.release) if route.stable else None
    except IntegrityError as error:
        words.problem(f"{error.message}.")
    if found is None:
        words.problem(
            f"Nobody measured what a replica of {profile.model} sustains, so a load cannot be turned into replicas and "
            "the floor holds: release a version with a benchmark, or set `prescale.requests_per_s` in the profile."
        )
        return None
    words.note(found.sentence)
    return Replica(found.requests_per_s, found.throughput)
