"""Quantized weights on CPUs for which vLLM 0.29 has no kernel, or a slow one. A vLLM plugin; runs in the engine.

The weights are widened to float32 once, at the load, and the product is taken in float32. Every value of FP8 E4M3, and
every 4 bit value times its scale, is exact in float32, and activations still go through FP8 where the scheme says so;
what is computed is what the artifact says, only the order of roundings of the sum differs. It costs the memory that
quantizing saves: this is for the embedded stack, where a release is shown and tested, not for serving on CPUs.

* FP8: the stock kernel calls `torch._scaled_mm`, which widens the matrix at every call and pads a single token to 17
  rows: SmolLM2-135M needs 1.2 s a token. (Static scales stay without a kernel: vLLM's own load of them has none.)
* 4 bit: `cpu_gemm_wna16` is only in the build for AVX-512, and has no float32.

float32 and not bfloat16, because most CPUs have no arithmetic for the latter either: on AVX2 eight rows times
1536 x 576 take 0.7 ms and 16 ms.

vLLM finds `register` through the entry point in `local/serve/`. The stock kernels are turned off by name
(`headway.domain.cluster.CPU_ENVIRONMENT`), because vLLM takes the first that fits.
"""

from typing import Any

import torch
from vllm.model_executor.kernels.linear import ChannelWiseTorchFP8ScaledMMLinearKernel, register_linear_kernel
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearLayerConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import unpack_quantized_values_into_int32
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum
from vllm.scalar_type import scalar_types

MIDDLE = 8
"""Signed 4 bit values are stored with this added."""


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


class WidenedWNA16Kernel(CPUWNA16LinearKernel):  # type: ignore[misc, unused-ignore]
    """4 bit weights in groups (compressed-tensors' `pack-quantized`), activations as they are, products in float32."""

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Take 4 bit without reordered activations."""
        if c.weight_type not in (scalar_types.uint4, scalar_types.uint4b8):
            return False, f"weights of type {c.weight_type}; it takes uint4 and uint4b8"
        if c.has_g_idx:
            return False, "activation reordering (g_idx)"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Widen `[out, in / 8]` packed values with `[out, groups]` scales to `[out, in]`."""
        packed, scales = getattr(layer, self.w_q_name).data, getattr(layer, self.w_s_name).data
        values = unpack_quantized_values_into_int32(packed, self.config.weight_type, 1).to(torch.float32)
        width = values.shape[1] // scales.shape[1]
        if self.config.zero_points and self.w_zp_name is not None:
            # Packed along the outputs: `[out / 8, groups]`.
            packed_zeros = getattr(layer, self.w_zp_name).data
            zeros = unpack_quantized_values_into_int32(packed_zeros, self.config.weight_type, 0).to(torch.float32)
            values -= zeros.repeat_interleave(width, dim=1)
        else:
            values -= MIDDLE
        wide = values * scales.to(torch.float32).repeat_interleave(width, dim=1)
        setattr(layer, self.w_q_name, torch.nn.Parameter(wide.contiguous(), requires_grad=False))

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return `x W + bias` in the type of `x`."""
        wide = getattr(layer, self.w_q_name)
        bias = None if bias is None else bias.to(torch.float32)
        return torch.nn.functional.linear(x.to(torch.float32), wide, bias).to(x.dtype)


def register() -> None:
    """Offer the kernels to vLLM. Called once in each of its processes."""
    if current_platform.is_cpu():
        register_linear_kernel(WidenedFP8Kernel, PlatformEnum.CPU, "fp8")
        register_linear_kernel(WidenedWNA16Kernel, PlatformEnum.CPU, "mp")
