"""Takes the score of one task out of what lm-evaluation-harness returns, sample by sample."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.domain.bench import Side
from headway.domain.task_jobs import TaskScore
from headway.domain.value import digest
from headway.errors import ConfigError

PREFERRED = ("acc_norm", "acc", "exact_match")
"""Metrics in the order in which one is taken, where the profile names none."""
MEAN_SLACK = 1e-6
"""Most that the harness's score may differ from the mean of its samples: their rounding."""


class Measured(NamedTuple):
    """One task on one side."""

    score: TaskScore
    lines: tuple[str, ...]
    """A JSON line for each sample."""


def pick(name: str, side: Side, found: Mapping[str, Any], wanted: str | None, *, seconds: float = 0.0) -> Measured:
    """Take one metric of a task out of the harness's result, sample by sample.

    Args:
        name: The task or group, as the profile names it.
        side: Who answered.
        found: What `simple_evaluate` returned for it.
        wanted: Metric that the profile names, with or without a filter; none takes the preferred one.
        seconds: How long it took.

    Raises:
        ConfigError: There is no such metric, or it is no mean of the samples.
    """
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = found["samples"]
    metric, filter_name = _metric(name, {leaf: found["results"][leaf] for leaf in samples}, wanted)
    label = metric if filter_name == "none" else f"{metric},{filter_name}"
    values: list[float] = []
    asked: list[list[Any]] = []
    lines: list[str] = []
    for leaf in sorted(samples):
        of_leaf = sorted((s for s in samples[leaf] if s["filter"] == filter_name), key=lambda s: s["doc_id"])
        got = [_number(name, label, sample[metric]) for sample in of_leaf]
        told = found["results"][leaf][f"{metric},{filter_name}"]
        if not got or not isinstance(told, int | float) or abs(math.fsum(got) / len(got) - told) > MEAN_SLACK:
            raise ConfigError(
                f"the metric {label} of {leaf} is {told}, which is not the mean of its {len(got)} samples, so sides "
                "cannot be compared sample by sample; name another metric in quality.tasks.metrics",
                task=name,
            )
        values += got
        for sample, value in zip(of_leaf, got, strict=True):
            identity = [leaf, sample["doc_id"], sample["doc_hash"], sample["prompt_hash"], sample["target_hash"]]
            asked.append(identity)
            lines.append(_sample_line({"task": name, "leaf": leaf, "side": side, "metric": label}, value, sample))
    better = [(found.get("higher_is_better") or {}).get(leaf, {}).get(metric) for leaf in samples]
    score = TaskScore(
        task=name,
        side=side,
        metric=label,
        higher_is_better=False not in better,
        values=tuple(values),
        samples_digest=digest(asked),
        seconds=round(seconds, 3),
    )
    return Measured(score, tuple(lines))


def _metric(name: str, results: Mapping[str, Mapping[str, Any]], wanted: str | None) -> tuple[str, str]:
    """Return the metric and the filter to take: one that every task of a group has."""
    common = [
        (metric, kept)
        for metric, comma, kept in (key.partition(",") for key in next(iter(results.values())))
        if comma and not metric.endswith("_stderr") and all(f"{metric},{kept}" in r for r in results.values())
    ]
    there = ", ".join(f"{metric},{kept}" for metric, kept in common) or "none"
    if wanted is not None:
        fits = [pair for pair in common if wanted in (pair[0], f"{pair[0]},{pair[1]}")]
        if not fits:
            raise ConfigError(f"the task {name} has no metric {wanted}; it has {there}", task=name)
        return fits[0]
    if not common:
        raise ConfigError(f"the tasks of the group {name} have no metric in common; name its tasks one by one")
    ranks = {metric: rank for rank, metric in enumerate(PREFERRED)}
    return min(common, key=lambda pair: ranks.get(pair[0], len(PREFERRED)))


def _number(name: str, label: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"the metric {label} of {name} is {str(value)[:60]} for a sample, which is no number; name another metric "
            "in quality.tasks.metrics",
            task=name,
        )
    return number


def _sample_line(about: Mapping[str, Any], value: float, sample: Mapping[str, Any]) -> str:
    line = {
        **about,
        "doc_id": sample["doc_id"],
        "doc_hash": sample["doc_hash"],
        "prompt_hash": sample["prompt_hash"],
        "value": value,
        "doc": sample.get("doc"),
        "target": sample.get("target"),
        "answers": sample.get("filtered_resps"),
    }
    return json.dumps({"sample": _plain(line)}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; numbers that JSON lacks, and anything else, as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
