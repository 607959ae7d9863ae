"""Arrivals and prompts of a block: both sides get the same, and each kind keeps its promise."""

import hashlib
import json
import random
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.bench import BenchJob, SideTarget
from headway.domain.profile import Canary
from headway.domain.prompts import Prompt
from headway.errors import ConfigError, IntegrityError
from headway.pods import bench_load
from headway.pods.bench_arrivals import arrivals_s
from headway.pods.bench_prompts import Prompts, common_prefix, read_set

_RNG = random.Random(1)  # noqa: S311 - a replay draws nothing from it
SET = tuple(Prompt(f"What is {k}?", 2 + k if k % 2 else None) for k in range(20))


def job_of(*, seed: int = 5, paired: bool = True, **canary: Any) -> BenchJob:
    recorded = canary.pop("recorded", ())
    digest = canary.pop("prompts_sha256", "")
    sides = ("stable", "candidate") if paired else ("candidate",)
    targets = [SideTarget(side=s, base_url="http://h", served_model="m", release=s) for s in sides]  # type: ignore[arg-type]
    return BenchJob(
        release="r",
        targets=tuple(targets),
        canary=Canary.model_validate(canary),
        seed=seed,
        arrivals_s=recorded,
        prompts_sha256=digest,
    )


def gaps_of(count: int = 20_000, **canary: Any) -> list[float]:
    found = arrivals_s(Canary.model_validate(canary), count, random.Random(1), recorded_s=(), first=0)  # noqa: S311
    return [found[0], *(b - a for a, b in pairwise(found))]


@pytest.mark.parametrize(
    ("canary", "variation"),
    [
        ({"arrivals": "poisson"}, 1.0),
        ({"arrivals": "gamma", "burstiness": 1.0}, 1.0),
        ({"arrivals": "gamma", "burstiness": 0.25}, 2.0),
        ({"arrivals": "gamma", "burstiness": 4.0}, 0.5),
        ({"arrivals": "constant"}, 0.0),
    ],
)
def test_drawn_gaps_have_the_rate_and_the_burstiness_that_was_asked_for(
    canary: dict[str, Any], variation: float
) -> None:
    gaps = gaps_of(rate_per_s=8, **canary)

    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, abs=0.05)


recordings = st.lists(st.floats(0, 100), min_size=1, max_size=50).map(
    lambda gaps: tuple(sum(gaps[:k]) for k in range(len(gaps) + 1))
)


@given(recordings.filter(lambda r: r[-1] > 1e-6), st.floats(0.1, 100), st.integers(1, 5))
def test_a_recording_is_replayed_at_the_mean_rate_with_its_pattern(
    recorded: tuple[float, ...], rate_per_s: float, turns: int
) -> None:
    count = (len(recorded) - 1) * turns

    found = arrivals_s(
        Canary(arrivals="replay", trace="history", rate_per_s=rate_per_s), count, _RNG, recorded_s=recorded, first=0
    )

    assert found[-1] == pytest.approx(count / rate_per_s)
    scale = (count / rate_per_s) / (turns * recorded[-1])
    assert found[: len(recorded) - 1] == pytest.approx([at * scale for at in recorded[1:]], abs=1e-9 * found[-1])


def test_blocks_go_on_in_the_recording_where_the_last_one_ended() -> None:
    recorded = tuple(float(k * k) for k in range(11))
    job = job_of(
        arrivals="replay", trace="history", requests_per_block=4, rate_per_s=1, recorded=recorded, warmup_requests=0
    )
    prompts = Prompts(job)

    blocks = [[ask.at_s for ask in prompts.block(number)] for number in range(5)]

    gaps = [g for at in blocks for g in [at[0], *(b - a for a, b in pairwise(at))]]
    assert gaps[:10] == pytest.approx([(2 * k + 1) / 10 for k in range(10)])
    assert gaps[10:] == pytest.approx(gaps[:10])


def test_a_replay_without_a_recording_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to replay"):
        Prompts(job_of(arrivals="replay", trace="history")).block(0)


@given(st.sampled_from(["poisson", "gamma", "constant"]), st.integers(0, 2**32), st.integers(0, 50))
def test_a_block_follows_from_seed_and_number_alone(kind: str, seed: int, block: int) -> None:
    job = job_of(seed=seed, arrivals=kind, requests_per_block=12, shared_prefix_pct=40)

    asks = Prompts(job, SET).block(block)

    assert asks == Prompts(job, SET).block(block)
    assert [a.number for a in asks] == list(range(12))
    assert all(a.at_s <= b.at_s for a, b in pairwise(asks))
    assert asks != Prompts(job, SET).block(block + 1)


