"""One line a request: what the load generator saw, what it was asked to do, and what it hands back."""

from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Le
from pydantic import ConfigDict, Field, model_validator

from headway.domain.profile import Canary, Quality
from headway.domain.release import QualityFigures
from headway.domain.value import Value
from headway.domain.weights import Scheme

Side = Literal["stable", "candidate"]


class Question(NamedTuple):
    """A fixed question, and the words of which one is in every right answer."""

    prompt: str
    facts: tuple[str, ...]


QUESTIONS: tuple[Question, ...] = (
    Question("What is the capital of France? Answer in one sentence.", ("paris",)),
    Question("What is two plus two? Answer with one number.", ("4", "four")),
    Question("Which colour has the sky on a clear day? Answer in one sentence.", ("blue",)),
    Question("How many days are in a week? Answer with one number.", ("7", "seven")),
    Question("Name the first month of the year. Answer with one word.", ("january",)),
    Question("On which planet do people live? Answer with one word.", ("earth",)),
)
"""Asked greedily of every side and of the source itself. A fact counts only if the source knows it."""
ANSWER_TOKENS = 64
"""Most tokens of an answer."""


MAX_COUNT = 10_000_000
"""Blocks, requests or tokens."""
MAX_S = 1e9
MAX_MS = 1e12
"""Thirty years. No arithmetic on records within these bounds can overflow, so none of it needs to expect that."""


class RequestRecord(Value):
    """One request of the benchmark. All times are seconds since the start of the run, by a monotonic clock."""

    model_config = ConfigDict(allow_inf_nan=False)

    block: int = Field(ge=0, le=MAX_COUNT)
    side: Side
    index: int = Field(ge=0, le=MAX_COUNT)
    """Position in the block; equal indexes on both sides carry the same prompt and the same scheduled arrival."""
    prompt_sha256: str
    scheduled_s: float = Field(ge=-MAX_S, le=MAX_S)
    sent_s: float = Field(ge=-MAX_S, le=MAX_S)
    release: str = ""
    """The release that was asked for."""
    sampled: bool = False
    """Whether the answer was drawn (temperature above 0) instead of greedy."""
    first_token_s: float | None = Field(default=None, ge=-MAX_S, le=MAX_S)
    """First non-empty content or reasoning."""
    ended_s: float | None = Field(default=None, ge=-MAX_S, le=MAX_S)
    prompt_tokens: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    output_tokens: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    status: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """HTTP status; none when no answer came."""
    served_model: str | None = None
    served_release: str | None = None
    """The answer's `x-headway-release`."""
    error: str | None = None
    """Why it failed; none if it ended well. An error after HTTP 200 is an error."""
    itl_ms: tuple[Annotated[float, Ge(-MAX_MS), Le(MAX_MS)], ...] = ()
    """Gaps between the chunks of text after the first (inter-token latency, vLLM's `itl`)."""
    injected_ms: float = Field(default=0.0, ge=0, le=MAX_MS)
    """Delay that the generator itself added before it sent the request: a known effect that must be found again."""
    timed_out: bool = False
    """Whether it failed by taking longer than `canary.request_timeout_s`."""

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token, from the scheduled arrival."""
        return None if self.first_token_s is None else (self.first_token_s - self.scheduled_s) * 1e3

    @property
    def e2e_ms(self) -> float | None:
        """End to end, from the scheduled arrival."""
        return None if self.ended_s is None else (self.ended_s - self.scheduled_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first: `(E2E - TTFT) / (tokens - 1)` (vLLM's definition)."""
        if self.first_token_s is None or self.ended_s is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) * 1e3 / (self.output_tokens - 1)


class BlockSummary(Value):
    """How one block went on the generator's own side; written last: where it is, the block is whole."""

    model_config = ConfigDict(allow_inf_nan=False)

    block: int = Field(ge=0, le=MAX_COUNT)
    planned: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Requests that each side was to get."""
    sent_first: Side = "stable"
    """The side that was asked first at every arrival; it alternates by block."""
    placement: int = Field(default=0, ge=0, le=2)
    """Which way round the hardware was given to the sides: 1 or 2 where it is swapped, which is only done beside an
    unrouted baseline cluster, and 0 where it never is."""
    started_at: str = ""
    """UTC, ISO 8601: what the engines reported is looked up by it."""
    started_s: float = Field(default=0.0, ge=-MAX_S, le=MAX_S)
    ended_s: float = Field(default=0.0, ge=-MAX_S, le=MAX_S)
    dropped: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Requests that were due and never left."""
    processes: int = Field(default=1, ge=0, le=MAX_COUNT)
    """Generator processes that shared the load."""
    lag_p99_ms: float = Field(ge=-MAX_MS, le=MAX_MS)
    """How late requests were sent against their schedule."""
    cpu_pct: float = Field(default=0.0, ge=0, le=1e6)
    """Share of one core that the generator itself used."""
    live_rate_per_s: float = Field(default=0.0, ge=0, le=1e9)
    """Stable's users' requests per second before this block, added to the candidate as unmeasured load."""
    live_sent: int = Field(default=0, ge=0, le=MAX_COUNT)
    void: bool = False
    """The generator could not drive the block as scheduled, so its latencies say nothing."""
    stopped: bool = False
    """The block was ended early because a side failed hard; its latencies are not used, its failures are."""
    stable_alive: bool | None = None
    """Whether stable still answered after the candidate had failed hard; none if that was not asked."""
    stable_oldest_s: float = Field(default=0.0, ge=-MAX_S, le=MAX_S)
    """Age of stable's oldest request that was given up when the block was ended early."""
    reason: str = ""


