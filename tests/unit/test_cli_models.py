"""The commands about models: what they print, what they do, and what they exit with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headway import wiring
from headway.adapters.airflow_api import DagRun, TaskRun
from headway.cli import follow, main, show
from headway.domain.release import StepRecord, record_key, release_id
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable
from headway.release import record, validate
from tests.factories import make_plan, make_selection
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@dataclass
class FakeAirflow:
    """An Airflow whose runs end as the test says, some looks after they were started."""

    state: str = "success"
    looks: int = 2
    states: Mapping[str, str] = field(default_factory=dict)
    started: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    down: bool = False
    on_end: Any = None

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
        self._answer()
        self.started.append((dag_id, run_id, conf))
        return DagRun(run_id, "queued", conf, NOW.isoformat())

    def run(self, dag_id: str, run_id: str) -> DagRun:
        self.looks -= 1
        if self.looks == 0 and self.on_end:
            self.on_end(run_id)
        return DagRun(run_id, self.state if self.looks <= 0 else "running", {}, NOW.isoformat())

    def tasks(self, dag_id: str, run_id: str) -> Sequence[TaskRun]:
        end = (NOW + timedelta(seconds=90)).isoformat()
        return [TaskRun(name, self.states.get(name, "success"), NOW.isoformat(), end, 1) for name in follow.STEPS]

    def recent(self, dag_id: str) -> Sequence[DagRun]:
        return []

    def active(self, dag_id: str) -> Sequence[DagRun]:
        self._answer()
        return []

    def health(self) -> Mapping[str, str]:
        self._answer()
        return {"scheduler": "healthy"}

    def run_url(self, dag_id: str, run_id: str) -> str:
        return f"http://airflow/{dag_id}/{run_id}"

    def _answer(self) -> None:
        if self.down:
            raise BackendUnavailable("Airflow does not answer")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Fakes of all ports, which the commands get from the wiring; nothing waits."""
    fake = FakeBackend()
    fake.runs = FakeAirflow()
    put_model(fake, 1, "champion")
    put_model(fake, 2)
    monkeypatch.setattr(wiring, "connect", lambda: fake)
    monkeypatch.setattr(follow, "EVERY_S", 0.0)
    return fake


def serving(backend: FakeBackend, *, previous: bool = False) -> None:
    """Let version 2 serve, over version 1 if `previous`."""
    sides = {n: Backend(cluster=f"tiny-{n}", release=f"r{n}", version=n, cluster_digest=str(n) * 64) for n in (1, 2)}
    for side in sides.values():
        spec = make_plan().cluster.model_copy(update={"name": side.cluster, "version": side.version})
        backend.clusters.apply(spec)
    backend.traffic.shift(Route(model="tiny", stable=sides[2], previous=sides[1] if previous else None))


def ended(backend: FakeBackend, outcome: str, run_id: str = "run") -> str:
    """Record the end of a release."""
    release = release_id(run_id, NOW)
    selection = make_selection()
    step = StepRecord(
        release=release,
        step="select",
        started_at=NOW.isoformat(),
        ended_at=NOW.isoformat(),
        outcome="done",
        detail=selection.to_json(),
    )
    backend.ledger.append(record_key("tiny", release, "select"), step.to_json())
    end = {
        "outcome": outcome,
        "reason": f"it was {outcome}",
        "version": 1,
        "ended_at": NOW.isoformat(),
        "report": "http://r",
    }
    backend.ledger.append(record_key("tiny", release, "release"), end)
    return release


