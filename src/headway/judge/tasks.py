"""Whether the candidate solves tasks as well as what it is compared with.

Recovery is the candidate's score over the base's (stable, or its own source as it was served): 0.99 means that one of a
hundred points was lost. Both sides answered the same questions, so the standard error comes from the differences sample
by sample, which is much smaller than that of two scores (E. Miller, "Adding Error Bars to Evals", arXiv 2411.00640).

For a task with samples `c` and `b`, `R = mean(c) / mean(b)` has by the delta method the variance
`var(c - R b) / (n mean(b)^2)` (W. G. Cochran, "Sampling Techniques", 1977, chapter 6). The bounds are Fieller's, which
take the variance at the bound itself (E. C. Fieller, JRSS B 16, 1954), or those of the delta method where these are
wider: a candidate that solves nothing has no variance of its own, and must not fail because stable solved one sample.

A check fails only when even the upper bound (one-sided, 95 %) is below the limit. Below the limit with a bound above
it is named undecided, and passes: the samples cannot tell it from chance.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from headway.domain.profile import Tasks
from headway.domain.release import Check
from headway.domain.task_jobs import TaskResult, TaskScore
from headway.domain.weights import BITS_PER_WEIGHT, Scheme
from headway.judge.quantiles import Rate, wilson
from headway.judge.sequential import t_of, z_of

ONE_SIDED = 0.05
"""Level of the bound that decides. The interval that is shown is two-sided with 95 %."""
LEAST_PAIRS = 20
"""Samples of a task below which nothing is decided."""
FEW_CHANGED = 8
"""Samples solved by one side only, below which a normal approximation says too much; the exact sign test is asked too:
five lost and none won are the least that count."""
NAME = "task accuracy"


class Recovery(NamedTuple):
    """The candidate's score over the base's, of one task or as the mean of several."""

    value: float
    stderr: float
    low: float
    high: float
    """Two-sided 95 % interval; `high` is infinite where the base's score is hardly above 0."""
    at_most: float
    """One-sided 95 % bound."""
    n: int
    """Samples of the smallest task."""
    lost: int
    won: int
    """Samples that only the base, or only the candidate, solved; both 0 where samples are no yes or no."""
    counted: bool
    """Whether all samples are yes or no."""

    def below(self, limit: float) -> bool:
        """Tell whether it is below the limit beyond doubt."""
        if self.n < LEAST_PAIRS or self.at_most >= limit:
            return False
        if self.counted and self.lost + self.won < FEW_CHANGED:
            return _sign_test(self.lost, self.won) <= ONE_SIDED
        return True


class _Moments(NamedTuple):
    """Means of the two sides, and what the variance of `x - L y` is made of: `xx - 2 L xy + L^2 yy`."""

    x: float
    y: float
    xx: float
    xy: float
    yy: float
    n: int
    lost: int
    won: int
    counted: bool

    def variance(self, at: float) -> float:
        """Return the variance of the mean of `x - at y`, over the square of the mean of `y`."""
        return max(0.0, self.xx - 2 * at * self.xy + at * at * self.yy) / self.y**2


def min_recovery(tasks: Tasks, scheme: Scheme) -> float:
    """Return the profile's limit; where it has none, that of the scheme's bits."""
    return tasks.min_recovery or (0.99 if BITS_PER_WEIGHT[scheme] >= 8 else 0.98)


def recovery(candidate: Sequence[TaskScore], base: Sequence[TaskScore]) -> Recovery | None:
    """Return the mean recovery of tasks; none if a base's score is not above 0, which nothing can be divided by.

    Args:
        candidate: Scores of the candidate, at least one.
        base: Those of what it is compared with, for the same tasks in the same order. Where both were asked the same
            samples they are compared in pairs, otherwise as independent ones.
    """
    parts = [_moments(c, b) for c, b in zip(candidate, base, strict=True)]
    if not parts or any(m.y <= 0 or m.n < 2 for m in parts):
        return None
    ratios = [m.x / m.y for m in parts]
    value = math.fsum(ratios) / len(parts)
    stderr = math.sqrt(math.fsum(m.variance(r) for m, r in zip(parts, ratios, strict=True))) / len(parts)
    n = min(m.n for m in parts)
    low, high = _bounds(parts, value, stderr, t_of(0.025, n - 1))
    _, at_most = _bounds(parts, value, stderr, t_of(ONE_SIDED, n - 1))
    return Recovery(
        value=value,
        stderr=stderr,
        low=low,
        high=high,
        at_most=at_most,
        n=n,
        lost=sum(m.lost for m in parts),
        won=sum(m.won for m in parts),
        counted=all(m.counted for m in parts),
    )


