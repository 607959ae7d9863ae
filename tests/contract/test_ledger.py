"""What every `Ledger` adapter promises."""

from headway.ports import Ledger


def test_the_first_record_wins(ledger: Ledger) -> None:
    """Appended, never edited: a retried step gets back what the first try kept."""
    first = ledger.append("releases/m/r/step.json", {"n": 1, "who": "first"})
    second = ledger.append("releases/m/r/step.json", {"n": 2, "who": "second"})

    assert dict(first) == dict(second) == {"n": 1, "who": "first"}
    assert dict(ledger.read("releases/m/r/step.json") or {}) == {"n": 1, "who": "first"}


def test_an_absent_record_is_none(ledger: Ledger) -> None:
    """Not an error: most steps ask before they know."""
    assert ledger.read("releases/m/none.json") is None


def test_keys_below_a_prefix_come_sorted(ledger: Ledger) -> None:
    """Releases sort by their names, which begin with their moment."""
    for name in ("b", "a", "c"):
        ledger.append(f"releases/m/{name}/x.json", {})
    ledger.append("releases/mm/z/x.json", {})

    assert list(ledger.list("releases/m/")) == [f"releases/m/{name}/x.json" for name in "abc"]
