"""Calibration texts: what is bundled, and what is refused."""

import json
import re

import pytest

from headway.domain import calibration, texts
from headway.domain.calibration_texts import CALIBRATION_TEXTS
from headway.errors import ConfigError


def lines(*rows: object) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def test_the_bundled_texts_are_many_and_varied() -> None:
    """64 rows in at least four languages, and none of them is one on which quality is measured."""
    found = calibration.rows(calibration.bundled())

    assert len(found) == 64
    assert {"en", "de", "fr", "es"} <= {row["language"] for row in found}
    assert len({row["text"] for row in found}) == 64
    assert calibration.shortfalls(found, {"en": 0.5, "de": 0.1, "fr": 0.08, "es": 0.08}) == []
    assert all(350 <= len(text) <= 700 for _, text in CALIBRATION_TEXTS)


def test_no_calibration_text_shares_a_sentence_with_a_quality_text() -> None:
    """Else the gate would measure what the scheme was tuned on."""

    def sentences(text: str) -> set[str]:
        return {s.strip().lower() for s in re.split(r"[.!?\n]", text) if len(s.strip()) > 20}

    measured = set().union(*(sentences(text) for text in texts.QUALITY_TEXTS))

    assert not measured & set().union(*(sentences(text) for _, text in CALIBRATION_TEXTS))


def test_the_bundled_digest_is_that_of_the_bytes() -> None:
    """Changing a text is a decision: it renames every artifact that was calibrated on them."""
    assert calibration.bundled_digest() == "1054d781fa6b0b1aebd2a7d2eb7efac4e93a75fce2c500353dfe1ec7406a4043"


def test_rows_have_a_text_or_a_chat() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}

    found = calibration.rows(lines({"text": "a"}, {**chat, "language": "en"}) + b"\n\n")

    assert [calibration.said(row) for row in found] == ["a", "hi\nhello"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a"}\n{"text": ', "line 2 .* no JSON"),
        (b'{"text": "a"}\n["b"]', "line 2 .* no JSON object"),
        (b'{"txt": "a"}', "line 1 .* unknown key `txt`; known are language, messages, text"),
        (b'{"language": "de"}', "line 1 .* either a `text` or `messages`"),
        (b'{"text": "a", "messages": []}', "line 1 .* either"),
        (b'{"text": 3}', "line 1 .* no string"),
        (b'{"messages": [{"role": "user"}]}', "line 1 .* `role` and `content`"),
        (b'{"messages": []}', "line 1 .* `role` and `content`"),
        (b'{"text": "a", "language": 1}', "line 1 .* `language`"),
        (b'{"text": "\xff"}', "no UTF-8"),
        (b"\n \n", "no rows"),
        (b"[" * 100_000, "line 1 .* no JSON"),
    ],
)
def test_what_is_no_calibration_text_is_named_by_its_line(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        calibration.rows(content)


def test_a_language_that_is_too_rare_is_named() -> None:
    """Only the rows that will be used count."""
    found = calibration.rows(lines(*[{"text": "x", "language": "de"}] * 2, *[{"text": "y", "language": "en"}] * 8))

    assert calibration.shortfalls(found, {"de": 0.2, "en": 0.5}) == []
    assert calibration.shortfalls(found, {"en": 0.5}, samples=4) == []
    assert calibration.shortfalls(found, {"fr": 0.1}, samples=4) == [
        "0 of 4 calibration rows are in fr (0%), the profile wants at least 10%"
    ]


def test_the_table_for_the_checks_has_a_row_for_each_used_text() -> None:
    """Blanks do not make a text another one, and count for no length."""
    found = calibration.rows(lines({"text": "a  b"}, {"text": " a b "}, {"text": "   "}))

    table = calibration.check_rows(found, {"de": 0.5}, samples=3)

    assert [row["characters"] for row in table] == [4, 3, 0]
    assert table[0]["sha256"] == table[1]["sha256"] != table[2]["sha256"]
    assert {row["least_de"] for row in table} == {0.5}
    assert len(calibration.check_rows(found, {}, samples=1)) == 1
