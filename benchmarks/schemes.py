"""Every scheme on one small real model, and damaged copies: what each costs, what it answers, and the verdict.

`make bench-schemes` takes SmolLM2-135M-Instruct through the quantize program, and each result through the quality
program with the real engine, as a release with `weights.choose: race` does. The damaged copies are well-formed (that is
what they are for), and must be refused for what they answer or for what the engine does not find. Where the engine has
no kernel of its own on a CPU, headway's vLLM plugin computes the same values in float32.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.store import store
from headway.adapters.local.ray_head import engine_environment
from headway.adapters.s3 import S3Client, S3Connection
from headway.domain import texts
from headway.domain.calibration import bundled_digest
from headway.domain.model import SourceFile
from headway.domain.profile import Engine, Quality
from headway.domain.quality_jobs import QualityJob, QualityResult
from headway.domain.release import Reference
from headway.domain.safetensors import LENGTH_BYTES, header_length
from headway.domain.value import canonical_json, digest
from headway.domain.weight_jobs import QuantizeJob, QuantizeResult
from headway.domain.weights import CALIBRATED, GROUPED, Manifest, Recipe, Scheme, artifact_digest
from headway.judge.quality import answers_check, served_checks
from headway.pods import publish
from headway.settings import Settings

CHECKOUT = Path(__file__).parents[1]
BUCKET, SOURCE = "s3://headway/", "s3://headway/source/"
REFERENCE = BUCKET + "references/source.json"
NOISE = BUCKET + "references/noise.json"
MODEL = "smollm2-135m"
ENGINE = Engine(max_model_len=1024, max_num_seqs=8, kv_cache_gib=0.5, dtype="float32")
QUALITY = Quality()
SAMPLES, TOKENS = 24, 96
"""Calibration rows and tokens of a row: a tenth of the defaults, so that the whole takes less than an hour."""
GROUP = 64
"""SmolLM2's matrices have 576 inputs, which groups of 128 do not divide."""
LOSE_BYTES = (0.40, 0.65)
"""Stretch of the body that the zeroed copy loses."""


class Row(NamedTuple):
    """One line of the table."""

    name: str
    scheme: Scheme
    quantize_s: float | None
    peak_mib: float | None
    size_bytes: int
    result: QualityResult
    expected: bool | None
    """Whether it must be accepted; none: whatever the figures say."""


