"""What a canary replays and asks is checked before a job is sent; a fault is named, and nothing falls back."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.prompts import MIN_PROMPTS, rows
from headway.domain.release import ReleasePlan
from headway.errors import ConfigError
from headway.ports import REQUESTS, Sample
from headway.release import load
from tests.factories import make_plan, make_profile
from tests.fakes import FakeMetrics, FakeWeightStore

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
TRACE, PROMPTS = "s3://b/trace.jsonl", "s3://b/prompts.jsonl"


def plan_of(**canary: Any) -> ReleasePlan:
    return make_plan(make_profile(canary={"blocks": 10, "requests_per_block": 20, **canary}))


def jsonl(*lines: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def resolve(objects: dict[str, bytes], metrics: FakeMetrics | None = None, **canary: Any) -> load.Load:
    return load.resolve(plan_of(**canary), FakeWeightStore(objects), metrics or FakeMetrics(), NOW)


def history(values: list[float], every_s: float = 10, **labels: str) -> FakeMetrics:
    metrics = FakeMetrics()
    start = NOW - timedelta(seconds=every_s * (len(values) - 1))
    for number, value in enumerate(values):
        at = start + timedelta(seconds=every_s * number)
        metrics.put(REQUESTS, {"model": "tiny", "side": "stable", **labels}, at, value)
    return metrics


def test_a_canary_that_draws_its_load_needs_nothing() -> None:
    assert resolve({}) == load.Load((), "")


def test_a_trace_starts_at_zero_and_keeps_its_gaps() -> None:
    moments = [100 + k * k / 10 for k in range(60)]

    found = resolve({TRACE: jsonl(*({"at_s": at} for at in moments))}, arrivals="replay", trace=TRACE).arrivals_s

    assert found == pytest.approx([at - 100 for at in moments])


def test_of_a_long_trace_only_what_the_blocks_use_is_taken() -> None:
    """A job is no place for a day's traffic."""
    trace = jsonl(*({"at_s": float(k)} for k in range(5000)))

    assert len(resolve({TRACE: trace}, arrivals="replay", trace=TRACE).arrivals_s) == 10 * 20 + 1