def task_checks(
    result: TaskResult | None,
    tasks: Tasks,
    scheme: Scheme = "none",
    *,
    source: TaskResult | None = None,
    why_missing: str = "",
) -> list[Check]:
    """Compare the candidate's scores with stable's (or its source's), and with the absolute limits.

    A check that could not be measured has `measured` none; it holds the release instead of failing it.

    Args:
        result: What the tasks program measured; none if it did not.
        tasks: What was asked, and the limits.
        scheme: How the candidate is quantized; the default limit depends on its bits.
        source: Scores of the candidate's source, served as it is (a result in which it was the candidate). Taken as the
            base instead of stable's.
        why_missing: Why there is no result, in words.
    """
    limit = min_recovery(tasks, scheme)
    if result is None:
        return [_missing(NAME, limit, f"task accuracy could not be measured: {why_missing or 'no answer'}")]
    mine = {name: result.score(name, "candidate") for name in tasks.names}
    unasked = [name for name, score in mine.items() if score is None]
    if unasked:
        return [_missing(NAME, limit, f"the candidate was not asked {', '.join(unasked)}")]
    candidate = [score for score in mine.values() if score is not None]
    whose = "the source's" if source else "stable's"
    found = [source.score(s.task, "candidate") if source else result.score(s.task, "stable") for s in candidate]
    base = [score for score in found if score is not None]
    checks: list[Check] = []
    if base:
        fault = _unlike(candidate, found, whose, paired=source is None)
        checks = [_missing(NAME, limit, fault)] if fault else _against(candidate, base, tasks, limit, whose)
    return [*checks, *(_absolute(score, tasks.min_score.get(score.task)) for score in candidate)]


def _against(
    candidate: Sequence[TaskScore], base: Sequence[TaskScore], tasks: Tasks, limit: float, whose: str
) -> list[Check]:
    # A task that the base cannot solve says nothing; it must not hide what the others say.
    telling = [pair for pair in zip(candidate, base, strict=True) if _moments(*pair).y > 0] or list(
        zip(candidate, base, strict=True)
    )
    checks = [_recovery_check(NAME, [mine for mine, _ in telling], [other for _, other in telling], limit, whose)]
    if len(candidate) > 1 or tasks.min_task_recovery is not None:
        checks += [
            _recovery_check(f"{NAME}: {mine.task}", [mine], [other], tasks.min_task_recovery, whose)
            for mine, other in zip(candidate, base, strict=True)
        ]
    return checks


def _recovery_check(
    name: str, candidate: Sequence[TaskScore], base: Sequence[TaskScore], limit: float | None, whose: str
) -> Check:
    about = _scores(candidate[0], base[0]) if len(candidate) == 1 else f"{len(candidate)} tasks"
    found = recovery(candidate, base)
    if found is None:
        zero = ", ".join(b.task for c, b in zip(candidate, base, strict=True) if _moments(c, b).y <= 0)
        sentence = (
            f"{about}: undecided, because a score of {zero or 'one sample'} is nothing to divide by; take tasks that "
            "it can solve"
        )
        return Check(name=name, measured=None, limit=limit, passed=True, sentence=sentence)
    verdict, words = _verdict(found, limit)
    bound = (
        f"at most {_percent(found.at_most)} with 95 % confidence" if math.isfinite(found.at_most) else "no upper bound"
    )
    mean = "" if len(candidate) == 1 else " on average"
    return Check(
        name=name,
        measured=found.value,
        limit=limit,
        passed=verdict != "below",
        sentence=(
            f"{about}: {_percent(found.value)} of {whose}{mean} (standard error {found.stderr * 100:.1f} points, "
            f"{bound}){words}"
        ),
        low=max(0.0, found.low),
        high=found.high if math.isfinite(found.high) else None,
    )


def _verdict(found: Recovery, limit: float | None) -> tuple[Literal["within", "undecided", "below"], str]:
    if limit is None:
        return "within", ""
    if found.value >= limit:
        return "within", f", within the limit of {_percent(limit)}"
    if found.below(limit):
        return "below", f", below the limit of {_percent(limit)}"
    more = "more samples (quality.tasks.limit) would tell it from chance"
    return "undecided", f", below the limit of {_percent(limit)} but undecided: {more}"


