"""`headway judge` answers from files alone, and the same files give the same bytes."""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from headway import wiring
from headway.cli import main
from headway.domain.bench import RequestRecord
from headway.domain.release import Basis, Check, Verdict
from headway.domain.value import canonical_json
from headway.judge import records as record_rules
from headway.judge.records import Run
from headway.judge.replay import basis_of, decide
from headway.pods import records_parquet
from tests.factories import make_profile
from tests.unit.judge.data import Alter, make_canary, make_run

CHECKOUT = Path(__file__).parents[2]
CANARY = make_canary(blocks=6)


def content_of(alter: Alter | None = None, slower: float = 1.0) -> bytes:
    records, summaries = make_run(CANARY, seed=5, alter=alter, slower=slower)
    return record_rules.write(Run("d" * 64, tuple(records), tuple(summaries)))


CONTENT = content_of()


def put(folder: Path, content: bytes = CONTENT, *, checks: tuple[Check, ...] = (), basis: bool = True) -> Path:
    """Keep records as a release does: JSON lines, the table and the basis in one folder."""
    path = folder / "records.jsonl"
    path.write_bytes(content)
    (folder / "records.parquet").write_bytes(records_parquet.write(content))
    if basis:
        kept = basis_of(record_rules.parse(content), CANARY).model_copy(update={"checks": checks})
        (folder / "basis.json").write_bytes(canonical_json(kept))
    return path


