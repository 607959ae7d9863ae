"""Write the tables of the documentation that follow from the code: `python docs/tables.py [--check]`.

A table lies between `<!-- begin:NAME -->` and `<!-- end:NAME -->`; everything between the two is replaced. A unit test
fails when a table is not what the code says.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headway import errors
from headway.adapters.local.layout import LocalLayout
from headway.domain.hardware import ACCELERATORS
from headway.domain.profile import Profile
from headway.domain.serving import SERVES, SHAPE_RULES, Serves, bits_per_weight
from headway.domain.weights import BUILDABLE, GROUPED
from headway.settings import Settings
from headway.units import format_bytes

DOCS = Path(__file__).parent
UNITS = {"_s": "seconds", "_ms": "milliseconds", "_pct": "percent", "_gib": "GiB", "_days": "days", "_bytes": "bytes"}
"""Suffix of a key to its unit; the longest that fits counts."""

DIGESTS = {
    "engine": "cluster",
    "hardware": "cluster",
    "serving_image": "cluster",
    "weights.schemes": "artifact",
    "weights.group_size": "artifact",
    "weights.kv_cache_scales": "artifact",
    "weights.calibration": "artifact",
}
"""Which digest a key, or all keys below it, goes into; any other applies in place or to the next release."""

LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "at least"}

PROFILE_NOTES = {
    "model": "registered model in MLflow; also the name that clients ask for",
    "alias": "what promoted means: reconcile releases the version that this alias points at",
    "hardware.accelerator": "name of the table below, as the device plugin labels it; `cpu` for the embedded stack",
    "hardware.per_replica": "accelerators of one replica: the tensor parallel size",
    "engine.max_model_len": "longest sequence in tokens, prompt and answer; at most what the model was trained for",
    "engine.max_num_seqs": "sequences that run at once in a replica",
    "engine.gpu_memory_utilization": "share of a device's memory that vLLM may take; unused on `cpu`",
    "engine.kv_cache_dtype": "type of the KV cache; `fp8` halves it; `auto` only on `cpu`",
    "engine.enable_prefix_caching": "whether prompts that begin alike share their cache",
    "engine.dtype": "type of the computation; `float16` where the device has no bfloat16 (T4)",
    "engine.max_logprobs": "most log-probabilities a request may ask for; the quality gate needs 20",
    "engine.kv_cache_gib": "KV cache of a replica on `cpu`; elsewhere vLLM takes what is left",
    "weights.schemes": "schemes in order of preference; the first that fits the hardware is taken",
    "weights.choose": "`first` that fits the hardware, or `race`: the fewest bytes that pass the quality gate",
    "weights.group_size": "weights that share a scale in the 4 bit schemes: 32, 64 or 128",
    "weights.kv_cache_scales": "whether scales of an FP8 KV cache are calibrated and stored with the weights",
    "weights.calibration.uri": "`s3://` address of JSON lines with calibration texts; none: those of headway",
    "weights.calibration.samples": "rows that are used, from the first on",
    "weights.calibration.max_tokens": "tokens of a row that are used",
    "weights.calibration.languages": "least share of the rows by their `language`; empty: not checked",
    "weights.signer.public_key": "PEM file of the key that must have signed the source, relative to `profiles/`",
    "weights.signer.certificate_chain": "PEM files of trusted root certificates, instead of a key",
    "weights.signer.required": "whether an unsigned source is refused; a wrong signature always is",
    "weights.chat_template_sha256": "the one chat template that may serve; none: any that passes the rules",
    "quality.max_ppl_ratio": "perplexity as served over its source's; none: 1.05 from 8 bit on, 1.10 for 4 bit",
    "quality.max_kl": "mean divergence from the source in nats a token; none: 0.05 and 0.10 likewise",
    "quality.min_top1": "share of tokens whose first choice is the source's; none: shown, not judged",
    "quality.max_stable_ppl_ratio": "perplexity of the source over that of stable's source",
    "quality.max_ppl": "absolute limit of the source's perplexity on the fixed texts",
    "quality.tasks.names": "tasks or groups of lm-evaluation-harness, see [Tasks](tasks.md)",
    "quality.tasks.include_uri": "`s3://` address of a tar file, or a prefix, with task files and their data",
    "quality.tasks.include_sha256": "digest of those files as the result shows it; none: whatever lies there",
    "quality.tasks.metrics": "metric by task; otherwise `acc_norm`, `acc`, `exact_match` or the task's first one",
    "quality.tasks.limit": "samples of a task, from the first on; none: all",
    "quality.tasks.num_fewshot": "solved examples before each question; none: as the task says",
    "quality.tasks.chat": "whether the chat endpoint is asked; multiple choice cannot",
    "quality.tasks.concurrency": "requests in flight, on one side at a time",
    "quality.tasks.min_recovery": "score over stable's, mean of the tasks; none: 0.99 from 8 bit on, 0.98 for 4 bit",
    "quality.tasks.min_task_recovery": "the same for each single task; none: shown, not judged",
    "quality.tasks.min_score": "least score by task, absolute; the only limit of a first release",
    "quality.tasks.deadline_s": "after this the step fails and stable stays",
    "serving_image": "image by digest; none on the embedded stack, where the serving lock takes its place",
    "replicas.min": "replicas that are always up",
    "replicas.max": "most replicas",
    "replicas.target_ongoing": "requests in flight on a replica that Serve's autoscaler aims at",
    "replicas.downscale_delay_s": "how long the load must be low before a replica ends",
    "rollout.no_room": "where replicas do not fit beside what runs: `refuse`, `wait` for it, or `shrink` to what fits",
    "canary.p50_margin": "share by which the candidate's medians may be worse and still pass",
    "canary.p95_margin": "the same for the 95th percentiles",
    "canary.error_margin_pct": "percentage points by which the candidate may fail more often",
    "canary.p99_guard": "a 99th percentile surely worse by more than half of this takes back; it never promotes",
    "canary.goodput.ttft_ms": "a request is good only below this",
    "canary.goodput.tpot_ms": "the same for its time per output token",
    "canary.goodput.e2e_ms": "the same for its whole time",
    "canary.goodput.margin_pct": "percentage points by which the candidate's share of good requests may be lower",
    "canary.guards.max_kv_cache_points": "percentage points by which the candidate may use more of its KV cache",
    "canary.guards.max_preemptions_per_100": "preempted sequences in 100 requests by which it may exceed stable",
    "canary.guards.max_waiting": "mean number of queued requests by which it may exceed stable",
    "canary.evidence.hardware": "accelerator that they were measured on",
    "canary.evidence.measured_at": "when, UTC",
    "canary.evidence.method": "`trials` of their own, or `resampled` recorded pairs of equal sides",
    "canary.evidence.rule": "digest of margins, blocks, looks and load; evidence for other numbers is flagged",
    "canary.evidence.recorded_blocks": "paired blocks of equal sides that it rests on",
    "canary.evidence.spread": "standard deviation of the log ratio of equal sides, by metric",
    "canary.evidence.trials.metric": "what was made slower on the candidate's side; empty: nothing",
    "canary.evidence.trials.slower_pct": "by how much",
    "canary.evidence.trials.promoted": "decisions that were PROMOTE",
    "canary.evidence.trials.rolled_back": "decisions that were ROLLBACK",
    "canary.evidence.trials.held": "decisions that were HOLD",
    "canary.evidence.trials.mean_blocks": "blocks to a decision",
    "canary.api": "endpoint that is asked: `completions` or `chat`",
    "canary.arrivals": "`poisson`, `gamma`, `constant`, or `replay` of recorded traffic",
    "canary.burstiness": "shape of the gamma distributed gaps; below 1 burstier than Poisson",
    "canary.trace": 'what `replay` replays: `s3://` address of JSON lines `{"at_s": ...}`, or `history`',
    "canary.prompts": '`s3://` address of JSON lines `{"prompt": ...}` to draw from; none: generated ones',
    "canary.shared_prefix_pct": "share of the prompts that begin with one common prefix; the others are unseen",
    "canary.blocks": "paired blocks at most",
    "canary.looks": "blocks after which a decision is tried; empty: after each from the fourth on, at most 30 times",
    "canary.requests_per_block": "requests of each side in a block",
    "canary.rate_per_s": "arrivals a second on each side",
    "canary.max_tokens": "most tokens of an answer of the benchmark",
    "canary.warmup_requests": "requests of each side before the first block, not counted",
    "canary.first_ttft_p95_ms": "absolute limit of a first release, which has no stable side",
    "canary.first_tpot_p95_ms": "the same for the time per output token",
    "canary.first_error_pct": "the same for failed requests",
    "canary.max_lag_ms": "a block whose requests left later than this against their schedule (99th percentile) is void",
    "canary.request_timeout_s": "a request that has not ended after this counts as failed",
    "canary.demo_margins": "marks margins that only a demonstration may have; the report says so",
    "shift.steps_pct": "shares of the candidate, rising to 100",
    "shift.bake_s": "how long each step is watched",
    "shift.approve": "whether a person must approve after the canary",
    "shift.max_error_pct": "share of the candidate's live requests that may fail",
    "shift.max_latency_ratio": "how many times as long as stable's the candidate's slow live requests may take",
    "shift.alpha": "chance that a candidate within these limits is taken back by them, at all looks together",
    "shift.burst": "live requests in a row that may fail or be slow together",
    "prescale.enabled": "whether the floor is set ahead of the traffic",
    "prescale.shadow": "whether everything is planned and priced, and nothing is changed",
    "prescale.quantile": "quantile of the forecast for which replicas are up",
    "prescale.timezone": "time zone whose clock the users' days follow",
    "prescale.holidays": "country or subdivision whose public holidays are known events, such as `DE` or `DE-BY`",
    "prescale.calendar": "ICS file of known events, relative to `profiles/`",
    "prescale.max_replicas_step": "most replicas that one tick adds",
    "prescale.budget_replicas": "replicas that may be paid for; none: `replicas.max`",
    "prescale.spare": "what may be lost without the load exceeding the rest",
    "prescale.zones": "zones over which replicas are spread",
    "prescale.lead_time_s": "seconds from asking for a replica to its first token, until scale-ups were measured",
    "prescale.requests_per_s": "requests a second that one replica sustains; none: from the release's own canary",
    "prescale.history_days": "days of traffic that are kept",
    "deadlines.quantize_s": "after this the release fails and stable stays",
    "deadlines.stage_s": "the same for staging",
    "deadlines.rollout_s": "the same for the candidate to come up and answer",
    "deadlines.canary_s": "the same for the benchmark",
    "gpu_hour_price": "price of an accelerator hour in any currency, for the cost in reports",
    "retention.versions": "versions whose artifacts are kept (clean-up is not built yet)",
    "retention.record_days": "days that records are kept (clean-up is not built yet)",
    "keep_previous_s": "how long the previous cluster stays warm after a promotion",
    "hold_s": "how long a held candidate is kept for a person to decide",
}


class Key(NamedTuple):
    """One key of a pydantic model, by its full path."""

    path: str
    field: FieldInfo


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield every key that holds a value, in the order of the model."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        below = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        if below is not None:
            yield from keys(below, f"{path}.")
        else:
            yield Key(path, field)


def profile_table() -> str:
    """Return the table of every key of a profile."""
    rows = [
        (f"`{path}`", _default(field), _kind(field), _unit(path), _digest_of(path), PROFILE_NOTES[path])
        for path, field in keys(Profile)
    ]
    return table(("key", "default", "values", "unit", "digest", "meaning"), rows)


def accelerator_table() -> str:
    """Return the table of accelerators."""
    rows = [
        (f"`{a.name}`", format_bytes(a.memory_bytes), f"{a.compute_capability:g}" if a.compute_capability else "-")
        for a in ACCELERATORS.values()
    ]
    return table(("`hardware.accelerator`", "memory that a replica may count on", "compute capability"), rows)


def scheme_table() -> str:
    """Return the table of what serves where."""
    rows = [
        (
            f"`{row.scheme}`",
            _bits(row),
            _capabilities(row),
            _native(row),
            "yes" if row.cpu else "no",
            "yes" if row.scheme in BUILDABLE else "no: refused by name",
        )
        for row in SERVES.values()
    ]
    return table(("scheme", "bits a Linear weight", "compute capability", "native", "CPU", "built"), rows)


def scheme_source_table() -> str:
    """Return the table of how we know what serves where."""
    rows = [(f"`{row.scheme}`", row.gpu_source, row.cpu_source) for row in SERVES.values()]
    return table(("scheme", "accelerators: by source", "CPU"), rows)


def shape_table() -> str:
    """Return the table of what shapes and types must be."""
    return table(("what must be", "where", "source"), SHAPE_RULES)


def port_table() -> str:
    """Return the table of the embedded stack's ports."""
    layout = LocalLayout(home=Path("/h"), cache=Path("/c"), base_port=18000, checkout=Path("/p"))
    rows = [(f"+{port - 18000}", str(port), name) for port, name in layout.named_ports().items()]
    first, last = layout.cluster_ports(0), layout.cluster_ports(5)
    rows += [
        ("+100 to +339", f"{first.first} to {last.first + 39}", "clusters: 40 for each of six slots (Ray, Serve)"),
        ("+1000 to +2199", f"{first.worker_first} to {last.worker_last}", "clusters: 200 workers for each slot"),
    ]
    return table(("from the base port", "with base port 18000", "service"), rows)


