"""The tiny model as llm-compressor would leave it for each scheme, with random numbers: what a kernel needs to run."""

import json
import random
import struct
from pathlib import Path
from typing import Any

from headway.domain.safetensors import LENGTH_BYTES, header_length, parse_header
from headway.domain.weights import Scheme
from tests.tiny_model import LAYERS, Tensor, write_safetensors, write_tiny_model

PER_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def write_scheme(folder: Path, scheme: Scheme, *, group_size: int = 32, kv_cache_scales: bool = False) -> Path:
    """Write a model that vLLM takes for one of this scheme, and return its folder.

    Raises:
        KeyError: No tiny model is made of this scheme.
    """
    write_tiny_model(folder)
    source = random.Random(0)  # noqa: S311
    tensors = _read(folder / "model.safetensors")
    if scheme != "none":
        for name in [name for name in tensors if "_proj." in name]:
            shape = tensors.pop(name)[1]
            for part, tensor in _linear(source, shape, scheme, group_size).items():
                tensors[f"{name.removesuffix('.weight')}.{part}"] = tensor
    if kv_cache_scales:
        for layer in range(LAYERS):
            for side in "kv":
                tensors[f"model.layers.{layer}.self_attn.{side}_scale"] = _scales(0.02, 1)
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    if scheme != "none":
        config["quantization_config"] = _config(scheme, group_size, kv_cache_scales=kv_cache_scales)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_widened(folder: Path, packed: Path, *, group_size: int) -> Path:
    """Write a 4 bit model of `write_scheme` as plain float32 numbers, and return its folder.

    Eight values lie in 32 bits, the first in the lowest ones, each with 8 added; a group shares a scale.
    """
    write_tiny_model(folder)
    tensors = _read(packed / "model.safetensors")
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        stem = name.removesuffix(".weight_packed")
        _, (rows, _), data = tensors.pop(name)
        _, _, scales = tensors.pop(f"{stem}.weight_scale")
        del tensors[f"{stem}.weight_shape"]
        columns = len(data) * 2 // rows
        values = [nibble - 8 for byte in data for nibble in (byte & 15, byte >> 4)]
        wide = [struct.unpack("<f", b"\0\0" + scales[2 * n : 2 * n + 2])[0] for n in range(len(scales) // 2)]
        numbers = [value * wide[place // group_size] for place, value in enumerate(values)]
        tensors[f"{stem}.weight"] = ("F32", (rows, columns), struct.pack(f"<{len(numbers)}f", *numbers))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _config(scheme: Scheme, group_size: int, *, kv_cache_scales: bool) -> dict[str, Any]:
    args = {"symmetric": True, "dynamic": False}
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group_size, **args}
    weights, inputs, form = {
        "fp8-dynamic": (
            {**PER_TENSOR, "strategy": "channel"},
            {**PER_TENSOR, "strategy": "token", "dynamic": True},
            "float-quantized",
        ),
        "fp8": (PER_TENSOR, PER_TENSOR, "float-quantized"),
        "w8a8": (
            {"num_bits": 8, "type": "int", "strategy": "channel", **args},
            {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True},
            "int-quantized",
        ),
        "w4a16-gptq": (four, None, "pack-quantized"),
        "w4a16-awq": (four, None, "pack-quantized"),
    }[scheme]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": form}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
        **({"kv_cache_scheme": PER_TENSOR} if kv_cache_scales else {}),
    }


def _linear(source: random.Random, shape: tuple[int, ...], scheme: Scheme, group_size: int) -> dict[str, Tensor]:
    """Return what stands in for a Linear's weight."""
    rows, columns = shape
    if scheme.startswith("w4a16"):
        return {
            "weight_packed": ("I32", (rows, columns // 8), source.randbytes(rows * columns // 2)),
            "weight_scale": _scales(0.01, rows, columns // group_size),
            "weight_shape": ("I64", (2,), struct.pack("<qq", rows, columns)),
        }
    if scheme == "w8a8":
        return {
            "weight": ("I8", shape, source.randbytes(rows * columns)),
            "weight_scale": _scales(0.0005, rows, 1),
        }
    # Finite E4M3 values of both signs: 0x7F and 0xFF are NaN.
    values = bytes(source.choice((0x00, 0x80)) | source.randrange(0x40) for _ in range(rows * columns))
    if scheme == "fp8":
        return {
            "weight": ("F8_E4M3", shape, values),
            "weight_scale": _scales(0.01, 1),
            "input_scale": _scales(0.05, 1),
        }
    return {"weight": ("F8_E4M3", shape, values), "weight_scale": _scales(0.01, rows, 1)}


def _scales(value: float, *shape: int) -> Tensor:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return "BF16", shape, struct.pack("<f", value)[2:] * count


def _read(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    begin = LENGTH_BYTES + header_length(content[:LENGTH_BYTES], len(content))
    return {
        tensor.name: (tensor.dtype, tensor.shape, content[begin + tensor.start : begin + tensor.end])
        for tensor in parse_header(content[LENGTH_BYTES:begin], len(content))
    }