def test_the_kind_of_arrivals_does_not_change_what_is_asked() -> None:
    """Two canaries that differ in their arrivals differ in nothing else."""
    one, other = (Prompts(job_of(arrivals=kind)).block(3) for kind in ("poisson", "constant"))

    assert [a.prompt for a in one] == [b.prompt for b in other]


def test_no_prompt_begins_like_another_unless_its_share_is_declared() -> None:
    prompts = Prompts(job_of(requests_per_block=500), SET)
    starts = {ask.prompt[:16] for block in range(4) for ask in prompts.block(block)}

    assert len(starts) == 2000


@pytest.mark.parametrize("share_pct", [0, 30, 100])
def test_the_declared_share_begins_with_the_runs_one_prefix(share_pct: float) -> None:
    job = job_of(requests_per_block=2000, shared_prefix_pct=share_pct)
    asks = Prompts(job).block(0)
    prefix = common_prefix(job.seed)

    shared = [ask for ask in asks if ask.prompt.startswith(prefix)]

    assert len(shared) / 2000 == pytest.approx(share_pct / 100, abs=0.04)
    assert len({ask.prompt for ask in asks}) == 2000, "what follows the prefix is unseen all the same"
    assert common_prefix(job.seed + 1)[:16] != prefix[:16]


def test_prompts_of_a_set_bring_their_own_lengths() -> None:
    asks = Prompts(job_of(max_tokens=64, requests_per_block=200), SET).block(0)

    lengths = {prompt.text: prompt.max_tokens or 64 for prompt in SET}
    assert all(lengths[ask.prompt.split(" ", 1)[1]] == ask.max_tokens for ask in asks)
    assert len({ask.prompt.split(" ", 1)[1] for ask in asks}) == len(SET)


def test_a_set_that_was_changed_after_the_plan_is_refused() -> None:
    content = "".join(json.dumps({"prompt": p.text}) + "\n" for p in SET).encode()
    job = job_of(prompts="s3://b/p.jsonl", prompts_sha256=hashlib.sha256(content).hexdigest())

    assert len(read_set(content, job)) == 20
    with pytest.raises(IntegrityError, match="somebody changed them"):
        read_set(content + b"\n", job)


@pytest.mark.parametrize(
    ("canary", "live_per_s", "processes"),
    [
        ({"rate_per_s": 200, "max_tokens": 16}, 0, 1),
        ({"rate_per_s": 200, "max_tokens": 16}, 1, 2),
        ({"rate_per_s": 201, "max_tokens": 16}, 0, 2),
        ({"rate_per_s": 200, "max_tokens": 64}, 0, 2),
        ({"rate_per_s": 0.1, "max_tokens": 16}, 0, 1),
    ],
)
def test_a_load_takes_as_many_processes_as_it_needs(canary: dict[str, Any], live_per_s: float, processes: int) -> None:
    assert bench_load.processes_needed(job_of(**canary), canary["max_tokens"], live_per_s) == processes


@given(st.floats(0.1, 10_000), st.floats(2, 1000), st.booleans())
def test_a_rate_is_refused_above_the_limit_that_the_error_states_and_not_below(
    rate_per_s: float, mean_tokens: float, paired: bool
) -> None:
    try:
        bench_load.check_rate(job_of(rate_per_s=rate_per_s, paired=paired), mean_tokens)
    except ConfigError as error:
        limit = error.facts["limit_per_s"]
        assert f"{limit:.4g}" in error.message  # noqa: PT017
        assert rate_per_s > limit * 0.999
        bench_load.check_rate(job_of(rate_per_s=limit * 0.999, paired=paired), mean_tokens)


def test_the_lengths_of_a_prompt_set_count_for_the_limit() -> None:
    long = tuple(Prompt(f"What is {k}?", 1000 if k % 2 else None) for k in range(20))

    assert Prompts(job_of(max_tokens=10), long).mean_tokens == 505
    assert Prompts(job_of(max_tokens=10)).mean_tokens == 10


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_a_containers_quota_counts_as_cores(
    quota: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_load, "CPU_QUOTA", tmp_path / "none")
    all_of_them = bench_load.cores()
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(bench_load, "CPU_QUOTA", tmp_path / "cpu.max")

    assert bench_load.cores() == (expected or all_of_them)
