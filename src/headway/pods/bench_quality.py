"""What a served model answers, not how fast: log-probabilities of fixed texts, greedy answers to fixed questions."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from headway.adapters.s3.client import S3Client
from headway.domain.bench import ANSWER_TOKENS, QUESTIONS, BenchJob, CanaryAnswer, SideTarget
from headway.domain.profile import Quality
from headway.domain.release import QualityFigures, Reference, SourceAnswer, TopLogprobs
from headway.domain.value import canonical_json
from headway.domain.weights import Scheme
from headway.errors import BackendError
from headway.judge.divergence import agrees, divergence
from headway.judge.quality import limits

FLOOR_NATS = 9999.0
"""vLLM writes minus infinity as -9999, because JSON has none; a token without a finite value counts as much."""
AT_ONCE = 3
"""Fixed questions in flight on one side; stable has users meanwhile."""


class Yardstick(NamedTuple):
    """What a served model is measured against."""

    figures: QualityFigures
    token_ids: Sequence[tuple[int, ...]]
    answers: Sequence[SourceAnswer] = ()
    top: TopLogprobs | None = None
    """None: the divergence from the source is not measured."""


def of_job(job: BenchJob) -> Yardstick | None:
    """Return what a job carries itself; none if perplexity is not measured."""
    return Yardstick(job.reference, job.reference_token_ids) if job.reference is not None else None


def of_reference(reference: Reference, top: TopLogprobs | None) -> Yardstick:
    """Return a stored reference as a yardstick."""
    return Yardstick(reference.figures, reference.token_ids, reference.answers, top)


class Text(NamedTuple):
    """What was measured on one text."""

    nll: float
    kl: float
    top1: int


async def served_figures(
    session: aiohttp.ClientSession, target: SideTarget, yardstick: Yardstick, *, engine: str, timeout_s: float
) -> QualityFigures:
    """Measure the log-probabilities of the fixed texts, one at a time, as the served model gives them.

    Args:
        session: For the requests.
        target: Who is asked.
        yardstick: The texts as tokens, and what the source makes of them.
        engine: Name and version of what serves, for the figures.
        timeout_s: Of one text.

    Raises:
        BackendError: If the server refuses, or its answer does not hold the prompt's log-probabilities.
    """
    top = yardstick.top
    found: list[Text] = []
    for number, ids in enumerate(yardstick.token_ids):
        body = {
            "model": target.served_model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": top.width if top else 0,
        }
        try:
            positions = _positions(await _post(session, target, "/v1/completions", body, timeout_s), ids)
        except _NotFiniteError:
            positions = [{token: -FLOOR_NATS} for token in ids[1:]]
        found.append(_text(positions, ids, top, number))
    counts = tuple(len(ids) - 1 for ids in yardstick.token_ids)
    return QualityFigures(
        prompt_set_digest=yardstick.figures.prompt_set_digest,
        engine=engine,
        tokens=sum(counts),
        nll=sum(text.nll for text in found),
        per_text_nll=tuple(text.nll for text in found),
        per_text_tokens=counts,
        per_text_kl=tuple(text.kl for text in found) if top else (),
        per_text_top1=tuple(text.top1 for text in found) if top else (),
    )


async def answers(
    session: aiohttp.ClientSession, targets: Sequence[SideTarget], timeout_s: float
) -> tuple[CanaryAnswer, ...]:
    """Ask every side the fixed questions, greedily and a few at once: that costs an engine little more than one."""
    found: list[CanaryAnswer] = []
    for target in targets:
        for first in range(0, len(QUESTIONS), AT_ONCE):
            some = QUESTIONS[first : first + AT_ONCE]
            found += await asyncio.gather(*(_ask(session, target, asked.prompt, timeout_s) for asked in some))
    return tuple(found)


def noise(client: S3Client, uri: str, scheme: Scheme, served: QualityFigures | None) -> QualityFigures | None:
    """Return the figures of the source served as it is; what serves it now leaves them, if nobody has.

    Figures beyond the limits are not left: an engine that was broken once must not be the measure for ever.

    Args:
        client: The store.
        uri: Where they are kept; empty: nowhere.
        scheme: How what is served is quantized.
        served: Its figures.
    """
    if not uri:
        return None
    if (
        scheme == "none"
        and served is not None
        and served.kl is not None
        and served.kl <= limits(scheme, Quality()).max_kl
    ):
        return QualityFigures.model_validate_json(client.keep(uri, canonical_json(served)))
    kept = client.read_json(uri)
    return QualityFigures.model_validate(dict(kept)) if kept is not None else None


async def _ask(session: aiohttp.ClientSession, target: SideTarget, question: str, timeout_s: float) -> CanaryAnswer:
    base: dict[str, Any] = {"model": target.served_model, "max_tokens": ANSWER_TOKENS, "temperature": 0.0}
    try:
        try:
            chat = {**base, "messages": [{"role": "user", "content": question}]}
            answer = await _post(session, target, "/v1/chat/completions", chat, timeout_s)
            choice = _choice(answer)
            message = choice.get("message") or {}
            text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or ""
        except _NoChatError:
            # A model without a chat template answers plain prompts only.
            answer = await _post(session, target, "/v1/completions", {**base, "prompt": question}, timeout_s)
            choice = _choice(answer)
            text = choice.get("text") or ""
    except BackendError as error:
        return CanaryAnswer(side=target.side, prompt=question, error=error.message)
    counted = (answer.get("usage") or {}).get("prompt_tokens")
    return CanaryAnswer(
        side=target.side,
        prompt=question,
        text=text,
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=counted if isinstance(counted, int) else None,
    )


class _NoChatError(BackendError):
    """The server has no chat for this model."""


class _NotFiniteError(BackendError):
    """The model's log-probabilities are NaN or infinite, which vLLM (0.29) cannot write as JSON."""


