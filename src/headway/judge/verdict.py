"""From records to PROMOTE, ROLLBACK or HOLD.

The unit is the block, because requests of one block share its luck. For each latency metric the block gives one figure,
`d = log(candidate's quantile) - log(stable's)`. At each declared look:

- PROMOTE, if for every metric the upper bound of `d` lies below its margin (non-inferiority), and the upper bound of
  the difference of error rates below its own. All must pass, so each is tested at the full level (intersection-union).
- ROLLBACK, if for any metric the lower bound lies above half the margin and the upper one not below it.
- Otherwise the next block; after the last one HOLD.

Before statistics come facts: unfit records hold, a side that fails hard decides at once, a failed quality check rolls
back. What is missing never promotes. A first release has nothing beside it and is held to absolute limits.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary
from headway.domain.release import Check, Decision, MetricEffect, Verdict
from headway.judge import records as record_rules
from headway.judge.quantiles import LATENCIES, failure_rate, latencies, newcombe, quantile
from headway.judge.sequential import ALPHA, Interval, interval, looks_of, nominal_levels, z_of
from headway.judge.words import say

VALID_SHARE = 0.9
"""Share of the blocks that must be usable."""
FIRST_VALID_SHARE = 0.6
"""The same for the few blocks of a first release: one of three may be void."""
HARD_RUN = 5
"""Failures in a row, in the order in which requests end, that need no statistics."""
HARD_SHARE = 0.5
FIRST_BLOCKS = 3
"""Blocks of a first release, whose absolute limits need no long comparison."""
METRICS = (*(name for name, _, _ in LATENCIES), "error_rate")


class Look(NamedTuple):
    """What one look saw."""

    block: int
    """Blocks so far."""
    valid: int
    effects: tuple[MetricEffect, ...]


class Analysis(NamedTuple):
    """A verdict with the way to it."""

    verdict: Verdict
    decided: bool
    """Whether further blocks could not change it, so that the benchmark may end."""
    looks: tuple[Look, ...]
    ratios: tuple[dict[str, float | None], ...]
    """By block: candidate over stable for every latency metric; none where it is missing."""


def planned_blocks(canary: Canary, *, paired: bool) -> int:
    """Return how many blocks a benchmark has at most."""
    return canary.blocks if paired else min(FIRST_BLOCKS, canary.blocks)


def hard_failure(records: Sequence[RequestRecord], planned: int, *, partial: bool = False) -> str:
    """Say why one side of one block failed so hard that no statistics are needed; empty if it did not.

    Args:
        records: The side's requests of the block.
        planned: How many it was to get.
        partial: Whether more of them are still under way.
    """
    failures, run = 0, 0
    ended = sorted((r for r in records if r.ended_s is not None), key=lambda r: (r.ended_s, r.index))
    for record in ended:
        failures += record.error is not None
        run = run + 1 if record.error is not None else 0
        if run >= HARD_RUN:
            return f"{run} requests in a row failed, the last with: {record.error}"
    reference = planned if partial else len(ended)
    if failures and failures > HARD_SHARE * max(reference, 1):
        last = next(r.error for r in reversed(ended) if r.error)
        return f"{failures} of {len(ended)} requests failed, such as: {last}"
    return ""


def judge(
    records: Sequence[RequestRecord],
    summaries: Sequence[BlockSummary],
    canary: Canary,
    checks: Sequence[Check] = (),
    *,
    paired: bool = True,
    faults: Sequence[str] = (),
) -> Verdict:
    """Return the verdict; see `analyse`."""
    return analyse(records, summaries, canary, checks, paired=paired, faults=faults).verdict


def analyse(
    records: Sequence[RequestRecord],
    summaries: Sequence[BlockSummary],
    canary: Canary,
    checks: Sequence[Check] = (),
    *,
    paired: bool = True,
    faults: Sequence[str] = (),
) -> Analysis:
    """Replay the decision over the blocks in their order.

    Args:
        records: Requests of the whole blocks, in any order.
        summaries: One for each block.
        canary: Margins and looks.
        checks: Quality of the candidate. A failed one rolls back, one without a measurement holds.
        paired: Whether there is a stable side.
        faults: What other checks of the table found; each makes the records unfit.
    """
    summaries = sorted(summaries, key=lambda s: s.block)
    state = _State(canary, tuple(checks), paired)
    unfit = [*record_rules.faults(records, summaries, canary, paired=paired), *faults]
    if unfit:
        return state.end("HOLD", f"the records are unfit to decide from: {unfit[0]}", unfit)
    missing = [c for c in checks if not c.passed and c.measured is None]
    failed = [c for c in checks if not c.passed and c.measured is not None]
    if failed:
        return state.end(
            "ROLLBACK", f"the candidate answers worse than allowed: {failed[0].sentence}", [c.sentence for c in failed]
        )
    if missing:
        return state.end("HOLD", f"a quality figure is missing: {missing[0].sentence}", [c.sentence for c in missing])
    by_block: dict[tuple[int, Side], list[RequestRecord]] = {}
    for record in sorted(records, key=lambda r: (r.block, r.side, r.index)):
        by_block.setdefault((record.block, record.side), []).append(record)
    for summary in summaries:
        stable = by_block.get((summary.block, "stable"), [])
        ended = state.add(summary, stable, by_block.get((summary.block, "candidate"), []))
        if ended:
            return ended
    return state.undecided()


class _State:
    """Blocks so far."""

    def __init__(self, canary: Canary, checks: tuple[Check, ...], paired: bool) -> None:
        self.canary, self.checks, self.paired = canary, checks, paired
        self.total = planned_blocks(canary, paired=paired)
        self.valid_share = VALID_SHARE if paired else FIRST_VALID_SHARE
        self.at = looks_of(canary) if paired else (self.total,)
        self.looks: list[Look] = []
        self.shares: list[float] = []
        self.ratios: list[dict[str, float | None]] = []
        self.figures: list[tuple[list[RequestRecord], list[RequestRecord], dict[str, float]]] = []
        self.invalid: list[str] = []
        self.blocks = 0

    def add(
        self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]
    ) -> Analysis | None:
        """Take in one block; return the analysis if it decides."""
        self.blocks += 1
        ended = self._facts(summary, stable, candidate)
        if ended:
            return ended
        self._measure(summary, stable, candidate)
        if len(self.invalid) > self.total - math.ceil(self.valid_share * self.total):
            sentence = f"{len(self.invalid)} of {self.total} blocks are unusable, which is too many: {self.invalid[-1]}"
            return self.end("HOLD", sentence, self.invalid)
        if self.blocks in self.at:
            return self._look()
        return None

    def _facts(
        self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]
    ) -> Analysis | None:
        number = summary.block + 1
        bad_stable, bad_candidate = hard_failure(stable, summary.planned), hard_failure(candidate, summary.planned)
        if bad_stable:
            both = f"; so did the candidate: {bad_candidate}" if bad_candidate else ""
            self.ratios.append({})
            return self.end(
                "HOLD", f"stable failed in block {number}, so there is nothing to compare with: {bad_stable}{both}"
            )
        if bad_candidate and self._overloaded(summary, stable, candidate):
            self.ratios.append({})
            sentence = (
                f"both sides are overloaded in block {number}: the candidate's requests timed out and stable's took "
                "more than half as long; lower canary.rate_per_s or canary.max_tokens, or give the machine more room"
            )
            return self.end("HOLD", sentence)
        if bad_candidate and summary.stable_alive is False:
            self.ratios.append({})
            sentence = (
                f"both sides stopped answering in block {number}, so the way to them may be broken: {bad_candidate}"
            )
            return self.end("HOLD", sentence)
        if bad_candidate:
            self.ratios.append({})
            return self.end("ROLLBACK", f"the candidate failed in block {number}: {bad_candidate}")
        return None

    def _overloaded(self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]) -> bool:
        """Tell a candidate that hangs from a machine on which both sides drown and one had to time out first."""
        slowest_s = max([summary.stable_oldest_s, *((r.e2e_ms or 0.0) / 1e3 for r in stable)])
        only_timeouts = all(r.timed_out for r in candidate if r.error)
        return self.paired and only_timeouts and slowest_s > self.canary.request_timeout_s / 2

    def _measure(self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]) -> None:
        number = summary.block + 1
        ours, theirs = latencies(candidate), latencies(stable)
        pairs = {name: (ours[name], theirs[name]) for name in ours}
        self.ratios.append({name: _ratio(*pair) if self.paired else None for name, pair in pairs.items()})
        sides = {"candidate": candidate, **({"stable": stable} if self.paired else {})}
        short = [
            f"{len(got)} of {summary.planned} requests of {side}"
            for side, got in sides.items()
            if len(got) != summary.planned
        ]
        needed = {"candidate": ours, **({"stable": theirs} if self.paired else {})}
        gaps = [
            f"{side}'s {name}" for side, got in needed.items() for name, value in got.items() if not value or value <= 0
        ]
        if summary.void or summary.stopped:
            self.invalid.append(f"block {number} is void: {summary.reason or 'stopped'}")
        elif short:
            self.invalid.append(f"block {number} has only {', '.join(short)}")
        elif gaps:
            self.invalid.append(f"block {number} lacks {', '.join(gaps)}")
        else:
            logs = {name: math.log(ratio) for name, ratio in self.ratios[-1].items() if ratio is not None}
            self.figures.append((stable, candidate, logs))

    def _look(self) -> Analysis | None:
        last = self.blocks >= self.total
        valid = len(self.figures)
        if not self.paired:
            return self._first()
        enough = valid >= VALID_SHARE * self.blocks
        share = valid / self.total
        if valid >= 2 and (not self.shares or share > self.shares[-1]):
            self.shares.append(share)
            effects = self._effects()
            self.looks.append(Look(self.blocks, valid, effects))
            worse = [e for e in effects if e.verdict == "fail"]
            if enough and worse:
                return self.end(
                    "ROLLBACK",
                    f"the candidate is worse than stable: {'; '.join(map(say, worse))}",
                    list(map(say, worse)),
                )
            if enough and all(e.verdict == "pass" for e in effects):
                return self.end(
                    "PROMOTE",
                    f"the candidate is not worse than stable by more than the margins, after {self.blocks} of "
                    f"{self.total} blocks: {'; '.join(map(say, effects))}",
                    list(map(say, effects)),
                )
        return self.undecided() if last else None

    def _effects(self) -> tuple[MetricEffect, ...]:
        shares = tuple(self.shares)
        level_high = nominal_levels(shares, ALPHA)[-1]
        level_low = nominal_levels(shares, ALPHA / len(METRICS))[-1]
        stable = [r for block in self.figures for r in block[0]]
        candidate = [r for block in self.figures for r in block[1]]
        effects = []
        for name, attribute, percent in LATENCIES:
            margin = self.canary.p50_margin if percent == 50 else self.canary.p95_margin
            bounds = interval([block[2][name] for block in self.figures], level_low=level_low, level_high=level_high)
            limit = math.log1p(margin)
            effects.append(
                MetricEffect(
                    metric=name,
                    unit="ms",
                    stable=_rounded(quantile((getattr(r, attribute) for r in stable if not r.error), percent)),
                    candidate=_rounded(quantile((getattr(r, attribute) for r in candidate if not r.error), percent)),
                    ratio=_rounded(_exp(bounds.mean)),
                    ratio_low=_rounded(_exp(bounds.low)),
                    ratio_high=_rounded(_exp(bounds.high)),
                    margin=margin,
                    verdict=_classify(bounds, limit),
                )
            )
        ours, theirs = failure_rate(candidate), failure_rate(stable)
        low, high = newcombe(ours, theirs, z_low=z_of(level_low), z_high=z_of(level_high))
        difference = Interval((ours.share - theirs.share) * 100, low * 100, high * 100)
        effects.append(
            MetricEffect(
                metric="error_rate",
                unit="%",
                stable=_rounded(theirs.share * 100),
                candidate=_rounded(ours.share * 100),
                difference=_rounded(difference.mean),
                difference_low=_rounded(difference.low),
                difference_high=_rounded(difference.high),
                margin=self.canary.error_margin_pct,
                verdict=_classify(difference, self.canary.error_margin_pct),
            )
        )
        return tuple(effects)

    def _first(self) -> Analysis:
        """Hold a first release to absolute limits."""
        candidate = [r for block in self.figures for r in block[1]]
        good = [r for r in candidate if not r.error]
        limits = (
            ("ttft_p95", "ms", quantile((r.ttft_ms for r in good), 95), self.canary.first_ttft_p95_ms),
            ("tpot_p95", "ms", quantile((r.tpot_ms for r in good), 95), self.canary.first_tpot_p95_ms),
            (
                "error_rate",
                "%",
                failure_rate(candidate).share * 100 if candidate else None,
                self.canary.first_error_pct,
            ),
        )
        effects = tuple(
            MetricEffect(
                metric=name,
                unit=unit,
                stable=None,
                candidate=_rounded(value),
                margin=limit,
                verdict="undecided" if value is None else "pass" if value <= limit else "fail",
            )
            for name, unit, value, limit in limits
        )
        self.looks.append(Look(self.blocks, len(self.figures), effects))
        worse = [say(e) for e in effects if e.verdict == "fail"]
        if worse:
            return self.end("ROLLBACK", f"the first release breaks its absolute limits: {'; '.join(worse)}", worse)
        if any(e.verdict == "undecided" for e in effects) or len(self.figures) < self.valid_share * self.total:
            return self.undecided()
        return self.end(
            "PROMOTE",
            f"the first release keeps its absolute limits: {'; '.join(map(say, effects))}",
            list(map(say, effects)),
        )

    def undecided(self) -> Analysis:
        """Return HOLD with what could not be told."""
        open_ = [say(e) for e in (self.looks[-1].effects if self.looks else ()) if e.verdict != "pass"]
        if self.blocks < self.total:
            sentence = f"the benchmark has {self.blocks} of {self.total} blocks and nothing is decided yet"
        else:
            what = "; ".join(open_) or "too few usable blocks"
            sentence = f"{self.blocks} blocks could not decide it: {what}"
        return self.end("HOLD", sentence, [*open_, *self.invalid], decided=self.blocks >= self.total)

    def end(self, decision: Decision, sentence: str, reasons: Sequence[str] = (), *, decided: bool = True) -> Analysis:
        """Close the analysis."""
        verdict = Verdict(
            decision=decision,
            sentence=f"{decision}: {sentence}",
            reasons=tuple(reasons) or (sentence,),
            blocks_used=self.blocks,
            effects=self.looks[-1].effects if self.looks else (),
            checks=self.checks,
            paired=self.paired,
        )
        return Analysis(verdict, decided, tuple(self.looks), tuple(self.ratios))


def _classify(bounds: Interval, limit: float) -> Literal["pass", "fail", "undecided"]:
    if bounds.high < limit:
        return "pass"
    return "fail" if bounds.low > limit / 2 else "undecided"


def _ratio(candidate: float | None, stable: float | None) -> float | None:
    return candidate / stable if candidate and stable and candidate > 0 and stable > 0 else None


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _rounded(value: float | None) -> float | None:
    """Round to six significant digits, so that the last bits of a library's arithmetic do not change a record."""
    return None if value is None else float(f"{value:.6g}")
