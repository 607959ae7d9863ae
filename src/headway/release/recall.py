"""What the ledger knows of one release: the records that its steps left, whoever asks and whenever."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.domain.model import ModelVersion, Selection
from headway.domain.release import ReleasePlan, ReleaseRef, StepRecord, Verdict, record_key
from headway.domain.value import digest, slug
from headway.ports import Ledger
from headway.release.plan import choose

STALE = "stale"
"""Record of a release that nobody wants any more: its alias moved on before it began."""

STEPS = ("select", "validate", "plan", "quantize", "stage", "rollout", "canary", "approve", "shift")
"""The steps whose records tell how a release went, in their order."""

DONE = "done"
REFUSED = "refused"
"""Record of the reference of a version whose files could not even be listed as a model's."""


def in_force(plan: ReleasePlan, quantized: Mapping[str, Any] | None) -> ReleasePlan:
    """Return what a release really makes: its plan, and after a race the winner's.

    Args:
        plan: As the step plan recorded it.
        quantized: What the step quantize recorded; none before.
    """
    return choose(plan, quantized["scheme"]) if plan.contenders and quantized is not None else plan


class Story(NamedTuple):
    """One release, as far as it came."""

    ref: ReleaseRef | None
    """None if it selected nothing."""
    plan: ReleasePlan | None
    """What it makes: after a race, the winner's."""
    steps: tuple[StepRecord, ...]
    """Of a step that ended well its record, of one that did not its last error; those not reached are missing."""
    verdict: Verdict | None


def error_key(model: str, release: str, step: str, try_number: int) -> str:
    """Return the ledger key of what went wrong in one try of a step. Sorts by try."""
    return record_key(slug(model), release, f"{step}.error-{try_number:03d}")


def refused_ref(release: str, version: ModelVersion) -> ReleaseRef:
    """Return the reference of a version without a source digest: its address, which is as immutable, stands in."""
    return ReleaseRef(
        release=release, model=version.name, version=version.version, source_digest=digest(version.source_uri)
    )


def story(ledger: Ledger, model: str, release: str) -> Story:
    """Read all records of a release."""
    prefix = record_key(slug(model), release, "").removesuffix(".json")
    names = [key.removeprefix(prefix).removesuffix(".json") for key in ledger.list(prefix)]
    kept: dict[str, StepRecord] = {}
    for step in STEPS:
        errors = sorted(name for name in names if name.startswith(f"{step}.error-"))
        name = step if step in names else errors[-1] if errors else None
        record = ledger.read(record_key(slug(model), release, name)) if name else None
        if record:
            kept[step] = StepRecord.model_validate(record)

    def done(step: str) -> StepRecord | None:
        return kept[step] if step in kept and kept[step].outcome == DONE else None

    selected, planned, quantized, judged = done("select"), done("plan"), done("quantize"), done("canary")
    ref = None
    if selected:
        selection = Selection.model_validate(selected.detail)
        version, source = selection.model.version, selection.source_digest
        ref = ReleaseRef(release=release, model=model, version=version, source_digest=source)
    elif REFUSED in names:
        ref = ReleaseRef.model_validate(ledger.read(record_key(slug(model), release, REFUSED)))
    plan = ReleasePlan.model_validate(planned.detail) if planned else None
    return Story(
        ref=ref,
        plan=in_force(plan, quantized.detail if quantized else None) if plan else None,
        steps=tuple(kept.values()),
        verdict=Verdict.model_validate(judged.detail) if judged else None,
    )