GOOD_TRACE = [{"at_s": float(k)} for k in range(60)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (jsonl(*GOOD_TRACE[:49]), "49 arrivals; at least 50"),
        (jsonl(*GOOD_TRACE, {"at_s": 3.0}), "line 61 is at 3 s, before the line above it (59 s)"),
        (jsonl(*GOOD_TRACE) + b"{oops\n", "line 61 is no JSON"),
        (jsonl(*GOOD_TRACE, [1]), "line 61 is list"),
        (jsonl(*GOOD_TRACE, {"at": 70}), 'line 61 has no number of seconds at "at_s"'),
        (jsonl(*GOOD_TRACE, {"at_s": "70"}), "line 61 has no number"),
        (jsonl(*GOOD_TRACE, {"at_s": True}), "line 61 has no number"),
        (jsonl(*GOOD_TRACE) + b'{"at_s": NaN}\n', "line 61 holds NaN"),
        (jsonl(*GOOD_TRACE) + b'{"at_s": 1e999}\n', "line 61 has no number"),
        (jsonl(*GOOD_TRACE) + b'{"at_s": 1' + b"0" * 400 + b"}\n", "line 61 has no number"),
        (jsonl(*GOOD_TRACE) + b"[" * 50_000 + b"\n", "line 61 is nested too deeply"),
        (jsonl(*GOOD_TRACE) + b"\xff\n", "line 61 is no UTF-8"),
        (jsonl(*({"at_s": 7.0} for _ in range(60))), "all at one moment"),
        (b"", "0 arrivals"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_by_its_line(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({TRACE: content}, arrivals="replay", trace=TRACE)

    assert words in error.value.message
    assert TRACE in error.value.message


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        ({"arrivals": "replay", "trace": TRACE}, "and there is nothing"),
        ({"prompts": PROMPTS}, "and there is nothing"),
    ],
)
def test_what_is_not_there_is_said(canary: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({}, **canary)


def test_stables_last_hour_becomes_arrivals() -> None:
    """30 requests in the first 10 s, none in the next, 30 in the last: the pattern stays."""
    found = resolve({}, history([100, 130, 130, 160]), arrivals="replay", trace="history").arrivals_s

    assert len(found) == 60
    assert max(b - a for a, b in pairwise(found)) == pytest.approx(10 + 10 / 30)
    assert found == resolve({}, history([100, 130, 130, 160]), arrivals="replay", trace="history").arrivals_s


def test_too_little_history_is_refused_and_not_replaced_by_something_else() -> None:
    metrics = history([100, 149])
    metrics.put(REQUESTS, {"model": "other", "side": "stable"}, NOW, 9e9)

    with pytest.raises(ConfigError) as error:
        resolve({}, metrics, arrivals="replay", trace="history")

    assert "stable had 49 requests in the last hour (2 samples" in error.value.message
    assert "set `canary.arrivals` to poisson" in error.value.message


def test_no_history_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="stable had 0 requests"):
        resolve({}, arrivals="replay", trace="history")


def test_a_restarted_counter_invents_no_requests() -> None:
    samples = [Sample(NOW + timedelta(seconds=10 * k), v) for k, v in enumerate([1000, 1010, 5, 15])]

    found = load.arrivals_of(samples)

    assert len(found) == 20
    assert found[-1] < 20


@given(
    st.lists(st.tuples(st.floats(0.1, 600), st.integers(0, 40)), max_size=40),
    st.integers(0, 10**9),
)
def test_arrivals_from_a_counter_are_as_many_as_it_counted_and_rise(steps: list[tuple[float, int]], start: int) -> None:
    samples, at, value = [Sample(NOW, float(start))], NOW, start
    for gap_s, grown in steps:
        at, value = at + timedelta(seconds=gap_s), value + grown
        samples.append(Sample(at, float(value)))

    found = load.arrivals_of(samples)

    assert len(found) == value - start
    assert all(a < b for a, b in pairwise(found))
    assert not found or 0 < found[0] <= found[-1] < (at - NOW).total_seconds()


GOOD_PROMPTS = [{"prompt": f"What is {k}?"} for k in range(MIN_PROMPTS)]


def test_a_prompt_set_is_named_by_its_digest() -> None:
    content = jsonl(*GOOD_PROMPTS)

    found = resolve({PROMPTS: content}, prompts=PROMPTS).prompts_sha256

    assert len(found) == 64
    assert found != resolve({PROMPTS: content + b"\n"}, prompts=PROMPTS).prompts_sha256


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{}", 'line 21 has no text at "prompt"'),
        (b'{"prompt": "  "}', 'line 21 has no text at "prompt"'),
        (b'{"prompt": 7}', 'line 21 has no text at "prompt"'),
        (b'{"prompt": "a", "max_token": 5}', "line 21 has the unknown keys max_token"),
        (b'{"prompt": "a", "prompt": "b"}', "line 21 has a key twice"),
        (b'{"prompt": "a", "max_tokens": 1}', "line 21 has max_tokens 1"),
        (b'{"prompt": "a", "max_tokens": true}', "line 21 has max_tokens True"),
        (b'{"prompt": "a", "max_tokens": 8.0}', "line 21 has max_tokens 8.0"),
        (b'{"prompt": "a", "max_tokens": 1000000}', "line 21 has max_tokens 1000000"),
        (b'{"prompt": "\\ud800"}', "line 21 has a prompt with half of a surrogate pair"),
        (b'{"prompt": "' + b"a" * 500_001 + b'"}', "line 21 has a prompt of 500001 characters"),
        (b'["a"]', "line 21 is list"),
        (b"what?", "line 21 is no JSON"),
        (b"\xff", "line 21 is no UTF-8"),
    ],
)
def test_a_bad_prompt_is_named_by_its_line(line: bytes, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({PROMPTS: jsonl(*GOOD_PROMPTS) + line + b"\n"}, prompts=PROMPTS)

    assert words in error.value.message


def test_too_few_prompts_are_refused_and_all_faults_are_counted() -> None:
    with pytest.raises(ConfigError, match="has 19 prompts; expected 20"):
        resolve({PROMPTS: jsonl(*GOOD_PROMPTS[1:])}, prompts=PROMPTS)
    with pytest.raises(ConfigError, match="and 20 more"):
        resolve({PROMPTS: jsonl(*([1] * 30))}, prompts=PROMPTS)


@given(st.binary(max_size=300))
def test_any_file_gives_prompts_or_one_error(content: bytes) -> None:
    for read in (lambda: rows(content, PROMPTS), lambda: load.trace(content, TRACE)):
        try:
            read()
        except ConfigError as error:
            assert error.message  # noqa: PT017 - either outcome is fine, any other error is not


@given(st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.none() | st.integers(2, 1000)), min_size=20))
def test_prompts_come_back_as_they_were_written(given_rows: list[tuple[str, int | None]]) -> None:
    content = jsonl(*({"prompt": p, **({"max_tokens": n} if n else {})} for p, n in given_rows))

    assert [tuple(found) for found in rows(content, PROMPTS)] == given_rows