def settings_table() -> str:
    """Return the table of the settings, with what their docstrings say."""
    notes = attribute_docstrings(Settings)
    prefix = str(Settings.model_config.get("env_prefix", "")).upper()
    rows = []
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias or f"{prefix}{name.upper()}")
        rows.append((f"`{variable}`", _default(field), notes[name]))
    return table(("variable", "default", "meaning"), rows)


def error_tree() -> str:
    """Return the tree of errors as their module draws it."""
    drawn = inspect.cleandoc(errors.__doc__ or "").split("```")[1].strip()
    return f"```\n{drawn}\n```"


def attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text under each attribute of a class, on one line."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(model)))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    found = {}
    for above, below in pairwise(body):
        text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and below.value.value
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and isinstance(text, str):
            found[above.target.id] = " ".join(text.split())
    return found


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "profile": ("profiles.md", profile_table),
    "accelerators": ("profiles.md", accelerator_table),
    "schemes": ("profiles.md", scheme_table),
    "scheme-sources": ("profiles.md", scheme_source_table),
    "scheme-shapes": ("profiles.md", shape_table),
    "ports": ("architecture.md", port_table),
    "settings": ("settings.md", settings_table),
    "errors": ("errors.md", error_tree),
}
"""Name of a table to its page and its maker."""


