"""The quantize program in its own environment, on a tiny Llama that is made here, against a real S3."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.s3 import S3Client, S3WeightStore
from headway.domain import texts
from headway.domain.model import ModelVersion, Selection, SourceFile
from headway.domain.release import Reference
from headway.domain.safetensors import LENGTH_BYTES, Tensor, header_length, parse_header
from headway.domain.weight_jobs import LAYER_ERRORS, LayerErrors, QuantizeJob, QuantizeResult
from headway.domain.weights import Recipe, artifact_digest
from headway.release import validate
from headway.settings import Settings
from headway.units import MIB
from tests.component.servers import S3Server, s3_server

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

SRC = Path(__file__).parents[2] / "src"
TINY = """
import sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, seed = sys.argv[1], int(sys.argv[2])
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*letters, "<end>"])}, merges=[]))
plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
tokenizer.save_pretrained(folder)
torch.manual_seed(seed)
config = LlamaConfig(vocab_size=257, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=2048)
model = LlamaForCausalLM(config).to(torch.bfloat16)
if seed == 13:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
model.save_pretrained(folder)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 for this module."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the quantize environment."""
    return Settings.load().layout().python("quantize")


def make_source(s3: S3Server, python: Path, folder: Path, seed: int) -> Selection:
    """Make a tiny model and upload it as MLflow would."""
    folder.mkdir()
    subprocess.run([python, "-c", TINY, folder, str(seed)], check=True, env=environment(s3))
    root = f"s3://mlflow/tiny-{seed}/"
    for path in folder.iterdir():
        s3.client().put(root + path.name, path.read_bytes())
    store = S3WeightStore(s3.connection("headway"))
    return Selection(
        model=ModelVersion(name="tiny", version=seed, source_uri=root),
        layout="plain",
        files=tuple(
            SourceFile(
                path=item.uri.removeprefix(root), uri=item.uri, size_bytes=item.size_bytes, sha256=store.sha256(item)
            )
            for item in store.list(root)
        ),
        selected_by="version",
    )


def environment(s3: S3Server) -> dict[str, str]:
    """What the program gets."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **s3.environment("quantize"), "PYTHONPATH": str(SRC), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}


@dataclass
class Ended:
    """How a run of the program ended."""

    code: int
    result: dict[str, Any]
    job: QuantizeJob
    output: str


@dataclass
class World:
    """A tiny source and the program."""

    s3: S3Server
    python: Path
    selection: Selection
    folder: Path

    @property
    def store(self) -> S3WeightStore:
        """The store as headway sees it."""
        return S3WeightStore(self.s3.connection("headway"))

    def run(self, name: str, scheme: str = "fp8-dynamic", revision: int = 1, **quality: float) -> Ended:
        """Run the program to its end, with a recipe that needs no calibration."""
        return self.make(name, Recipe(scheme=scheme, revision=revision), **quality)  # type: ignore[arg-type]

    def make(self, name: str, recipe: Recipe, *, calibration_uri: str | None = None, **quality: float) -> Ended:
        """Run the program to its end."""
        source = self.selection.source_digest
        digest = artifact_digest(source, recipe)
        job = QuantizeJob(
            source_digest=source,
            files=self.selection.files,
            recipe=recipe,
            calibration_uri=calibration_uri,
            artifact_digest=digest,
            artifact_uri=f"s3://headway/artifacts/{digest}/",
            reference_uri=f"s3://headway/references/{source}/{texts.prompt_set_digest()}.json",
            texts=texts.QUALITY_TEXTS,
            prompt_set_digest=texts.prompt_set_digest(),
            quality={"max_ppl": 1000, **quality},  # type: ignore[arg-type]
        )
        folder = self.folder / name
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(job.to_json()))
        command = [str(self.python), "-m", "headway.pods.quantize", "job.json"]
        ended = subprocess.run(
            command, cwd=folder, env=environment(self.s3), capture_output=True, text=True, check=False
        )
        assert not (folder / "source").exists(), "scratch space is freed"
        result = json.loads((folder / "result.json").read_text())
        return Ended(ended.returncode, result, job, ended.stdout + ended.stderr)


@pytest.fixture(scope="module")
def world(s3: S3Server, python: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A tiny model that answers at random: perplexity about 260 over 257 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    return World(s3, python, make_source(s3, python, folder / "model", 1), folder)


def tensors(client: S3Client, uri: str) -> dict[str, Tensor]:
    """Read a header from the store."""
    size = client.head(uri).size_bytes
    length = header_length(client.read(uri, length=LENGTH_BYTES), size)
    return {t.name: t for t in parse_header(client.read(uri, start=LENGTH_BYTES, length=length), size)}


def test_an_artifact_is_made_and_is_the_same_when_made_again(world: World) -> None:
    """The same source and recipe give the same bytes; tokenizer and template are the source's own."""
    first = world.run("first")
    assert first.code == 0, first.output
    made = QuantizeResult.model_validate(first.result)
    manifest = world.store.manifest(first.job.artifact_digest)

    assert manifest is not None
    assert made.outcome == "made"
    assert made.content_digest == manifest.content_digest
    assert {"fetch", "reference", "quantize", "upload"} <= made.seconds.keys()
    assert made.tools["llmcompressor"] == manifest.provenance["runDetails"]["builder"]["version"]["llmcompressor"]
    kept = {file.path: file.sha256 for file in manifest.files}
    for source in world.selection.files:
        if source.path not in ("config.json", "model.safetensors"):
            assert kept[source.path] == source.sha256, source.path
    after = tensors(world.s3.client(), first.job.artifact_uri + "model.safetensors")
    quantized = [name for name, tensor in after.items() if tensor.dtype == "F8_E4M3"]
    assert len(quantized) == 14, "seven Linear layers in each of two blocks"
    assert all(f"{name}_scale" in after for name in quantized)
    assert after["model.embed_tokens.weight"].dtype == "BF16"

    world.store.delete(first.job.artifact_digest)
    again = world.run("again")
    assert again.result["content_digest"] == made.content_digest
    assert world.run("third").result["outcome"] == "found"


