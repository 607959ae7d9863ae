"""Records of simulated benchmarks."""

import math
import random
from collections.abc import Callable, Sequence

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary

Alter = Callable[[RequestRecord], RequestRecord | None]
TTFT_S, TPOT_S, TOKENS = 0.4, 0.05, 16


def make_canary(**changes: object) -> Canary:
    """The demonstration's canary: 10 blocks of 15 requests, with margins that suit so few."""
    data: dict[str, object] = {
        "blocks": 10,
        "requests_per_block": 15,
        "p50_margin": 0.5,
        "p95_margin": 1.0,
        "error_margin_pct": 5.0,
        **changes,
    }
    return Canary.model_validate(data)


def make_run(
    canary: Canary,
    *,
    seed: int = 0,
    slower: float = 1.0,
    spread: float = 0.35,
    shared: float = 0.2,
    paired: bool = True,
    blocks: int | None = None,
    alter: Alter | None = None,
    placement: Sequence[int] = (0,),
    hardware: float = 1.0,
) -> tuple[list[RequestRecord], list[BlockSummary]]:
    """Simulate a benchmark.

    Args:
        canary: Its size.
        seed: Of all its luck.
        slower: The candidate's latencies over stable's.
        spread: Standard deviation of the logarithm of one request's latency.
        shared: The same of the luck that all requests of a block share, on both sides.
        paired: Whether there is a stable side.
        blocks: How many, if not all of the profile.
        alter: Changes or drops (none) each record.
        placement: Which way round the machines are, block by block, over and over.
        hardware: Latencies of one machine over the other one's; the candidate has it in placements 0 and 1.
    """
    rng = random.Random(seed)  # noqa: S311
    records: list[RequestRecord] = []
    summaries: list[BlockSummary] = []
    now = 0.0
    for block in range(canary.blocks if blocks is None else blocks):
        luck = math.exp(rng.gauss(0, shared))
        start = now
        placed = placement[block % len(placement)]
        unequal = slower * (1 / hardware if placed == 2 else hardware)
        for index in range(canary.requests_per_block):
            now += rng.expovariate(1.0)
            sides: tuple[tuple[Side, float], ...] = (("stable", 1.0), ("candidate", unequal))
            for side, factor in sides[0 if paired else 1 :]:
                ttft = TTFT_S * luck * factor * math.exp(rng.gauss(0, spread))
                tpot = TPOT_S * luck * factor * math.exp(rng.gauss(0, spread / 2))
                record = RequestRecord.model_construct(  # unchecked, because thousands are made
                    block=block,
                    side=side,
                    index=index,
                    prompt_sha256=f"{block}/{index}",
                    scheduled_s=now,
                    sent_s=now,
                    release=f"{side}-1",
                    first_token_s=now + ttft,
                    ended_s=now + ttft + tpot * (TOKENS - 1),
                    output_tokens=TOKENS,
                    status=200,
                    served_model="m",
                    served_release=f"{side}-1",
                )
                changed = alter(record) if alter else record
                if changed is not None:
                    records.append(changed)
        summaries.append(
            BlockSummary(
                block=block,
                planned=canary.requests_per_block,
                placement=placed,
                started_s=start,
                ended_s=now,
                lag_p99_ms=1.0,
            )
        )
    return records, summaries


def failed(record: RequestRecord, why: str = "HTTP 500: oops") -> RequestRecord:
    """Return the record as a failure."""
    return record.model_copy(update={"error": why, "first_token_s": None, "output_tokens": None, "status": 500})