def test_status_shows_who_serves(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """Models, clusters, split and the last verdict in one look."""
    serving(backend, previous=True)
    ended(backend, "rejected")

    assert main(["status"]) == 0

    out = " ".join(capsys.readouterr().out.split())
    for said in ("champion = 1", "tiny-2", "100 : 0", "rejected", "1 of 1"):
        assert said in out, out


@pytest.mark.parametrize("part", ["registry", "ledger", "runs"])
def test_status_works_when_a_part_is_down(backend: FakeBackend, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The SRE who looks at night sees what still can be seen, and what does not answer."""
    serving(backend)
    getattr(backend, part).down = True

    assert main(["status"]) == 0

    out = capsys.readouterr().out
    assert "tiny-2" in out
    assert "does not answer" in out


def test_plan_shows_and_does_nothing(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """Like `terraform plan`."""
    before = (dict(backend.ledger.records), dict(backend.traffic.kept), list(backend.jobs.starts))

    assert main(["plan", "tiny"]) == 0

    out = capsys.readouterr().out
    assert "+ artifact" in out
    assert "+ cluster tiny-" in out
    assert "absolute limits" in out
    assert (dict(backend.ledger.records), dict(backend.traffic.kept), list(backend.jobs.starts)) == before


def test_plan_says_what_makes_room(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody should be surprised that the way back goes."""
    serving(backend, previous=True)
    backend.clusters.used_bytes = backend.clusters.total_bytes

    main(["plan", "tiny", "--version", "2"])

    assert "- previous cluster tiny-1 makes room" in capsys.readouterr().out


def test_plan_tells_a_remembered_verdict(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """A person may release a refused pair again, and should know that it was refused."""
    main(["plan", "tiny"])
    digest = show_digest(backend)
    record.remember_state(
        backend.registry,
        "tiny",
        1,
        digest,
        record.VersionState(outcome="rolled_back", release="r", at=NOW.isoformat(), reason="too slow"),
    )
    capsys.readouterr()

    main(["plan", "tiny"])

    assert "this pair was rolled_back at 2026-11-30 12:00 UTC: too slow" in " ".join(capsys.readouterr().out.split())


def show_digest(backend: FakeBackend) -> str:
    """Return the cluster digest of what a release of version 1 would make."""
    from headway.release import plan, select

    chosen = select.run("tiny", backend.registry, backend.weights, version=1)
    made = plan.make(
        backend.profile("tiny"),
        chosen,
        validate.run(chosen, backend.weights),
        serving_image="lock:test",
        model_root="/nodes",
    )
    return made.cluster_digest


def test_release_starts_one_run(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """What the form would send, and where to watch it."""
    assert main(["release", "tiny", "--version", "2", "--scheme", "none"]) == 0

    ((dag, run_id, conf),) = backend.runs.started
    assert dag == "release"
    assert conf == {"model": "tiny", "version": 2, "scheme": "none", "skip_approval": False}
    assert f"http://airflow/release/{run_id}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "state", "code"), [("promoted", "success", 0), ("rejected", "failed", 1), ("held", "failed", 1)]
)
def test_release_waits_and_exits_by_the_outcome(
    backend: FakeBackend, outcome: str, state: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline may rely on the exit code."""
    airflow: Any = backend.runs
    airflow.state, airflow.on_end = state, lambda run_id: ended(backend, outcome, run_id)

    assert main(["release", "tiny", "--wait"]) == code

    out = capsys.readouterr().out
    assert f"{outcome}: it was {outcome}" in out
    assert "rollout   done (1 min 30 s)" in out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["release", "tinny"], "no profile for model `tinny`"),
        (["release", "tiny", "--version", "9"], "it has versions [1, 2]"),
        (["release", "tiny", "--alias", "nobody"], "tiny has no nobody"),
        (["plan", "tinny"], "no profile for model `tinny`"),
        (["rollback", "tiny"], "no stable cluster"),
        (["rollback", "tiny", "--direct"], "no stable cluster"),
        (["report", "tiny"], "no release of tiny has ended yet"),
        (["pause", "tinny"], "no profile for model `tinny`"),
    ],
)
def test_a_mistake_is_one_sentence(
    backend: FakeBackend, command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No trace, exit code 1, nothing started."""
    assert main(command) == 1

    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    assert "Traceback" not in err
    assert backend.runs.started == []


def test_a_direct_rollback_needs_neither_airflow_nor_mlflow(
    backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way back works when everything else is down, and says what it could not record."""
    serving(backend, previous=True)
    backend.registry.down = backend.ledger.down = True
    backend.runs.down = True

    assert main(["rollback", "tiny", "--direct"]) == 0

    stable = backend.traffic.route("tiny").stable
    assert stable is not None
    assert stable.version == 1
    out = capsys.readouterr().out
    assert "version 1 has all the traffic of tiny" in out
    assert "not recorded in the registry" in out
    assert "not recorded in the ledger" in out


def test_a_direct_rollback_is_remembered_where_it_can_be(backend: FakeBackend) -> None:
    """Otherwise the alias brings the bad version back."""
    serving(backend, previous=True)

    main(["rollback", "tiny", "--direct"])

    assert record.read_state(backend.registry.tags("tiny", 2))["2" * 64].outcome == "rolled_back"
    assert list(backend.ledger.list("rollbacks/tiny/"))


def test_pause_and_resume(backend: FakeBackend) -> None:
    """The traffic stays as it is."""
    serving(backend)
    before = backend.traffic.route("tiny")

    assert main(["pause", "tiny"]) == 0
    assert backend.traffic.route("tiny").paused
    assert main(["resume", "tiny"]) == 0
    assert backend.traffic.route("tiny") == before


def test_report_writes_the_last_report(
    backend: FakeBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made again from the records, so it is there without MLflow."""
    ended(backend, "rejected")
    backend.registry.down = True
    path = tmp_path / "report.html"

    assert main(["report", "tiny", "-o", str(path)]) == 0

    assert "it was rejected" in path.read_text()
    assert "http://r" in capsys.readouterr().out


def test_the_last_release_is_the_newest() -> None:
    """Ids sort by time."""
    backend = FakeBackend()
    ids = [release_id(name, NOW + timedelta(minutes=minute)) for name, minute in (("b", 0), ("a", 5), ("c", 3))]
    for release in ids:
        backend.ledger.append(record_key("tiny", release, "release"), {})

    assert show.last_release(backend, "tiny") == ids[1]
    assert show.last_release(backend, "other") is None


def test_a_follower_waits_for_airflow_to_come_back(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """A restart of the API server in the middle of a release loses nothing."""
    airflow: Any = backend.runs
    real, stumbles = airflow.tasks, iter([BackendUnavailable("restarting")])

    def flaky(dag_id: str, run_id: str) -> Sequence[TaskRun]:
        for error in stumbles:
            raise error
        return list(real(dag_id, run_id))

    airflow.tasks, airflow.on_end = flaky, lambda run_id: ended(backend, "promoted", run_id)

    assert main(["release", "tiny", "--wait"]) == 0