class Bench:
    """One run: a store, a source in it, and programs that work on it.

    Args:
        client: The store.
        folder: Scratch space.
        source: Plain Hugging Face directory.
    """

    def __init__(self, client: S3Client, folder: Path, source: Path) -> None:
        self.client = client
        self.folder = folder
        self.layout = Settings.load().layout()
        files = publish.list_files(source)
        publish.upload(client, source, files, SOURCE, quiet)
        self.files = tuple(
            SourceFile(path=f.path, uri=SOURCE + f.path, size_bytes=f.size_bytes, sha256=f.sha256) for f in files
        )
        self.source_digest = digest(sorted([f.path, f.size_bytes, f.sha256] for f in self.files))

    def scheme(self, name: str, recipe: Recipe, *, expected: bool | None = None) -> Row:
        """Quantize by a recipe, and put the result before the engine."""
        artifact = artifact_digest(self.source_digest, recipe)
        job = QuantizeJob(
            source_digest=self.source_digest,
            files=self.files,
            recipe=recipe,
            artifact_digest=artifact,
            artifact_uri=f"{BUCKET}artifacts/{artifact}/",
            reference_uri=REFERENCE,
            texts=texts.QUALITY_TEXTS,
            prompt_set_digest=texts.prompt_set_digest(),
            quality=QUALITY,
        )
        made = QuantizeResult.model_validate(self._program("quantize", "quantize", job.to_json()))
        size_bytes = made.artifact_bytes or 0
        seconds = made.seconds.get("quantize", made.seconds.get("copy"))
        peak_mib = made.peak_rss_bytes / 2**20 if made.peak_rss_bytes else None
        said = self._ask(artifact, recipe.scheme)
        return Row(name, recipe.scheme, seconds, peak_mib, size_bytes, said, expected)

    def damaged(self, name: str, recipe: Recipe, damage: Callable[[Path], None]) -> Row:
        """Damage a copy of an artifact, publish it as if it had been made so, and put it before the engine."""
        original = self._download(artifact_digest(self.source_digest, recipe))
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        damage(folder)
        return self.given(name, recipe.scheme, folder)

    def given(self, name: str, scheme: Scheme, folder: Path) -> Row:
        """Publish a directory as an artifact, and put it before the engine."""
        files = publish.list_files(folder)
        artifact = digest([name, [f.to_json() for f in files]])
        uri = f"{BUCKET}artifacts/{artifact}/"
        publish.upload(self.client, folder, files, uri, quiet)
        manifest = Manifest(artifact_digest=artifact, files=files)
        self.client.keep(uri + "manifest.json", canonical_json(manifest))
        return Row(name, scheme, None, None, manifest.size_bytes, self._ask(artifact, scheme), False)

    def reference(self) -> Reference:
        """Return the figures of the source."""
        return Reference.model_validate(dict(self.client.read_json(REFERENCE) or {}))

    def _ask(self, artifact: str, scheme: Scheme) -> QualityResult:
        job = QualityJob(
            depth="answers",
            artifact_digest=artifact,
            artifact_uri=f"{BUCKET}artifacts/{artifact}/",
            scheme=scheme,
            served_model=MODEL,
            engine=ENGINE,
            dest_root=str(self.folder / "node"),
            reference_uri=REFERENCE,
            noise_uri=NOISE,
            result_uri=f"{BUCKET}quality/{artifact}.json",
        )
        return QualityResult.model_validate(self._program("quality", "serve", job.to_json()))

    def _download(self, artifact: str) -> Path:
        folder = self.folder / "artifacts" / artifact
        if not folder.exists():
            folder.mkdir(parents=True)
            found = self.client.read_json(f"{BUCKET}artifacts/{artifact}/manifest.json") or {}
            for file in Manifest.model_validate(dict(found)).files:
                (folder / file.path).write_bytes(self.client.read(f"{BUCKET}artifacts/{artifact}/{file.path}"))
        return folder

    def _program(self, program: str, environment: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a pod program as a job does; return its result."""
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{program}-"))
        (folder / "job.json").write_text(json.dumps(payload))
        variables = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "HF_HUB_OFFLINE": "1"}
        if environment == "serve":
            variables |= engine_environment(self.layout)
        python = self.layout.python(environment)  # type: ignore[arg-type]
        with (folder / "log").open("wb") as log:
            code = subprocess.run(
                [python, "-m", f"headway.pods.{program}", "job.json"],
                cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        result: Mapping[str, Any] = json.loads((folder / "result.json").read_text())
        if code:
            raise SystemExit(f"{program} ended with code {code}: {result.get('error')}\n(log: {folder / 'log'})")
        return result


def quiet(_percent: float, _message: str) -> None:
    """Show no progress."""


def recipe_of(scheme: Scheme, *, kv: bool = False) -> Recipe:
    """Return the recipe that a plan makes of a scheme with headway's own calibration texts."""
    calibrated = scheme in CALIBRATED or kv
    return Recipe(
        scheme=scheme,
        calibration_digest=bundled_digest() if calibrated else None,
        calibration_samples=SAMPLES if calibrated else None,
        calibration_tokens=TOKENS if calibrated else None,
        group_size=GROUP if scheme in GROUPED else None,
        kv_cache_scales=kv,
    )


def zero(folder: Path) -> None:
    """Zero a quarter of the body of the weights."""
    path = next(folder.glob("*.safetensors"))
    size = path.stat().st_size
    with path.open("r+b") as file:
        start = LENGTH_BYTES + header_length(file.read(LENGTH_BYTES), size)
        first, last = (start + int((size - start) * share) for share in LOSE_BYTES)
        file.seek(first)
        file.write(bytes(last - first))


def without_layer(folder: Path) -> None:
    """Take the tensors of one layer out of the file."""
    path = next(folder.glob("*.safetensors"))
    size = path.stat().st_size
    with path.open("rb") as file:
        header = json.loads(file.read(header_length(file.read(LENGTH_BYTES), size)))
        start = file.tell()
        metadata = header.pop("__metadata__", None)
        kept, bodies, position = {}, [], 0
        for name, tensor in header.items():
            if ".layers.7." in name:
                continue
            first, last = tensor["data_offsets"]
            file.seek(start + first)
            bodies.append(file.read(last - first))
            kept[name] = {**tensor, "data_offsets": [position, position + last - first]}
            position += last - first
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **kept}).encode()
    path.write_bytes(len(text).to_bytes(LENGTH_BYTES, "little") + text + b"".join(bodies))


def wrong_tokenizer(folder: Path) -> None:
    """Shift the ids of all words of the tokenizer by one, as that of another model of the family would be."""
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    vocabulary = told["model"]["vocab"]
    special = {token["content"] for token in told.get("added_tokens", ())}
    words = [word for word in sorted(vocabulary, key=vocabulary.get) if word not in special]
    ids = [vocabulary[word] for word in words]
    told["model"]["vocab"] = {**vocabulary, **dict(zip(words, [*ids[1:], ids[0]], strict=True))}
    path.write_text(json.dumps(told, ensure_ascii=False))


RTN = """
import sys
from pathlib import Path
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers import AutoModelForCausalLM
from headway.pods.compress import copy_rest
source, target, group = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)
groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
oneshot(model=model, recipe=QuantizationModifier(config_groups=groups, ignore=["lm_head"]))
model.save_pretrained(target, save_compressed=True)
copy_rest(source, target)
"""
"""4 bit by rounding to the nearest, which no recipe of headway does: what careless quantizing gives."""


