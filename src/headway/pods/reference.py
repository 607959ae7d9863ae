"""Figures of a source on the fixed texts, and its answers to the fixed questions (design rule 13.6).

Computed once with transformers, before anything is made of the source, and kept in two objects: the reference, which
steps read too, and beside it the head of the source's next-token distributions, a megabyte that only programs read.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.adapters.s3.client import S3Client
from headway.domain.bench import ANSWER_TOKENS, QUESTIONS
from headway.domain.release import QualityFigures, Reference, SourceAnswer, TopLogprobs
from headway.domain.value import canonical_json, digest
from headway.domain.weight_jobs import QuantizeJob
from headway.errors import IntegrityError, ModelRejected, NotFound
from headway.judge.divergence import WIDTH
from headway.judge.source import refusal, source_checks
from headway.pods.io import Progress

NOT_FINITE_NLL = 1e9
"""Stands for the log-likelihood of a text on which the model gave NaN or infinity: JSON has no such number, and the
perplexity that follows from it is infinite."""

NOT_FINITE_LOGPROB = -9999.0
"""The same for one token, as vLLM writes it."""

DIGITS = 5
"""Of a stored log-probability: an error of five millionths, far below the noise of an engine."""

MAX_FLOAT32_BYTES = 8 * 1024**3
"""Up to this size weights are computed in float32 on a CPU, which has no fast bfloat16; above, memory matters more."""


MAX_LOGITS_BYTES = 1024**3
"""Memory that the logits of one batch may take."""


def ensure(client: S3Client, job: QuantizeJob, model_dir: Path, progress: Progress) -> Reference:
    """Return the stored reference of a job's source, or make and store it: once per source and set of texts.

    One of an older headway keeps its figures, so that what was judged by them stays as it was, and gets what it lacks.

    Args:
        client: The store.
        job: Names the source, the texts, and where the reference is kept.
        model_dir: The source, as a plain Hugging Face directory.
        progress: Told how far it is.

    Raises:
        ModelRejected: transformers cannot load the directory.
    """
    known = client.read_json(job.reference_uri)
    old = Reference.model_validate(dict(known)) if known is not None else None
    if old is not None and old.complete:
        return old

    def worth(figures: QualityFigures) -> bool:
        return refusal(source_checks(figures, job.stable, job.quality)) is None

    made, top = measure(model_dir, job.texts, job.source_digest, job.prompt_set_digest, progress, worth=worth)
    if not made.answers:
        # Stays incomplete, so that the program runs again should the limits ever let it pass.
        return old or Reference.model_validate_json(client.keep(job.reference_uri, canonical_json(made)))
    body = canonical_json(top)
    made = made.model_copy(update={"top_sha256": hashlib.sha256(body).hexdigest()})
    # Named by its content, and written before the reference that points to it.
    client.keep(top_uri(job.reference_uri, made.top_sha256), body)
    if old is None:
        return Reference.model_validate_json(client.keep(job.reference_uri, canonical_json(made)))
    made = made.model_copy(update={"figures": old.figures, "token_ids": old.token_ids})
    client.put(job.reference_uri, canonical_json(made))
    return made


def load(client: S3Client, reference_uri: str, reference_digest: str = "") -> tuple[Reference, TopLogprobs | None]:
    """Return a stored reference with the head of its distributions, none if an older headway made it.

    Args:
        client: The store.
        reference_uri: Where the reference is kept.
        reference_digest: Name of its content, if the caller knows it.

    Raises:
        NotFound: There is none.
        IntegrityError: It is not what its digest names.
    """
    known = client.read_json(reference_uri)
    if known is None:
        raise NotFound(f"there is no reference at {reference_uri}; let quantize make it", uri=reference_uri)
    reference = Reference.model_validate(dict(known))
    found = digest(reference)
    if reference_digest and found != reference_digest:
        raise IntegrityError(
            f"the reference at {reference_uri} is {found[:12]}, expected {reference_digest[:12]}; release again",
            uri=reference_uri,
        )
    if not reference.complete:
        return reference, None
    uri = top_uri(reference_uri, reference.top_sha256)
    body = client.read(uri)
    found = hashlib.sha256(body).hexdigest()
    if found != reference.top_sha256:
        raise IntegrityError(
            f"{uri} has digest {found[:12]}; somebody changed it. Delete it and {reference_uri}, and release again",
            uri=uri,
        )
    return reference, TopLogprobs.model_validate_json(body)


def top_uri(reference_uri: str, top_sha256: str) -> str:
    """Return where the head of the distributions is kept: beside the reference."""
    return f"{reference_uri.removesuffix('.json')}.top-{top_sha256[:16]}.json"


class Scores(NamedTuple):
    """What a model says of one text."""

    nll: float
    token_logprobs: tuple[float, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def measure(
    model_dir: Path,
    texts: Sequence[str],
    source_digest: str,
    prompt_set_digest: str,
    progress: Progress,
    *,
    worth: Callable[[QualityFigures], bool] = lambda _: True,
) -> tuple[Reference, TopLogprobs]:
    """Compute the reference of a model, and the head of its distributions.

    Each text is scored by itself from its second token on, as the served model is asked later.

    Args:
        model_dir: Plain Hugging Face directory.
        texts: The fixed texts.
        source_digest: Name of the source.
        prompt_set_digest: Name of the texts.
        progress: Told how far it is.
        worth: Whether a model with these figures is worth being asked questions.

    Raises:
        ModelRejected: transformers cannot load the directory.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    progress(0, "loading the source")
    weights_bytes = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    on_gpu = torch.cuda.is_available()
    dtype = "auto" if on_gpu or weights_bytes > MAX_FLOAT32_BYTES else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=dtype, trust_remote_code=False, use_safetensors=True, device_map="auto" if on_gpu else None
        )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        said = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        finding = f"transformers {transformers.__version__} cannot load it: {said}"
        raise ModelRejected(finding, report=[finding]) from error
    model.eval()
    token_ids = [tuple(int(i) for i in tokenizer(text)["input_ids"]) for text in texts]
    scores: list[Scores] = []
    rows = _rows_at_once(max(map(len, token_ids), default=1), int(model.config.get_text_config().vocab_size))
    for start in range(0, len(token_ids), rows):
        progress(20 + 50 * start / len(token_ids), "measuring the source on the fixed texts")
        scores += _batch_scores(model, token_ids[start : start + rows])
    scored = tuple(max(len(ids) - 1, 0) for ids in token_ids)
    name = "auto" if dtype == "auto" else "float32"
    figures = QualityFigures(
        prompt_set_digest=prompt_set_digest,
        engine=f"transformers {transformers.__version__} {name}",
        tokens=sum(scored),
        nll=math.fsum(score.nll for score in scores),
        per_text_nll=tuple(score.nll for score in scores),
        per_text_tokens=scored,
    )
    answers = []
    # A model that is refused for its figures is asked nothing: a broken one never stops talking.
    for number, question in enumerate(QUESTIONS if worth(figures) else ()):
        progress(70 + 30 * number / len(QUESTIONS), "asking the source the fixed questions")
        answers.append(_answer(model, tokenizer, question.prompt))
    reference = Reference(
        source_digest=source_digest, figures=figures, token_ids=tuple(token_ids), answers=tuple(answers)
    )
    top = TopLogprobs(
        source_digest=source_digest,
        prompt_set_digest=prompt_set_digest,
        width=min(WIDTH, int(model.config.get_text_config().vocab_size)),
        token_logprobs=tuple(score.token_logprobs for score in scores),
        top_ids=tuple(score.top_ids for score in scores),
        top_logprobs=tuple(score.top_logprobs for score in scores),
    )
    return reference, top


