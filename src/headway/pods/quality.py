"""The quality program: `python -m headway.pods.quality job.json`.

Puts an artifact before the environment that would serve it, and runs in that environment. `accepts`: its own
validators, in seconds and without loading a weight. `answers`: also starts the real engine on the staged artifact and
measures what it answers, with the same questions as the benchmark. What is found is kept, so that it is asked once.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import aiohttp

from headway.adapters.s3.client import S3Client
from headway.domain.bench import CanaryAnswer, SideTarget
from headway.domain.quality_jobs import QualityJob, QualityResult
from headway.domain.release import QualityFigures
from headway.domain.safetensors import LENGTH_BYTES, HeaderError, header_length, parse_header
from headway.domain.value import canonical_json
from headway.domain.weight_jobs import StageJob
from headway.domain.weights import Manifest, read_manifest
from headway.errors import BackendError, NotFound
from headway.pods import accepts, bench_quality, reference, stage
from headway.pods.engine import EngineFailed, served
from headway.pods.io import Progress, part_of, run_program, timed
from headway.pods.stage import connection_of

ENGINE_LOG = "engine.log"
"""In the job's folder."""


def run(job: QualityJob, client: S3Client, folder: Path, progress: Progress) -> QualityResult:
    """Ask the serving environment, or find what it said before.

    Args:
        job: What to ask.
        client: The store, as a role that may read artifacts and write headway's bucket.
        folder: Where the engine's log goes.
        progress: Told how far it is.

    Raises:
        NotFound: There is no such artifact, or no reference.
        IntegrityError: The artifact or the reference is not what its digest names.
        DeadlineExceeded: The engine did not get healthy in time, which says nothing about the artifact.
        BackendUnavailable: The engine had no memory, or the store does not answer; try again.
    """
    known = client.read_json(job.result_uri)
    if known is not None:
        return QualityResult.model_validate(dict(known))
    seconds: dict[str, float] = {}
    manifest = _manifest(job, client)
    result = QualityResult(
        depth=job.depth,
        artifact_digest=job.artifact_digest,
        scheme=job.scheme,
        artifact_bytes=manifest.size_bytes,
        versions=accepts.versions(),
    )
    progress(2, "asking the serving environment's validators")
    with timed(seconds, "accepts"):
        findings = _accepts(job, client, manifest)
    if not findings and job.depth == "answers":
        result, findings = _answers(job, client, folder, result, seconds=seconds, progress=part_of(progress, 10, 98))
    result = result.model_copy(update={"findings": tuple(findings), "seconds": seconds})
    progress(100, "; ".join(findings) or "the serving environment takes it")
    return QualityResult.model_validate_json(client.keep(job.result_uri, canonical_json(result)))


def _manifest(job: QualityJob, client: S3Client) -> Manifest:
    uri = job.artifact_uri + "manifest.json"
    found = client.read_json(uri)
    if found is None:
        raise NotFound(f"there is no artifact at {job.artifact_uri}, or it is not whole; let quantize make it", uri=uri)
    return read_manifest(found, uri)


def _accepts(job: QualityJob, client: S3Client, manifest: Manifest) -> list[str]:
    config = client.read_json(job.artifact_uri + "config.json")
    if config is None:
        return ["the artifact has no config.json"]
    tensors: set[str] = set()
    for file in manifest.files:
        if not file.path.endswith(".safetensors"):
            continue
        uri = job.artifact_uri + file.path
        try:
            length = header_length(client.read(uri, length=LENGTH_BYTES), file.size_bytes)
            header = parse_header(client.read(uri, start=LENGTH_BYTES, length=length), file.size_bytes)
        except HeaderError as error:
            return [f"{file.path}: {error}"]
        tensors |= {tensor.name for tensor in header}
    return accepts.findings(config, tensors)


def _answers(
    job: QualityJob,
    client: S3Client,
    folder: Path,
    result: QualityResult,
    *,
    seconds: dict[str, float],
    progress: Progress,
) -> tuple[QualityResult, list[str]]:
    """Start the engine and measure; return the result with what was measured, and findings."""
    kept, top = reference.load(client, job.reference_uri)
    yardstick = bench_quality.of_reference(kept, top)
    with timed(seconds, "stage"):
        asked = StageJob(artifact_digest=job.artifact_digest, artifact_uri=job.artifact_uri, dest_root=job.dest_root)
        path = Path(stage.run(asked, lambda: client, part_of(progress, 0, 20)).path)
    progress(20, "starting the engine")
    started = time.monotonic()
    try:
        with served(
            path,
            job.served_model,
            job.engine,
            tensor_parallel=job.tensor_parallel,
            cpu=job.accelerator == "cpu",
            log=folder / ENGINE_LOG,
            start_s=job.start_s,
        ) as url:
            seconds["start"] = round(time.monotonic() - started, 2)
            progress(60, "asking the engine")
            with timed(seconds, "measure"):
                answers, figures, why = asyncio.run(_measure(job, url, yardstick, result.versions))
    except EngineFailed as error:
        return result, [f"the engine does not start: {error.message}"]
    noise = bench_quality.noise(client, job.noise_uri, job.scheme, figures)
    return result.model_copy(update={"served": figures, "answers": answers, "why_missing": why, "noise": noise}), []


async def _measure(
    job: QualityJob, url: str, yardstick: bench_quality.Yardstick, versions: dict[str, str]
) -> tuple[tuple[CanaryAnswer, ...], QualityFigures | None, str]:
    target = SideTarget(side="candidate", base_url=url, served_model=job.served_model, release="")
    async with aiohttp.ClientSession() as session:
        answers = await bench_quality.answers(session, [target], job.request_timeout_s)
        try:
            figures = await bench_quality.served_figures(
                session,
                target,
                yardstick,
                engine=f"vllm {versions.get('vllm', '')}".strip(),
                timeout_s=job.request_timeout_s,
            )
        except BackendError as error:
            return answers, None, error.message
    return answers, figures, ""


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""

    def work(job: QualityJob, progress: Progress) -> QualityResult:
        return run(job, S3Client(connection_of(os.environ)), Path.cwd(), progress)

    return run_program(arguments, QualityJob, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
