"""Evidence goes into a profile's text; whatever else stands there stays as a person wrote it."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.evidence_file import block, with_evidence, write
from headway.domain.profile import Evidence, Trials, parse_profile
from headway.errors import ConfigError

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*.yaml"))
EVIDENCE = Evidence(
    hardware="cpu",
    measured_at="2026-11-30T12:00:00+00:00",
    method="resampled",
    rule="ab" * 32,
    recorded_blocks=40,
    spread={"ttft_p50": 0.071, "tpot_p50": 0.02},
    trials=(
        Trials(promoted=9810, rolled_back=30, held=160, mean_blocks=12.25),
        Trials(metric="p50", slower_pct=7.5, promoted=170, rolled_back=9000, held=830, mean_blocks=15.5),
    ),
)
HEAD = "model: m\nhardware: {accelerator: cpu, per_replica: 1}\n"


def _without_evidence(text: str) -> list[str]:
    data = [line for line in text.splitlines() if line.strip()]
    start = next(i for i, line in enumerate(data) if line.strip().startswith("evidence:"))
    width = len(data[start]) - len(data[start].lstrip())
    end = next((i for i in range(start + 1, len(data)) if len(data[i]) - len(data[i].lstrip()) <= width), len(data))
    return data[:start] + data[end:]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_every_shipped_profile_takes_evidence(path: Path) -> None:
    """Each line that was there is there still, in its place; what is loaded differs by the evidence alone."""
    text = path.read_text()

    fresh = with_evidence(text, EVIDENCE, origin=path.name)

    before = parse_profile(yaml.safe_load(text), origin=path.name)
    after = parse_profile(yaml.safe_load(fresh), origin=path.name)
    assert after.canary.evidence == EVIDENCE
    assert after.model_copy(update={"canary": before.canary}) == before
    kept = [line for line in text.splitlines() if line.strip()]
    assert _without_evidence(fresh) == (_without_evidence(text) if before.canary.evidence else kept)


@pytest.mark.parametrize(
    "text",
    [
        HEAD,
        HEAD.rstrip("\n"),
        HEAD + "canary:\n",
        HEAD + "canary:  # what decides\n  blocks: 10 # few\n\n# and then\nshift: {bake_s: 1}\n",
        HEAD + "canary:\n    blocks: 10\n    # deeper\n    goodput:\n      ttft_ms: 5\n",
        "canary:\n  guards:\n    max_waiting: 3\n\n" + HEAD,
    ],
)
def test_any_layout_of_lines_will_do(text: str) -> None:
    fresh = with_evidence(text, EVIDENCE, origin="p.yaml")

    assert parse_profile(yaml.safe_load(fresh), origin="p").canary.evidence == EVIDENCE
    assert [line for line in text.splitlines() if "#" in line] == [
        line for line in fresh.splitlines() if "#" in line and "Written by" not in line
    ]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_new_evidence_takes_the_place_of_the_old(path: Path) -> None:
    """Measured every month, the file does not grow."""
    once = with_evidence(path.read_text(), EVIDENCE, origin=path.name)
    newer = EVIDENCE.model_copy(update={"recorded_blocks": 90, "trials": ()})

    twice = with_evidence(once, newer, origin=path.name)

    assert parse_profile(yaml.safe_load(twice), origin=path.name).canary.evidence == newer
    assert with_evidence(twice, EVIDENCE, origin=path.name) == once


@pytest.mark.parametrize("canary", ["canary: {blocks: 10}\n", "canary: &c\n  blocks: 10\n"])
def test_a_layout_that_cannot_be_edited_is_said_with_what_to_put(canary: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)by hand.*evidence:.*recorded_blocks: 40"):
        with_evidence(HEAD + canary, EVIDENCE, origin="p.yaml")


@given(
    st.builds(
        Evidence,
        hardware=st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=12),
        measured_at=st.just("2026-11-30T12:00:00+00:00"),
        method=st.sampled_from(["trials", "resampled"]),
        rule=st.text("0123456789abcdef", min_size=4, max_size=64),
        recorded_blocks=st.integers(0, 10**6),
        spread=st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0, 10)),
        trials=st.lists(
            st.builds(
                Trials, metric=st.sampled_from(["", "p50"]), slower_pct=st.floats(0, 100), promoted=st.integers(0, 9)
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_what_is_written_is_what_is_read(evidence: Evidence) -> None:
    """Any text and number, such as a digest of digits alone or `1e5`, which YAML would take for a number."""
    loaded = yaml.safe_load("canary:\n" + block(evidence))

    assert Evidence.model_validate(loaded["canary"]["evidence"]) == evidence


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD)

    write(path, EVIDENCE)

    assert parse_profile(yaml.safe_load(path.read_text()), origin="p").canary.evidence == EVIDENCE
    assert [p.name for p in tmp_path.iterdir()] == ["p.yaml"]
    with pytest.raises(ConfigError, match="cannot write"):
        write(tmp_path / "none.yaml", EVIDENCE)