class CanaryAnswer(Value):
    """A greedy answer to a fixed question: is this a model that speaks and stops?"""

    side: Side
    prompt: str
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    """Tokens of the question as the server counts them; none if it did not say."""
    error: str | None = None


class SideTarget(Value):
    """Where one side is reached."""

    side: Side
    base_url: str
    """Address up to and without `/v1`."""
    headers: dict[str, str] = Field(default={})
    served_model: str
    release: str


class BenchJob(Value):
    """Input of the bench program."""

    release: str
    targets: tuple[SideTarget, ...]
    """The candidate alone (first release) or stable and candidate."""
    canary: Canary
    seed: int
    """Prompts, arrivals and sampling of every block follow from it."""
    quality: Quality = Quality()
    reference: QualityFigures | None = None
    """Figures of the candidate's source, to compare the served ones with; none: perplexity is not measured."""
    reference_token_ids: tuple[tuple[int, ...], ...] = ()
    """The fixed texts as token ids. For jobs without a `reference_uri`."""
    reference_uri: str = ""
    """`s3://` address of the source's whole reference, which the program reads itself: it is too large for a job."""
    reference_digest: str = ""
    """Name of that reference's content, as `digest` gives it."""
    scheme: Scheme = "none"
    """How the candidate is quantized; the limits depend on its bits."""
    noise_uri: str = ""
    """`s3://` address of the figures of this source served as it is, on the same engine. A job with scheme `none`
    leaves them there, if nobody has; others read them."""
    engine: str = "vllm"
    """Name and version of what serves, for the figures."""
    live_rate_url: str | None = None
    """Address of Envoy's statistics (`http://host:port/stats`); when given, stable's live load is added to the
    candidate, so that both sides carry the same (design rule 13.4)."""
    live_cluster: str | None = None
    """Name in those statistics of the upstream cluster that carries stable's users and none of the benchmark's load."""
    headroom_active: int | None = Field(default=None, ge=1)
    """Requests in flight on stable above which a block waits for users to be served first."""
    headroom_wait_s: float = Field(default=60, ge=0)
    """How long a block waits for that before it is void."""
    arrivals_s: tuple[float, ...] = ()
    """For `canary.arrivals: replay`: rising moments of one stretch of recorded traffic, in seconds; used in turn."""
    prompts_sha256: str = ""
    """Digest of the prompt set at `canary.prompts`."""
    inject_ms: float = Field(default=0.0, ge=0)
    """Delay put before every request of the candidate: `headway calibrate` tries whether it is found again."""
    records_path: str = "records.jsonl"
    """JSON lines, appended block by block; a restarted job goes on after the last whole block."""
    records_uri: str = ""
    """`s3://bucket/key` that the records are put to at the end; empty: they stay where they are."""

    @model_validator(mode="after")
    def _one_of_each(self) -> "BenchJob":
        sides = [t.side for t in self.targets]
        if sides.count("candidate") != 1 or sides.count("stable") > 1 or len(sides) > 2:
            raise ValueError(f"targets are {sides}; expected the candidate, and stable or nothing beside it")
        return self

    @property
    def paired(self) -> bool:
        """Whether there is a stable side to compare with."""
        return len(self.targets) == 2

    def target(self, side: Side) -> SideTarget:
        """Return where a side is reached. Raises KeyError if this job has no such side."""
        for target in self.targets:
            if target.side == side:
                return target
        raise KeyError(side)


class BenchResult(Value):
    """What the bench program hands back; the records themselves are at `records_uri`."""

    schema_version: int = 1
    release: str
    paired: bool
    blocks: tuple[BlockSummary, ...]
    served: QualityFigures | None = None
    answers: tuple[CanaryAnswer, ...] = ()
    quality_error: str = ""
    """Why perplexity could not be measured although it was asked for."""
    noise: QualityFigures | None = None
    """Figures of the source served as it is, where they are known."""
    records_path: str
    records_uri: str = ""
    records_sha256: str
    parquet_uri: str = ""
    """The same records as one Parquet table, beside them."""
    started_at: str = ""
    """Start of the first block and end of the last one, UTC; empty if no block was run."""
    ended_at: str = ""
    seconds: dict[str, float] = Field(default={})
    """Where the time went: `smoke`, `quality`, `warmup`, `blocks`, `upload`."""
