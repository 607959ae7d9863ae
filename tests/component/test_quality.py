"""The quality program in the serving environment: its validators, and one start of the real vLLM on a tiny model."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway.adapters.local.ray_head import engine_environment
from headway.domain.bench import QUESTIONS
from headway.domain.job import EXIT_DONE, EXIT_FAILED
from headway.domain.profile import Engine, Quality
from headway.domain.quality_jobs import QualityJob, QualityResult
from headway.domain.release import Reference, TopLogprobs
from headway.domain.safetensors import LENGTH_BYTES, header_length, parse_header
from headway.domain.value import canonical_json, digest
from headway.domain.weight_jobs import QuantizeJob
from headway.domain.weights import Manifest, Recipe
from headway.judge.quality import KL, RATIO, served_checks
from headway.pods import publish, reference
from headway.settings import Settings
from tests.component.servers import S3Server, s3_server
from tests.tiny_model import write_safetensors, write_tiny_model

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

SRC = Path(__file__).parents[2] / "src"
TEXTS = ("The river rose in the night.", "Two and two make four, as everybody knows.", "def f(x):\n    return x + 1\n")
UNTRAINED = Quality(max_ppl=1e6)
"""Limits that a model with random weights passes, so that it is asked the questions."""
ENGINE = Engine(max_model_len=512, max_num_seqs=4, kv_cache_gib=0.1)
MEASURE = """
import os, pathlib, sys
from headway.adapters.s3.client import S3Client
from headway.domain.weight_jobs import QuantizeJob
from headway.pods import reference
from headway.pods.stage import connection_of
job = QuantizeJob.model_validate_json(pathlib.Path("job.json").read_bytes())
reference.ensure(S3Client(connection_of(os.environ)), job, pathlib.Path(sys.argv[1]), lambda percent, message: None)
"""


@dataclass
class Ended:
    """How a run of the program ended."""

    code: int
    raw: dict[str, Any]
    output: str

    @property
    def result(self) -> QualityResult:
        """What it left."""
        assert self.code == EXIT_DONE, self.output
        return QualityResult.model_validate(self.raw)


@dataclass
class World:
    """A store, and the programs."""

    s3: S3Server
    folder: Path

    def environment(self, name: str) -> dict[str, str]:
        """What a program of an environment gets."""
        layout = Settings.load().layout()
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        plain = {**kept, **self.s3.environment("quantize"), "PYTHONPATH": str(SRC), "HF_HUB_OFFLINE": "1"}
        plain["PATH"] = f"{layout.python('serve').parent}:{plain['PATH']}"
        return plain | engine_environment(layout) if name == "serve" else plain

    def publish(self, model: Path) -> str:
        """Put a model into the store as an artifact; return its digest."""
        files = publish.list_files(model)
        name = digest([file.to_json() for file in files])
        for file in files:
            self.s3.client().put(f"s3://headway/artifacts/{name}/{file.path}", (model / file.path).read_bytes())
        manifest = Manifest(artifact_digest=name, files=files)
        self.s3.client().put(f"s3://headway/artifacts/{name}/manifest.json", canonical_json(manifest))
        return name

    def run(self, artifact: str, depth: str = "accepts", **changes: Any) -> Ended:
        """Run the program to its end."""
        job = QualityJob(
            depth=depth,  # type: ignore[arg-type]
            artifact_digest=artifact,
            artifact_uri=f"s3://headway/artifacts/{artifact}/",
            scheme="none",
            served_model="tiny",
            engine=ENGINE,
            dest_root=str(self.folder / "node"),
            reference_uri="s3://headway/references/tiny/texts.json",
            noise_uri="s3://headway/references/tiny/texts.noise.json",
            result_uri=f"s3://headway/quality/{artifact}/{depth}.json",
            start_s=400,
        ).model_copy(update=changes)
        folder = self.folder / digest(job)[:12]
        folder.mkdir(exist_ok=True)
        (folder / "job.json").write_text(json.dumps(job.to_json()))
        python = Settings.load().layout().python("serve")
        command = [str(python), "-m", "headway.pods.quality", "job.json"]
        ended = subprocess.run(
            command, cwd=folder, env=self.environment("serve"), capture_output=True, text=True, check=False
        )
        raw = json.loads((folder / "result.json").read_text())
        return Ended(ended.returncode, raw, ended.stdout + ended.stderr)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One S3 for this module."""
    folder = tmp_path_factory.mktemp("quality")
    with s3_server(folder / "s3") as server:
        yield World(server, folder)


