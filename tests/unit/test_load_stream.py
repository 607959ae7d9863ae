"""What a stream may say: whatever a server sends ends in a record, and never in a crash of the generator."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.bench import RequestRecord
from headway.judge.records import request_line
from headway.pods.bench_drive import SHORT_S, core_pct
from headway.pods.bench_stream import Answer, StreamError


def event(**content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def text(word: str, **more: Any) -> bytes:
    return event(model="m", choices=[{"text": word, **more}])


def record_of(answer: Answer, error: str | None = None) -> RequestRecord:
    """The record that `send` would make of it."""
    return RequestRecord(
        block=0,
        side="stable",
        index=0,
        prompt_sha256="",
        scheduled_s=0,
        sent_s=0,
        first_token_s=answer.first_token_s,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        served_model=answer.model,
        itl_ms=tuple(answer.itl_ms),
        error=error,
    )


@given(st.lists(st.floats(0.001, 5), min_size=1, max_size=30), st.data())
def test_moments_are_those_of_the_text_however_the_network_cuts_the_stream(gaps: list[float], data: Any) -> None:
    """A chunk counts when its line is whole."""
    answer, now, moments = Answer(), 0.0, []
    for gap in gaps:
        line = text("word ")
        cut = data.draw(st.integers(0, len(line) - 3))
        answer.feed(line[:cut], now)
        now += gap
        answer.feed(line[cut:], now)
        moments.append(now)
    answer.feed(text("", finish_reason="length") + b"data: [DONE]\n\n", now)
    answer.close("m", 16, now)

    assert answer.first_token_s == moments[0]
    assert answer.itl_ms == pytest.approx([(b - a) * 1e3 for a, b in pairwise(moments)], abs=0.0005 + 1e-9)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "content"])
def test_reasoning_and_content_are_text_and_a_role_is_not(key: str) -> None:
    answer = Answer()
    answer.feed(event(choices=[{"delta": {"role": "assistant", "content": ""}}]), 1)
    answer.feed(event(choices=[{"delta": {key: "so"}}]), 2)
    answer.feed(event(choices=[{"delta": {"content": "on"}, "finish_reason": "stop"}]) + b"data: [DONE]\n", 3)

    answer.close("m", 16, 3)

    assert (answer.first_token_s, answer.itl_ms) == (2, [1000.0])


def test_a_last_line_without_its_end_counts() -> None:
    answer = Answer()
    answer.feed(text("a", finish_reason="stop") + b"data: [DONE]", 1)

    answer.close("m", 16, 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (event(error={"message": "boom"}), "error after HTTP 200: boom"),
        (event(error="boom"), "error after HTTP 200: boom"),
        (event(object="error", message="boom"), "boom"),
        (b"data: {oops\n", "no JSON"),
        (b"data: " + b"[" * 100_000 + b"\n", "no JSON"),
        (b"data: \xff\n", "no JSON"),
        (b"data: 7\n", "no object"),
        (event(choices=["a"]), "choice that is no object"),
        (event(message="EngineDeadError", code=500), "without choices"),
        (b"event: error\n" + text("boom"), "error after HTTP 200"),
        (text("", finish_reason="abort"), "finish reason 'abort'"),
        (text("", finish_reason=["length"]), "finish reason"),
        (b"data: " + b"a" * 2**22, "line of more than"),
    ],
)
def test_what_is_no_event_is_an_error(line: bytes, words: str) -> None:
    with pytest.raises(StreamError, match=words):
        Answer().feed(line, 0)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"", "was cut"),
        (text("a"), "was cut"),
        (text("a", finish_reason="stop"), "was cut"),
        (text("a") + b"data: [DONE]\n", "was cut"),
        (text("", finish_reason="stop") + b"data: [DONE]\n", "empty completion"),
        (
            event(model="x", choices=[{"text": "a", "finish_reason": "stop"}]) + b"data: [DONE]\n",
            "answered as model 'x'",
        ),
    ],
)
def test_what_did_not_end_well_is_an_error(stream: bytes, words: str) -> None:
    answer = Answer()
    answer.feed(stream, 0)

    with pytest.raises(StreamError, match=words):
        answer.close("m", 16, 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
odd_events = st.fixed_dictionaries(
    {},
    optional={
        "model": json_values,
        "error": json_values,
        "object": json_values,
        "usage": json_values
        | st.fixed_dictionaries({}, optional={"prompt_tokens": json_values, "completion_tokens": json_values}),
        "choices": json_values
        | st.lists(
            json_values
            | st.fixed_dictionaries(
                {}, optional={"text": json_values, "delta": json_values, "finish_reason": json_values}
            ),
            max_size=2,
        ),
    },
)


@given(st.lists(st.binary(max_size=40) | odd_events.map(lambda e: b"data: " + json.dumps(e).encode()), max_size=6))
def test_any_stream_ends_in_a_record_that_can_be_written(lines: list[bytes]) -> None:
    """A server that sends nonsense is a candidate that failed, not a benchmark that did."""
    answer, error = Answer(), None
    try:
        answer.feed(b"\n".join(lines) + b"\n", 1)
        answer.close("m", 16, 2)
    except StreamError as fault:
        error = str(fault)

    assert request_line(record_of(answer, error)).encode()


def test_lone_surrogates_from_a_server_do_not_break_the_records() -> None:
    answer = Answer()
    answer.feed(b'data: {"model": "\\ud800m", "choices": []}\n', 1)
    with pytest.raises(StreamError) as fault:
        answer.feed(b'data: {"error": {"message": "\\ud800"}}\n', 1)

    assert request_line(record_of(answer, str(fault.value))).encode()


@pytest.mark.parametrize("claimed", [2, 15, 17, 32])
def test_an_answer_of_another_length_is_a_failure(claimed: int) -> None:
    """A candidate that answers with 2 of 16 tokens, or claims 32, would otherwise look as fast as it likes."""
    answer = Answer()
    answer.feed(text("a", finish_reason="stop") + event(choices=[], usage={"completion_tokens": claimed}), 1)
    answer.feed(b"data: [DONE]\n", 1)

    with pytest.raises(StreamError, match=f"answered with {claimed} tokens, asked for exactly 16"):
        answer.close("m", 16, 1)


def test_an_event_name_holds_for_its_event_alone() -> None:
    answer = Answer()
    answer.feed(b"event: ping\n\nevent: message\n" + text("a", finish_reason="length") + b"data: [DONE]\n\n", 1)

    answer.close("m", 16, 1)


@given(st.floats(0, 10), st.floats(-1, 10))
def test_the_share_of_a_core_is_sane_however_short_a_block_was(cpu_s: float, wall_s: float) -> None:
    """A warm-up without requests lasts no time at all."""
    assert 0 <= core_pct(cpu_s, wall_s) <= 100 * cpu_s / SHORT_S
    assert core_pct(0.5, 1.0) == 50
