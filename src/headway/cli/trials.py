"""Real decisions for `headway calibrate`: the bench program against two endpoints, or the same one twice."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import requests

from headway.domain.bench import BenchJob, Side, SideTarget
from headway.domain.profile import Canary, Trials
from headway.domain.release import Decision, Verdict
from headway.errors import BackendError, BackendUnavailable, ConfigError, NotFound
from headway.judge import replay
from headway.judge.metrics import summary
from headway.judge.records import Run, parse
from headway.pods import bench
from headway.release.canary import SIDE_HEADER

ASK_TIMEOUT_S = 60.0
RELEASE_HEADER = "x-headway-release"


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
        model: Name to ask for if it lists it; otherwise the first that it lists.

    Raises:
        BackendUnavailable: It does not answer.
        BackendError: Its answer is not that of such an API.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        listed = requests.get(f"{base}/v1/models", timeout=ASK_TIMEOUT_S)
        names = [item["id"] for item in listed.json()["data"]]
        served = model if model in names else names[0]
        body = {"model": served, "prompt": "Hello", "max_tokens": 2}
        answer = requests.post(f"{base}/v1/completions", json=body, timeout=ASK_TIMEOUT_S)
    except requests.RequestException as error:
        raise BackendUnavailable(f"nothing answers at {base}: {type(error).__name__}; is a server running?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BackendError(f"{base}/v1/models does not list models as the OpenAI API does") from error
    if answer.status_code != 200:
        raise BackendError(f"{base}/v1/completions answered HTTP {answer.status_code}: {answer.text[:200]}")
    return SideTarget(side=side, base_url=base, served_model=served, release=answer.headers.get(RELEASE_HEADER, side))


def both_stable(model: str) -> tuple[SideTarget, SideTarget]:
    """Return the stack's serving stable of a model as both sides, through the gateway's internal listener.

    Raises:
        NotFound: The model serves nothing.
    """
    from headway import wiring
    from headway.domain.value import slug

    backend = wiring.connect()
    stable = backend.traffic.route(model).stable
    if stable is None:
        raise NotFound(f"{model} serves nothing that could be measured; release it first, or give --url-a", model=model)
    sides: tuple[Side, Side] = ("stable", "candidate")
    # The gateway's path of a model is its name, if a URL can carry it as it is.
    base_url = f"{backend.gateway_url.rstrip('/')}/{model if quote(model, safe='') == model else slug(model)}"
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
        BackendError: It answers the fixed questions so badly that no load is put on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Evidence of an earlier calibration does not change what is measured, and must not make it another job.
    plain = canary.model_copy(update={"evidence": None})
    job = BenchJob(
        release=f"calibrate-{folder.name}", targets=tuple(targets), canary=plain, seed=seed, inject_ms=inject_ms
    )
    result = asyncio.run(bench.run(job, folder, lambda _percent, _text: None))
    if not result.blocks:
        # The bench program saves the load where the fixed questions have decided already.
        failed = next((answer.error for answer in result.answers if answer.error), None)
        raise BackendError(
            "no block was measured, because the fixed questions were not answered as a model must: "
            f"{failed or 'wrong or endless answers'}; calibrate with a model that passes the quality gate"
        )
    return load(folder / job.records_path, canary)


def load(path: Path, canary: Canary) -> Trial:
    """Return the decision on the records of a trial."""
    found = parse(path.read_bytes())
    verdict: Verdict = replay.decide(found, replay.basis_of(found, canary))
    ends = [s.ended_s for s in found.summaries]
    seconds = max(ends) - min(s.started_s for s in found.summaries) if ends else 0.0
    return Trial(verdict.decision, verdict.blocks_used, seconds, found)


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