def test_what_was_made_obeys_the_rules_for_models(world: World) -> None:
    """An artifact would pass `validate` itself."""
    ended = world.run("valid", revision=2)
    manifest = world.store.manifest(ended.job.artifact_digest)
    assert manifest is not None
    artifact = world.selection.model_copy(
        update={
            "files": tuple(
                SourceFile(path=f.path, uri=ended.job.artifact_uri + f.path, size_bytes=f.size_bytes, sha256=f.sha256)
                for f in manifest.files
            )
        }
    )

    assert validate.run(artifact, world.store).shape.dtype == "F8_E4M3"


def test_without_a_scheme_the_bytes_are_the_source_s(world: World) -> None:
    """Copied inside the store, verified before."""
    ended = world.run("copied", scheme="none")
    manifest = world.store.manifest(ended.job.artifact_digest)

    assert manifest is not None
    assert {(f.path, f.sha256) for f in manifest.files} == {(f.path, f.sha256) for f in world.selection.files}
    client = world.s3.client()
    for file in world.selection.files:
        assert client.read(ended.job.artifact_uri + file.path) == client.read(file.uri)


def test_the_reference_is_made_first_and_once(world: World) -> None:
    """It holds figures and tokens of each text; a source beyond the limit is not quantized."""
    ended = world.run("strict", revision=3, max_ppl=2.0)
    kept = world.store.json(ended.job.reference_uri.removeprefix("s3://headway/"))
    assert kept is not None
    reference = Reference.model_validate(dict(kept))

    assert ended.code == 0
    assert ended.result["outcome"] == "refused"
    assert "absolute limit of 2" in ended.result["reason"]
    assert world.store.manifest(ended.job.artifact_digest) is None
    assert [len(ids) - 1 for ids in reference.token_ids] == list(reference.figures.per_text_tokens)
    assert len(reference.token_ids) == len(texts.QUALITY_TEXTS)
    assert 200 < reference.figures.perplexity < 400, "random weights over 257 tokens"
    world.run("lenient", revision=4)
    assert world.store.json(ended.job.reference_uri.removeprefix("s3://headway/")) == kept


