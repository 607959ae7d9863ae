"""One line a request: what the load generator saw, and what is computed from it."""

from typing import Literal

from headway.domain.value import Value

Side = Literal["stable", "candidate"]


class RequestRecord(Value):
    """One request of the benchmark. All times are seconds since the start of the run, by a monotonic clock."""

    block: int
    side: Side
    index: int
    """Position in the block; equal indexes on both sides carry the same prompt and the same scheduled arrival."""
    prompt_sha256: str
    scheduled_s: float
    sent_s: float
    first_token_s: float | None = None
    """First non-empty content or reasoning."""
    ended_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    served_model: str | None = None
    served_release: str | None = None
    """The answer's `x-headway-release`."""
    error: str | None = None
    """Why it failed; none if it ended well. An error after HTTP 200 is an error."""

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


class SideTarget(Value):
    """Where one side is reached."""

    side: Side
    base_url: str
    """Address up to and without `/v1`."""
    headers: dict[str, str] = {}
    served_model: str
    release: str


class BenchJob(Value):
    """Input of the bench program."""

    targets: tuple[SideTarget, ...]
    """One (first release: smoke requests only) or two (paired)."""
    blocks: int
    requests_per_block: int
    rate_per_s: float
    max_tokens: int
    warmup_requests: int
    seed: int
    quality_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of the fixed texts (from the source's reference), whose served log-likelihood is measured on the candidate."""
    prompt_set_digest: str = ""
    live_rate_url: str | None = None
    """Envoy's statistics; when given, stable's live load is added to the candidate (design rule 13.4)."""
    live_cluster: str | None = None
    """Name of stable's cluster in those statistics."""
    records_path: str
    """JSON lines, appended block by block; a restarted job goes on after the last whole block."""


class BlockSummary(Value):
    """How one block went on the generator's own side."""

    block: int
    lag_p99_ms: float
    """How late requests were sent against their schedule."""
    live_rate_per_s: float = 0.0
    void: bool = False
    reason: str = ""
