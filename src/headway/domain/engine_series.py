"""Every series of an engine that guards, rules, dashboards and the judge use, under one name each.

vLLM renames series, and what carries them changes them again:

    vllm:kv_cache_usage_perc        vLLM's own `/metrics` (read in 0.29.0)
    vllm:gpu_cache_usage_perc       the same before vllm-project/vllm#18354; gone with #29330
    ray_vllm_kv_cache_usage_perc    under Ray Serve: no colon in a name, and Ray's prefix (Ray 2.60.0)
    vllm_kv_cache_usage_perc        where a relabelling took the colon
    vllm:num_preemptions_total      counters get `_total` on the way; old Ray gave both forms at once

A dashboard or a rule that asks for one of these sees nothing, silently, when the engine gives another. So the scraper
takes all of them and keeps `Series.name`; everything else in headway knows that name alone. Renamings are those of
vllm-project/vllm#15458 (0.8 to 0.9), #18354 and #29330 (`gpu_` prefix), #24110 and #29330 (time per output token).

What to know of Ray's way to tell them (2.60.0, read and tried):

- A counter is not there before its first event: vLLM's wrapper drops an increment of zero.
- A gauge that is not set anew for 20 s (two of Ray's report intervals) is dropped. An engine sets its gauges at each
  step, so those of an **idle** engine are gone while its counters stay. Absent beside living counters means idle.
- The sum of a histogram is made of the middles of its buckets, so a mean from `_sum` and `_count` is no measurement.
"""

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
Birth = Literal["start", "first event"]


class Series(NamedTuple):
    """One series, and what it was called."""

    name: str
    """Ours. A histogram is kept as its `<name>_sum` and `<name>_count`."""
    kind: Kind
    unit: str
    purpose: str
    stems: tuple[str, ...]
    """What vLLM called it, newest first, without prefix, colon and `_total`."""
    born_with: Birth = "start"
    """`start`: an engine that has answered one request has given it. `first event`: under Ray it appears with its first
    event and not before; absent then means zero, provided that the engine's other series are there."""
    merge: Literal["sum", "mean"] = "sum"
    """What replicas of a cluster come to."""

    @property
    def stored(self) -> tuple[str, ...]:
        """Names under which samples are kept."""
        return (f"{self.name}_sum", f"{self.name}_count") if self.kind == "histogram" else (self.name,)

    def aliases(self) -> tuple[str, ...]:
        """Return the names that are looked for, newest first."""
        endings = {"gauge": ("",), "counter": ("_total", ""), "histogram": ("_count",)}[self.kind]
        return tuple(
            f"{prefix}{stem}{ending}" for stem in self.stems for prefix in ("vllm:", "ray_vllm_") for ending in endings
        )


RUNNING = Series("vllm_num_requests_running", "gauge", "requests", "load of an engine", ("num_requests_running",))
WAITING = Series("vllm_num_requests_waiting", "gauge", "requests", "guard; scaling", ("num_requests_waiting",))
KV_CACHE = Series(
    "vllm_kv_cache_usage_perc",
    "gauge",
    "share of 1",
    "guard; room for more requests",
    ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    merge="mean",
)
PREEMPTIONS = Series(
    "vllm_num_preemptions_total",
    "counter",
    "sequences",
    "guard",
    ("num_preemptions",),
    born_with="first event",
)
PROMPT_TOKENS = Series("vllm_prompt_tokens_total", "counter", "tokens", "throughput; forecast", ("prompt_tokens",))
GENERATION_TOKENS = Series(
    "vllm_generation_tokens_total", "counter", "tokens", "throughput; forecast", ("generation_tokens",)
)
REQUESTS = Series("vllm_request_success_total", "counter", "requests", "dashboards", ("request_success",))
PREFIX_QUERIES = Series(
    "vllm_prefix_cache_queries_total",
    "counter",
    "tokens",
    "dashboards: hit rate of the prefix cache",
    ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    born_with="first event",
)
PREFIX_HITS = Series(
    "vllm_prefix_cache_hits_total",
    "counter",
    "tokens",
    "dashboards: hit rate of the prefix cache",
    ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    born_with="first event",
)
TTFT = Series(
    "vllm_time_to_first_token_seconds",
    "histogram",
    "s",
    "dashboards",
    ("time_to_first_token_seconds",),
)
ITL = Series(
    "vllm_inter_token_latency_seconds",
    "histogram",
    "s",
    "dashboards",
    ("inter_token_latency_seconds", "time_per_output_token_seconds"),
)
TPOT = Series(
    "vllm_request_time_per_output_token_seconds",
    "histogram",
    "s",
    "dashboards: one value a request, as the benchmark's",
    ("request_time_per_output_token_seconds",),
)
QUEUE = Series(
    "vllm_request_queue_time_seconds",
    "histogram",
    "s",
    "dashboards",
    ("request_queue_time_seconds", "time_in_queue_requests"),
)
E2E = Series("vllm_e2e_request_latency_seconds", "histogram", "s", "dashboards", ("e2e_request_latency_seconds",))

TABLE: tuple[Series, ...] = (
    RUNNING,
    WAITING,
    KV_CACHE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    REQUESTS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    TTFT,
    ITL,
    TPOT,
    QUEUE,
    E2E,
)
GUARDED = (WAITING, KV_CACHE, PREEMPTIONS)
"""Those by which a candidate can be taken back."""


class Known(NamedTuple):
    """What a name in an engine's text stands for."""

    stored: str
    rank: int
    """0 for the newest spelling; where an engine gives several of one series, the lowest alone counts."""
    series: Series


def known(name: str) -> Known | None:
    """Return what a name stands for, none if nobody uses it.

    Args:
        name: As the engine's text has it, such as `ray_vllm_num_preemptions_total`.
    """
    return _NAMES.get(name.removeprefix("ray_").replace("vllm:", "vllm_", 1))


def _spellings() -> dict[str, Known]:
    found: dict[str, Known] = {}
    for series in TABLE:
        for rank, stem in enumerate(series.stems):
            if series.kind == "histogram":
                for ending in ("_sum", "_count"):
                    found[f"vllm_{stem}{ending}"] = Known(series.name + ending, 2 * rank, series)
                continue
            found[f"vllm_{stem}_total" if series.kind == "counter" else f"vllm_{stem}"] = Known(
                series.name, 2 * rank, series
            )
            if series.kind == "counter":
                found[f"vllm_{stem}"] = Known(series.name, 2 * rank + 1, series)
    return found


_NAMES = _spellings()
