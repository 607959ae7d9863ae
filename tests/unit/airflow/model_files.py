"""A tiny model as files: real enough for every check of headway, too small to serve."""

import json
import struct
from typing import Any

from headway.domain.model import ModelVersion

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
TENSORS = {
    "model.embed_tokens.weight": [32, 16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.layers.0.mlp.up_proj.weight": [32, 16],
    "model.norm.weight": [16],
}


def safetensors(fill: int) -> bytes:
    """Return one safetensors file of BF16 zeros and `fill`s."""
    header, offset = {}, 0
    for name, shape in TENSORS.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes([fill]) * offset


def put_model(backend: Any, version: int, *aliases: str, model: str = "tiny", **files: bytes) -> ModelVersion:
    """Register a version whose content depends on its number; `files` replaces or adds (an empty one removes)."""
    uri = f"s3://mlflow/{model}/{version}/"
    content = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(version),
        **{name.replace("__", "."): body for name, body in files.items()},
    }
    for name, body in content.items():
        if body:
            backend.weights.objects[uri + name] = body
    found = ModelVersion(name=model, version=version, source_uri=uri)
    backend.registry.add(found, *aliases)
    return found
