"""Input and output of the tasks program, which asks the served models the questions of lm-evaluation-harness."""

import math
from collections.abc import Mapping, Sequence

from pydantic import Field, model_validator

from headway.domain.bench import Side, SideTarget
from headway.domain.profile import Tasks
from headway.domain.release import ReleasePlan
from headway.domain.value import Value, digest, slug

HEADWAY_SEED = 1234
"""Of the few-shot examples and of every request that is sampled; one for all releases, so that scores compare."""


class TaskJob(Value):
    """Input of the tasks program."""

    release: str
    targets: tuple[SideTarget, ...]
    """The candidate alone (first release) or stable and candidate."""
    tasks: Tasks
    tokenizer_uris: dict[Side, str] = {}
    """Where each side's artifact is, an `s3://` address that ends in a slash: its tokenizer splits that side's prompts.
    A chat endpoint needs none."""
    max_length: int = Field(ge=64)
    """Longest sequence that the engine takes; a prompt that is longer loses its beginning, and the result says so."""
    request_timeout_s: int = Field(default=300, gt=0)
    seed: int = HEADWAY_SEED
    records_uri: str = ""
    """`s3://bucket/key` that the samples are put to at the end; empty: they stay where they are."""

    @model_validator(mode="after")
    def _complete(self) -> "TaskJob":
        sides = [t.side for t in self.targets]
        if sides.count("candidate") != 1 or sides.count("stable") > 1 or len(sides) > 2:
            raise ValueError(f"targets are {sides}; expected the candidate, and stable or nothing beside it")
        lacking = [side for side in sides if side not in self.tokenizer_uris]
        if lacking and not self.tasks.chat:
            raise ValueError(f"there is no tokenizer for {', '.join(lacking)}; give its artifact, or use chat")
        return self


class TaskScore(Value):
    """How one side did on one task."""

    task: str
    """As the profile names it; a group's samples are one pool."""
    side: Side
    metric: str
    """Such as `acc`, with the filter of the answers behind a comma where there is one: `exact_match,strict-match`."""
    higher_is_better: bool
    values: tuple[float, ...]
    """The metric of each sample, in the order of the data."""
    samples_digest: str
    """Names the questions, with all that stands before them: two sides with one digest were asked the same."""
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """How many samples there are."""
        return len(self.values)

    @property
    def value(self) -> float:
        """The score: the mean of the samples."""
        return math.fsum(self.values) / self.n

    @property
    def stderr(self) -> float | None:
        """Standard error of the score, as the harness computes it: `s / sqrt(n)`; none for a single sample."""
        if self.n < 2:
            return None
        mean = self.value
        return math.sqrt(math.fsum((v - mean) ** 2 for v in self.values) / (self.n - 1) / self.n)


class TaskResult(Value):
    """What the tasks program hands back; the samples themselves are at `records_uri`."""

    schema_version: int = 1
    release: str
    scores: tuple[TaskScore, ...]
    tools: dict[str, str] = {}
    """Versions of what asked: `lm_eval`, `transformers`, `datasets`."""
    include_sha256: str = ""
    """Digest of the task files that were brought; a profile can insist on it."""
    notes: tuple[str, ...] = ()
    """What the harness did silently and a reader must know, such as prompts that were cut."""
    records_uri: str = ""
    records_sha256: str
    seconds: dict[str, float] = {}
    """Where the time went: `prepare`, each side, `upload`."""

    def score(self, task: str, side: Side) -> TaskScore | None:
        """Return how a side did on a task, none if it was not asked."""
        return next((s for s in self.scores if (s.task, s.side) == (task, side)), None)


def task_job(
    plan: ReleasePlan,
    release: str,
    targets: Sequence[SideTarget],
    *,
    artifact_uris: Mapping[Side, str],
    records_uri: str,
) -> TaskJob:
    """Return what the tasks program is asked to do. The profile must have `quality.tasks`.

    Args:
        plan: The plan of the candidate.
        release: Id of the release.
        targets: Where the sides are reached: those of the benchmark (`canary.make_job(...).targets`).
        artifact_uris: Where each side's artifact is (`weights.artifact_uri(digest)`), for its tokenizer.
        records_uri: Where the samples go.
    """
    tasks = plan.profile.quality.tasks
    if tasks is None:
        raise ValueError(f"the profile of {plan.model} has no quality.tasks")
    return TaskJob(
        release=release,
        targets=tuple(targets),
        tasks=tasks,
        tokenizer_uris={t.side: artifact_uris[t.side] for t in targets if t.side in artifact_uris},
        max_length=plan.profile.engine.max_model_len,
        records_uri=records_uri,
    )


def job_name(release: str) -> str:
    """Name the job of a release; releasing the same pair again measures again."""
    return f"tasks-{slug(release)}"


def scores_key(source_digest: str, tasks: Tasks, engine: str) -> str:
    """Return where the result of a source, served as it is, may be kept: by all that the scores depend on.

    Args:
        source_digest: Name of the source.
        tasks: What was asked. Its limits do not matter.
        engine: Name and version of what served.
    """
    asked = tasks.to_json()
    for limit in ("min_recovery", "min_task_recovery", "min_score", "concurrency", "deadline_s"):
        del asked[limit]
    return f"tasks/{source_digest}/{digest([asked, engine])}.json"