def filled(text: str, name: str, content: str) -> str:
    """Return the page with the table in its place. Raises LookupError if the page has no such place."""
    place = re.compile(rf"(<!-- begin:{name} -->\n).*?(<!-- end:{name} -->)", re.DOTALL)
    if not place.search(text):
        raise LookupError(f"no place for table {name!r}; add `<!-- begin:{name} -->` and `<!-- end:{name} -->`")
    return place.sub(lambda match: f"{match[1]}\n{content}\n\n{match[2]}", text)


def main(arguments: list[str]) -> int:
    """Write the tables, or with `--check` say which are old; return the exit code."""
    old = []
    for name, (page, make) in TABLES.items():
        path = DOCS / page
        text = path.read_text()
        new = filled(text, name, make())
        if new != text:
            old.append(f"{page}: {name}")
            if "--check" not in arguments:
                path.write_text(new)
    sys.stdout.write("\n".join([*old, "" if old else "all tables are as the code says\n"]))
    return 1 if old and "--check" in arguments else 0


def _bits(row: Serves) -> str:
    if row.scheme not in GROUPED:
        return f"{bits_per_weight(row.scheme, None):g}"
    return ", ".join(f"{bits_per_weight(row.scheme, size):g} (groups of {size})" for size in (32, 64, 128))