def schemes(bench: Bench, only: Sequence[str] | None) -> list[Row]:
    """Quantize with every scheme that this version builds."""
    wanted: tuple[tuple[str, Scheme, bool, bool | None], ...] = (
        ("none", "none", False, True),
        ("fp8-dynamic", "fp8-dynamic", False, True),
        ("fp8-dynamic, KV scales", "fp8-dynamic", True, None),
        ("fp8", "fp8", False, None),
        ("w8a8", "w8a8", False, True),
        ("w4a16-gptq", "w4a16-gptq", False, False),
        ("w4a16-awq", "w4a16-awq", False, False),
    )
    return [
        told(bench.scheme(name, recipe_of(scheme, kv=kv), expected=expected), bench)
        for name, scheme, kv, expected in wanted
        if not only or name in only
    ]


def damaged(bench: Bench, python: Path, source: Path) -> list[Row]:
    """Damage what was accepted, and quantize carelessly."""
    fp8, none = recipe_of("fp8-dynamic"), recipe_of("none")
    rows = [
        told(bench.damaged(name, recipe, damage), bench)
        for name, recipe, damage in (
            ("fp8-dynamic, 25 % zeroed", fp8, zero),
            ("fp8-dynamic, a layer removed", fp8, without_layer),
            ("fp8-dynamic, wrong tokenizer", fp8, wrong_tokenizer),
            ("none, a layer removed", none, without_layer),
        )
    ]
    careless = bench.folder / "rtn"
    careless.mkdir()
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "HF_HUB_OFFLINE": "1"}
    with (bench.folder / "rtn.log").open("wb") as log:
        subprocess.run(
            [python, "-c", RTN, source, careless, str(GROUP)], env=variables, stdout=log, stderr=log, check=True
        )
    return [*rows, told(bench.given("4 bit, rounded to nearest", "w4a16-gptq", careless), bench)]


def told(row: Row, bench: Bench) -> Row:
    """Say how a row came out, as soon as it is known; return it."""
    sys.stderr.write(f"| {' | '.join(_line(row, bench.reference()))} |\n")
    sys.stderr.flush()
    return row


def verdict(row: Row, reference: Reference) -> tuple[bool, list[str]]:
    """Put a row to the quality gate with its default limits, as a race does."""
    said = row.result
    if said.findings:
        return False, list(said.findings)
    checks = [
        *served_checks(
            said.served, reference.figures, QUALITY, row.scheme, why_missing=said.why_missing, noise=said.noise
        ),
        answers_check(said.answers, reference.answers),
    ]
    broken = [check.sentence for check in checks if not check.passed]
    return not broken, broken


def table(rows: Sequence[Row], reference: Reference) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        ("what", "quantize s", "peak MiB", "MB", "perplexity (ratio)", "KL nats", "first choice", "verdict", "because"),
        *[("---",) * 9],
        *[_line(row, reference) for row in rows],
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _line(row: Row, reference: Reference) -> tuple[str, ...]:
    accepted, why = verdict(row, reference)
    served = row.result.served
    ratio = f"{served.perplexity:.2f} ({served.perplexity / reference.figures.perplexity:.3f})" if served else "-"
    because = "; ".join(sentence.partition(", ")[0][:90] for sentence in why)
    return (
        row.name,
        "-" if row.quantize_s is None else f"{row.quantize_s:.0f}",
        "-" if row.peak_mib is None else f"{row.peak_mib:.0f}",
        f"{row.size_bytes / 1e6:.1f}",
        ratio,
        "-" if served is None or served.kl is None else f"{served.kl:.4f}",
        "-" if served is None or served.top1 is None else f"{served.top1:.1%}",
        "accepted" if accepted else "refused",
        because.replace("|", "/"),
    )


def main() -> int:
    """Run the comparison; return 1 if a row came out otherwise than it must."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of schemes; damaged copies are left out then")
    only = parser.parse_args().only
    scratch, began = Path(tempfile.mkdtemp(prefix="headway-schemes-")), time.monotonic()
    try:
        layout = Settings.load().layout()
        demo = layout.cache / "demo-model"
        subprocess.run([layout.python("quantize"), CHECKOUT / "local" / "demo_model.py", demo], check=True)
        with store(scratch / "s3") as endpoint:
            client = S3Client(S3Connection(endpoint=endpoint))
            client.api.create_bucket(Bucket="headway")
            bench = Bench(client, scratch, demo / "v1")
            rows = schemes(bench, only)
            rows += [] if only else damaged(bench, layout.python("quantize"), demo / "v1")
            reference = bench.reference()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(table(rows, reference))
    odd = [row.name for row in rows if row.expected not in (None, verdict(row, reference)[0])]
    sys.stdout.write(
        f"\n{len(rows)} rows in {time.monotonic() - began:.0f} s; otherwise than expected: {odd or 'none'}\n"
    )
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
