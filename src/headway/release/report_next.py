"""The report's first part: what to do now, for somebody who was not there."""

import shlex

from headway.domain.release import ReleasePlan, ReleaseRef, Verdict
from headway.pages.html import bullets, command, esc, section
from headway.release.record import Ending
from headway.release.report_canary import open_questions
from headway.units import format_seconds


def section_of(ref: ReleaseRef, plan: ReleasePlan | None, verdict: Verdict | None, end: Ending) -> str:
    """Say whether users are concerned, what to look at, and which command goes on."""
    model, version = shlex.quote(ref.model), ref.version
    again = f"headway release {model} --version {version} --wait"
    if end.outcome == "promoted":
        kept = f" The version before stays warm for {format_seconds(plan.profile.keep_previous_s)}." if plan else ""
        text = f"Nothing. If users complain, go back with one command; it takes seconds.{kept}"
        return section("What to do next", f"<p>{esc(text)}</p>{command(f'headway rollback {model}')}")
    text = "Users are not concerned: stable has all the traffic, as before. "
    lines: list[str] = []
    if end.outcome == "held":
        kept = f" within {format_seconds(plan.profile.hold_s)}, after which it is deleted" if plan else ""
        text += (
            f"A person decides{kept}. To refuse, do nothing. To measure again, with more blocks or at a calmer hour:"
        )
        lines = _undecided(verdict)
    elif end.outcome == "rolled_back":
        text += (
            "The benchmark had passed it, and then it was taken back from real traffic: the reason is above. "
            if verdict is not None and verdict.decision == "PROMOTE"
            else "What is marked as failed below was worse than allowed. "
        )
        text += "Register a better version; this one comes back only if a person names it:"
    elif end.outcome == "rejected":
        text += "Correct what the reason names and register a new version. If the limit was wrong, change it in the "
        text += "profile, with a reason, and release this one again:"
    else:
        text += "Something outside broke; nothing is known about the model. Reconcile tries again by itself after an "
        text += "hour. To try at once, when it is repaired:"
    return section("What to do next", f"<p>{esc(text)}</p>{command(again)}{bullets(lines)}")


def _undecided(verdict: Verdict | None) -> list[str]:
    if verdict is None:
        return []
    missing = [c for c in verdict.checks if not c.passed and (c.measured is None or c.kind == "contract")]
    engine = [f"without this, measuring again ends the same: {check.sentence}" for check in missing]
    return engine + open_questions(verdict)
