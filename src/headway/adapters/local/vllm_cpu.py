"""FP8 weights at a usable speed on CPUs without FP8 arithmetic. A vLLM plugin; runs inside the engine's processes.

On such a CPU vLLM 0.29 computes with `torch._scaled_mm`, which widens the weight matrix to float at every call and
pads a single token to 17 rows: SmolLM2-135M needs 1.2 s a token. Here the weights are widened once, at the load.
Every value of FP8 E4M3 is exact in float32, and activations still go through FP8, so what is computed is what the
artifact says; only the order of roundings of the sum differs. float32 and not bfloat16, because most CPUs have no
arithmetic for the latter either: on AVX2 eight rows times 1536 x 576 take 0.7 ms and 16 ms.

vLLM finds `register` through the entry point in `local/serve/`. The stock kernel is turned off by name
(`VLLM_DISABLED_KERNELS`), because vLLM takes the first that fits.
"""

from typing import Any

import torch
from vllm.model_executor.kernels.linear import (
    ChannelWiseTorchFP8ScaledMMLinearKernel,
    register_linear_kernel,
)
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum

STOCK_KERNEL = ChannelWiseTorchFP8ScaledMMLinearKernel.__name__


class WidenedFP8Kernel(ChannelWiseTorchFP8ScaledMMLinearKernel):  # type: ignore[misc, unused-ignore]
    """Channel-wise FP8 weights, per-token FP8 activations, products in float32."""

    def get_output_padding(self) -> int | None:
        """Return none: padding pays only where FP8 units exist."""
        return None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Widen the weights in place of the FP8 ones."""
        name = self.layer_param_names[0]
        # Stored as [in, out]; made contiguous as [out, in], which is how the product is taken.
        wide = getattr(layer, name).data.t().to(torch.float32).contiguous().t()
        setattr(layer, name, torch.nn.Parameter(wide, requires_grad=False))

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,  # noqa: N803 - the names of vLLM's method
        B: torch.Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: torch.Tensor,  # noqa: N803
        Bs: torch.Tensor,  # noqa: N803
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> Any:
        """Return `scale_x * scale_w * (X W) + bias`."""
        product = torch.nn.functional.linear(A.to(torch.float32), B.t())
        output = product * As * Bs.t()
        if bias is not None:
            output = output + bias
        return output.to(out_dtype).view(*output_shape)


def register() -> None:
    """Offer the kernel to vLLM. Called once in each of its processes."""
    if current_platform.is_cpu():
        register_linear_kernel(WidenedFP8Kernel, PlatformEnum.CPU, "fp8")
