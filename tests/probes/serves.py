"""Serve one model with vLLM in this process (`serves.py MODEL DTYPE`), or tell what vLLM says of itself.

The result is the last line of the output, as JSON. Runs in the serve environment.
"""

import json
import math
import os
import sys


def serve(model: str, dtype: str) -> dict[str, object]:
    """Score a prompt and answer it; raise whatever vLLM raises."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        kv_cache_memory_bytes=2**28,
    )
    prompt = {"prompt_token_ids": list(range(2, 40))}
    (answer,) = engine.generate([prompt], SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=0))
    scored = [next(iter(one.values())).logprob for one in answer.prompt_logprobs if one]
    return {"tokens": len(answer.outputs[0].token_ids), "nll": -math.fsum(scored) / len(scored)}


def facts() -> dict[str, object]:
    """Say what the table of `headway.domain.serving` rests on, as far as no device is needed to be asked."""
    import vllm
    from vllm.model_executor.kernels.linear import _POSSIBLE_NVFP4_KERNELS as NVFP4
    from vllm.model_executor.kernels.linear.mixed_precision.machete import MacheteLinearKernel
    from vllm.model_executor.kernels.linear.mixed_precision.marlin import MarlinLinearKernel
    from vllm.model_executor.layers.quantization.compressed_tensors import schemes
    from vllm.model_executor.layers.quantization.utils.marlin_utils import MARLIN_SUPPORTED_GROUP_SIZES
    from vllm.platforms.interface import PlatformEnum

    return {
        "version": vllm.__version__,
        "groups": MARLIN_SUPPORTED_GROUP_SIZES,
        "fp8 native": schemes.CompressedTensorsW8A8Fp8.get_min_capability() / 10,
        "fp8 least": schemes.CompressedTensorsW8A16Fp8.get_min_capability() / 10,
        "w8a8 least": schemes.CompressedTensorsW8A8Int8.get_min_capability() / 10,
        "w4a16 least": schemes.CompressedTensorsWNA16.get_min_capability() / 10,
        "marlin least": MarlinLinearKernel.get_min_capability() / 10,
        "machete least": MacheteLinearKernel.get_min_capability() / 10,
        "nvfp4 on cpu": len(NVFP4.get(PlatformEnum.CPU, [])),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(serve(*sys.argv[1:]) if len(sys.argv) > 1 else facts()) + "\n")
    sys.stdout.flush()
    # Without the engine's threads being waited for.
    os._exit(0)
