"""Human intent for one served model. A profile file in `profiles/` holds exactly this."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headway.domain import places
from headway.domain.value import Value
from headway.domain.weights import Scheme
from headway.errors import ConfigError


class Section(Value):
    """A part of a profile. No number in it is infinite: a limit without end is no limit, and hides a mistake."""

    model_config = ConfigDict(allow_inf_nan=False)


class Hardware(Section):
    """What a replica runs on."""

    accelerator: str
    """A name of `headway.domain.hardware.ACCELERATORS`, as the device plugin labels it; `cpu` on the embedded stack."""
    per_replica: int = Field(default=1, ge=1, le=64)
    """Accelerators of one replica: the tensor parallel size."""


class Engine(Section):
    """vLLM's settings. All of them are part of the cluster's digest: a change is a release."""

    max_model_len: int = Field(default=4096, ge=64)
    max_num_seqs: int = Field(default=64, ge=1)
    gpu_memory_utilization: float = Field(default=0.92, gt=0.1, lt=1)
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    enable_prefix_caching: bool = True
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_logprobs: int = Field(default=20, ge=1)
    """Top log-probabilities a request may ask for; the quality gate needs 20."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """KV cache of a replica on CPU (`VLLM_CPU_KVCACHE_SPACE`); on accelerators vLLM takes what is left."""


class Calibration(Section):
    """Texts on which schemes that need activations are calibrated. Part of the artifact's digest."""

    uri: str | None = None
    """`s3://bucket/key` of JSON lines with a `text` (or chat `messages`) each; none: the texts that headway brings."""
    samples: int = Field(default=256, ge=1, le=4096)
    """Rows that are used, from the first on."""
    max_tokens: int = Field(default=512, ge=16, le=8192)
    """Tokens of a row that are used."""
    languages: dict[str, float] = {}
    """Least share of the rows by their `language`, such as `{de: 0.3}`; empty: not checked."""


class Signer(Section):
    """Who must have signed a model (the signatures of the OpenSSF's model-signing)."""

    public_key: str | None = None
    """PEM file of an elliptic-curve public key, relative to the folder of the profiles."""
    certificate_chain: tuple[str, ...] = ()
    """PEM files of trusted root certificates, instead of a key."""
    required: bool = True
    """Whether an unsigned source is refused; a wrong signature always is."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"public_key": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> "Signer":
        if (self.public_key is None) == (not self.certificate_chain):
            raise ValueError("weights.signer needs a `public_key` or a `certificate_chain`, and not both")
        return self


class Weights(Section):
    """How weights may be quantized, in order of preference, and who must have signed them."""

    schemes: tuple[Scheme, ...] = ("none",)
    choose: Literal["first", "race"] = "first"
    """`first`: the first scheme that fits the hardware. `race`: the fewest bytes that pass the quality gate."""
    group_size: Literal[32, 64, 128] = 128
    """Weights that share a scale in the 4 bit schemes."""
    kv_cache_scales: bool = False
    """Whether scales of an FP8 KV cache are calibrated and stored; `engine.kv_cache_dtype: fp8` uses 1.0 otherwise."""
    calibration: Calibration = Calibration()
    signer: Signer | None = None
    """Whose signature the source must carry; none: it is not looked at. A text is short for a `public_key`."""
    chat_template_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """The one chat template that may serve, by the sha256 in the report; none: any that passes the rules."""


class Tasks(Section):
    """Tasks of lm-evaluation-harness, answered by the served model (the step after the benchmark)."""

    names: tuple[str, ...] = Field(min_length=1)
    """Tasks or groups of tasks: the harness's own, or those that `include_uri` brings."""
    include_uri: str | None = None
    """`s3://` address of a tar file, or a prefix that ends in a slash, with task files (YAML) and their data."""
    include_sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """Digest of those files as the result shows it; none: whatever lies there is taken."""
    metrics: dict[str, str] = {}
    """Metric of a task, such as `{gsm8k: "exact_match,strict-match"}`; otherwise `acc_norm`, `acc`, `exact_match` or
    the task's first one."""
    limit: int | None = Field(default=200, ge=20)
    """Samples of a task (of each one in a group), from the first on; none: all."""
    num_fewshot: int | None = Field(default=None, ge=0)
    """Solved examples before each question; none: as the task says."""
    chat: bool = False
    """Whether `/v1/chat/completions` is asked; tasks that compare log-likelihoods (multiple choice) cannot."""
    concurrency: int = Field(default=2, ge=1, le=64)
    """Requests in flight, on one side at a time; stable has users meanwhile."""
    min_recovery: float | None = Field(default=None, gt=0)
    """Score of the candidate over that of stable, mean of the tasks; none: 0.99 from 8 bit on, 0.98 for 4 bit."""
    min_task_recovery: float | None = Field(default=None, gt=0)
    """The same for each single task; none: shown, not judged."""
    min_score: dict[str, float] = {}
    """Least score of a task, absolute: the only limit that a first release can miss."""
    deadline_s: int = Field(default=7200, ge=60)
    """After this the step fails and stable stays."""

    @model_validator(mode="after")
    def _named(self) -> "Tasks":
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"quality.tasks.names is {list(self.names)}; each task may be there once")
        strangers = sorted({*self.metrics, *self.min_score} - set(self.names))
        if strangers:
            raise ValueError(
                f"quality.tasks has a metric or a score for {', '.join(strangers)}, which are not in its names"
            )
        if self.include_sha256 and not self.include_uri:
            raise ValueError("quality.tasks.include_sha256 is there without an include_uri that it could be of")
        return self


