"""What the model version remembers of its releases (design rule 13.2).

One tag, `headway.state`, holds JSON: for each cluster digest how its last release ended. Failures before a plan exists
are kept under `source:<source digest>`, so that a model that breaks a rule is not tried again every five minutes.
"""

import json
from collections.abc import Mapping

from pydantic import ValidationError

from headway.domain.release import Outcome
from headway.domain.value import Value
from headway.errors import IntegrityError
from headway.ports import Registry

STATE_TAG = "headway.state"
RELEASE_TAG = "headway.release"
"""Id of the release that touched the version last, for people who read the registry."""

MAX_KEPT = 20
"""Pairs kept per version, newest first: a tag is read by people, and an old engine's outcome is in the ledger anyway."""

MAX_REASON = 500
"""Characters of a reason in the tag; the whole text is in the ledger and in the report."""


class VersionState(Value):
    """How the last release of one pair (version, cluster digest) ended."""

    outcome: Outcome
    release: str
    at: str
    """UTC time, ISO 8601."""
    reason: str = ""


def source_key(source_digest: str) -> str:
    """Return the key of an outcome that came before a plan existed."""
    return f"source:{source_digest}"


def parse(tags: Mapping[str, str]) -> dict[str, VersionState]:
    """Read the remembered outcomes from a version's tags.

    Raises:
        IntegrityError: If somebody edited the tag into something else; forgetting would release a rejected model.
    """
    text = tags.get(STATE_TAG)
    if not text:
        return {}
    try:
        return {key: VersionState.model_validate(state) for key, state in json.loads(text).items()}
    except (ValueError, AttributeError, ValidationError) as error:
        raise IntegrityError(
            f"tag {STATE_TAG} is not what headway wrote there; delete the tag to let the version be released again",
            tag=STATE_TAG,
        ) from error


def with_state(known: Mapping[str, VersionState], key: str, state: VersionState) -> dict[str, VersionState]:
    """Return the outcomes with one more, without the oldest beyond `MAX_KEPT`."""
    short_state = state.model_copy(update={"reason": state.reason[:MAX_REASON]})
    merged = {**known, key: short_state}
    newest = sorted(merged, key=lambda k: merged[k].at, reverse=True)[:MAX_KEPT]
    return {k: merged[k] for k in sorted(newest)}


def remember(registry: Registry, model: str, version: int, key: str, state: VersionState) -> None:
    """Keep an outcome on the version. The caller holds the model's lease, so nobody writes in between.

    Args:
        registry: Where the version is.
        model: Name of the registered model.
        version: Its number.
        key: The cluster digest, or `source_key(...)` when no plan exists.
        state: How it ended.
    """
    states = with_state(parse(registry.tags(model, version)), key, state)
    text = json.dumps({k: s.to_json() for k, s in states.items()}, sort_keys=True)
    registry.tag(model, version, STATE_TAG, text)
    registry.tag(model, version, RELEASE_TAG, state.release)
