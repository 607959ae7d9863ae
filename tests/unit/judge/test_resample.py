"""Recorded equal sides, drawn again: the error rates that a profile publishes."""

import math
import random
import re
from typing import Any

import pytest

from headway.domain.bench import RequestRecord
from headway.domain.profile import Canary, Goodput, Trials
from headway.errors import ConfigError, IntegrityError
from headway.judge.calibrate import EVERY_REQUEST, SLOW_REQUESTS, flaw, rule_digest
from headway.judge.records import Run
from headway.judge.resample import Resampled, evidence_of, resample, spread, unlike
from tests.unit.judge.data import Alter, make_canary, make_run

CANARY = make_canary(blocks=20, requests_per_block=30, p50_margin=0.15, p95_margin=0.20, error_margin_pct=3.0)


def recordings(
    canary: Canary = CANARY, *, count: int = 2, alter: Alter | None = None, slower: float = 1.0
) -> list[Run]:
    runs = [make_run(canary, seed=seed, spread=0.2, shared=0.1, alter=alter, slower=slower) for seed in range(count)]
    return [Run("d", tuple(records), tuple(summaries)) for records, summaries in runs]


@pytest.fixture(scope="module")
def found() -> Resampled:
    return resample(recordings(), CANARY, replays=2000)


def _trial(found: Resampled, metric: str, slower_pct: float) -> Trials:
    return next(t for t in found.trials if t.metric == metric and math.isclose(t.slower_pct, slower_pct))


def test_equal_sides_are_promoted(found: Resampled) -> None:
    equal = found.trials[0]

    assert (equal.metric, equal.slower_pct, equal.decisions) == ("", 0.0, 2000)
    assert equal.promoted > 0.95 * 2000
    assert equal.rolled_back < 0.01 * 2000


@pytest.mark.parametrize(("metric", "margin_pct"), [(EVERY_REQUEST, 15.0), (SLOW_REQUESTS, 20.0)])
def test_what_is_worse_by_a_margin_is_not(found: Resampled, metric: str, margin_pct: float) -> None:
    """The rule's promise (`ALPHA`), kept on these records; and worse candidates fare worse."""
    promoted = [_trial(found, metric, margin_pct * times).promoted for times in (0.5, 1.0, 1.5, 2.0)]
    blocks = [_trial(found, metric, margin_pct * times).mean_blocks for times in (1.0, 1.5, 2.0)]

    assert promoted[1] < 0.05 * 2000
    assert promoted == sorted(promoted, reverse=True)
    assert blocks == sorted(blocks, reverse=True)
    assert _trial(found, metric, margin_pct * 2).rolled_back > 0.99 * 2000


def test_the_same_seed_gives_the_same_figures(found: Resampled) -> None:
    """What is published can be computed again."""
    assert resample(recordings(), CANARY, replays=2000) == found
    assert resample(recordings(), CANARY, replays=2000, seed=1) != found


def test_the_evidence_is_of_what_was_tried(found: Resampled) -> None:
    evidence = evidence_of(found, CANARY, hardware="cpu", measured_at="2026-11-30T12:00:00+00:00")

    assert (evidence.rule, evidence.method, evidence.recorded_blocks) == (rule_digest(CANARY), "resampled", 40)
    assert flaw(CANARY.model_copy(update={"evidence": evidence}), "cpu") == ""


def test_the_spread_is_that_of_the_ratios(found: Resampled) -> None:
    """Medians of 30 latencies with a spread of 0.2 each: 1.25 x 0.2 / sqrt(30), twice, give 0.065."""
    assert found.spread == spread(recordings(), CANARY)
    assert found.spread["ttft_p50"] == pytest.approx(0.065, rel=0.3)
    assert found.spread["tpot_p50"] == pytest.approx(0.032, rel=0.3)


def test_time_is_counted_in_recorded_blocks(found: Resampled) -> None:
    """Thirty arrivals at one a second."""
    assert found.block_s == pytest.approx(30, rel=0.2)


def test_goodput_counts_the_requests_that_an_injection_spoils() -> None:
    """With latency margins that allow everything only the service level can tell."""
    canary = CANARY.model_copy(
        update={"p50_margin": 3.0, "p95_margin": 3.0, "p99_guard": 9.0, "goodput": Goodput(ttft_ms=900, margin_pct=5)}
    )
    found = resample(recordings(canary), canary, replays=300)

    assert _trial(found, "", 0.0).promoted == 300
    assert _trial(found, EVERY_REQUEST, 300.0).rolled_back == 300


def test_sides_that_were_not_equal_are_refused() -> None:
    """A real regression in the recording would pass for noise and make the margins look hopeless."""
    with pytest.raises(ConfigError, match=r"not equal: the candidate's ttft_p50 is \+1"):
        resample(recordings(slower=1.15), CANARY, replays=100)


