"""Figures of a source on the fixed texts, computed with transformers (design rule 13.6)."""

import math
from collections.abc import Sequence
from pathlib import Path

from headway.domain.release import QualityFigures, Reference
from headway.errors import ModelRejected
from headway.pods.io import Progress

NOT_FINITE_NLL = 1e9
"""Stands for the log-likelihood of a text on which the model gave NaN or infinity: JSON has no such number, and the
perplexity that follows from it is infinite."""

MAX_FLOAT32_BYTES = 8 * 1024**3
"""Up to this size weights are computed in float32 on a CPU, which has no fast bfloat16; above, memory matters more."""


def measure(model_dir: Path, texts: Sequence[str], source_digest: str, prompt_set_digest: str, progress: Progress) -> Reference:
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
    for number, ids in enumerate(token_ids):
        progress(20 + 80 * number / len(token_ids), "measuring the source on the fixed texts")
        nll.append(_text_nll(model, ids))
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


def _text_nll(model: object, ids: tuple[int, ...]) -> float:
    import torch

    if len(ids) < 2:
        return 0.0
    given = torch.tensor([ids], device=model.device)  # type: ignore[attr-defined]
    with torch.inference_mode():
        logits = model(given, use_cache=False).logits[0, :-1].to(torch.float32)  # type: ignore[operator]
    value = float(torch.nn.functional.cross_entropy(logits, given[0, 1:], reduction="sum"))
    return value if math.isfinite(value) else NOT_FINITE_NLL
