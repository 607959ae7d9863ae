"""Figures of a source on the fixed texts, computed with transformers (design rule 13.6)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.domain.release import QualityFigures, Reference
from headway.errors import ModelRejected
from headway.pods.io import Progress

NOT_FINITE_NLL = 1e9
"""Stands for the log-likelihood of a text on which the model gave NaN or infinity: JSON has no such number, and the
perplexity that follows from it is infinite."""

MAX_FLOAT32_BYTES = 8 * 1024**3
"""Up to this size weights are computed in float32 on a CPU, which has no fast bfloat16; above, memory matters more."""


MAX_LOGITS_BYTES = 1024**3
"""Memory that the logits of one batch may take."""


def measure(
    model_dir: Path, texts: Sequence[str], source_digest: str, prompt_set_digest: str, progress: Progress
) -> Reference:
    """Compute the reference of a model.

    Each text is scored by itself from its second token on, as the served model is asked later.

    Args:
        model_dir: Plain Hugging Face directory.
        texts: The fixed texts.
        source_digest: Name of the source.
        prompt_set_digest: Name of the texts.
        progress: Told how far it is.

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
    nll: list[float] = []
    rows = _rows_at_once(max(map(len, token_ids), default=1), int(model.config.get_text_config().vocab_size))
    for start in range(0, len(token_ids), rows):
        progress(20 + 80 * start / len(token_ids), "measuring the source on the fixed texts")
        nll += _batch_nll(model, token_ids[start : start + rows])
    scored = tuple(max(len(ids) - 1, 0) for ids in token_ids)
    name = "auto" if dtype == "auto" else "float32"
    figures = QualityFigures(
        prompt_set_digest=prompt_set_digest,
        engine=f"transformers {transformers.__version__} {name}",
        tokens=sum(scored),
        nll=math.fsum(nll),
        per_text_nll=tuple(nll),
        per_text_tokens=scored,
    )
    return Reference(source_digest=source_digest, figures=figures, token_ids=tuple(token_ids))


def _rows_at_once(width: int, vocab_size: int) -> int:
    """Return how many texts are scored side by side: together is 2.5 times cheaper on a CPU than one by one."""
    return max(1, MAX_LOGITS_BYTES // (4 * width * vocab_size))


def _batch_nll(model: Any, batch: Sequence[tuple[int, ...]]) -> list[float]:
    """Score texts side by side. Shorter ones are filled up on the right, which a causal model cannot look at."""
    import torch

    width = max(len(ids) for ids in batch)
    given = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in batch], device=model.device)
    with torch.inference_mode():
        logits = model(given, use_cache=False).logits
    values = []
    for row, ids in enumerate(batch):
        steps = max(len(ids) - 1, 0)
        scored, wanted = logits[row, :steps].to(torch.float32), given[row, 1 : steps + 1]
        value = float(torch.nn.functional.cross_entropy(scored, wanted, reduction="sum")) if steps else 0.0
        values.append(value if math.isfinite(value) else NOT_FINITE_NLL)
    return values