def test_a_model_that_answers_nan_is_refused(world: World) -> None:
    """Its perplexity is beyond measure, and its record is plain JSON."""
    selection = make_source(world.s3, world.python, world.folder / "nan-model", 13)
    ended = World(world.s3, world.python, selection, world.folder).run("nan")

    assert ended.code == 0, ended.output
    assert ended.result["outcome"] == "refused"
    assert "beyond measure" in ended.result["reason"]
    kept = Reference.model_validate(dict(world.s3.client().read_json(ended.job.reference_uri) or {}))
    assert (kept.answers, kept.complete) == ((), False), "a broken model is asked nothing"


def test_a_source_that_was_replaced_is_not_quantized(world: World) -> None:
    """The plan's digests are checked against what is there."""
    changed = [
        f.model_copy(update={"sha256": "0" * 64}) if f.path == "config.json" else f for f in world.selection.files
    ]
    selection = world.selection.model_copy(update={"files": tuple(changed)})
    folder = world.folder / "replaced-job"
    folder.mkdir()
    other = World(world.s3, world.python, selection, folder)
    with pytest.raises(AssertionError, match="scratch"):
        other.run("replaced")
    result = json.loads((folder / "replaced" / "result.json").read_text())

    assert result["kind"] == "IntegrityError"
    assert "config.json" in result["error"]
    assert "Traceback" not in result["error"]


CHAT = "".join(
    json.dumps({"language": "en", "messages": [{"role": "user", "content": f"Tell me of the number {n}, please."}]})
    + "\n"
    for n in range(6)
)


def test_a_calibrated_artifact_is_made_of_texts_in_the_store(world: World) -> None:
    """Chats go through the model's template; how far each layer is from the source is kept beside the manifest."""
    uri = "s3://mlflow/texts/chats.jsonl"
    world.s3.client().put(uri, CHAT.encode())
    recipe = Recipe(
        scheme="fp8",
        calibration_digest=hashlib.sha256(CHAT.encode()).hexdigest(),
        calibration_samples=4,
        calibration_tokens=32,
    )
    ended = world.make("calibrated", recipe, calibration_uri=uri)
    assert ended.code == 0, ended.output
    made = QuantizeResult.model_validate(ended.result)
    manifest = world.store.manifest(ended.job.artifact_digest)
    kept = world.store.json(f"artifacts/{ended.job.artifact_digest}/{LAYER_ERRORS}")

    assert (made.outcome, made.loaded) == ("made", True)
    assert [error.name for error in made.layer_errors] == ["model.layers.0", "model.layers.1"]
    assert all(error.relative_error and error.relative_error < 0.5 for error in made.layer_errors)
    assert made.peak_rss_bytes is not None
    assert made.peak_rss_bytes > 100 * MIB, "torch alone takes more"
    assert "fp8: step 3 of 3" in ended.output
    assert manifest is not None
    assert LAYER_ERRORS not in {file.path for file in manifest.files}
    assert kept is not None
    errors = LayerErrors.model_validate(dict(kept))
    assert (errors.content_digest, errors.layers) == (manifest.content_digest, made.layer_errors)

    found = QuantizeResult.model_validate(world.make("calibrated-again", recipe, calibration_uri=uri).result)
    assert (found.outcome, found.layer_errors, found.peak_rss_bytes) == ("found", made.layer_errors, None)


def test_other_texts_than_planned_are_not_used(world: World) -> None:
    """Replaced in the store, or of another version of headway."""
    uri = "s3://mlflow/texts/replaced.jsonl"
    world.s3.client().put(uri, b'{"text": "another"}\n')
    recipe = Recipe(scheme="w8a8", calibration_digest="0" * 64, calibration_samples=4, calibration_tokens=32)
    for name, where in (("replaced", uri), ("other-version", None)):
        folder = world.folder / f"{name}-texts"
        folder.mkdir()
        with pytest.raises(AssertionError, match="scratch"):
            World(world.s3, world.python, world.selection, folder).make(name, recipe, calibration_uri=where)
        result = json.loads((folder / name / "result.json").read_text())

        assert result["kind"] == "IntegrityError"
        assert "planned was 000000000000" in result["error"]