def profile(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    canary = ["canary:", *(f"  {k}: {v}" for k, v in CANARY.to_json().items() if isinstance(v, int | float))]
    path.write_text("\n".join(["model: tiny", "hardware: {accelerator: cpu, per_replica: 1}", *canary, ""]))
    return path


def test_the_same_files_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice, and from either form of the records: exactly the canonical JSON of the verdict."""
    path = put(tmp_path)
    answers = []
    for records in (path, path, path.with_suffix(".parquet")):
        assert main(["judge", str(records), "--json"]) == 0
        answers.append(capsys.readouterr().out)

    assert len(set(answers)) == 1
    basis = Basis.model_validate_json((tmp_path / "basis.json").read_bytes())
    assert answers[0].encode() == canonical_json(decide(record_rules.parse(CONTENT), basis))
    assert Verdict.model_validate_json(answers[0]).records_sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(("slower", "decision"), [(1.0, "PROMOTE"), (3.0, "ROLLBACK")])
def test_any_answer_is_an_answer(
    slower: float, decision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whether there is an answer, not which; sentence and effects are shown."""
    assert main(["judge", str(put(tmp_path, content_of(slower=slower)))]) == 0
    shown = capsys.readouterr().out

    assert shown.startswith(decision)
    assert "ttft_p50" in shown
    assert "TTFT p99" in shown


def test_checks_of_the_basis_are_part_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = Check(name="q", measured=2, limit=1, passed=False, sentence="it answers badly")

    assert main(["judge", str(put(tmp_path, checks=(bad,)))]) == 0
    assert "it answers badly" in capsys.readouterr().out


def test_margins_that_decide_in_place_of_the_basis_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each that differs, with both values; evidence is no margin."""
    path, named = put(tmp_path), profile(tmp_path)

    assert main(["judge", str(path), "--profile", str(named)]) == 0
    assert "note" not in capsys.readouterr().out
    named.write_text(named.read_text().replace("p50_margin: 0.5", "p50_margin: 0.07"))
    assert main(["judge", str(path), "--profile", str(named)]) == 0
    shown = capsys.readouterr().out
    assert "the profile decides here, not the basis: p50_margin 0.07, not 0.5\n" in shown


def test_without_a_basis_the_profile_decides_and_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, basis=False)

    assert main(["judge", str(path), "--profile", str(profile(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "PROMOTE" in shown
    assert "quality" in shown
    assert "guards" in shown


def test_a_note_never_mixes_with_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, basis=False)

    assert main(["judge", str(path), "--profile", str(profile(tmp_path)), "--json"]) == 0
    captured = capsys.readouterr()
    assert Verdict.model_validate_json(captured.out).decision == "PROMOTE"
    assert "quality" in captured.err


def test_a_profile_is_found_by_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles").mkdir()
    profile(tmp_path / "profiles")
    monkeypatch.setenv("HEADWAY_CHECKOUT", str(tmp_path))

    assert main(["judge", str(put(tmp_path, basis=False)), "--profile", "tiny"]) == 0
    assert "PROMOTE" in capsys.readouterr().out
    assert main(["judge", str(put(tmp_path, basis=False)), "--profile", "tinny"]) == 1
    assert "did you mean `tiny`" in capsys.readouterr().err


def _other_release(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"served_release": "another"}) if record.side == "candidate" else record


def _clock_step(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"ended_s": -1.0}) if record.block == 2 else record


@pytest.mark.parametrize(("alter", "word"), [(_other_release, "another release"), (_clock_step, "backwards")])
def test_odd_records_hold(alter: Alter, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(put(tmp_path, content_of(alter)))]) == 0
    shown = capsys.readouterr().out

    assert shown.startswith("HOLD")
    assert word in shown


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "records"),
        (b"model: tiny\n", "not a records file"),
        (gzip.compress(CONTENT), "records.jsonl: this is not a records file: it is compressed by gzip"),
        (CONTENT.replace(b"\n", b"\n" + b"[" * 200_000 + b"\n", 1), "line 2 of the records is not JSON"),
        (CONTENT.replace(b'"release":"stable-1"', b'"release":"\\ud800"', 1), "line 2 of the records is not JSON"),
        (CONTENT.replace(b'"release":"stable-1"', b'"release":"\xed\xa0\x80"', 1), "line 2 of the records is not JSON"),
        (CONTENT.replace(b'"output_tokens":16', b'"output_tokens":1' + b"0" * 400, 1), "`output_tokens`"),
        (b'{"run":{"schema_version":9}}\n', "schema"),
        (b"PAR1 and nothing more", "Parquet"),
        (CONTENT[: len(CONTENT) // 2], "another release"),
        (CONTENT[:5000] + CONTENT[5100:], "line"),
        (content_of(slower=1.1), "another release"),
    ],
)
def test_what_is_no_record_of_this_release_is_one_clear_error(
    content: bytes, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a records file, foreign, cut, damaged, changed."""
    path = put(tmp_path)
    path.write_bytes(content)

    assert main(["judge", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error")
    assert word in captured.err
    assert "--debug" not in captured.err


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    path = put(tmp_path, basis=False)
    assert main(["judge", str(path)]) == 1
    assert "--profile" in capsys.readouterr().err
    assert main(["judge", str(path), "--basis", str(tmp_path / "no.json")]) == 1
    assert "no.json" in capsys.readouterr().err
    (tmp_path / "basis.json").write_text("{}")
    assert main(["judge", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'basis.json'} is no basis of a decision: `release` is missing" in said


def test_records_in_the_store_are_read_with_the_basis_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path)

    class Store:
        @staticmethod
        def read(uri: str) -> bytes:
            return (tmp_path / uri.removeprefix("s3://headway/bench/r/")).read_bytes()

    class Backend:
        weights = Store

    monkeypatch.setattr(wiring, "connect", Backend)

    assert main(["judge", "s3://headway/bench/r/records.parquet"]) == 0
    assert capsys.readouterr().out.startswith("PROMOTE")


def test_a_local_file_needs_nothing_else(tmp_path: Path) -> None:
    """No stack, no Airflow, no MLflow: nothing of them is even imported."""
    code = (
        "import sys; from headway.cli import main; code = main(sys.argv[1:4]); "
        "print([m for m in sys.argv[4:] if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, "judge", str(put(tmp_path)), "--json"]
    words += ["mlflow", "airflow", "botocore", "ray", "great_expectations", "headway.adapters.local.stack"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=CHECKOUT / "src")

    assert Verdict.model_validate_json(done.stdout).decision == "PROMOTE"
    assert done.stderr.strip() == "[]"


def test_the_profile_of_these_tests_has_the_margins_of_their_canary(tmp_path: Path) -> None:
    assert wiring.read_profile(profile(tmp_path)).canary == CANARY
    assert make_profile().canary != CANARY