def _failing(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"error": "HTTP 500", "first_token_s": None, "output_tokens": None})


def _injected(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"injected_ms": 9.0}) if record.side == "candidate" else record


def _other_release(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"served_release": "x"})


@pytest.mark.parametrize(
    ("runs", "kind", "word"),
    [
        ([], ConfigError, "0 usable recorded blocks; at least 20"),
        (recordings(make_canary(blocks=19, requests_per_block=30), count=1), ConfigError, "19 usable"),
        (recordings(make_canary(blocks=5, requests_per_block=30), count=1), ConfigError, "5 usable"),
        (recordings(make_canary(blocks=20, requests_per_block=8), count=1), ConfigError, "load"),
        (recordings(alter=_failing), ConfigError, "0 usable .*40 cannot be used: block 1 lacks"),
        (recordings(alter=_injected), ConfigError, "equal sides"),
        (recordings(alter=_other_release), IntegrityError, "another release"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(runs: list[Run], kind: type[Exception], word: str) -> None:
    with pytest.raises(kind, match=word):
        resample(runs, CANARY, replays=100)


def test_void_blocks_are_left_out() -> None:
    runs = [
        run._replace(summaries=tuple(s.model_copy(update={"void": s.block == 3}) for s in run.summaries))
        for run in recordings()
    ]

    assert resample(runs, CANARY, replays=100).recorded_blocks == 38


def test_blocks_that_the_judge_cannot_use_are_left_out() -> None:
    """Its own rule: of an engine that counts short answers only, the counted ones are a selection."""

    def uncounted(record: RequestRecord) -> RequestRecord:
        return record.model_copy(update={"output_tokens": None}) if (record.block, record.index) == (3, 7) else record

    assert resample(recordings(alter=uncounted), CANARY, replays=100).recorded_blocks == 38


LIKE = CANARY.model_copy(update={"rate_per_s": 1.0, "max_tokens": 16})


def test_recordings_of_the_profile_are_like_it() -> None:
    assert unlike(recordings(), LIKE, "m") == []
    assert unlike([], LIKE, "m") == []


@pytest.mark.parametrize(
    ("change", "model", "line"),
    [
        ({}, "big-70b", "model: found m, expected big-70b"),
        ({"max_tokens": 4096}, "m", "tokens of an answer: found 16, expected 4096"),
        ({"requests_per_block": 60}, "m", "requests in a block: found 30, expected 60"),
        ({"rate_per_s": 1.5}, "m", r"arrivals a second on each side: found (0\.9|1\.|1 ).*, expected 1\.5"),
        ({"rate_per_s": 0.75}, "m", "arrivals a second on each side: found .*, expected 0.75"),
    ],
)
def test_what_is_not_the_profile_s_is_named(change: dict[str, Any], model: str, line: str) -> None:
    """Found and expected; nothing else differs."""
    found = unlike(recordings(), LIKE.model_copy(update=change), model)

    assert len(found) == 1
    assert re.fullmatch(line, found[0]), found


def test_everything_that_differs_is_named_at_once() -> None:
    other = LIKE.model_copy(update={"max_tokens": 4096, "rate_per_s": 999.0, "requests_per_block": 31})

    assert len(unlike(recordings(), other, "big-70b")) == 4


def test_a_prompt_set_says_how_long_answers_are() -> None:
    assert unlike(recordings(), LIKE.model_copy(update={"max_tokens": 64, "prompts": "s3://b/p.jsonl"}), "m") == []


@pytest.mark.parametrize("seed", range(8))
def test_few_bursty_arrivals_may_miss_the_rate_by_chance(seed: int) -> None:
    """Eight requests of Poisson arrivals: their rate spreads by a third."""
    records, summaries = make_run(make_canary(blocks=2, requests_per_block=4), seed=seed)
    canary = LIKE.model_copy(update={"requests_per_block": 4})

    assert unlike([Run("d", tuple(records), tuple(summaries))], canary, "m") == []


def test_more_blocks_than_the_profile_has_may_be_recorded() -> None:
    """A long recording is the better one."""
    long = recordings(CANARY.model_copy(update={"blocks": 35}), count=1)

    assert resample(long, CANARY, replays=100).recorded_blocks == 35


def test_the_order_of_requests_does_not_matter() -> None:
    shuffled = []
    for run in recordings():
        records = list(run.records)
        random.Random(1).shuffle(records)  # noqa: S311
        shuffled.append(run._replace(records=tuple(records)))

    assert resample(shuffled, CANARY, replays=200) == resample(recordings(), CANARY, replays=200)
