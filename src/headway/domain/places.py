"""Where the users are: the time zone whose clock their days follow, and the country whose holidays they keep."""

import difflib
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from headway.errors import ConfigError


class Country(NamedTuple):
    """A country, or a part of it that has holidays of its own."""

    code: str
    part: str | None


@lru_cache(maxsize=64)
def zone(name: str) -> ZoneInfo:
    """Return a time zone.

    Args:
        name: As IANA spells it, such as `Europe/Berlin`.

    Raises:
        ConfigError: There is none of this name; the nearest one is in the text.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, no name at all, a folder of zones
        known = available_timezones()
        if not known:
            raise ConfigError("this machine knows no time zones; install the package tzdata") from error
        # Abbreviations such as EST are zones too, but without summer time: not what anybody means.
        near = _nearest(name, (one for one in known if "/" in one or one == "UTC"))
        hint = f"did you mean `{near}`?" if near else "expected an IANA name such as `Europe/Berlin`"
        raise ConfigError(f"there is no time zone {name!r}; {hint}") from error


@lru_cache(maxsize=64)
def country(name: str) -> Country:
    """Return a country, or a part of one.

    Args:
        name: A country's ISO code, `DE`, or the country's with that of a part, `DE-BY`.

    Raises:
        ConfigError: The public holidays of no such place are known; the nearest one is in the text.
    """
    # Takes a tenth of a second, and few profiles name a country.
    import holidays
    from holidays.registry import COUNTRIES

    known = holidays.list_supported_countries(include_aliases=False)
    code, _, part = name.strip().upper().partition("-")
    if code not in known:
        codes = {names[0]: names[1] for names in COUNTRIES.values()}
        near = _nearest(name, codes)
        hint = f"did you mean `{codes[near]}`?" if near else "expected a code of ISO 3166 such as `DE` or `DE-BY`"
        raise ConfigError(f"the public holidays of {name!r} are not known; {hint}")
    parts = {one.upper(): one for one in known[code]}
    if part and part not in parts:
        near = _nearest(part, parts)
        hint = f"did you mean `{code}-{near}`?" if near else f"expected {', '.join(parts) or 'the country alone'}"
        raise ConfigError(f"{code} has no part {part!r} with holidays of its own; {hint}")
    return Country(code, parts[part] if part else None)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like one, whatever its case."""
    plain = {one.lower(): one for one in sorted(known)}
    # Who leaves out the continent means the city.
    cities = {lower.rpartition("/")[2]: one for lower, one in plain.items() if lower.count("/") == 1}
    wanted = name.strip().lower().replace(" ", "_")
    near = difflib.get_close_matches(wanted, [*plain, *cities], n=1, cutoff=0.6)
    return (plain.get(near[0]) or cities[near[0]]) if near else None
