"""Pod programs, played: when a job is submitted, the world changes as if the real program had run and ended."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.domain import texts
from headway.domain.bench import BenchJob, BenchResult, CanaryAnswer
from headway.domain.job import Job, JobStatus
from headway.domain.quality_jobs import QualityJob, QualityResult
from headway.domain.release import QualityFigures, Reference
from headway.domain.weight_jobs import QuantizeJob, QuantizeResult, StageJob, StageResult
from headway.domain.weights import Manifest, WeightFile
from headway.judge import records
from headway.judge.source import refusal, source_checks
from tests.fakes import FakeJobs, FakeWeightStore
from tests.unit.judge.data import make_run

Play = Callable[[Job], JobStatus]


@dataclass
class PlayedJobs(FakeJobs):
    """Jobs that end at once with what `plays` says for their program."""

    plays: dict[str, Play] = field(default_factory=dict)

    def submit(self, job: Job) -> JobStatus:
        """Run the job by playing it."""
        known = self.status(job.name)
        if known.phase in ("running", "succeeded") or job.program not in self.plays:
            return super().submit(job)
        self.jobs[job.name] = job
        self.starts.append(job.name)
        self.statuses[job.name] = self.plays[job.program](job)
        return self.statuses[job.name]


def done(job: Job, result: dict[str, Any]) -> JobStatus:
    """End a job well."""
    return JobStatus(name=job.name, phase="succeeded", result=result)


def quantize(weights: FakeWeightStore, *, perplexity: Mapping[str, float] | None = None) -> Play:
    """Play the quantization: reference first, then, if the source is good enough, the artifact.

    Args:
        weights: Where both go.
        perplexity: Of a source, by its digest; 12 for all others.
    """

    def play(job: Job) -> JobStatus:
        asked = QuantizeJob.model_validate(job.payload)
        nll = 100 * math.log((perplexity or {}).get(asked.source_digest, 12.0))
        figures = QualityFigures(
            prompt_set_digest=asked.prompt_set_digest,
            engine="played",
            tokens=100,
            nll=nll,
            per_text_nll=(nll,),
            per_text_tokens=(100,),
        )
        reference = Reference(
            source_digest=asked.source_digest, figures=figures, token_ids=((1, 2),), top_sha256="0" * 64
        )
        weights.documents[asked.reference_uri.removeprefix("s3://headway/")] = reference.to_json()
        result = QuantizeResult(outcome="made", artifact_digest=asked.artifact_digest, source_bytes=10)
        if refusal(source_checks(figures, asked.stable, asked.quality)):
            return done(job, result.model_copy(update={"outcome": "refused", "reason": "bad"}).to_json())
        file = WeightFile(path="model.safetensors", size_bytes=5, sha256="5" * 64, parts=("5" * 64,))
        weights.manifests[asked.artifact_digest] = Manifest(artifact_digest=asked.artifact_digest, files=(file,))
        return done(job, result.to_json())

    return play


def quality(weights: FakeWeightStore, *findings: str, ratios: Mapping[str, float] | None = None) -> Play:
    """Play the serving environment.

    Args:
        weights: Where the result goes.
        findings: Why it refuses every artifact; none: it accepts.
        ratios: Perplexity as served over the source's, by scheme, where it is asked for answers; 1.01 for all others.
    """

    def play(job: Job) -> JobStatus:
        asked = QualityJob.model_validate(job.payload)
        nll = 100 * math.log(12.0 * (ratios or {}).get(asked.scheme, 1.01))
        figures = QualityFigures(
            prompt_set_digest=texts.prompt_set_digest(),
            engine="played",
            tokens=100,
            nll=nll,
            per_text_nll=(nll,),
            per_text_tokens=(100,),
        )
        answer = CanaryAnswer(side="candidate", prompt="Hello?", text="Hello, how can I help?", finish_reason="stop")
        result = QualityResult(
            depth=asked.depth,
            artifact_digest=asked.artifact_digest,
            scheme=asked.scheme,
            artifact_bytes=5,
            findings=findings,
            served=figures if asked.depth == "answers" else None,
            answers=(answer,) if asked.depth == "answers" else (),
        )
        weights.documents[asked.result_uri.removeprefix("s3://headway/")] = result.to_json()
        return done(job, result.to_json())

    return play


def stage(job: Job) -> JobStatus:
    """Play the staging."""
    asked = StageJob.model_validate(job.payload)
    path = f"{asked.dest_root}/{asked.artifact_digest}"
    result = StageResult(outcome="staged", path=path, artifact_digest=asked.artifact_digest, size_bytes=5, seconds=1.0)
    return done(job, result.to_json())


def bench(weights: FakeWeightStore, *, slower: float = 1.0) -> Play:
    """Play the benchmark of a candidate whose latencies are `slower` times stable's."""

    def play(job: Job) -> JobStatus:
        asked = BenchJob.model_validate(job.payload)
        requests, blocks = make_run(asked.canary, slower=slower, paired=asked.paired)
        release = {target.side: target.release for target in asked.targets}
        lines = [records.header_line("job")]
        for block in blocks:
            own = [r for r in requests if r.block == block.block]
            lines += [
                records.request_line(
                    r.model_copy(update={"release": release[r.side], "served_release": release[r.side]})
                )
                for r in own
            ]
            lines.append(records.block_line(block))
        content = "".join(line if line.endswith("\n") else line + "\n" for line in lines).encode()
        weights.objects[asked.records_uri] = content
        result = BenchResult(
            release=asked.release,
            paired=asked.paired,
            blocks=tuple(blocks),
            served=asked.reference,
            answers=tuple(
                CanaryAnswer(side=target.side, prompt="Hello?", text="Hello, how can I help?", finish_reason="stop")
                for target in asked.targets
            ),
            records_path=asked.records_path,
            records_uri=asked.records_uri,
            records_sha256=hashlib.sha256(content).hexdigest(),
        )
        return done(job, result.to_json())

    return play
