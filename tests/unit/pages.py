"""Releases for reports, and a reader of the page that finds what a browser would stumble over."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

from headway.domain.release import Check, ReleasePlan, StepRecord, Verdict
from headway.judge import records as record_rules
from headway.judge.records import Run
from headway.judge.verdict import judge
from headway.release import report
from headway.release.record import Ending
from tests.factories import make_plan, make_profile, make_ref
from tests.unit.judge.data import make_canary, make_run

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
PLAN = make_plan(make_profile(canary=make_canary(demo_margins=True).to_json()))
CHECK = Check(name="served perplexity", measured=1.01, limit=1.05, passed=True, sentence="as good as its source")
URI = "s3://headway/bench/r/records.jsonl"


def make_steps(last: str = "shift", error: str = "", message: str = "") -> list[StepRecord]:
    """Return the records of the steps up to one, which may have failed."""
    steps, at = [], NOW
    for name in ("select", "validate", "plan", "quantize", "stage", "rollout", "canary", "shift"):
        ended = at + timedelta(seconds=10)
        failed = name == last and error
        detail = {"message": message, "facts": {}} if failed else {"checks": ["a rule"]} if name == "validate" else {}
        steps.append(
            StepRecord(
                release="r",
                step=name,
                started_at=at.isoformat(),
                ended_at=ended.isoformat(),
                outcome=error if failed else "done",
                detail=detail,
            )
        )
        at = ended + timedelta(seconds=2)
        if name == last:
            break
    return steps


def make_verdict(plan: ReleasePlan = PLAN, checks: tuple[Check, ...] = (CHECK,), **run: Any) -> tuple[Verdict, bytes]:
    """Judge a simulated benchmark; return the verdict with the file it came from."""
    canary = plan.profile.canary
    records, summaries = make_run(canary, **{"shared": 0.05, "spread": 0.1, **run})
    content = record_rules.write(Run("d" * 64, tuple(records), tuple(summaries)))
    verdict = judge(records, summaries, canary, checks, paired=run.get("paired", True))
    sha256 = hashlib.sha256(content).hexdigest()
    return verdict.model_copy(update={"records_uri": URI, "records_sha256": sha256}), content


class Page(HTMLParser):
    """Reads a page, and knows whether its tags are balanced, its names its own and its pictures told in words."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "circle"})

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.text = ""
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.words: dict[str, str] = {}
        self.commands: list[str] = []
        self._within = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "svg":
            self.pictures.append(given)
        if tag == "pre":
            self.commands.append("")
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if name := given.get("id"):
            self.ids.append(name)
        self._within = name or ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)
        self._within = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._within:
            self.words[self._within] = data
        if "pre" in self.open:
            self.commands[-1] += data

    @property
    def told(self) -> dict[str, str]:
        """What each picture says in words, by its title."""
        names = [(picture.get("aria-labelledby") or "").split() for picture in self.pictures]
        return {self.words[title]: self.words[desc] for title, desc in names}


def read(page: bytes) -> Page:
    """Read a page, and hold it to what every page must keep."""
    found = Page(page)
    assert found.unbalanced == []
    assert found.open == []
    assert {address for address in found.addresses if not address.startswith("#")} == set(), "it must load nothing"
    assert {address[1:] for address in found.addresses} <= set(found.ids), "an address within leads nowhere"
    assert len(found.ids) == len(set(found.ids)), "two parts have one id"
    assert len(found.told) == len(found.pictures), "a picture has no words of its own"
    assert all(found.told.values())
    assert b"@import" not in page
    assert not re.search(rb"url\((?!#)", page)
    return found


def render(
    end: Ending,
    steps: list[StepRecord],
    verdict: Verdict | None = None,
    records: bytes | None = None,
    plan: ReleasePlan = PLAN,
) -> Page:
    """Render a report and read it."""
    page, _ = report.render(make_ref(), plan, steps, verdict, end, now=NOW, records=records)
    return read(page)
