"""What the steps of a release hand to each other."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Literal

from headway.domain.cluster import ClusterSpec
from headway.domain.model import ModelShape, Selection
from headway.domain.profile import Canary, Profile
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
    signed_by: str | None = None
    """Whose signature was verified: `key <sha256>` or `certificate <subject> <sha256>`; none: nobody's."""
    quantized: str | None = None
    """The method by which the source is quantized already (`quant_method`); only the scheme `none` fits it then."""


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


class Contender(Value):
    """One scheme of a race: all of the plan that depends on the scheme."""

    recipe: Recipe
    artifact_digest: str
    cluster_digest: str
    memory: MemoryBudget


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
    contenders: tuple[Contender, ...] = ()
    """Of a race (`weights.choose: race`): every scheme that serves and fits, the fewest bytes first. The plan itself is
    made for the first of them until `plan.choose` takes another."""
    passed_over: tuple[str, ...] = ()
    """Schemes of the profile that come before the chosen one and will not do, with the reason, for the report; of a
    race all that take no part."""

    @property
    def calibration_uri(self) -> str | None:
        """Where the calibration texts are; none if the recipe needs none, or those of headway."""
        return self.profile.weights.calibration.uri if self.recipe.calibration_digest else None

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
    per_text_kl: tuple[float, ...] = ()
    """Divergence of this model from its source, summed over a text's scored tokens, in nats; empty: not measured."""
    per_text_top1: tuple[int, ...] = ()
    """Scored tokens of a text on which its first choice is the source's; empty: not measured."""

    @property
    def kl(self) -> float | None:
        """Mean divergence from the source in nats a token; none if it was not measured."""
        return sum(self.per_text_kl) / self.tokens if self.per_text_kl and self.tokens else None

    @property
    def top1(self) -> float | None:
        """Share of the tokens on which its first choice is the source's; none if it was not measured."""
        return sum(self.per_text_top1) / self.tokens if self.per_text_top1 and self.tokens else None

    @property
    def perplexity(self) -> float:
        """`exp(nll / tokens)`; infinite when nothing finite was scored."""
        import math

        ratio = self.nll / self.tokens if self.tokens else math.inf
        return math.exp(ratio) if ratio < 700 else math.inf


class SourceAnswer(Value):
    """What the source itself answers to a fixed question, greedily."""

    prompt: str
    text: str
    finish_reason: str
    """`stop` if it ended by itself, `length` if it was cut."""
    prompt_tokens: int
    """Tokens of the question with the chat template around it: another tokenizer or template gives another number."""


class Reference(Value):
    """Figures of a source, made once per source digest and set of texts, and stored (design rule 13.6).

    Version 1 had neither `answers` nor `top_sha256`; the quantize program adds them where they are missing.
    """

    schema_version: int = 2
    source_digest: str
    figures: QualityFigures
    token_ids: tuple[tuple[int, ...], ...]
    """The texts as this model's tokenizer splits them, so that the served model is asked about the same tokens."""
    answers: tuple[SourceAnswer, ...] = ()
    top_sha256: str = ""
    """Digest of the object that holds the `TopLogprobs`, a megabyte that only programs read."""

    @property
    def complete(self) -> bool:
        """Whether it has what this version measures of a source; if not, the quantize program must run."""
        return bool(self.top_sha256)


class TopLogprobs(Value):
    """The head of a source's next-token distributions on the fixed texts: what a divergence is measured against.

    Each row is one text; position k of it is the text's token k + 1, given all before it.
    """

    schema_version: int = 1
    source_digest: str
    prompt_set_digest: str
    width: int
    """Tokens of a position that are kept, the most probable first."""
    token_logprobs: tuple[tuple[float, ...], ...]
    """Of the text's own token, in nats."""
    top_ids: tuple[tuple[int, ...], ...]
    """`width` token ids a position, one position after the other."""
    top_logprobs: tuple[tuple[float, ...], ...]
    """Their log-probabilities, likewise."""


class Check(Value):
    """One comparison with its limit, as the report shows it."""

    name: str
    measured: float | None
    limit: float | None
    passed: bool
    sentence: str
    low: float | None = None
    high: float | None = None
    """95 % interval of `measured`, where there is one; the limit is held against `measured` itself."""
    noise: float | None = None
    """The same figure of the source served as it is, where it is known."""
    kind: Literal["quality", "guard", "contract"] = "quality"
    """What was looked at: the answers, what the engine reports of itself, or whether it reports at all."""


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
    served: QualityFigures | None = None
    """Of the candidate, text by text, for the report."""
    noise: QualityFigures | None = None
    """Of the source served as it is: what the engine alone makes of the figures."""


class Basis(Value):
    """What a verdict rests on beside the records: with both, anyone can make the decision again."""

    schema_version: int = 1
    release: str
    model: str
    version: int
    canary: Canary
    """Margins and looks that were in force."""
    paired: bool
    checks: tuple[Check, ...] = ()
    faults: tuple[str, ...] = ()
    """What the checks of the table of records found."""
    records_sha256: str


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
