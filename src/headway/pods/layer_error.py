"""How far the quantized model is from its source, layer by layer. For the report: it shows where it fails.

With the model loaded, the outputs of each decoder layer are compared on a few texts; the error of a layer includes
that of the layers before it. Without, each Linear's weights are compared, read tensor by tensor.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.domain.weight_jobs import LayerError
from headway.pods.shards import Placed, locate
from headway.units import MIB

TEXTS, TOKENS = 4, 48
"""Rows that are looked at, and tokens of each."""
MAX_KEPT_BYTES = 256 * MIB
"""Memory for the source's outputs; fewer tokens are kept of a model that needs more."""
DIGITS = 6


class OutputErrors:
    """Compares the outputs of decoder layers before and after.

    Args:
        model: The loaded source.
        batches: Tokens, as for the calibration.
    """

    def __init__(self, model: Any, batches: Sequence[dict[str, Any]]) -> None:
        self._model = model
        self._layers = decoder_layers(model)
        rows = list(batches[:TEXTS])
        config = model.config.get_text_config()
        a_token = max(1, len(self._layers)) * int(config.hidden_size) * model.dtype.itemsize
        tokens = max(2, min(TOKENS, MAX_KEPT_BYTES // (a_token * max(1, len(rows)))))
        self._rows = [row["input_ids"][:, :tokens] for row in rows]
        self._kept = [self._outputs(ids) for ids in self._rows]

    def measure(self) -> tuple[LayerError, ...]:
        """Return the error of each layer; call it after quantizing, and before the weights are packed.

        Nothing without a text to look at.
        """
        import torch

        if not self._rows:
            return ()

        apart = [0.0] * len(self._layers)
        size = [0.0] * len(self._layers)
        for ids, kept in zip(self._rows, self._kept, strict=True):
            for number, (now, before) in enumerate(zip(self._outputs(ids), kept, strict=True)):
                wanted = before.to(torch.float32)
                apart[number] += float((now.to(torch.float32) - wanted).square().sum())
                size[number] += float(wanted.square().sum())
        return tuple(
            LayerError(name=name, kind="output", relative_error=_ratio(a, s))
            for (name, _), a, s in zip(self._layers, apart, size, strict=True)
        )

    def _outputs(self, ids: Any) -> list[Any]:
        """Return each layer's output without the first token, whose huge activations would hide all others."""
        import torch

        found: list[Any] = []

        def keep(_module: Any, _given: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            found.append(hidden[:, 1:].detach().cpu())

        hooks = [layer.register_forward_hook(keep) for _, layer in self._layers]
        try:
            with torch.inference_mode():
                self._model(ids.to(self._model.device), use_cache=False, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        return found


def decoder_layers(model: Any) -> list[tuple[str, Any]]:
    """Return the decoder layers by name: the list that has as many modules as the config says layers."""
    import torch

    wanted = int(model.config.get_text_config().num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == wanted:
            return [(f"{name}.{number}", layer) for number, layer in enumerate(module)]
    return []


def weight_errors(source: Path, target: Path) -> tuple[LayerError, ...]:
    """Return the error of each Linear of an `fp8-dynamic` result; two tensors are in memory at a time.

    Args:
        source: Directory of the source.
        target: Directory of the result.
    """
    before, after = locate(source), locate(target)
    found = []
    with _reader() as read:
        for name in sorted(before):
            scale = after.get(f"{name}_scale")
            if scale is None or name not in after:
                continue
            wide, factors, wanted = read(after[name]), read(scale), read(before[name])
            apart = float((wide * factors - wanted).square().sum())
            error = _ratio(apart, float(wanted.square().sum()))
            found.append(LayerError(name=name.removesuffix(".weight"), kind="weight", relative_error=error))
    return tuple(found)


@contextmanager
def _reader() -> Iterator[Any]:
    """Give a function that reads a tensor as float32, and keeps files open."""
    import torch
    from safetensors import safe_open

    opened: dict[Path, Any] = {}

    def read(where: Placed) -> Any:
        if where.path not in opened:
            opened[where.path] = safe_open(where.path, framework="pt")
        return opened[where.path].get_tensor(where.tensor.name).to(torch.float32)

    try:
        yield read
    finally:
        opened.clear()


def _ratio(apart: float, size: float) -> float | None:
    """Return the relative error, none where it cannot be said (NaN or infinity has no place in JSON)."""
    if not (math.isfinite(apart) and math.isfinite(size)) or size == 0:
        return None
    return round(math.sqrt(apart / size), DIGITS)
