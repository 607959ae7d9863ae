"""The tasks program with the real lm-evaluation-harness, against two small served models whose scores are foretold."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.domain.bench import SideTarget
from headway.domain.job import EXIT_DONE, EXIT_FAILED, EXIT_RETRY
from headway.domain.profile import Tasks
from headway.domain.task_jobs import TaskJob, TaskResult
from headway.domain.weights import Manifest, WeightFile
from headway.judge.tasks import task_checks
from headway.settings import Settings
from tests.component.ngram_server import NgramServer
from tests.component.servers import S3Server, s3_server
from tests.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
PYTHON = Settings.load().layout().python("tasks")
EXAMPLE = ROOT / "local" / "tasks"
FACTS = [json.loads(line) for line in (EXAMPLE / "capitals.jsonl").read_text().splitlines()]
ARTIFACT = "a" * 64

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]
with_harness = pytest.mark.skipif(
    not PYTHON.exists(), reason="the environment `tasks` is not built; `local/setup.sh tasks` builds it"
)


@dataclass
class World:
    """Store, tokenizer, and two served models: stable knows every capital, the candidate what a test says."""

    s3: S3Server
    tokenizer: Path
    stable: NgramServer
    candidate: NgramServer

    def job(self, *names: str, first: bool = False, **tasks: Any) -> TaskJob:
        """The job that asks both sides (or the candidate alone)."""
        servers = {"stable": self.stable, "candidate": self.candidate}
        targets = [
            SideTarget(
                side=side,  # type: ignore[arg-type]
                base_url=server.url,
                headers={"x-headway-cluster": side},
                served_model="m",
                release=f"{side}-1",
            )
            for side, server in servers.items()
            if not (first and side == "stable")
        ]
        uri = f"s3://headway/artifacts/{ARTIFACT}/"
        return TaskJob(
            release="candidate-1",
            targets=tuple(targets),
            tasks=Tasks(names=names, **{"include_uri": "s3://headway/tasks/", **tasks}),
            tokenizer_uris={"stable": uri, "candidate": uri},
            max_length=2048,
            records_uri="s3://headway/tasks-out/samples.jsonl",
        )

    def run(self, job: TaskJob, folder: Path) -> tuple[int, dict[str, Any]]:
        """Run the program as a process of its own; return its exit code and its result."""
        folder.mkdir(exist_ok=True)
        (folder / "job.json").write_text(json.dumps(job.to_json()))
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            **self.s3.environment("headway"),
        }
        with (folder / "log").open("wb") as log:
            done = subprocess.run(
                [PYTHON, "-m", "headway.pods.tasks", "job.json"],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                check=False,
                timeout=240,
            )
        return done.returncode, json.loads((folder / "result.json").read_bytes())

    def result(self, job: TaskJob, folder: Path) -> TaskResult:
        """Run the program, which must end well."""
        code, found = self.run(job, folder)
        assert code == EXIT_DONE, f"{found} {(folder / 'log').read_text()[-3000:]}"
        return TaskResult.model_validate(found)


def corpus(known: int) -> str:
    """What a model that knows so many capitals has read."""
    facts = FACTS[:known]
    asked = [f"Question: What is the capital of {f['country']}?\nAnswer: {f['capital']}\n\n" for f in facts]
    return "".join([*asked, *(f"The capital of {f['country']} is {f['capital']}.\n" for f in facts)])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One store with the example's task files and an artifact that has nothing but a tokenizer."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        client = server.client()
        for path in EXAMPLE.iterdir():
            client.put(f"s3://headway/tasks/{path.name}", path.read_bytes())
        model = write_tiny_model(tmp_path_factory.mktemp("model") / "m")
        files = []
        for path in sorted(model.glob("*.json")):
            body = path.read_bytes()
            client.put(f"s3://headway/artifacts/{ARTIFACT}/{path.name}", body)
            sha256 = hashlib.sha256(body).hexdigest()
            files.append(WeightFile(path=path.name, size_bytes=len(body), sha256=sha256, parts=(sha256,)))
        manifest = Manifest(artifact_digest=ARTIFACT, files=tuple(files))
        client.put(f"s3://headway/artifacts/{ARTIFACT}/manifest.json", manifest.model_dump_json().encode())
        yield server


@pytest.fixture
def world(s3: S3Server, tmp_path: Path) -> Iterator[World]:
    """Both models know everything until a test takes something away."""
    tokenizer = write_tiny_model(tmp_path / "m") / "tokenizer.json"
    with (
        NgramServer(corpus(20), tokenizer, release="stable-1") as stable,
        NgramServer(corpus(20), tokenizer, release="candidate-1") as candidate,
    ):
        yield World(s3, tokenizer, stable, candidate)


@with_harness
def test_equal_models_recover_everything_and_a_forgetful_one_is_refused(world: World, tmp_path: Path) -> None:
    """Both ways of asking, both sides by their header, few requests at once, and samples that can be read again."""
    job = world.job("capitals", "capitals_written", concurrency=2)
    result = world.result(job, tmp_path / "equal")

    assert [(s.task, s.side, s.metric, s.value, s.n) for s in result.scores] == [
        ("capitals", "stable", "acc", 1.0, 20),
        ("capitals", "candidate", "acc", 1.0, 20),
        ("capitals_written", "stable", "exact_match,first-word", 1.0, 20),
        ("capitals_written", "candidate", "exact_match,first-word", 1.0, 20),
    ]
    assert all(check.passed for check in task_checks(result, job.tasks))
    assert {h["x-headway-cluster"] for h in world.candidate.seen.headers} == {"candidate"}
    assert {h["x-headway-cluster"] for h in world.stable.seen.headers} == {"stable"}
    assert not any("authorization" in h for h in world.stable.seen.headers)
    assert world.stable.seen.most_in_flight <= 2
    assert result.tools["lm_eval"]
    content = world.s3.client().read(result.records_uri)
    assert hashlib.sha256(content).hexdigest() == result.records_sha256
    lines = [json.loads(line) for line in content.splitlines()]
    assert lines[0]["run"]["schema_version"] == 1
    assert len(lines) == 1 + 4 * 20
    assert lines[1]["sample"]["doc"]["country"] == "Austria"

    with NgramServer(corpus(8), world.tokenizer, release="candidate-1") as forgetful:
        world.candidate = forgetful
        job = world.job("capitals", "capitals_written", include_sha256=result.include_sha256)
        result = world.result(job, tmp_path / "forgetful")

    checks = task_checks(result, job.tasks)
    assert not checks[0].passed, checks[0].sentence
    assert "below the limit of 99.0 %" in checks[0].sentence
    assert result.score("capitals_written", "candidate").value < 0.6  # type: ignore[union-attr]


@with_harness
def test_a_first_release_and_a_chat_endpoint_need_no_stable_and_no_tokenizer(world: World, tmp_path: Path) -> None:
    """The candidate alone, held to an absolute score."""
    job = world.job("capitals_written", first=True, chat=True, min_score={"capitals_written": 0.9})
    result = world.result(job.model_copy(update={"tokenizer_uris": {}}), tmp_path / "chat")

    assert [(s.side, s.value) for s in result.scores] == [("candidate", 1.0)]
    assert [(c.name, c.passed) for c in task_checks(result, job.tasks)] == [("score: capitals_written", True)]
    assert world.stable.seen.bodies == []


@with_harness
def test_a_second_try_asks_only_what_the_first_had_not(world: World, tmp_path: Path) -> None:
    """A candidate that stops answering asks for another try, and what was measured is kept."""
    job = world.job("capitals")
    world.candidate.fail_after = 10
    code, found = world.run(job, tmp_path / "again")

    assert (code, found["kind"]) == (EXIT_RETRY, "BackendUnavailable")
    assert f"candidate at {world.candidate.url} answered HTTP 503 3 times in a row" in found["error"]
    asked = len(world.stable.seen.bodies)

    world.candidate.fail_after = None
    world.candidate.refuse = {"/v1/completions": 404}
    code, found = world.run(job, tmp_path / "again")
    assert (code, found["kind"]) == (EXIT_FAILED, "BackendError")
    assert "candidate: /v1/completions answered HTTP 404" in found["error"]

    world.candidate.refuse = {}
    result = world.result(job, tmp_path / "again")

    assert [s.value for s in result.scores] == [1.0, 1.0]
    assert len(world.stable.seen.bodies) == asked


@with_harness
def test_what_cannot_work_is_named_before_anything_is_asked(world: World, tmp_path: Path) -> None:
    def refusal(job: TaskJob, name: str, kind: str = "ConfigError") -> str:
        code, found = world.run(job, tmp_path / name)
        assert code == EXIT_FAILED, found
        assert found["kind"] == kind
        return str(found["error"])

    assert "no task `capitols`" in refusal(world.job("capitols"), "unknown")
    assert "did you mean capitals" in refusal(world.job("capitals2"), "near")
    assert "log-likelihoods" in refusal(world.job("capitals", chat=True), "chat")
    assert "has no metric f1; it has acc,none" in refusal(world.job("capitals", metrics={"capitals": "f1"}), "metric")
    changed = world.job("capitals", include_sha256="0" * 64)
    assert "the profile insists on" in refusal(changed, "changed", "IntegrityError")
    world.candidate.release = "another-7"
    code, found = world.run(world.job("capitals"), tmp_path / "taken")
    assert (code, found["kind"]) == (EXIT_RETRY, "Conflict")
    world.candidate.release = "candidate-1"
    world.candidate.echoes = False
    assert "no log-probabilities of the prompt" in refusal(world.job("capitals"), "echo", "BackendError")


@with_harness
def test_a_template_reaches_nothing_but_its_document(world: World, tmp_path: Path) -> None:
    """The harness renders templates where they can reach any Python object; here they cannot."""
    client = world.s3.client()
    evil = (EXAMPLE / "capitals.yaml").read_text().replace("{{country}}", "{{country.__class__.__mro__}}")
    client.put("s3://headway/evil/capitals.yaml", evil.encode())
    client.put("s3://headway/evil/capitals.jsonl", (EXAMPLE / "capitals.jsonl").read_bytes())
    code, found = world.run(world.job("capitals", include_uri="s3://headway/evil/"), tmp_path / "evil")

    assert (code, found["kind"]) == (EXIT_FAILED, "ConfigError")
    assert "the task capitals cannot be loaded: SecurityError: access to attribute '__class__'" in found["error"]
    assert world.stable.seen.bodies == []


BAD_FILES = {
    "code": ({"utils.py": b"import os", "t.yaml": b"task: t"}, "and no code"),
    "function": ({"t.yaml": b"task: t\nprocess_docs: !function utils.f"}, "more than data"),
    "python": ({"t.yaml": b"task: !!python/object/apply:os.system [id]"}, "more than data"),
    "hub": ({"t.yaml": b"task: t\ndataset_path: someone/data"}, "data comes from the files beside it"),
    "outside": (
        {"t.yaml": b"task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: ../../secret.json}}"},
        "not among the files",
    ),
    "elsewhere": ({"t.yaml": b"include: /etc/passwd\ntask: t"}, "not among the files"),
    "unsafe": ({"t.yaml": b"task: t\nunsafe_code: true"}, "runs code"),
    "metric": ({"t.yaml": b"task: t\nmetric_list: [{metric: someone/code}]"}, "means of the samples"),
    "nothing": ({"data.jsonl": b"{}"}, "brings no task file"),
    "path": ({"../t.yaml": b"task: t"}, "no plain relative path"),
}


@pytest.mark.parametrize("name", sorted(BAD_FILES))
def test_task_files_that_are_more_than_data_are_refused(name: str, s3: S3Server, tmp_path: Path) -> None:
    """From a bucket comes data; whoever can write there must not run code beside the models."""
    from headway.errors import ConfigError
    from headway.pods import task_files

    files, why = BAD_FILES[name]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    uri = f"s3://headway/bad/{name}.tar.gz"
    s3.client().put(uri, packed.getvalue())

    with pytest.raises(ConfigError, match=why):
        task_files.include(uri, s3.client("headway"), tmp_path / "files", None)
    assert not (tmp_path / "files").exists() or not any((tmp_path / "files").rglob("*.py"))


def test_a_tar_file_and_a_prefix_bring_the_same(s3: S3Server, tmp_path: Path) -> None:
    """The digest that a profile can insist on is of the files, not of how they are packed."""
    from headway.pods import task_files

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in EXAMPLE.iterdir():
            archive.add(path, arcname=f"./{path.name}")
    s3.client().put("s3://headway/packed.tar", packed.getvalue())

    one = task_files.include("s3://headway/packed.tar", s3.client("headway"), tmp_path / "a", None)
    other = task_files.include("s3://headway/tasks/", s3.client("headway"), tmp_path / "b", one.sha256)

    assert one.sha256 == other.sha256
