"""What the candidate answers, not how fast: log-likelihood of fixed texts, and greedy answers to fixed questions."""

import asyncio
from typing import Any

import aiohttp

from headway.domain.bench import BenchJob, CanaryAnswer, SideTarget
from headway.domain.release import QualityFigures
from headway.errors import BackendError

QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "What is two plus two? Answer with one number.",
    "Which colour has the sky on a clear day? Answer in one sentence.",
)
ANSWER_TOKENS = 96
FLOOR_NATS = 9999.0
"""vLLM writes minus infinity as -9999, because JSON has none; a token without a finite value counts as much."""


async def served_figures(session: aiohttp.ClientSession, job: BenchJob, target: SideTarget) -> QualityFigures:
    """Measure the log-likelihood of the fixed texts, one at a time, as the served model gives it.

    Raises:
        BackendError: If the server refuses, or its answer does not hold the prompt's log-probabilities.
    """
    nlls: list[float] = []
    counts: list[int] = []
    for ids in job.reference_token_ids:
        body = {
            "model": target.served_model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        answer = await _post(session, target, "/v1/completions", body, job.canary.request_timeout_s)
        nlls.append(_nll(answer, ids))
        counts.append(len(ids) - 1)
    digest = job.reference.prompt_set_digest if job.reference else ""
    return QualityFigures(
        prompt_set_digest=digest,
        engine=job.engine,
        tokens=sum(counts),
        nll=sum(nlls),
        per_text_nll=tuple(nlls),
        per_text_tokens=tuple(counts),
    )


async def answers(session: aiohttp.ClientSession, job: BenchJob) -> tuple[CanaryAnswer, ...]:
    """Ask every side the fixed questions, greedily."""
    timeout_s = job.canary.request_timeout_s
    found = [await _ask(session, target, question, timeout_s) for target in job.targets for question in QUESTIONS]
    return tuple(found)


async def _ask(session: aiohttp.ClientSession, target: SideTarget, question: str, timeout_s: float) -> CanaryAnswer:
    base: dict[str, Any] = {"model": target.served_model, "max_tokens": ANSWER_TOKENS, "temperature": 0.0}
    try:
        try:
            chat = {**base, "messages": [{"role": "user", "content": question}]}
            choice = _choice(await _post(session, target, "/v1/chat/completions", chat, timeout_s))
            message = choice.get("message") or {}
            text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or ""
        except _NoChatError:
            # A model without a chat template answers plain prompts only.
            choice = _choice(await _post(session, target, "/v1/completions", {**base, "prompt": question}, timeout_s))
            text = choice.get("text") or ""
    except BackendError as error:
        return CanaryAnswer(side=target.side, prompt=question, error=error.message)
    return CanaryAnswer(side=target.side, prompt=question, text=text, finish_reason=choice.get("finish_reason"))


class _NoChatError(BackendError):
    """The server has no chat for this model."""


async def _post(
    session: aiohttp.ClientSession, target: SideTarget, path: str, body: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            async with session.post(f"{target.base_url}{path}", json=body, headers=target.headers) as response:
                if response.status != 200:
                    text = " ".join((await response.text())[:300].split())
                    kind = _NoChatError if response.status in (400, 404) and "chat" in path else BackendError
                    raise kind(f"{path} answered HTTP {response.status}: {text}")
                answer = await response.json(content_type=None)
    except TimeoutError:
        raise BackendError(f"{path} did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, ValueError, OSError) as problem:
        raise BackendError(f"{path} failed: {type(problem).__name__}: {problem}") from problem
    if not isinstance(answer, dict):
        raise BackendError(f"{path} answered {type(answer).__name__} instead of a JSON object")
    return answer


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BackendError(f"the answer has no choices: {str(answer)[:200]}")
    found: dict[str, Any] = choices[0]
    return found


def _nll(answer: dict[str, Any], ids: tuple[int, ...]) -> float:
    """Sum the negative log-likelihoods of all tokens but the first, which nothing precedes."""
    logprobs = _choice(answer).get("prompt_logprobs") or answer.get("prompt_logprobs")
    if not isinstance(logprobs, list):
        raise BackendError(
            "the answer holds no choices[0].prompt_logprobs; quality needs vLLM's prompt_logprobs, and a gateway that "
            "lets the field pass"
        )
    if len(logprobs) != len(ids):
        raise BackendError(f"the answer has log-probabilities of {len(logprobs)} tokens; {len(ids)} were sent")
    total = 0.0
    for token, entry in zip(ids[1:], logprobs[1:], strict=True):
        found = (entry or {}).get(str(token))
        value = found.get("logprob") if isinstance(found, dict) else None
        if found is None:
            raise BackendError(f"the answer lacks the log-probability of token {token}; it has {str(entry)[:100]}")
        # Rounding may leave the log-probability of a certain token a hair above 0; NaN fails both comparisons.
        total += -value if isinstance(value, int | float) and -FLOOR_NATS <= value <= 1e-3 else FLOOR_NATS
    return total
