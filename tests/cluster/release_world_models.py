"""Versions of a model in the store, with all that takes an engine to make there already."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.adapters.s3 import S3Client
from headway.domain import texts
from headway.domain.model import ModelVersion
from headway.domain.quality_jobs import QualityResult
from headway.domain.release import QualityFigures, Reference, ReleasePlan, TopLogprobs
from headway.domain.value import canonical_json
from headway.domain.weight_jobs import QuantizeJob
from headway.pods import attest, publish
from headway.pods.mock_vllm import VOCABULARY, Behaviour, head
from headway.pods.reference import top_uri
from headway.release import plan, quality, quantize, select, validate

from .release_world import MODEL, World, client_of

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
TENSORS = {
    "model.embed_tokens.weight": [VOCABULARY, 64],
    "model.layers.0.self_attn.q_proj.weight": [64, 64],
    "model.layers.0.self_attn.o_proj.weight": [64, 64],
    "model.layers.0.mlp.up_proj.weight": [128, 64],
    "model.layers.0.mlp.down_proj.weight": [64, 128],
    "model.norm.weight": [64],
}
TEXT_TOKENS, TEXTS, WIDTH = 16, 2, 8
Register = Callable[[int, Path], ModelVersion]
"""Puts a version's folder into the store and the registry."""


def write_model(folder: Path, version: int) -> Path:
    """Write a model whose weights say which version it is; small, and real enough for every check of its files."""
    folder.mkdir(parents=True)
    header, offset = {}, 0
    for name, shape in TENSORS.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes([version]) * offset)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def put_files(client: S3Client, folder: Path, uri: str) -> None:
    """Upload a folder."""
    for path in sorted(folder.iterdir()):
        client.put(uri + path.name, path.read_bytes())


def make_version(world: World, number: int, register: Register, scratch: Path) -> ReleasePlan:
    """Register a version, and leave in the store what quantizing it would; return the plan that a release makes of it.

    Args:
        world: The world.
        number: Of the version.
        register: Brings the folder to the registry.
        scratch: Space for the files.
    """
    folder = write_model(scratch / f"{MODEL}-{number}", number)
    register(number, folder)
    made = plan_of(world, number)
    payload = QuantizeJob.model_validate(quantize._job(made, world.backend.weights, None, 1).payload)
    client = client_of(world, "quantize")
    _put_reference(client, payload)
    files = publish.list_files(folder)
    publish.upload(client, folder, files, payload.artifact_uri, lambda percent, text: None)
    signed = attest.manifest_of(payload, files, {}, {**os.environ, attest.SIGNING_KEY: str(world.signing_key)})
    publish.publish(client, signed, payload.artifact_uri)
    said = QualityResult(
        depth="accepts",
        artifact_digest=made.artifact_digest,
        scheme=made.recipe.scheme,
        artifact_bytes=sum(file.size_bytes for file in files),
    )
    client.put(f"s3://headway/{quality.result_key(made)}", canonical_json(said))
    return made


def plan_of(world: World, number: int) -> ReleasePlan:
    """Return the plan that a release of a version makes now."""
    backend = world.backend
    profile = backend.profile(MODEL)
    selection = select.run(MODEL, backend.registry, backend.weights, version=number)
    validated = validate.run(selection, backend.weights, profile.weights, backend.signatures)
    return plan.make(
        profile,
        selection,
        validated,
        serving_image=backend.serving_image(profile),
        model_root=backend.model_root,
        calibration_digest=None,
    )


def _put_reference(client: S3Client, job: QuantizeJob) -> None:
    """Leave the figures of a source that answers as the mock server does."""
    nll = Behaviour().nll_per_token
    ids = tuple(tuple((text + step) % VOCABULARY for step in range(TEXT_TOKENS)) for text in range(TEXTS))
    scored = TEXT_TOKENS - 1
    heads = [[head(token, nll, WIDTH) for token in text[1:]] for text in ids]
    ranked = [[sorted(one, key=lambda id_: -one[id_])[:WIDTH] for one in text] for text in heads]
    top = TopLogprobs(
        source_digest=job.source_digest,
        prompt_set_digest=job.prompt_set_digest,
        width=WIDTH,
        token_logprobs=tuple((-nll,) * scored for _ in ids),
        top_ids=tuple(tuple(id_ for one in text for id_ in one) for text in ranked),
        top_logprobs=tuple(
            tuple(logs[id_] for logs, one in zip(text, order, strict=True) for id_ in one)
            for text, order in zip(heads, ranked, strict=True)
        ),
    )
    body = canonical_json(top)
    reference = Reference(
        source_digest=job.source_digest,
        figures=QualityFigures(
            prompt_set_digest=texts.prompt_set_digest(),
            engine="mock",
            tokens=scored * TEXTS,
            nll=nll * scored * TEXTS,
            per_text_nll=(nll * scored,) * TEXTS,
            per_text_tokens=(scored,) * TEXTS,
        ),
        token_ids=ids,
        top_sha256=hashlib.sha256(body).hexdigest(),
    )
    client.put(top_uri(job.reference_uri, reference.top_sha256), body)
    client.put(job.reference_uri, canonical_json(reference))
