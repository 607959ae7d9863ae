"""From records to PROMOTE, ROLLBACK or HOLD.

The unit is the block, because requests of one block share its luck. For each latency metric the block gives one figure,
`d = log(candidate's quantile) - log(stable's)`; `rule` says at each declared look what the blocks so far amount to.

Before statistics come facts: unfit records hold, a side that fails hard decides at once, a failed check of the answers
or of the engine rolls back. What is missing never promotes. A first release has nothing beside it and is held to
absolute limits.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary
from headway.domain.release import Check, Decision, MetricEffect, Verdict
from headway.judge import records as record_rules
from headway.judge import rule
from headway.judge.blocks import Pair, as_run, measure, pooled
from headway.judge.quantiles import GUARD_PERCENT, LATENCIES, Rate
from headway.judge.words import say

Classified: TypeAlias = Literal["pass", "fail", "undecided"]
FIRST_VALID_SHARE = 0.6
"""The same for the few blocks of a first release: one of three may be void."""
HARD_RUN = 5
"""Failures in a row, in the order in which requests end, that need no statistics."""
HARD_SHARE = 0.5
FIRST_BLOCKS = 3
"""Blocks of a first release, whose absolute limits need no long comparison."""
STATES: dict[int, Classified] = {rule.PASS: "pass", rule.UNDECIDED: "undecided", rule.FAIL: "fail"}
GUARDS = frozenset(name for name, _, percent in LATENCIES if percent >= GUARD_PERCENT)
SIDES: tuple[Side, Side] = ("stable", "candidate")
MOST_WITHHELD = 1
"""Blocks that may be unusable for want of what the candidate itself should have said."""
DECISIONS: dict[int, Decision] = {rule.PROMOTE: "PROMOTE", rule.ROLLBACK: "ROLLBACK"}


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
        checks: Of the candidate's answers and of its engine. A failed one rolls back. Answers that could not be
            measured hold; an engine that does not report what it should is never promoted, but a candidate that
            crashed, or is slower, is taken back all the same.
        paired: Whether there is a stable side.
        faults: What other checks of the table found; each makes the records unfit.
    """
    summaries = sorted(summaries, key=lambda s: s.block)
    run = _Run(canary, tuple(checks), paired)
    unfit = [*record_rules.faults(records, summaries, canary, paired=paired), *faults]
    if unfit:
        return run.end("HOLD", f"the records are unfit to decide from: {unfit[0]}", unfit)
    checked = _checked(checks)
    if checked:
        return run.end(*checked)
    by_block: dict[tuple[int, Side], list[RequestRecord]] = {}
    for record in sorted(records, key=lambda r: (r.block, r.side, r.index)):
        by_block.setdefault((record.block, record.side), []).append(record)
    fact: tuple[Decision, str, list[str]] | None = None
    for summary in summaries:
        stable, candidate = (by_block.get((summary.block, side), []) for side in SIDES)
        fact = run.add(summary, stable, candidate)
        if fact:
            break
    analysis = run.decide(fact) if paired else run.first(fact)
    silent = _silent(checks)
    return run.end(*silent) if silent and analysis.verdict.decision == "PROMOTE" else analysis


def _checked(checks: Sequence[Check]) -> tuple[Decision, str, list[str]] | None:
    """Return what the checks alone decide."""
    failed = [c for c in checks if not c.passed and c.measured is not None and c.kind != "contract"]
    if failed:
        what = "the candidate's engine does worse than allowed" if failed[0].kind == "guard" else ""
        sentence = f"{what or 'the candidate answers worse than allowed'}: {failed[0].sentence}"
        return "ROLLBACK", sentence, [c.sentence for c in failed]
    missing = [c for c in checks if not c.passed and c.kind == "quality"]
    if missing:
        return "HOLD", f"a quality figure is missing: {missing[0].sentence}", [c.sentence for c in missing]
    return None


def _silent(checks: Sequence[Check]) -> tuple[Decision, str, list[str]] | None:
    """Return what engines hold that did not report all; only where the records would promote."""
    missing = [c for c in checks if not c.passed and c.kind != "quality"]
    if not missing:
        return None
    contract = missing[0].kind == "contract"
    what = "the candidate's engine does not report what it must" if contract else "a figure of the engines is missing"
    return "HOLD", f"{what}: {missing[0].sentence}", [c.sentence for c in missing]


