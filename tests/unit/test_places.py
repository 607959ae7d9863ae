"""Time zones and countries, as a profile names them."""

import pytest

from headway.domain import places
from headway.domain.profile import parse_profile
from headway.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Europe/Berln", "did you mean `Europe/Berlin`"),
        ("europe/berlin", "did you mean `Europe/Berlin`"),
        ("new york", "did you mean `America/New_York`"),
        ("../../etc/passwd", "expected an IANA name"),
        ("", "expected an IANA name"),
        ("Europe", "there is no time zone 'Europe'"),
    ],
)
def test_a_zone_that_is_none_comes_with_the_nearest_one(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        places.zone(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Germany", "did you mean `DE`"),
        ("germny", "did you mean `DE`"),
        ("XX", "expected a code of ISO 3166"),
        ("DE-XX", "expected BB, BE, BW, BY"),
        ("SG-1", "expected the country alone"),
    ],
)
def test_a_country_that_is_none_comes_with_the_nearest_one(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        places.country(name)


def test_a_part_of_a_country_may_be_named() -> None:
    assert places.country("de-by") == ("DE", "BY")
    assert places.country("US") == ("US", None)


@pytest.mark.parametrize(("key", "value"), [("timezone", "Europe/Berln"), ("holidays", "Germany")])
def test_a_profile_names_a_place_that_there_is(key: str, value: str) -> None:
    """A wrong name is found when the profile is read, and not in the night in which the clock changes."""
    data = {"model": "m", "hardware": {"accelerator": "cpu"}, "prescale": {key: value}}

    with pytest.raises(ConfigError, match=rf"prescale\.{key}: .*did you mean"):
        parse_profile(data, origin="m.yaml")