def _kind(path: str, status: int, text: str) -> type[BackendError]:
    if status in (400, 500) and "Out of range float values" in text:
        return _NotFiniteError
    return _NoChatError if status in (400, 404) and "chat" in path else BackendError


async def _post(
    session: aiohttp.ClientSession, target: SideTarget, path: str, body: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            async with session.post(f"{target.base_url}{path}", json=body, headers=target.headers) as response:
                if response.status != 200:
                    text = " ".join((await response.text())[:300].split())
                    raise _kind(path, response.status, text)(f"{path} answered HTTP {response.status}: {text}")
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


def _positions(answer: dict[str, Any], ids: Sequence[int]) -> list[dict[int, float]]:
    """Return the log-probabilities by token of every position but the first, which nothing precedes."""
    logprobs = _choice(answer).get("prompt_logprobs") or answer.get("prompt_logprobs")
    if not isinstance(logprobs, list):
        raise BackendError(
            "the answer holds no choices[0].prompt_logprobs; quality needs vLLM's prompt_logprobs, and a gateway that "
            "lets the field pass"
        )
    if len(logprobs) != len(ids):
        raise BackendError(f"the answer has log-probabilities of {len(logprobs)} tokens; {len(ids)} were sent")
    found = []
    for token, entry in zip(ids[1:], logprobs[1:], strict=True):
        if not isinstance(entry, Mapping) or not isinstance(entry.get(str(token)), Mapping):
            raise BackendError(f"the answer lacks the log-probability of token {token}; it has {str(entry)[:100]}")
        found.append({int(name): _finite(value) for name, value in entry.items() if name.isdigit()})
    return found


def _finite(found: Any) -> float:
    value = found.get("logprob") if isinstance(found, Mapping) else None
    # Rounding may leave the log-probability of a certain token a hair above 0; NaN fails both comparisons.
    return float(value) if isinstance(value, int | float) and -FLOOR_NATS <= value <= 1e-3 else -FLOOR_NATS


def _text(positions: Sequence[Mapping[int, float]], ids: Sequence[int], top: TopLogprobs | None, number: int) -> Text:
    nll = -sum(served[token] for token, served in zip(ids[1:], positions, strict=True))
    if top is None:
        return Text(nll, 0.0, 0)
    kl, top1, width = 0.0, 0, top.width
    for step, served in enumerate(positions):
        part = slice(step * width, (step + 1) * width)
        source = dict(zip(top.top_ids[number][part], top.top_logprobs[number][part], strict=True))
        first = top.top_ids[number][step * width]
        source[ids[step + 1]] = top.token_logprobs[number][step]
        kl += divergence(source, served)
        top1 += agrees(first, served)
    return Text(nll, kl, top1)
