"""Making a decision again from what it rested on: the records and the basis kept beside them.

The same two give the same verdict, byte for byte of its canonical JSON, wherever and whenever it is asked.
"""

import hashlib
from collections.abc import Sequence

from headway.domain.profile import Canary
from headway.domain.release import Basis, Verdict
from headway.errors import IntegrityError
from headway.judge import records as record_rules
from headway.judge.records import Run
from headway.judge.verdict import judge

BASIS_FILE = "basis.json"
"""Name of the basis in the folder of the records."""


def decide(run: Run, basis: Basis, canary: Canary | None = None, *, content: bytes | None = None) -> Verdict:
    """Return the verdict on records.

    Args:
        run: What the records file holds.
        basis: What else the decision rested on.
        canary: Other margins than those that were in force: what would have been decided with them.
        content: The records file. If given, it must be the one that the basis names.

    Raises:
        IntegrityError: The records are not those of the basis.
    """
    if content is not None:
        _same(run, basis, content)
    verdict = judge(
        run.records, run.summaries, canary or basis.canary, basis.checks, paired=basis.paired, faults=basis.faults
    )
    return verdict.model_copy(update={"records_sha256": basis.records_sha256})


def basis_of(run: Run, canary: Canary, faults: Sequence[str] = ()) -> Basis:
    """Return a basis for records that came without one: margins from elsewhere, no quality and no guards.

    Args:
        run: What the records file holds.
        canary: Margins and looks to judge by.
        faults: What the checks of the table found.
    """
    asked = sorted({r.release for r in run.records if r.side == "candidate"})
    named = sorted({r.served_model for r in run.records if r.error is None and r.served_model})
    return Basis(
        release=asked[0] if len(asked) == 1 else "",
        model=named[0] if len(named) == 1 else "",
        version=0,
        canary=canary,
        # A file that lost all of stable's lines must not pass for a first release, which has nothing beside it.
        paired=any(r.side == "stable" for r in run.records) or any(s.sent_first == "stable" for s in run.summaries),
        faults=tuple(faults),
        records_sha256=hashlib.sha256(record_rules.write(run)).hexdigest(),
    )


def _same(run: Run, basis: Basis, content: bytes) -> None:
    """Compare the file with the digest; one in another form (Parquet) is written as JSON lines first."""
    found = hashlib.sha256(content).hexdigest()
    if found == basis.records_sha256:
        return
    lines = hashlib.sha256(record_rules.write(run)).hexdigest()
    if lines != basis.records_sha256:
        raise IntegrityError(
            f"the records have digest {lines[:12]}, the basis of release {basis.release} is of records "
            f"{basis.records_sha256[:12]}: they were changed or are from another release; take both files from one "
            "folder",
            found=lines,
            expected=basis.records_sha256,
        )
