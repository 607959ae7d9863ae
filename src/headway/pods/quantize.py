"""The quantize program: `python -m headway.pods.quantize job.json`.

Measures the source on the fixed texts and stores that first; stops there if the source is not worth more. Then makes
the artifact by its recipe, and publishes it; beside it goes how far each layer is from the source. Runs in the quantize
environment. The same input gives the same bytes on one kind of machine: sums of floating point depend on the processor
and on the number of threads.
"""

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from headway.adapters.s3.client import S3Client
from headway.domain import calibration as texts
from headway.domain.release import Reference
from headway.domain.value import canonical_json
from headway.domain.weight_jobs import LAYER_ERRORS, LayerError, LayerErrors, QuantizeJob, QuantizeResult
from headway.domain.weights import WeightFile, read_manifest
from headway.judge.source import refusal, source_checks
from headway.pods import attest, calibration, memory, publish, reference
from headway.pods.compress import Compressed, compress
from headway.pods.fetch import Fetcher, Item
from headway.pods.io import Progress, part_of, run_program, timed
from headway.pods.stage import connection_of

TOOLS = ("torch", "transformers", "llmcompressor", "compressed-tensors", "safetensors")
"""Their versions go into the manifest."""


def run(job: QuantizeJob, client: S3Client, folder: Path, progress: Progress) -> QuantizeResult:
    """Make the reference and the artifact, or find them.

    Args:
        job: What to make.
        client: The store, as a role that may read sources and write headway's bucket.
        folder: Scratch space; a retried program finds there what was downloaded.
        progress: Told how far it is.

    Raises:
        ConfigError: This version cannot build the recipe.
        IntegrityError: The source or the calibration texts changed, or the result is broken.
        ModelRejected: transformers cannot load the source.
    """
    seconds: dict[str, float] = {}
    source_dir, target_dir = folder / "source", folder / "artifact"
    items = [Item(file.path, file.uri, file.size_bytes, file.sha256) for file in job.files]
    with timed(seconds, "fetch"):
        fetcher = Fetcher(client, source_dir, folder / "source.journal")
        fetched = fetcher.fetch(items, part_of(progress, 0, 20))
    with timed(seconds, "reference"):
        measured = _reference(job, client, source_dir, part_of(progress, 20, 60))
    result = QuantizeResult(
        outcome="refused",
        artifact_digest=job.artifact_digest,
        source_bytes=sum(file.size_bytes for file in job.files),
        tools={name: importlib.metadata.version(name) for name in TOOLS},
    )
    why = refusal(source_checks(measured.figures, job.stable, job.quality))
    if why is not None:
        progress(100, "the source is beyond the limits; nothing was made")
        _clean(folder)
        return result.model_copy(update={"reason": why, "seconds": seconds})
    kept = client.read_json(job.artifact_uri + "manifest.json")
    compressed, peak = None, None
    if kept is not None:
        manifest, outcome = read_manifest(kept, job.artifact_uri + "manifest.json"), "found"
    else:
        outcome = "made"
        if job.recipe.keeps_bytes:
            with timed(seconds, "copy"):
                files = tuple(
                    WeightFile(path=i.path, size_bytes=i.size_bytes, sha256=i.sha256, parts=fetched.parts[i.path])
                    for i in sorted(items)
                )
                publish.copy(client, job.files, fetcher.etags, job.artifact_uri, part_of(progress, 60, 95))
        else:
            # Together with torch that is what quantizing takes, not the float32 model of the reference.
            memory.reset_peak()
            with timed(seconds, "quantize"):
                compressed = _compress(job, client, source_dir, target_dir, part_of(progress, 60, 85))
                files = publish.list_files(target_dir)
            peak = memory.peak_rss_bytes()
            with timed(seconds, "upload"):
                publish.upload(client, target_dir, files, job.artifact_uri, part_of(progress, 85, 98))
        manifest = publish.publish(client, attest.manifest_of(job, files, result.tools, os.environ), job.artifact_uri)
    if compressed is not None:
        found = LayerErrors(
            artifact_digest=job.artifact_digest,
            content_digest=manifest.content_digest,
            layers=compressed.layer_errors,
            peak_rss_bytes=peak,
            seconds=seconds,
        )
        # No file of the artifact: a measurement is not the same on every machine, and no node needs it.
        client.keep(job.artifact_uri + LAYER_ERRORS, canonical_json(found))
    progress(100, "the artifact is there")
    _clean(folder)
    return result.model_copy(
        update={
            "outcome": outcome,
            "content_digest": manifest.content_digest,
            "artifact_bytes": manifest.size_bytes,
            "seconds": seconds,
            "layer_errors": _layer_errors(job, client),
            "peak_rss_bytes": peak,
            "loaded": compressed.loaded if compressed else None,
        }
    )


def _reference(job: QuantizeJob, client: S3Client, source_dir: Path, progress: Progress) -> Reference:
    """Return the stored reference, or make and store it: once per source and set of texts."""
    return reference.ensure(client, job, source_dir, progress)


def _compress(job: QuantizeJob, client: S3Client, source_dir: Path, target_dir: Path, progress: Progress) -> Compressed:
    # A scheme that needs no texts is still compared with its source on some.
    rows = calibration.fetch(client, job.calibration_uri, job.recipe) or texts.rows(texts.bundled())
    shutil.rmtree(target_dir, ignore_errors=True)
    target_dir.mkdir()
    return compress(source_dir, target_dir, job.recipe, rows, progress=progress)


def _layer_errors(job: QuantizeJob, client: S3Client) -> tuple[LayerError, ...]:
    """Return what the run that made the artifact kept of its layers."""
    known = client.read_json(job.artifact_uri + LAYER_ERRORS)
    return LayerErrors.model_validate(dict(known)).layers if known is not None else ()


def _clean(folder: Path) -> None:
    """Free the scratch space; the store has what counts."""
    shutil.rmtree(folder / "source", ignore_errors=True)
    shutil.rmtree(folder / "artifact", ignore_errors=True)
    (folder / "source.journal").unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""

    def work(job: QuantizeJob, progress: Progress) -> QuantizeResult:
        return run(job, S3Client(connection_of(os.environ)), Path.cwd(), progress)

    return run_program(arguments, QuantizeJob, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
