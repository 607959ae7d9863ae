"""What others have changed of a route that headway owns, and what of it stays.

A list of rules has one owner (`x-kubernetes-list-type: atomic`), so the server's own conflicts cannot tell a filter
that somebody added from a weight that somebody moved. An annotation keeps what headway wrote, and what differs from it
is a foreign edit. Filters and other settings that others add to a rule are none: they stay through every shift.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from headway.adapters.kubernetes.client import MANAGER, Object
from headway.adapters.kubernetes.objects import annotation, patched
from headway.adapters.kubernetes.routes import OWNED, WRITTEN, garbled

STEERING: Mapping[str, tuple[str, ...]] = {
    "matches": ("headers", "method", "queryParams"),
    "backendRefs": ("filters", "namespace"),
    "parentRefs": ("port",),
}
"""Settings by which who answers depends on more than headway wrote. Other keys that appear are the API's defaults."""
LONGEST_WORDS = 80


def edits(found: Object) -> list[str]:
    """Return what others have changed of a route since headway wrote it: one line each, empty if nothing.

    Raises:
        IntegrityError: It cannot be read what headway wrote.
    """
    return list(_lost(_written(found), _owned(found), "spec"))


def holds(found: Object, wanted: Object) -> bool:
    """Tell whether a route already is as a manifest wants it."""
    return not any(_lost(_owned(wanted), _owned(found), "spec"))


def keeping(wanted: Object, found: Object) -> Object:
    """Return a manifest with what others have added to the rules of the route that is there."""
    rules = list(wanted["spec"]["rules"])
    for place, (was, now) in enumerate(zip(_written(found)["rules"], found["spec"]["rules"], strict=False)):
        if place < len(rules):
            rules[place] = _with_additions(rules[place], was, now)
    return patched(wanted, {"spec": {"rules": rules}})


def editors(found: Object) -> str:
    """Return who else has written to gateways or rules of a route, in words."""
    told = [
        f"{entry['manager']} ({entry.get('time', 'time unknown')})"
        for entry in found["metadata"].get("managedFields") or []
        if entry["manager"] != MANAGER
        and {f"f:{key}" for key in OWNED} & (entry.get("fieldsV1") or {}).get("f:spec", {}).keys()
    ]
    return ", ".join(sorted(told)) or "somebody unknown"


def _owned(content: Object) -> Object:
    """Return gateways and rules, each of which may be absent."""
    return {key: content["spec"].get(key) or [] for key in OWNED}


def _written(found: Object) -> Object:
    try:
        written = json.loads(annotation(found, WRITTEN) or "")
        if set(written) == set(OWNED):
            return cast("Object", written)
    except (json.JSONDecodeError, TypeError) as error:
        raise garbled(found, WRITTEN) from error
    raise garbled(found, WRITTEN)


def _lost(wrote: Any, found: Any, where: str) -> Iterator[str]:
    """Yield what is not as it was written."""
    if isinstance(wrote, dict) and isinstance(found, dict):
        for key in [*wrote, *(key for key in _steering(where) if key not in wrote)]:
            yield from _lost(wrote.get(key), found.get(key), f"{where}.{key}")
    elif isinstance(wrote, list) and isinstance(found, list):
        may_grow = where.endswith(".filters") and "backendRefs" not in where
        if len(wrote) != len(found) and not may_grow:
            yield f"{where} has {len(found)} entries, headway wrote {len(wrote)}"
        pairs = _paired(wrote, found) if may_grow else zip(wrote, found, strict=False)
        for place, (was, now) in enumerate(pairs):
            yield from _lost(was, now, f"{where}[{place}]")
    elif wrote != found and (wrote or found):
        yield f"{where} is {_words(found)}, headway wrote {_words(wrote)}"


def _steering(where: str) -> tuple[str, ...]:
    parent = where.rpartition(".")[2].partition("[")[0]
    return STEERING.get(parent, ())


def _paired(wrote: Sequence[Object], found: Sequence[Object]) -> list[tuple[Object, Object | None]]:
    """Return each written filter with what has become of it, none if it is gone."""
    left = list(found)
    pairs: list[tuple[Object, Object | None]] = []
    for was in wrote:
        like = [now for now in left if now.get("type") == was.get("type")]
        now = next((one for one in like if not any(_lost(was, one, ""))), like[0] if like else None)
        if now is not None:
            left.remove(now)
        pairs.append((was, now))
    return pairs


def _with_additions(rule: Object, was: Object, now: Object) -> Object:
    """Return a rule with what is there now and was not written."""
    pairs = _paired(was.get("filters") or [], now.get("filters") or [])
    taken = [one for _, one in pairs if one is not None]
    foreign = [one for one in now.get("filters") or [] if one not in taken]
    grown = {wrote["type"]: _added(wrote, one) for wrote, one in pairs if one is not None}
    filters = [patched(one, grown.get(one["type"], {})) for one in rule.get("filters") or []]
    return {**_added(was, now), **rule, **({"filters": [*filters, *foreign]} if filters or foreign else {})}


def _added(was: Object, now: Object) -> Object:
    """Return the keys that are there now and were not written."""
    found: Object = {}
    for key, value in now.items():
        if key not in was:
            found[key] = value
        elif isinstance(value, dict) and isinstance(was[key], dict) and (deeper := _added(was[key], value)):
            found[key] = deeper
    return found


def _words(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value)
    return text if len(text) <= LONGEST_WORDS else f"{text[: LONGEST_WORDS - 3]}..."
