"""Calibration texts are read once, checked, and named by their content."""

import hashlib
import json

import pytest

from headway.adapters.expectations import ExpectationChecks
from headway.errors import ConfigError
from headway.release import calibration
from tests.factories import make_profile
from tests.fakes import FakeWeightStore

URI = "s3://data/calibration.jsonl"


def lines(*languages: str) -> bytes:
    """Rows of enough text, one for each language given."""
    texts = [f"Row {number}: " + f"some words of {name} " * 20 for number, name in enumerate(languages)]
    rows = [{"text": text, "language": name} for text, name in zip(texts, languages, strict=True)]
    return "\n".join(json.dumps(row) for row in rows).encode()


def run(content: bytes | None, **wanted: object) -> str | None:
    """Run the step on a file with this content."""
    profile = make_profile(weights={"schemes": ["w8a8"], "calibration": {"uri": URI, **wanted}})
    weights = FakeWeightStore()
    if content is not None:
        weights.objects[URI] = content
    return calibration.run(profile, weights, ExpectationChecks())


def test_the_digest_is_that_of_the_bytes() -> None:
    """The quantize program holds what it fetches against it."""
    content = lines("en", "de", "en", "fr")
    assert run(content) == hashlib.sha256(content).hexdigest()


def test_without_texts_of_its_own_a_profile_takes_headways() -> None:
    """Nothing is read."""
    assert calibration.run(make_profile(), FakeWeightStore(), ExpectationChecks()) is None


def test_a_missing_file_is_an_error_that_names_the_key() -> None:
    """And what to do."""
    with pytest.raises(ConfigError, match=r"calibration\.uri.*s3://data/calibration\.jsonl.*there is nothing"):
        run(None)


def test_a_share_that_is_not_there_is_said_with_numbers() -> None:
    """A model for German users is not calibrated in English."""
    with pytest.raises(ConfigError, match=r"1 of 4 .* de .*25%.*at least 50%"):
        run(lines("en", "de", "en", "fr"), languages={"de": 0.5})


def test_empty_rows_are_refused() -> None:
    """They would count as samples and calibrate nothing."""
    with pytest.raises(ConfigError, match="not fit to calibrate with"):
        run(lines("en", "en", "en") + b'\n{"text": "   "}')


def test_what_is_no_row_is_named_by_its_line() -> None:
    """So that a person finds it."""
    with pytest.raises(ConfigError, match="line 2"):
        run(lines("en") + b"\n{oops")
