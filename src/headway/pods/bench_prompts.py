"""What is asked: both sides get the same prompts, lengths, seeds and arrivals, and all follow from the job's seed.

No server has seen a prompt before: it begins with a nonce, so that no cached prefix flatters a side. Only the declared
share begins with one common prefix, as users' prompts do that share a system text; it is the same for the whole run.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import NamedTuple

from headway.domain import prompts
from headway.domain.bench import BenchJob
from headway.domain.prompts import Prompt
from headway.errors import IntegrityError
from headway.pods.bench_arrivals import arrivals_s

SAMPLED_EVERY = 4
"""One request in so many is sampled: greedy decoding alone would never run the engine's sampler."""
PREFIX_WORDS = 160
"""Length of the common prefix: some ten of vLLM's blocks of 16 tokens, so that a hit saves real work."""
TOPICS = (
    "a lighthouse keeper",
    "the water cycle",
    "how bread rises",
    "a city at night",
    "the history of paper",
    "why ships float",
    "a letter to a friend",
    "the first railway",
    "mountains in winter",
    "how to repair a bicycle",
)


class Ask(NamedTuple):
    """One request that all sides get."""

    number: int
    """Position in the block."""
    at_s: float
    """Scheduled arrival, from the start of the block."""
    prompt: str
    sampled: bool
    seed: int
    max_tokens: int
    nonce: str = ""
    """Where it is in the prompt, the prompt is unseen from there on."""

    def again(self, rng: random.Random) -> "Ask":
        """Return the like of it that no server has seen."""
        nonce = _nonce(rng)
        return self._replace(prompt=self.prompt.replace(self.nonce, nonce, 1), nonce=nonce, seed=rng.getrandbits(31))


def read_set(content: bytes, job: BenchJob) -> tuple[Prompt, ...]:
    """Return the prompts of the job's set.

    Raises:
        IntegrityError: It is not the set that the job was made for.
        ConfigError: It cannot be read.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != job.prompts_sha256:
        raise IntegrityError(
            f"the prompts at {job.canary.prompts} have digest {found[:12]}, the job was made for "
            f"{job.prompts_sha256[:12]}; somebody changed them: release again",
            uri=job.canary.prompts,
        )
    return prompts.rows(content, str(job.canary.prompts))


def make_prompt(rng: random.Random) -> str:
    """Return a prompt of headway's own."""
    topics = rng.sample(TOPICS, rng.randint(1, 4))
    return f"Write a short text about {', then about '.join(topics)}. Begin at once and use plain words."


def common_prefix(seed: int) -> str:
    """Return the prefix that the declared share of a run's prompts begins with; another run has another."""
    rng = _rng(seed, "prefix")
    words: list[str] = []
    while len(words) < PREFIX_WORDS:
        words += make_prompt(rng).split()
    return f"{_nonce(rng)} {' '.join(words[:PREFIX_WORDS])}"


class Prompts:
    """Makes the texts of a run.

    Args:
        job: Its seed and its share of common prefixes.
        drawn_from: The job's prompt set; empty: headway's own prompts.
    """

    def __init__(self, job: BenchJob, drawn_from: Sequence[Prompt] = ()) -> None:
        self._job, self._set = job, tuple(drawn_from)
        self._prefix = common_prefix(job.seed) if job.canary.shared_prefix_pct else ""

    @property
    def mean_tokens(self) -> float:
        """Mean length of the answers that are asked for."""
        default = self._job.canary.max_tokens
        if not self._set:
            return default
        return sum(prompt.max_tokens or default for prompt in self._set) / len(self._set)

    def block(self, block: int) -> list[Ask]:
        """Return the requests of a block."""
        return self._asks("block", block, self._job.canary.requests_per_block)

    def warm_up(self) -> list[Ask]:
        """Return the requests that come before the first block, and that nobody measures."""
        return self._asks("warmup", 0, self._job.canary.warmup_requests)

    def _asks(self, phase: str, block: int, count: int) -> list[Ask]:
        canary = self._job.canary
        times = arrivals_s(
            canary,
            count,
            _rng(self._job.seed, phase, block, "arrivals"),
            recorded_s=self._job.arrivals_s,
            first=block * canary.requests_per_block,
        )
        rng = _rng(self._job.seed, phase, block)
        return [self._ask(rng, number, at_s) for number, at_s in enumerate(times)]

    def _ask(self, rng: random.Random, number: int, at_s: float) -> Ask:
        canary = self._job.canary
        nonce = _nonce(rng)
        text, max_tokens = rng.choice(self._set) if self._set else Prompt(make_prompt(rng))
        shared = rng.random() * 100 < canary.shared_prefix_pct
        return Ask(
            number=number,
            at_s=at_s,
            prompt=f"{self._prefix} {nonce} {text}" if shared else f"{nonce} {text}",
            sampled=number % SAMPLED_EVERY == 1,
            seed=rng.getrandbits(31),
            max_tokens=max_tokens or canary.max_tokens,
            nonce=nonce,
        )


def _nonce(rng: random.Random) -> str:
    return f"{rng.getrandbits(64):016x}"


def _rng(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))  # noqa: S311 - reproducible load, not a secret
