"""`docs/records.md` documents the records as they are: a field that is added or changed must be explained."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from headway.domain.bench import BlockSummary, RequestRecord
from headway.judge.records import READABLE, SCHEMA

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
UNITS = {"_s": "s", "_ms": "ms", "_tokens": "tokens"}
WORDS = {"int": "integer", "float": "number", "str": "text", "bool": "true or false", "Side": "text"}


def _rows(title: str) -> dict[str, list[str]]:
    part = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.+)\|$", part, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


@pytest.mark.parametrize(("title", "kind"), [("A request", RequestRecord), ("A block", BlockSummary)])
def test_each_field_is_explained_in_its_order(title: str, kind: type[BaseModel]) -> None:
    assert list(_rows(title)) == list(kind.model_fields)


@pytest.mark.parametrize(("title", "kind"), [("A request", RequestRecord), ("A block", BlockSummary)])
def test_types_and_units_are_those_of_the_fields(title: str, kind: type[BaseModel]) -> None:
    for name, (words, unit, since, meaning) in _rows(title).items():
        said = str(kind.model_fields[name].annotation)
        optional = "None" in said
        assert ("none" in words) == optional, name
        if "tuple" in said:
            assert words.startswith("list of")
        elif "Literal" in said:
            assert words == "text"
        else:
            plain = next(word for part, word in WORDS.items() if part in said)
            assert words in {plain, f"{plain} or none", "true, false or none"}, name
        expected = next(
            (u for suffix, u in UNITS.items() if name.endswith(suffix) and not name.endswith("per_s")), None
        )
        assert expected in (None, unit), name
        assert int(since) in READABLE
        assert meaning


def test_the_page_is_of_the_schema_that_is_written() -> None:
    assert f'"schema_version":{SCHEMA}' in PAGE