@pytest.fixture(scope="module")
def model(world: World) -> Path:
    """A tiny model with random weights in bfloat16."""
    return write_tiny_model(world.folder / "model")


def measure(world: World, model: Path, name: str, quality: Quality = UNTRAINED) -> Reference:
    """Let the quantize environment make sure of the reference of this name."""
    job = QuantizeJob(
        source_digest="tiny",
        files=(),
        recipe=Recipe(scheme="none"),
        artifact_digest="0" * 64,
        artifact_uri="s3://headway/artifacts/none/",
        reference_uri=f"s3://headway/references/{name}/texts.json",
        texts=TEXTS,
        prompt_set_digest="texts",
        quality=quality,
    )
    folder = world.folder / f"reference-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job.to_json()))
    python = Settings.load().layout().python("quantize")
    subprocess.run([python, "-c", MEASURE, model], cwd=folder, env=world.environment("quantize"), check=True)
    found = world.s3.client().read_json(job.reference_uri)
    assert found is not None
    return Reference.model_validate(dict(found))


@pytest.fixture(scope="module")
def measured(world: World, model: Path) -> Reference:
    """The reference of the tiny model."""
    return measure(world, model, "tiny")


def test_an_older_reference_keeps_its_figures_and_gets_what_it_lacks(
    world: World, model: Path, measured: Reference
) -> None:
    """What was judged by it stays as it was."""
    old = measured.to_json()
    old |= {"schema_version": 1, "figures": {**old["figures"], "nll": 1.0}}
    for name in ("answers", "top_sha256"):
        del old[name]
    for name in ("per_text_kl", "per_text_top1"):
        del old["figures"][name]
    world.s3.client().put("s3://headway/references/old/texts.json", canonical_json(old))

    extended = measure(world, model, "old")

    assert (extended.schema_version, extended.figures.nll) == (2, 1.0)
    assert (extended.top_sha256, extended.answers) == (measured.top_sha256, measured.answers)


def test_a_source_beyond_the_limits_is_asked_nothing_and_what_was_known_of_it_stays(
    world: World, model: Path, measured: Reference
) -> None:
    """A broken model never stops talking; and should the limits ever let it pass, it is measured to the end."""
    first = measure(world, model, "refused", Quality())
    assert (first.complete, first.answers, first.top_sha256) == (False, (), "")
    assert first.figures == measured.figures
    assert measure(world, model, "refused", Quality()) == first

    assert measure(world, model, "refused") == measured


def test_the_reference_holds_the_head_of_every_distribution_and_is_checked_when_read(
    world: World, measured: Reference
) -> None:
    uri = "s3://headway/references/tiny/texts.json"
    client = world.s3.client()

    again, top = reference.load(client, uri, digest(measured))

    assert again == measured
    assert isinstance(top, TopLogprobs)
    assert hashlib.sha256(canonical_json(top)).hexdigest() == measured.top_sha256
    for ids, own, first, logs in zip(
        measured.token_ids, top.token_logprobs, top.top_ids, top.top_logprobs, strict=True
    ):
        assert (len(own), len(first), len(logs)) == (len(ids) - 1, 20 * (len(ids) - 1), 20 * (len(ids) - 1))
        assert list(logs[:20]) == sorted(logs[:20], reverse=True)
    sums = [-sum(own) for own in top.token_logprobs]
    assert sums == pytest.approx(measured.figures.per_text_nll, abs=1e-2)
    assert [answer.prompt for answer in measured.answers] == [question.prompt for question in QUESTIONS]


