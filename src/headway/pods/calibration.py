"""Fetches the texts on which a scheme is calibrated, and turns them into tokens."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.adapters.s3.client import S3Client
from headway.domain import calibration
from headway.domain.weights import Recipe
from headway.errors import ConfigError, IntegrityError

LEAST_TOKENS = 8
"""Shorter rows say nothing about activations, and are passed over."""


def fetch(client: S3Client, uri: str | None, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the rows that the recipe names; none for a recipe that needs none.

    Raises:
        IntegrityError: The texts are not those that were planned.
        ConfigError: They are no calibration texts.
        NotFound: Nothing is there.
    """
    if recipe.calibration_digest is None:
        return []
    content = client.read(uri) if uri is not None else calibration.bundled()
    found = hashlib.sha256(content).hexdigest()
    if found != recipe.calibration_digest:
        origin = uri or "the calibration texts of this version"
        raise IntegrityError(
            f"{origin} has sha256 {found[:12]}, planned was {recipe.calibration_digest[:12]}; plan the release again",
            found=found,
            expected=recipe.calibration_digest,
        )
    return calibration.rows(content)


def batches(rows: Sequence[dict[str, Any]], model_dir: Path, recipe: Recipe) -> list[dict[str, Any]]:
    """Return each row as one batch of tokens, as many rows and tokens as the recipe says.

    Rows with `messages` go through the model's chat template, as requests do; rows with `text` are taken as they are.

    Raises:
        ConfigError: The rows cannot be used with this model.
    """
    if not rows:
        return []
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    found = []
    for row in rows[: recipe.calibration_samples or len(rows)]:
        ids = _ids(row, tokenizer)[: recipe.calibration_tokens]
        if len(ids) >= LEAST_TOKENS:
            tokens = torch.tensor([ids])
            found.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
    if not found:
        raise ConfigError(f"no calibration text has {LEAST_TOKENS} tokens or more; give longer ones")
    return found


def _ids(row: dict[str, Any], tokenizer: Any) -> list[int]:
    if "messages" not in row:
        return list(tokenizer(row["text"])["input_ids"])
    if not tokenizer.chat_template:
        raise ConfigError(
            "the calibration texts have rows with `messages`, and the model has no chat template; give `text` instead"
        )
    written = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    # The template writes the special tokens itself.
    return list(tokenizer(written, add_special_tokens=False)["input_ids"])


def loader(found: Sequence[dict[str, Any]]) -> Any:
    """Return the batches as llm-compressor wants them: one row at a time, in order, without padding."""
    from torch.utils.data import DataLoader

    return DataLoader(list(found), batch_size=None, shuffle=False)
