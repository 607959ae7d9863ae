"""The published rates are those of the rule that decides: the benchmark's arrays say what the shift would say."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from benchmarks import live_shift
from headway.judge import live
from headway.release.shift import starts_of_evidence

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(("rate", "good_looks"), [(0.3, 0), (0.08, 0), (1.0, 250), (0.01, 0)])
def test_a_run_is_taken_back_at_the_look_at_which_the_shift_would(rate: float, good_looks: int) -> None:
    """Look by look, with the shift's own starts."""
    looks = 420
    drawn = live_shift.failing(rate, good_looks=good_looks)(np.random.default_rng(3), 4, looks)

    found = live_shift.breaches(drawn)

    for errors, requests, first in zip(drawn.events.tolist(), drawn.trials.tolist(), found.tolist(), strict=True):
        for look in range(1, looks + 1):
            seen = [
                live.Failures(start, errors[look] - errors[begun], requests[look] - requests[begun])
                for start, at in starts_of_evidence(NOW, NOW + timedelta(seconds=live_shift.SCRAPE_S * look))
                for begun in (round((at - NOW).total_seconds() / live_shift.SCRAPE_S),)
            ]
            if live.failing(seen, live_shift.SHIFT):
                assert first == look
                break
        else:
            assert first == looks + 1