def changed(model: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a model with another config.json."""
    target.mkdir()
    for path in model.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_a_quantized_model_is_accepted_and_asked_once(world: World) -> None:
    artifact = world.publish(write_tiny_model(world.folder / "fp8", fp8=True))

    first = world.run(artifact, scheme="fp8-dynamic").result
    world.s3.client().delete(f"s3://headway/artifacts/{artifact}/config.json")

    assert first.findings == ()
    assert first.versions.keys() == {"vllm", "compressed-tensors"}
    assert world.run(artifact, scheme="fp8-dynamic").result == first, "the answer is kept"


def test_a_field_that_the_serving_environment_does_not_know_is_named(world: World) -> None:
    """llm-compressor has a newer compressed-tensors than vLLM, and that refuses what it does not know."""
    good = write_tiny_model(world.folder / "newer", fp8=True)

    def add(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["field_of_tomorrow"] = 1

    [finding] = world.run(world.publish(changed(good, world.folder / "tomorrow", add))).result.findings

    assert finding.startswith("compressed-tensors 0.17.0 refuses `config_groups.group_0.weights.field_of_tomorrow`")


def test_a_linear_without_weights_is_found_although_vllm_would_serve_it(world: World) -> None:
    """VLLM 0.29 starts, reports healthy and computes NaN: its tracking leaves out all Linears."""
    model = write_tiny_model(world.folder / "holed", fp8=True)
    path = model / "model.safetensors"
    body = path.read_bytes()
    size = header_length(body[:LENGTH_BYTES], len(body))
    tensors = parse_header(body[LENGTH_BYTES : LENGTH_BYTES + size], len(body))
    kept = {
        t.name: (t.dtype, tuple(t.shape), body[LENGTH_BYTES + size :][t.start : t.end])
        for t in tensors
        if "layers.1.mlp.down_proj" not in t.name
    }
    write_safetensors(path, kept)

    [finding] = world.run(world.publish(model)).result.findings

    assert "lack the weights of 1 of 15 Linear layers" in finding
    assert finding.endswith("model.layers.1.mlp.down_proj")


@pytest.fixture(scope="module")
def answered(world: World, model: Path, measured: Reference) -> Ended:
    """The one start of the engine."""
    return world.run(world.publish(model), "answers")


def test_source_against_source_is_the_noise_floor(world: World, measured: Reference, answered: Ended) -> None:
    """Transformers in float32 and vLLM in bfloat16 agree to within a thousandth of a nat; that figure is kept."""
    result = answered.result
    assert result.served is not None
    checks = served_checks(result.served, measured.figures, Quality(), result.scheme, noise=result.noise)

    assert [check.name for check in checks if not check.passed] == []
    assert {KL, RATIO} < {check.name for check in checks}
    assert 0 <= (result.served.kl or 0) < 1e-3
    assert result.noise == result.served
    assert world.s3.client().read_json("s3://headway/references/tiny/texts.noise.json") == result.served.to_json()


def test_questions_are_split_as_by_the_source(measured: Reference, answered: Ended) -> None:
    """By another program, from the same tokenizer and chat template."""
    answers = answered.result.answers

    assert [answer.error for answer in answers] == [None] * len(QUESTIONS)
    assert [answer.prompt_tokens for answer in answers] == [own.prompt_tokens for own in measured.answers]


def test_nothing_of_the_engine_is_left(world: World, answered: Ended) -> None:
    """Its workers hold the memory that the candidate will need."""
    left = [p.pid for p in psutil.process_iter(["cwd"]) if str(world.folder) in str(p.info["cwd"] or "")]

    assert answered.code == EXIT_DONE
    assert left == []


def test_an_engine_that_does_not_start_is_a_finding_in_its_own_words(
    world: World, model: Path, measured: Reference
) -> None:
    longer = ENGINE.model_copy(update={"max_model_len": 4096})
    ended = world.run(world.publish(model), "answers", engine=longer, result_uri="s3://headway/quality/longer.json")

    [finding] = ended.result.findings
    assert finding.startswith("the engine does not start: ")
    assert "max_model_len" in finding
    assert ended.result.served is None


def test_without_an_artifact_it_fails_and_says_who_makes_it(world: World) -> None:
    ended = world.run("f" * 64)

    assert ended.code == EXIT_FAILED
    assert "let quantize make it" in ended.raw["error"]