class _Run:
    """Blocks so far."""

    def __init__(self, canary: Canary, checks: tuple[Check, ...], paired: bool) -> None:
        self.canary, self.checks, self.paired = canary, checks, paired
        self.total = planned_blocks(canary, paired=paired)
        self.valid_share = rule.VALID_SHARE if paired else FIRST_VALID_SHARE
        self.blocks = 0
        self.pairs: list[Pair] = []
        self.looks: list[Look] = []

    @property
    def invalid(self) -> list[str]:
        """Why which blocks cannot be used."""
        return [pair.unusable for pair in self.pairs if pair.unusable]

    def add(
        self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]
    ) -> tuple[Decision, str, list[str]] | None:
        """Take in one block; return what it decides without statistics."""
        self.blocks += 1
        fact = self._fact(summary, stable, candidate)
        if fact:
            return *fact, []
        sides: dict[Side, list[RequestRecord]] = {"stable": stable, "candidate": candidate}
        self.pairs.append(measure(summary, sides, self.canary, paired=self.paired))
        invalid = self.invalid
        if len(invalid) <= self.total - math.ceil(self.valid_share * self.total):
            return None
        sentence = f"{len(invalid)} of {self.total} blocks are unusable, which is too many: {invalid[-1]}"
        return "HOLD", sentence, invalid

    def _fact(
        self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]
    ) -> tuple[Decision, str] | None:
        number = summary.block + 1
        bad_stable, bad_candidate = hard_failure(stable, summary.planned), hard_failure(candidate, summary.planned)
        if bad_stable:
            both = f"; so did the candidate: {bad_candidate}" if bad_candidate else ""
            return (
                "HOLD",
                f"stable failed in block {number}, so there is nothing to compare with: {bad_stable}{both}",
            )
        if bad_candidate and self._overloaded(summary, stable, candidate):
            return "HOLD", (
                f"both sides are overloaded in block {number}: the candidate's requests timed out and stable's took "
                "more than half as long; lower canary.rate_per_s or canary.max_tokens, or give the machine more room"
            )
        if bad_candidate and summary.stable_alive is False:
            return "HOLD", (
                f"both sides stopped answering in block {number}, so the way to them may be broken: {bad_candidate}"
            )
        return ("ROLLBACK", f"the candidate failed in block {number}: {bad_candidate}") if bad_candidate else None

    def _overloaded(self, summary: BlockSummary, stable: list[RequestRecord], candidate: list[RequestRecord]) -> bool:
        """Tell a candidate that hangs from a machine on which both sides drown and one had to time out first."""
        slowest_s = max([summary.stable_oldest_s, *((r.e2e_ms or 0.0) / 1e3 for r in stable)])
        only_timeouts = all(r.timed_out for r in candidate if r.error)
        return self.paired and only_timeouts and slowest_s > self.canary.request_timeout_s / 2

    def decide(self, fact: tuple[Decision, str, list[str]] | None) -> Analysis:
        """Let the rule decide; where it did not until a block decided by itself, that is what holds."""
        declared = rule.rule_of(self.canary)
        outcome = rule.decide(as_run(self.pairs), declared)
        self.looks = [Look(seen.block, seen.valid, self._effects(seen, declared)) for seen in outcome.looks]
        decision = DECISIONS.get(int(outcome.decision[0]))
        if decision is None:
            return self.end(*fact) if fact else self.undecided()
        self.blocks = int(outcome.blocks[0])
        effects = self.looks[-1].effects
        if decision == "ROLLBACK":
            worse = [say(e) for e in effects if e.verdict == "fail"]
            return self.end(decision, f"the candidate is worse than stable: {'; '.join(worse)}", worse)
        withheld = [pair.unusable for pair in self.pairs[: self.blocks] if pair.withheld]
        if len(withheld) > MOST_WITHHELD:
            # They may be the very blocks in which it was slow.
            return self.end("HOLD", f"the candidate's answers lack what stable's have: {withheld[0]}", withheld)
        told = [say(e) for e in effects if e.metric not in GUARDS]
        sentence = (
            f"the candidate is not worse than stable by more than the margins, after {self.blocks} of {self.total} "
            f"blocks: {'; '.join(told)}"
        )
        return self.end(decision, sentence, told)

    def _effects(self, seen: rule.Seen, declared: rule.Rule) -> tuple[MetricEffect, ...]:
        so_far = self.pairs[: seen.block]
        (stable, stable_rates), (candidate, candidate_rates) = (pooled(so_far, side) for side in SIDES)
        effects = []
        margins = [math.expm1(limit) for limit in declared.limits]
        bounds = [*zip(seen.mean[0], seen.low[0], seen.high[0], seen.state[0], strict=True)]
        for (name, _, _), margin, (mean, low, high, state) in zip(LATENCIES, margins, bounds, strict=False):
            effects.append(
                MetricEffect(
                    metric=name,
                    unit="ms",
                    stable=_rounded(stable[name]),
                    candidate=_rounded(candidate[name]),
                    ratio=_rounded(_exp(mean)),
                    ratio_low=_rounded(_exp(low)),
                    ratio_high=_rounded(_exp(high)),
                    margin=_rounded(margin),
                    verdict=STATES[int(state)],
                )
            )
        rates = zip(stable_rates, candidate_rates, declared.rate_limits, bounds[len(LATENCIES) :], strict=True)
        for name, (ours, theirs, limit, (mean, low, high, state)) in zip(rule.RATES, rates, strict=False):
            # Goodput is told as the share of good requests, and what is judged are the others.
            sign, first, last = (-1, high, low) if name == "goodput" else (1, low, high)
            effects.append(
                MetricEffect(
                    metric=name,
                    unit="%",
                    stable=_share_pct(ours, sign),
                    candidate=_share_pct(theirs, sign),
                    difference=_rounded(mean * 100 * sign),
                    difference_low=_rounded(first * 100 * sign),
                    difference_high=_rounded(last * 100 * sign),
                    margin=_rounded(limit * 100 * sign),
                    verdict=STATES[int(state)],
                )
            )
        return tuple(effects)

    def first(self, fact: tuple[Decision, str, list[str]] | None) -> Analysis:
        """Hold a first release to absolute limits."""
        if fact:
            return self.end(*fact)
        if self.blocks < self.total:
            return self.undecided()
        usable = sum(not pair.unusable for pair in self.pairs)
        figures, rates = pooled(self.pairs, "candidate")
        limits = (
            ("ttft_p95", "ms", figures.get("ttft_p95"), self.canary.first_ttft_p95_ms),
            ("tpot_p95", "ms", figures.get("tpot_p95"), self.canary.first_tpot_p95_ms),
            ("error_rate", "%", _share_pct(rates[0], 1) if rates else None, self.canary.first_error_pct),
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
        self.looks.append(Look(self.blocks, usable, effects))
        worse = [say(e) for e in effects if e.verdict == "fail"]
        if worse:
            return self.end("ROLLBACK", f"the first release breaks its absolute limits: {'; '.join(worse)}", worse)
        if any(e.verdict == "undecided" for e in effects) or usable < self.valid_share * self.total:
            return self.undecided()
        told = [say(e) for e in effects]
        return self.end("PROMOTE", f"the first release keeps its absolute limits: {'; '.join(told)}", told)

    def undecided(self) -> Analysis:
        """Return HOLD with what could not be told."""
        effects = self.looks[-1].effects if self.looks else ()
        open_ = [say(e) for e in effects if e.verdict != "pass" and e.metric not in GUARDS]
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
        ratios = [pair.ratios for pair in self.pairs[: self.blocks]]
        # A block that decided by itself was not measured.
        return Analysis(verdict, decided, tuple(self.looks), (*ratios, *({} for _ in range(self.blocks - len(ratios)))))


def _share_pct(rate: Rate, sign: int) -> float | None:
    return _rounded((rate.share if sign > 0 else 1 - rate.share) * 100) if rate.sent else None


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _rounded(value: float | None) -> float | None:
    """Round to six significant digits, so that the last bits of a library's arithmetic do not change a record."""
    # Adding zero turns a negative zero into a plain one.
    return None if value is None else float(f"{value:.6g}") + 0.0