class Quality(Section):
    """Limits of the quality gate (design rule 13.6)."""

    max_ppl_ratio: float | None = Field(default=None, gt=1)
    """Served perplexity of the artifact over its source's; none: 1.05 from 8 bit on, 1.10 for 4 bit."""
    max_kl: float | None = Field(default=None, gt=0)
    """Mean divergence (nats a token) of the served distribution from the source's; none: 0.05 and 0.10 likewise."""
    min_top1: float | None = Field(default=None, gt=0, le=1)
    """Share of the tokens on which the served model's first choice is the source's; none: shown, not judged."""
    max_stable_ppl_ratio: float = Field(default=1.10, gt=1)
    """Perplexity of the source over that of stable's source: a model broken before quantizing fails here."""
    max_ppl: float = Field(default=200.0, gt=1)
    """Absolute limit of the source's perplexity on the fixed texts."""
    tasks: Tasks | None = None
    """Task accuracy through the served endpoint; none: not measured."""


class Replicas(Section):
    """Size of a cluster; applied in place."""

    min: int = Field(default=1, ge=1)
    max: int = Field(default=1, ge=1)
    target_ongoing: int = Field(default=32, ge=1)
    downscale_delay_s: float = Field(default=600, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> "Replicas":
        if self.min > self.max:
            raise ValueError(f"replicas.min is {self.min} and replicas.max is {self.max}; min must not be above max")
        return self


class Goodput(Section):
    """What a request must keep to count as good (goodput as vLLM's benchmark and DistServe define it)."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    e2e_ms: float | None = Field(default=None, gt=0)
    margin_pct: float = Field(default=2.0, ge=0.001, le=20)
    """Percentage points of all sent requests by which the candidate's share of good ones may be lower."""

    @model_validator(mode="after")
    def _limits_something(self) -> "Goodput":
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("canary.goodput has no limit; give ttft_ms, tpot_ms or e2e_ms, or leave goodput out")
        return self


class Guards(Section):
    """Limits on what the engines report of themselves during the benchmark; they only take back, never promote."""

    max_kv_cache_points: float = Field(default=10.0, gt=0, le=100)
    """Percentage points by which the candidate's mean use of the KV cache may exceed stable's."""
    max_preemptions_per_100: float = Field(default=1.0, gt=0, le=100)
    """Preempted sequences in 100 requests by which the candidate may exceed stable."""
    max_waiting: float = Field(default=2.0, gt=0, le=1000)
    """Mean number of queued requests by which the candidate may exceed stable."""


class Trials(Section):
    """What repeated decisions of one kind came to."""

    metric: str = ""
    """What was made slower on the candidate's side: `p50` every latency, `p95` those of the slowest requests only,
    `ttft_p50` the first token alone; empty: nothing, both are the same."""
    slower_pct: float = 0.0
    promoted: int = Field(default=0, ge=0)
    rolled_back: int = Field(default=0, ge=0)
    held: int = Field(default=0, ge=0)
    mean_blocks: float = Field(default=0.0, ge=0)
    """Blocks to a decision, on average."""

    @property
    def decisions(self) -> int:
        """How many there were."""
        return self.promoted + self.rolled_back + self.held


class Evidence(Section):
    """How often a canary with these margins was wrong on this hardware; `headway calibrate` writes it."""

    hardware: str
    """Accelerator that it was measured on."""
    measured_at: str
    """UTC, ISO 8601."""
    method: Literal["trials", "resampled"]
    """Whether each decision had a benchmark of its own, or recorded pairs of equal sides were drawn again."""
    rule: str
    """Digest of what decides (margins, blocks, looks, load): evidence for other numbers is none."""
    recorded_blocks: int = Field(ge=0)
    spread: dict[str, float] = Field(default={})
    """Standard deviation of the log ratio of equal sides, by metric."""
    trials: tuple[Trials, ...] = ()


WIDEST_MARGIN = 2.0
"""Three times as slow: wider than that a margin tells nothing, and is a percentage written as a share."""


class Canary(Section):
    """The paired benchmark and its margins."""

    p50_margin: float = Field(default=0.075, gt=0)
    """Candidate may be slower by this share at the median and still pass (non-inferiority margin)."""
    p95_margin: float = Field(default=0.10, gt=0)
    p99_guard: float = Field(default=0.20, gt=0)
    """A 99th percentile that is surely worse by more than half of this takes back; it is too noisy to promote by."""
    error_margin_pct: float = Field(default=0.5, ge=0.001, le=20)
    """Upper bound, in percentage points, of how much more often the candidate may fail."""
    goodput: Goodput | None = None
    """Service level that requests are counted against; none: goodput is not judged."""
    guards: Guards = Guards()
    evidence: Evidence | None = None
    """Measured error rates of these margins; without them nobody knows how often they are wrong, and plan and report
    say so."""
    blocks: int = Field(default=30, ge=2)
    looks: tuple[int, ...] = ()
    """Blocks after which a decision is tried; empty: after every block from the fourth on (of more than 30 blocks after
    every second, third, ...)."""
    requests_per_block: int = Field(default=200, ge=2)
    rate_per_s: float = Field(default=4.0, gt=0)
    """Arrivals per second on each side; with replayed arrivals what their mean is scaled to."""
    api: Literal["completions", "chat"] = "completions"
    """Endpoint of the OpenAI API that is asked."""
    arrivals: Literal["poisson", "gamma", "constant", "replay"] = "poisson"
    burstiness: float = Field(default=1.0, gt=0)
    """Shape of the gamma distributed gaps (vLLM's `--burstiness`): below 1 burstier than Poisson, above 1 more even."""
    trace: str | None = None
    """What `replay` replays: `s3://...` of JSON lines `{"at_s": ...}`, or `history`, stable's own last hour."""
    prompts: str | None = None
    """`s3://...` of JSON lines `{"prompt": ..., "max_tokens": ...}` to draw from; none: generated ones, never seen
    before."""
    shared_prefix_pct: float = Field(default=0.0, ge=0, le=100)
    """Share of the prompts that begin with one common prefix, as the users' do; the others are unseen, so that no
    cached prefix flatters a side."""
    max_tokens: int = Field(default=64, ge=2)
    warmup_requests: int = Field(default=8, ge=0)
    first_ttft_p95_ms: float = Field(default=2000, gt=0)
    """Absolute limits of a first release, which has no stable side."""
    first_tpot_p95_ms: float = Field(default=200, gt=0)
    first_error_pct: float = Field(default=0.5, ge=0)
    max_lag_ms: float = Field(default=250, gt=0)
    """A block whose requests left later than this against their schedule (99th percentile) is void."""
    request_timeout_s: float = Field(default=60, gt=0)
    """A request that has not ended after this counts as failed."""
    demo_margins: bool = False
    """Marks margins that only a demonstration may have; the report says so."""

    @field_validator("p50_margin", "p95_margin", "p99_guard")
    @classmethod
    def _is_a_share(cls, value: float) -> float:
        if value > WIDEST_MARGIN:
            raise ValueError(
                f"{value:g} is a share and means {value * 100:g} %, more than {WIDEST_MARGIN * 100:g} %; "
                f"for {value:g} % write {value / 100:g}"
            )
        return value

    @model_validator(mode="after")
    def _replays_something(self) -> "Canary":
        if self.arrivals == "replay" and not self.trace:
            raise ValueError(
                "canary.arrivals is replay, and canary.trace names nothing to replay; set it to `history` or to an "
                "s3:// address of JSON lines"
            )
        if self.trace and self.trace != "history" and not self.trace.startswith("s3://"):
            raise ValueError(f"canary.trace is {self.trace!r}; expected `history` or an s3:// address")
        return self

    @model_validator(mode="after")
    def _looks_rise(self) -> "Canary":
        looks = list(self.looks)
        if looks and (looks != sorted(set(looks)) or looks[0] < 2 or looks[-1] != self.blocks):
            raise ValueError(f"canary.looks is {looks}; it must rise from 2 or more and end at blocks ({self.blocks})")
        return self


class Shift(Section):
    """How traffic moves after the verdict."""

    steps_pct: tuple[int, ...] = (5, 25, 50, 100)
    bake_s: float = Field(default=300, ge=0)
    """How long each step is watched before the next."""
    approve: bool = False
    """Whether a person must approve after the canary."""
    max_error_pct: float = Field(default=1.0, ge=0, lt=100)
    """Share of the candidate's live requests that may fail."""
    max_latency_ratio: float = Field(default=2.0, gt=1)
    """How many times as long as stable's the candidate's slow live requests may take."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Probability that a candidate within these two limits is taken back by them at any look of the whole shift."""
    burst: int = Field(default=4, ge=1)
    """How many live requests in a row may fail or be slow together; the more, the longer a breach takes to show."""

    @model_validator(mode="after")
    def _ends_at_100(self) -> "Shift":
        if not self.steps_pct or self.steps_pct[-1] != 100 or list(self.steps_pct) != sorted(set(self.steps_pct)):
            raise ValueError(f"shift.steps_pct is {list(self.steps_pct)}; it must rise and end at 100")
        if self.steps_pct[0] <= 0:
            raise ValueError(f"shift.steps_pct starts at {self.steps_pct[0]}; the first step must be above 0")
        return self


class Prescale(Section):
    """Capacity before the peak; applied in place."""

    enabled: bool = False
    """Whether the floor is set; without it the model is neither read nor forecast."""
    shadow: bool = False
    """Whether everything is planned and priced and nothing is changed."""
    quantile: float = Field(default=0.8, gt=0.5, lt=1)
    """Quantile of the forecast for which replicas are up."""
    timezone: str = "UTC"
    """Time zone whose clock the users' days follow (IANA name)."""
    holidays: str | None = None
    """Country, or country and subdivision (`DE`, `DE-BY`), whose public holidays are known events."""
    calendar: str | None = None
    """ICS file of known events, relative to the folder of the profiles."""
    max_replicas_step: int = Field(default=2, ge=1)
    """Most replicas that one tick adds."""
    budget_replicas: int | None = Field(default=None, ge=1)
    """Replicas that may be paid for; none: `replicas.max`."""
    spare: Literal["none", "replica", "zone"] = "none"
    """What may be lost without the load exceeding the rest."""
    zones: int = Field(default=1, ge=1)
    """Zones over which replicas are spread."""
    lead_time_s: float = Field(default=600, gt=0, le=86400)
    """Seconds from asking for a replica to its first token, until enough scale-ups were measured."""
    requests_per_s: float | None = Field(default=None, gt=0)
    """What one replica sustains, where a load test has shown it; none: from the release's own canary."""
    history_days: int = Field(default=14, ge=1, le=60)
    """Days of traffic that are kept."""

    @model_validator(mode="after")
    def _somewhere(self) -> "Prescale":
        for key, name, find in (
            ("timezone", self.timezone, places.zone),
            ("holidays", self.holidays, places.country),
        ):
            try:
                if name is not None:
                    find(name)
            except ConfigError as error:
                raise ValueError(f"prescale.{key}: {error}") from error
        return self

    @model_validator(mode="after")
    def _zones_to_lose(self) -> "Prescale":
        if self.spare == "zone" and self.zones < 2:
            raise ValueError(f"prescale.spare is zone and prescale.zones is {self.zones}; name 2 zones or more")
        return self


class Retention(Section):
    """What `sweep` keeps."""

    versions: int = Field(default=3, ge=1)
    record_days: int = Field(default=400, ge=1)


class Rollout(Section):
    """How the candidate comes up beside stable; applied in place."""

    no_room: Literal["refuse", "wait", "shrink"] = "refuse"
    """What happens if its replicas do not fit beside what runs: the release fails at once, waits until
    `deadlines.rollout_s`, or begins with as many replicas as fit."""


class Deadlines(Section):
    """How long a step may take before the release fails and stable stays."""

    quantize_s: int = Field(default=7200, ge=60)
    stage_s: int = Field(default=3600, ge=60)
    rollout_s: int = Field(default=1800, ge=60)
    canary_s: int = Field(default=7200, ge=60)


class Profile(Section):
    """One served model."""

    model: str = Field(min_length=1)
    alias: str = "champion"
    hardware: Hardware
    engine: Engine = Engine()
    weights: Weights = Weights()
    quality: Quality = Quality()
    serving_image: str | None = None
    """Image by digest; none on the embedded stack, where the lock of the serving environment takes its place."""
    replicas: Replicas = Replicas()
    rollout: Rollout = Rollout()
    canary: Canary = Canary()
    shift: Shift = Shift()
    prescale: Prescale = Prescale()
    deadlines: Deadlines = Deadlines()
    gpu_hour_price: float | None = Field(default=None, gt=0)
    retention: Retention = Retention()
    keep_previous_s: float = Field(default=86400, ge=0)
    hold_s: float = Field(default=86400, ge=0)
    """How long a held candidate is kept for a person to accept or reject."""


def parse_profile(data: Mapping[str, Any], *, origin: str) -> Profile:
    """Turn the content of a profile file into a profile.

    Args:
        data: The parsed YAML.
        origin: Name of the file, for the error.

    Raises:
        ConfigError: With every fault in one text; an unknown key comes with the nearest known one.
    """
    try:
        return Profile.model_validate(dict(data))
    except ValidationError as error:
        faults = [_fault(item) for item in error.errors(include_url=False)]
        listing = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigError(f"{origin} is not a valid profile:\n{listing}", origin=origin, faults=faults) from error


def _fault(item: Mapping[str, Any]) -> str:
    path = [str(part) for part in item["loc"]]
    where = ".".join(path) or "profile"
    if item["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys here: {', '.join(known)}"
        return f"unknown key `{where}`; {hint}"
    if item["type"] == "missing":
        return f"`{where}` is missing; add it"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"`{where}`: {message} (found {item['input']!r})" if item["type"] != "value_error" else message


def _known_keys(path: list[str]) -> list[str]:
    node: type[BaseModel] = Profile
    for part in path:
        if part.isdigit():  # position in a list, whose elements are the section that was found
            continue
        found = _section(node.model_fields[part].annotation) if part in node.model_fields else None
        if found is None:
            return []
        node = found
    return list(node.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds: itself, as `X | None`, or as a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part)) is not None), None)
