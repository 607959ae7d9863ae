"""A Llama of 0.2 MB with random weights, in bfloat16 or as llm-compressor's `fp8-dynamic` would leave it.

Written byte by byte, so that no test needs torch or the network.
"""

import json
import random
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY = 64, 128, 2, 2, 258
EOS = "</s>"

Tensor = tuple[str, tuple[int, ...], bytes]
"""Dtype in safetensors' spelling, shape, bytes."""

FP8_DYNAMIC: Mapping[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}


def write_tiny_model(folder: Path, *, fp8: bool = False, seed: int = 0) -> Path:
    """Write a model that vLLM serves, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", dict(_tensors(random.Random(seed), fp8=fp8)))  # noqa: S311
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
        **({"quantization_config": FP8_DYNAMIC} if fp8 else {}),
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the format of https://huggingface.co/docs/safetensors: length of the header, header, bytes."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def _tensors(source: random.Random, *, fp8: bool) -> Iterator[tuple[str, Tensor]]:
    yield "model.embed_tokens.weight", _bf16(source, VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{base}.{name}.weight", _ones(HIDDEN)
        for name, rows, columns in (
            *((f"self_attn.{letter}_proj", HIDDEN, HIDDEN) for letter in "qkvo"),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ):
            if fp8:
                yield f"{base}.{name}.weight", ("F8_E4M3", (rows, columns), _fp8(source, rows * columns))
                yield f"{base}.{name}.weight_scale", ("BF16", (rows, 1), _bytes_of([0.01] * rows))
            else:
                yield f"{base}.{name}.weight", _bf16(source, rows, columns)
    yield "model.norm.weight", _ones(HIDDEN)
    yield "lm_head.weight", _bf16(source, VOCABULARY, HIDDEN)


def _bf16(source: random.Random, *shape: int) -> Tensor:
    count = shape[0] * shape[1]
    return "BF16", shape, _bytes_of([source.gauss(0, 0.05) for _ in range(count)])


def _ones(count: int) -> Tensor:
    return "BF16", (count,), _bytes_of([1.0] * count)


def _bytes_of(values: list[float]) -> bytes:
    """Return bfloat16: the upper half of a float32."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def _fp8(source: random.Random, count: int) -> bytes:
    """Return finite E4M3 values of both signs: 0x7F and 0xFF are NaN."""
    return bytes(source.choice((0x00, 0x80)) | source.randrange(0x40) for _ in range(count))


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({"<s>": 0, EOS: 1, **{token: i + 2 for i, token in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<s>", EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": EOS,
                "chat_template": template,
            }
        )
    )
