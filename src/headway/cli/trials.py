"""Real decisions for `headway calibrate`: the bench program against two endpoints, or the same one twice."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import requests

from headway.domain.bench import BenchJob, Side, SideTarget
from headway.domain.profile import Canary, Trials
from headway.domain.release import Decision, Verdict
from headway.domain.value import canonical_json, digest
from headway.errors import BackendError, BackendUnavailable, ConfigError, NotFound
from headway.judge import replay
from headway.judge.metrics import summary
from headway.judge.records import Run, header_line, parse
from headway.pods import bench
from headway.release.canary import SIDE_HEADER, gateway_path

ASK_TIMEOUT_S = 60.0
RELEASE_HEADER = "x-headway-release"
JOB_FILE = "job.json"
"""Beside the records: the job that they are of."""
MOST_DIFFERENCES = 6


class Trial(NamedTuple):
    """One decision with its records."""

    decision: Decision
    blocks: int
    seconds: float
    """From the first scheduled arrival to the last end."""
    run: Run


def endpoint(side: Side, url: str, model: str) -> SideTarget:
    """Return an endpoint of the OpenAI API as a side; asks it one short question to learn what it calls itself.

    Args:
        side: Which side it plays.
        url: Address with or without `/v1`.
        model: The profile's, which it must list: figures of another model say nothing about this one.

    Raises:
        BackendUnavailable: It does not answer.
        BackendError: Its answer is not that of such an API.
        ConfigError: It serves another model.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        listed = requests.get(f"{base}/v1/models", timeout=ASK_TIMEOUT_S)
        names = [str(item["id"]) for item in listed.json()["data"]]
        if model not in names:
            raise ConfigError(
                f"{base} serves {', '.join(names)[:200] or 'no model'}, the profile is for {model}; give the endpoint "
                "of that model, under that name (vLLM: --served-model-name)"
            )
        body = {"model": model, "prompt": "Hello", "max_tokens": 2}
        answer = requests.post(f"{base}/v1/completions", json=body, timeout=ASK_TIMEOUT_S)
    except requests.RequestException as error:
        raise BackendUnavailable(f"nothing answers at {base}: {type(error).__name__}; is a server running?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BackendError(f"{base}/v1/models does not list models as the OpenAI API does") from error
    if answer.status_code != 200:
        raise BackendError(f"{base}/v1/completions answered HTTP {answer.status_code}: {answer.text[:200]}")
    return SideTarget(side=side, base_url=base, served_model=model, release=answer.headers.get(RELEASE_HEADER, side))


def both_stable(model: str) -> tuple[SideTarget, SideTarget]:
    """Return the stack's serving stable of a model as both sides, through the gateway's internal listener.

    Raises:
        NotFound: The model serves nothing.
    """
    from headway import wiring

    backend = wiring.connect()
    stable = backend.traffic.route(model).stable
    if stable is None:
        raise NotFound(f"{model} serves nothing that could be measured; release it first, or give --url-a", model=model)
    sides: tuple[Side, Side] = ("stable", "candidate")
    base_url = f"{backend.gateway_url.rstrip('/')}/{gateway_path(model)}"
    headers = {SIDE_HEADER: "stable"}
    found = [
        SideTarget(side=side, base_url=base_url, headers=headers, served_model=model, release=stable.release)
        for side in sides
    ]
    return found[0], found[1]


def run(
    canary: Canary,
    targets: Sequence[SideTarget],
    folder: Path,
    *,
    inject_ms: float = 0.0,
    seed: int = 0,
) -> Trial:
    """Make one decision and keep its records in a folder; a folder with a finished decision is not measured again.

    Raises:
        BackendUnavailable: An endpoint does not answer.
        BackendError: It answers the fixed questions so badly that no load is put on it, or none of the load's requests.
        ConfigError: The folder holds the records of another benchmark, which stay as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Evidence of an earlier calibration does not change what is measured, and must not make it another job.
    plain = canary.model_copy(update={"evidence": None})
    job = BenchJob(
        release=f"calibrate-{folder.name}", targets=tuple(targets), canary=plain, seed=seed, inject_ms=inject_ms
    )
    _keep_others(folder, job)
    result = asyncio.run(bench.run(job, folder, lambda _percent, _text: None))
    if not result.blocks:
        # The bench program saves the load where the fixed questions have decided already.
        failed = next((answer.error for answer in result.answers if answer.error), None)
        raise BackendError(
            "no block was measured, because the fixed questions were not answered as a model must: "
            f"{failed or 'wrong or endless answers'}; calibrate with a model that passes the quality gate"
        )
    found = load(folder / job.records_path, canary)
    for target in targets:
        _answered(found.run, target)
    return found


def _keep_others(folder: Path, job: BenchJob) -> None:
    """Refuse a folder with records of another job, which the bench program would replace: they cost hours."""
    records, kept = folder / job.records_path, folder / JOB_FILE
    if records.exists() and records.stat().st_size:
        with records.open("rb") as file:
            same = file.readline() == f"{header_line(digest(job))}\n".encode()
        if not same:
            raise ConfigError(
                f"{folder} holds the records of another benchmark ({_difference(kept, job)}); nothing was changed "
                "there. Give another --folder for this one, or the former profile to go on with that one"
            )
    kept.write_bytes(canonical_json(job))


def _difference(kept: Path, job: BenchJob) -> str:
    """Say in what the job in the folder differs from this one."""
    try:
        old = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        old = None
    if not isinstance(old, dict):
        return f"it has no {JOB_FILE}, which would say in what they differ"
    new = json.loads(canonical_json(job))
    before, after = _flat(old), _flat(new)
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    said = [f"{key} was {before.get(key)}, is {after.get(key)}" for key in keys]
    return "; ".join(said[:MOST_DIFFERENCES]) or "another version of headway made them"


def _flat(job: dict[str, Any]) -> dict[str, Any]:
    canary = job.get("canary")
    inner = {f"canary.{key}": value for key, value in canary.items()} if isinstance(canary, dict) else {}
    return {**inner, **{key: value for key, value in job.items() if key != "canary"}}


def _answered(run: Run, target: SideTarget) -> None:
    """Refuse a side that has failed throughout: it is no slower or faster than anything."""
    errors = [r.error for r in run.records if r.side == target.side]
    if errors and all(errors):
        (most, _), *_ = Counter(errors).most_common(1)
        raise BackendError(
            f"all {len(errors)} requests of {target.side} at {target.base_url} failed, most often with: {most}; "
            "nothing can be calibrated with a side that does not answer"
        )


def load(path: Path, canary: Canary) -> Trial:
    """Return the decision on the records of a trial."""
    found = parse(path.read_bytes())
    verdict: Verdict = replay.decide(found, replay.basis_of(found, canary))
    ends = [s.ended_s for s in found.summaries]
    seconds = max(ends) - min(s.started_s for s in found.summaries) if ends else 0.0
    return Trial(verdict.decision, verdict.blocks_used, seconds, found)


def failures(found: Sequence[Trial]) -> str:
    """Say how many requests of each side failed over trials, and with what most often."""
    said = []
    for side in ("stable", "candidate"):
        errors = [r.error for trial in found for r in trial.run.records if r.side == side]
        most = Counter(error for error in errors if error).most_common(1)
        why = f", most often with: {most[0][0]}" if most else ""
        said.append(f"{side}: {sum(error is not None for error in errors)} of {len(errors)} failed{why}")
    return "; ".join(said)


def median_ttft_ms(found: Sequence[Trial]) -> float:
    """Return stable's median time to first token over trials.

    Raises:
        ConfigError: None was measured.
    """
    records = list(itertools.chain.from_iterable(trial.run.records for trial in found))
    stable = summary(records).stable
    if stable is None or stable.ttft.p50_ms is None:
        raise ConfigError("no request of the trials was answered, so there is nothing to calibrate")
    return stable.ttft.p50_ms


def counted(found: Sequence[Trial], *, metric: str = "", slower_pct: float = 0.0) -> Trials:
    """Count the decisions of trials of one kind."""
    counts = {decision: sum(t.decision == decision for t in found) for decision in ("PROMOTE", "ROLLBACK", "HOLD")}
    return Trials(
        metric=metric,
        slower_pct=round(slower_pct, 2),
        promoted=counts["PROMOTE"],
        rolled_back=counts["ROLLBACK"],
        held=counts["HOLD"],
        mean_blocks=round(sum(t.blocks for t in found) / len(found), 2) if found else 0.0,
    )
