"""What every object carries, and how templates become objects."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import objects
from headway.errors import ConfigError

KEYS = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(st.integers() | st.lists(st.integers(), max_size=2), lambda one: st.dictionaries(KEYS, one))
LABEL_VALUE = r"^(?![-_.])[A-Za-z0-9._-]{1,63}(?<![-_.])$"


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_labels_are_what_kubernetes_takes(model: str, release: str) -> None:
    """Whatever a model or an alias is called."""
    import re

    found = objects.labels("cluster", model=model, release=release, digest="f" * 64)

    assert all(re.match(LABEL_VALUE, value) for value in found.values())
    assert found[objects.DIGEST] == "f" * 12


@given(st.dictionaries(KEYS, TREES), st.dictionaries(KEYS, TREES))
def test_a_patch_wins_and_leaves_its_template_alone(base: dict[str, object], change: dict[str, object]) -> None:
    """A template is read once and used for many."""
    before = repr(base), repr(change)

    merged = objects.patched(base, change)

    assert (repr(base), repr(change)) == before
    assert objects.patched(merged, change) == merged
    assert set(merged) == set(base) | set(change)


def test_none_takes_a_key_away() -> None:
    """Which is how a template's example leaves an object."""
    assert objects.patched({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


@pytest.mark.parametrize("content", ["", "a: [", "- 1", "kind: Pod"])
def test_a_broken_template_is_named(tmp_path: Path, content: str) -> None:
    """Nothing is built from half of it."""
    (tmp_path / "job.yaml").write_text(content)

    with pytest.raises(ConfigError, match=r"job\.yaml"):
        objects.template(tmp_path, "job")
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        objects.template(tmp_path, "other")


def test_conditions_may_be_missing_or_null() -> None:
    """As on an object that no controller has looked at."""
    for status in ({}, {"status": None}, {"status": {"conditions": None}}):
        assert objects.condition(status, "Ready") is None
    assert objects.condition({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready") == {
        "type": "Ready",
        "status": "True",
    }