def _capabilities(row: Serves) -> str:
    if not row.least:
        return "any"
    return f"{row.least:.1f} and up" if row.below is None else f"{row.least:.1f} to below {row.below:.1f}"


def _native(row: Serves) -> str:
    if row.scheme == "none":
        return "yes"
    return "weights only" if row.native is None else f"from {row.native:.1f}"


def _unit(path: str) -> str:
    fits = [suffix for suffix in UNITS if path.endswith(suffix)]
    return UNITS[max(fits, key=len)] if fits else "-"


def _digest_of(path: str) -> str:
    return next((d for part, d in DIGESTS.items() if path == part or path.startswith(f"{part}.")), "-")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path):
        # The page must not depend on who made it.
        value = str(value).replace(str(DOCS.parent), "the checkout").replace(str(Path.home()), "~")
    return "none" if value is None else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_yaml(v) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(v)}" for name, v in value.items()) + "}"
    return str(value) if value != "" else '""'


def _kind(field: FieldInfo) -> str:
    kind = _named(field.annotation)
    limits = []
    for item in field.metadata:
        for attribute, word in LIMITS.items():
            if getattr(item, attribute, None) is not None:
                limits.append(f"{word} {getattr(item, attribute):g}{' character' if attribute == 'min_length' else ''}")
    return ", ".join([kind, *limits])


def _named(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_named(argument) for argument in arguments)
    if origin is dict:
        return f"{_named(arguments[1])} by {_named(arguments[0])}"
    if origin is tuple:
        return "list of schemes" if get_origin(arguments[0]) is Literal else f"list of {_named(arguments[0])}s"
    names = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", type(None): "none"}
    return names.get(annotation, str(annotation))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
