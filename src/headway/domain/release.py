"""What the steps of a release hand to each other."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Literal

from headway.domain.cluster import ClusterSpec
from headway.domain.model import ModelShape, Selection
from headway.domain.profile import Profile
from headway.domain.value import Value, digest
from headway.domain.weights import Recipe

Decision = Literal["PROMOTE", "ROLLBACK", "HOLD"]
Outcome = Literal["promoted", "rolled_back", "rejected", "held", "failed"]
"""How a release ended. `failed` may be tried again by itself; the others only by a person (design rule 13.2)."""

FINAL_OUTCOMES: frozenset[str] = frozenset({"promoted", "rolled_back", "rejected", "held"})


class Validated(Value):
    """The answer of `validate`: the files obey the rules."""

    shape: ModelShape
    checks: tuple[str, ...]
    """Each rule that was checked, in words, for the report."""
    chat_template_sha256: str | None = None


class MemoryBudget(Value):
    """Bytes of one accelerator of one replica, by use."""

    weights_bytes: int
    kv_cache_bytes: int
    overhead_bytes: int
    available_bytes: int
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0
    """Tokens that the cache holds when everything else is loaded; over `max_model_len` it is the number of
    full-length sequences that run at once."""

    @property
    def needed_bytes(self) -> int:
        """Sum of the uses."""
        return self.weights_bytes + self.kv_cache_bytes + self.overhead_bytes


class ReleasePlan(Value):
    """Everything resolved. Made once, never edited; its digests name all that is made from it."""

    schema_version: int = 1
    profile: Profile
    selection: Selection
    validated: Validated
    recipe: Recipe
    artifact_digest: str
    cluster_digest: str
    serving_image: str
    memory: MemoryBudget
    cluster: ClusterSpec

    @property
    def plan_digest(self) -> str:
        """Name the plan."""
        return digest(self)

    @property
    def model(self) -> str:
        """The served name."""
        return self.profile.model


class ReleaseRef(Value):
    """All that travels between Airflow's tasks: a name to look up, nothing that can grow old."""

    release: str
    """Id of the release; the folder of its records."""
    model: str
    version: int
    source_digest: str


class QualityFigures(Value):
    """Perplexity of one model on the fixed texts, by text."""

    prompt_set_digest: str
    engine: str
    """What computed it, e.g. `transformers 5.17.0` or `vllm 0.29.0`."""
    tokens: int
    nll: float
    """Sum of negative log-likelihoods in nats over `tokens` scored tokens."""
    per_text_nll: tuple[float, ...]
    per_text_tokens: tuple[int, ...]

    @property
    def perplexity(self) -> float:
        """`exp(nll / tokens)`; infinite when nothing finite was scored."""
        import math

        ratio = self.nll / self.tokens if self.tokens else math.inf
        return math.exp(ratio) if ratio < 700 else math.inf


class Reference(Value):
    """Figures of a source, made once per source digest and set of texts, and stored (design rule 13.6)."""

    schema_version: int = 1
    source_digest: str
    figures: QualityFigures
    token_ids: tuple[tuple[int, ...], ...]
    """The texts as this model's tokenizer splits them, so that the served model is asked about the same tokens."""


class Check(Value):
    """One comparison with its limit, as the report shows it."""

    name: str
    measured: float | None
    limit: float | None
    passed: bool
    sentence: str


class MetricEffect(Value):
    """One latency or error metric, candidate against stable."""

    metric: str
    """Such as `ttft_p50`."""
    stable: float | None
    candidate: float | None
    unit: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    difference: float | None = None
    """Candidate minus stable in `unit`, for metrics that are compared by difference (error rate)."""
    difference_low: float | None = None
    difference_high: float | None = None
    margin: float | None = None
    """Share (0.5 is 50 %) for ratios, in `unit` for differences and absolute limits."""
    verdict: Literal["pass", "fail", "undecided"] = "undecided"


class Verdict(Value):
    """The decision with its reasons."""

    decision: Decision
    sentence: str
    """The whole in one sentence, for a person."""
    reasons: tuple[str, ...]
    blocks_used: int = 0
    effects: tuple[MetricEffect, ...] = ()
    checks: tuple[Check, ...] = ()
    paired: bool = True
    """Whether there was a stable side; a first release is held to absolute limits."""
    records_uri: str = ""
    """Where the requests' records are, from which the decision can be replayed."""
    records_sha256: str = ""


class StepRecord(Value):
    """What one step did: appended to the ledger once and never edited."""

    schema_version: int = 1
    release: str
    step: str
    started_at: str
    ended_at: str
    outcome: str
    """`done`, or the name of the error."""
    detail: dict[str, Any] = {}


def record_key(model_slug: str, release: str, step: str) -> str:
    """Return the ledger key of a step's record."""
    return f"releases/{model_slug}/{release}/{step}.json"


def release_id(run_id: str, run_after: datetime, again: int = 0) -> str:
    """Name a release after the run that makes it: its moment, so that names sort, and a mark, so that two never meet.

    Args:
        run_id: Id of the DAG run.
        run_after: When the run was due.
        again: How often the whole run was cleared; each time is another release, and what was recorded stays.
    """
    mark = hashlib.sha256(f"{run_id}#{again}".encode()).hexdigest()[:6]
    return f"{run_after.astimezone(UTC):%Y%m%d-%H%M%S}-{mark}"
