"""What a forecast learned survives its document, and is made anew wherever it does not fit."""

from datetime import timedelta

import numpy as np
import pytest

from headway.domain.series import Floats, Series
from headway.errors import IntegrityError
from headway.prescale import forecast, state
from headway.prescale.forecast import ensemble
from tests.unit.prescale.data import DAY, START, daily, series

NOW = START + timedelta(days=3)


@pytest.fixture(scope="module")
def history() -> Series:
    """Three days."""
    return series(daily(3))


@pytest.fixture(scope="module")
def known(history: Series) -> state.State:
    """What was learned of all but the last three bins."""
    return state.brought_up(None, history.before(3 * DAY - 3), now=NOW, offset_s=0, anew=True)


def said(found: state.State, history: Series) -> Floats:
    """Return the forecast that follows."""
    return np.asarray(forecast.forecast(found.learned, history).values)


def test_what_was_stored_forecasts_as_what_was_not(known: state.State, history: Series) -> None:
    """To the digits that are kept."""
    again = state.from_npz(state.to_npz(known))
    rolled, restored = (state.brought_up(one, history, now=NOW, offset_s=0, anew=False) for one in (known, again))

    assert (again.learned_at, again.kept_at, again.offset_s) == (known.learned_at, known.kept_at, 0)
    assert again.learned.until == known.learned.until
    np.testing.assert_allclose(said(restored, history), said(rolled, history), rtol=1e-4)


def test_a_document_is_small_enough_for_a_thousand_models(known: state.State) -> None:
    """They are read at every tick."""
    assert len(state.to_npz(known)) < 500_000


@pytest.mark.parametrize(
    ("offset_s", "anew", "shift"), [(3600, False, 0), (0, True, 0), (0, False, -9 * DAY), (0, False, 9 * DAY)]
)
def test_what_does_not_fit_is_learned_again(known: state.State, offset_s: int, anew: bool, shift: int) -> None:
    """Another clock, a new day, or a history that nothing connects with what was learned."""
    moved = Series(START + timedelta(seconds=shift * 600), 600, daily(3))
    later = NOW + timedelta(days=1)

    found = state.brought_up(known, moved, now=later, offset_s=offset_s, anew=anew)

    assert found.learned_at == later
    assert found.offset_s == offset_s
    assert np.isfinite(said(found, moved)).all()


def test_rolling_does_not_count_as_learning(known: state.State, history: Series) -> None:
    """Otherwise the day after which it is learned anew would never come."""
    found = state.brought_up(known, history, now=NOW + timedelta(hours=1), offset_s=0, anew=False)

    assert found.learned_at == known.learned_at
    assert found.learned.until == history.first_bin + len(history)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_document_that_was_cut_is_refused(known: state.State, share: float) -> None:
    """A half-written one must not become a forecast."""
    content = state.to_npz(known)

    with pytest.raises(IntegrityError, match="it is learned again"):
        state.from_npz(content[: int(len(content) * share)])


def test_a_document_with_flipped_bits_is_refused(known: state.State) -> None:
    """Wherever they lie, in names, sizes or numbers."""
    content = bytearray(state.to_npz(known))
    refused = 0
    for position in range(40, len(content), len(content) // 50):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        try:
            state.from_npz(bytes(damaged))
        except IntegrityError:
            refused += 1

    assert refused >= 45


def test_what_another_release_learned_is_refused(known: state.State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are those of other members."""
    content = state.to_npz(known)
    monkeypatch.setattr(ensemble, "MEMBERS", ensemble.MEMBERS[1:])

    with pytest.raises(IntegrityError, match="another release"):
        state.from_npz(content)
