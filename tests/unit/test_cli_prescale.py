"""`headway backtest` and `headway forecast`: what they print, what they write, and how they refuse."""

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from headway import wiring
from headway.cli import main
from headway.cli.follow import utcnow
from headway.domain.prescaling import Fan, Standing, Tick, history_key, plan_key
from headway.domain.series import Floats
from headway.prescale.backtest import Backtest
from headway.prescale.history import History, to_parquet
from tests.factories import make_profile
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.pages import read
from tests.unit.prescale.data import DAY, START, STEP_S, daily

MODEL = "tiny"


def written(path: Path, values: Floats, *, names: tuple[str, str] = ("ts", "requests_per_s")) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(names)
        rows.writerows(
            ((START + timedelta(seconds=STEP_S * index)).isoformat(), value) for index, value in enumerate(values)
        )
    return path


def test_a_backtest_prints_a_table_and_writes_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One series, all three forms, and they say the same."""
    source = written(tmp_path / "made.csv", daily(2, noise=0.1), names=("when", "calls"))
    source.write_text(source.read_text().replace("when", "time", 1))
    target, page = tmp_path / "found.json", tmp_path / "found.html"

    command = ["backtest", "--csv", str(source), "--column", "calls", "--lead", "2", "--lead", "5"]
    assert main([*command, "--json", str(target), "--html", str(page)]) == 0
    shown = capsys.readouterr().out

    found = Backtest.model_validate_json(target.read_bytes())
    assert found.leads_min == (2, 5)
    assert "made.csv" in read(page.read_bytes()).text
    for one in found.served:
        assert f"{one.cost:.3f} / {one.bad_min_a_day:.1f}" in shown
    for each in found.scores:
        assert f"{each.wape_pct:.2f}" in shown


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        (daily(0.125), [], "3 h 00 min of history"),
        (np.zeros(3 * DAY), [], "nothing but zeros"),
        (daily(3), ["--column", "calls"], "no column calls"),
        (daily(3), ["--timezone", "Europe/Berln"], "did you mean `Europe/Berlin`"),
        (daily(3), ["--lead", "100000"], "lead times of"),
    ],
)
def test_a_backtest_refuses_in_one_sentence(
    values: Floats, more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backtest", "--csv", str(written(tmp_path / "made.csv", values)), *more]) == 1

    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path / "absent.csv", binary):
        assert main(["backtest", "--csv", str(path)]) == 1
        assert path.name in capsys.readouterr().err


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Fakes of all ports, with a profile that plans ahead."""
    fake = FakeBackend()
    fake.kept_profiles[MODEL] = make_profile(prescale={"enabled": True})
    monkeypatch.setattr(wiring, "connect", lambda: fake)
    return fake


def planned(backend: FakeBackend, at: datetime, **changes: object) -> Tick:
    """Keep a tick and its history, as the DAG does."""
    tick = Tick.model_validate(
        {
            "model": MODEL,
            "at": at.isoformat(),
            "mode": "forecast",
            "floor": 3,
            "by": "forecast",
            "wanted": 3,
            "growth": 1.2,
            "running": 2,
            "pending": 1,
            "load": 1.7,
            "load_at": at.isoformat(),
            "lead_s": 600.0,
            "requests_per_s": 4.0,
            "reasons": ("In 20 min the 80% quantile of the load is 2.50 busy replicas.",),
            "fan": Fan(start_at=at.isoformat(), step_s=STEP_S, levels=(0.5, 0.8), values=((2.0,) * 288, (2.5,) * 288)),
            "standings": (Standing(day="2026-03-04", policy="headway", cost=1.1, bad_min=4.0),),
        }
        | changes
    )
    start = datetime.fromtimestamp(at.timestamp() // STEP_S * STEP_S, UTC) - timedelta(days=2)
    kept = History(start, STEP_S, {"requests_per_s": daily(2)})
    backend.objects.write(plan_key(MODEL), tick.model_dump_json().encode())
    backend.objects.write(history_key(MODEL), to_parquet(kept))
    return tick


def test_a_forecast_shows_floor_fan_and_standings(
    backend: FakeBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(backend, utcnow())
    page = tmp_path / "tiny.html"

    assert main(["forecast", MODEL, "--html", str(page)]) == 0
    shown = capsys.readouterr().out

    for words in ("3 replicas must be up", "80% quantile of the load is 2.50", "1.10 / 4", "+24 h", "0.0% is missing"):
        assert words in shown
    assert "late" not in shown
    assert "3 replicas must be up" in read(page.read_bytes()).text


def test_a_dead_dag_is_the_first_thing_to_be_seen(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """The floor stays, and the reader learns that nothing lowers it."""
    planned(backend, utcnow() - timedelta(hours=5))

    assert main(["forecast", MODEL]) == 0
    assert "nothing lowers it" in capsys.readouterr().out


@pytest.mark.parametrize(("enabled", "late"), [(True, True), (False, False)])
def test_a_first_tick_that_does_not_come_is_missed_and_one_that_nobody_wants_is_not(
    enabled: bool, late: bool, backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits for its first tick is kept as `off` too."""
    backend.kept_profiles[MODEL] = make_profile(prescale={"enabled": enabled})
    waits = Tick.off(MODEL, utcnow() - timedelta(hours=5), 1, "The first tick is waited for.")
    backend.objects.write(plan_key(MODEL), waits.model_dump_json().encode())

    assert main(["forecast", MODEL]) == 0
    assert ("nothing lowers it" in capsys.readouterr().out) == late


def test_a_model_that_stepped_back_says_so_once(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """Above what was wrong with the input, and not again among the notes."""
    lost = "The forecast lost on three days."
    planned(backend, utcnow(), mode="reactive", demoted=lost, notes=(lost,), problems=("No load was measured.",))

    assert main(["forecast", MODEL]) == 0
    shown = capsys.readouterr().out

    assert shown.count(lost) == 1
    assert shown.index(lost) < shown.index("No load was measured.")


def test_the_json_of_a_forecast_is_the_tick(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    tick = planned(backend, utcnow())

    assert main(["forecast", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tick.to_json()


@pytest.mark.parametrize(
    ("wishes", "words"), [({"enabled": True}, "no tick has planned tiny yet"), ({}, "enabled: true")]
)
def test_an_empty_store_says_what_to_do(
    wishes: dict[str, bool], words: str, backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.kept_profiles[MODEL] = make_profile(prescale=wishes)

    assert main(["forecast", MODEL]) == 1
    assert words in capsys.readouterr().err


def test_a_model_that_nobody_knows_is_no_model_without_a_plan(
    backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "tinny"]) == 1
    assert "no profile for model `tinny`" in capsys.readouterr().err


def test_a_damaged_history_is_said_and_the_plan_still_shown(
    backend: FakeBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(backend, utcnow())
    backend.objects.write(history_key(MODEL), b"no parquet")

    assert main(["forecast", MODEL, "--html", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr().out

    assert "3 replicas must be up" in shown
    assert "damaged" in shown


def test_a_damaged_plan_is_one_sentence(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    backend.objects.write(plan_key(MODEL), b"{}")

    assert main(["forecast", MODEL]) == 1
    assert "cannot be read" in capsys.readouterr().err