def _absolute(score: TaskScore, limit: float | None) -> Check:
    """Hold one score against its own limit, again only beyond doubt."""
    low, high = _interval(score, 0.025)
    fact = f"{score.task}: {score.metric} {score.value:.3f} of {score.n} samples"
    stderr = score.stderr
    spread = "" if stderr is None else f" (standard error {stderr:.3f})"
    if limit is None:
        passed, words = True, ""
    else:
        edge = _interval(score, ONE_SIDED)
        good = score.value >= limit if score.higher_is_better else score.value <= limit
        clear = (edge[1] < limit if score.higher_is_better else edge[0] > limit) and score.n >= LEAST_PAIRS
        passed = good or not clear
        beyond = "below" if score.higher_is_better else "above"
        doubt = " but undecided: there are too few samples to tell it from chance" if not good and passed else ""
        words = f", {'within' if good else beyond} the limit of {limit:g}{doubt}"
    return Check(
        name=f"score: {score.task}",
        measured=score.value,
        limit=limit,
        passed=passed,
        sentence=fact + spread + words,
        low=low,
        high=high,
    )


def _interval(score: TaskScore, level: float) -> tuple[float, float]:
    """Return the bounds of a score, each at a one-sided level: Wilson's for yes and no, Student's otherwise."""
    if _yes_or_no(score.values):
        return wilson(Rate(round(math.fsum(score.values)), score.n), z_of(level))
    stderr = score.stderr
    if stderr is None:
        return score.value, score.value
    spread = t_of(level, score.n - 1) * stderr
    return score.value - spread, score.value + spread


def _moments(candidate: TaskScore, base: TaskScore) -> _Moments:
    # Of what should be small, such as an error rate, the base's score over the candidate's is what was recovered.
    above, below = (candidate, base) if candidate.higher_is_better else (base, candidate)
    n = min(above.n, below.n)
    xx, yy = (_variance(s.values) / s.n for s in (above, below))
    paired = above.samples_digest == below.samples_digest and above.n == below.n
    xy = _covariance(above.values, below.values) / n if paired else 0.0
    counted = paired and _yes_or_no(above.values) and _yes_or_no(below.values)
    pairs = list(zip(above.values, below.values, strict=True)) if counted else []
    return _Moments(
        x=above.value,
        y=below.value,
        xx=xx,
        xy=xy,
        yy=yy,
        n=n,
        lost=sum(x < y for x, y in pairs),
        won=sum(x > y for x, y in pairs),
        counted=counted,
    )


def _bounds(parts: Sequence[_Moments], value: float, stderr: float, t: float) -> tuple[float, float]:
    """Return where `(value - L)^2 = t^2 variance(L)`, or `value -+ t stderr` where that is wider."""
    share = t * t / len(parts) ** 2
    aa, ab, bb = (math.fsum(getattr(m, name) / m.y**2 for m in parts) * share for name in ("xx", "xy", "yy"))
    low, high = value - t * stderr, value + t * stderr
    leading = 1 - bb
    if leading <= 0:
        # The base's score itself cannot be told from 0: no ratio can be excluded.
        return -math.inf, math.inf
    middle = value - ab
    root = math.sqrt(max(0.0, middle * middle - leading * (value * value - aa)))
    return min(low, (middle - root) / leading), max(high, (middle + root) / leading)


def _sign_test(lost: int, won: int) -> float:
    """Return the chance of so many losses or more, if each of the changed samples were a fair coin."""
    changed = lost + won
    return sum(math.comb(changed, k) for k in range(lost, changed + 1)) * math.ldexp(1.0, -changed)


def _unlike(candidate: Sequence[TaskScore], found: Sequence[TaskScore | None], whose: str, *, paired: bool) -> str:
    """Say why the two cannot be compared; empty if they can."""
    for mine, other in zip(candidate, found, strict=True):
        if other is None:
            return f"there is no score of {whose} for {mine.task}, so task accuracy cannot be compared"
        if mine.metric != other.metric:
            return f"{mine.task} has {mine.metric} of the candidate and {other.metric} of {whose}; the harness changed"
        if paired and (mine.samples_digest, mine.n) != (other.samples_digest, other.n):
            return f"the two sides were not asked the same samples of {mine.task}; run the step again"
    return ""


def _missing(name: str, limit: float | None, sentence: str) -> Check:
    return Check(name=name, measured=None, limit=limit, passed=False, sentence=sentence)


def _yes_or_no(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _variance(values: Sequence[float]) -> float:
    return _covariance(values, values)


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    if len(first) < 2:
        return 0.0
    a, b = (math.fsum(values) / len(values) for values in (first, second))
    return math.fsum((x - a) * (y - b) for x, y in zip(first, second, strict=True)) / (len(first) - 1)


def _scores(candidate: TaskScore, base: TaskScore) -> str:
    return f"{candidate.task}: {candidate.metric} {candidate.value:.3f} against {base.value:.3f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