def _rows_at_once(width: int, vocab_size: int) -> int:
    """Return how many texts are scored side by side: together is 2.5 times cheaper on a CPU than one by one."""
    return max(1, MAX_LOGITS_BYTES // (4 * width * vocab_size))


def _batch_scores(model: Any, batch: Sequence[tuple[int, ...]]) -> list[Scores]:
    """Score texts side by side. Shorter ones are filled up on the right, which a causal model cannot look at."""
    import torch

    width = max(len(ids) for ids in batch)
    given = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in batch], device=model.device)
    with torch.inference_mode():
        logits = model(given, use_cache=False).logits
    found = []
    for row, ids in enumerate(batch):
        steps = max(len(ids) - 1, 0)
        logprobs = logits[row, :steps].to(torch.float32).log_softmax(-1)
        own = logprobs.gather(1, given[row, 1 : steps + 1, None]).flatten()
        top = logprobs.topk(min(WIDTH, logprobs.shape[-1]), dim=-1)
        nll = -float(own.double().sum())
        found.append(
            Scores(
                nll if math.isfinite(nll) else NOT_FINITE_NLL,
                tuple(map(_rounded, own.tolist())),
                tuple(top.indices.flatten().tolist()),
                tuple(map(_rounded, top.values.flatten().tolist())),
            )
        )
    return found


def _rounded(value: float) -> float:
    return round(value, DIGITS) if math.isfinite(value) else NOT_FINITE_LOGPROB


def _answer(model: Any, tokenizer: Any, question: str) -> SourceAnswer:
    """Answer greedily, as the server is asked later: through the chat template if there is one."""
    import torch
    from jinja2 import TemplateError

    try:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    except (ValueError, TemplateError):
        # Without a template, or with one that refuses a plain question, the server is asked for a continuation.
        ids = tokenizer(question)["input_ids"]
    given = torch.tensor([ids], device=model.device)
    with torch.inference_mode():
        whole = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=ANSWER_TOKENS
        )
    new = whole[0, len(ids) :].tolist()
    return SourceAnswer(
        prompt=question,
        text=tokenizer.decode(new, skip_special_tokens=True),
        finish_reason="stop" if new and new[-1] in _ends(model) else "length",
        prompt_tokens=len(ids),
    )


def _ends(model: Any) -> frozenset[int]:
    """Return the tokens that end an answer."""
    given = model.generation_config.eos_token_id
    return frozenset([given] if isinstance(given, int) else given or ())
