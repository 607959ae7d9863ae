"""The report's part on how often such a verdict is wrong: the measured error rates behind the margins."""

from headway.domain.profile import Trials
from headway.domain.release import ReleasePlan
from headway.judge.calibrate import EVERY_REQUEST, FIRST_TOKEN, SLOW_REQUESTS, clopper_pearson, flaw
from headway.pages.html import esc, note, section, table

WORSE = {EVERY_REQUEST: "every latency", SLOW_REQUESTS: "slowest requests", FIRST_TOKEN: "first token"}
"""What was made slower, as a person would say it."""


def flag(plan: ReleasePlan) -> str:
    """Return a remark if nobody has measured how often these margins are wrong here; empty if it is known."""
    why = _flaw(plan)
    return note("No proof of the margins:", f'{esc(why)}. <a href="#evidence">More below.</a>') if why else ""


def section_of(plan: ReleasePlan) -> str:
    """Show how often decisions with these margins came out how, or that nobody knows."""
    canary = plan.profile.canary
    evidence = canary.evidence
    title = "How often such a verdict is wrong"
    if evidence is None:
        text = (
            "Nobody has measured it for these margins on this hardware. <code>headway calibrate</code> does, and says "
            "what to write into the profile."
        )
        return section(title, f"<p>{text}</p>", "evidence")
    why = _flaw(plan)
    lead = f"<p><strong>{esc(why)}</strong></p>" if why else ""
    how = {"trials": "each by a benchmark of its own", "resampled": "by drawing recorded pairs of equal sides again"}
    when = evidence.measured_at[:16].replace("T", " ")
    text = (
        f"Measured on {evidence.hardware} at {when} UTC, {how[evidence.method]}, from {evidence.recorded_blocks} "
        "paired blocks. Small: 95 % intervals (Clopper-Pearson)."
    )
    head = ("candidate", "decisions", "promoted", "rolled back", "held", "blocks on average")
    rows = [_row(trials) for trials in evidence.trials]
    return section(title, f"{lead}<p>{esc(text)}</p>{table(head, rows, 'numbers')}", "evidence")


def _flaw(plan: ReleasePlan) -> str:
    return flaw(plan.profile.canary, plan.profile.hardware.accelerator).replace("`", "")


def _row(trials: Trials) -> tuple[str, ...]:
    worse = f"{WORSE.get(trials.metric, trials.metric)} {trials.slower_pct:+g} %"
    what = worse if trials.metric else "equal to stable"
    counts = (trials.promoted, trials.rolled_back, trials.held)
    rates = (_rate(count, trials.decisions) for count in counts)
    return (esc(what), str(trials.decisions), *rates, f"{trials.mean_blocks:.1f}")


def _rate(count: int, of: int) -> str:
    low, high = clopper_pearson(count, of)
    share = f"{count / of * 100:.1f} %" if of else "-"
    return f"{share}<br><small>{low * 100:.1f} to {high * 100:.1f} %</small>"
