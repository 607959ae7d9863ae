"""What an accelerator is able to hold. Names are those of NVIDIA's GPU feature discovery (`nvidia.com/gpu.product`)."""

from headway.domain.value import Value
from headway.units import GIB


class Accelerator(Value):
    """One kind of device."""

    name: str
    memory_bytes: int
    """Usable memory of one device."""
    compute_capability: float
    """NVIDIA compute capability; 0 for a CPU."""

    @property
    def is_cpu(self) -> bool:
        """Whether vLLM runs on its CPU backend."""
        return self.compute_capability == 0


ACCELERATORS: dict[str, Accelerator] = {
    a.name: a
    for a in (
        Accelerator(name="cpu", memory_bytes=8 * GIB, compute_capability=0),
        Accelerator(name="Tesla-T4", memory_bytes=15 * GIB, compute_capability=7.5),
        Accelerator(name="NVIDIA-A10G", memory_bytes=23 * GIB, compute_capability=8.6),
        Accelerator(name="NVIDIA-L4", memory_bytes=23 * GIB, compute_capability=8.9),
        Accelerator(name="NVIDIA-L40S", memory_bytes=45 * GIB, compute_capability=8.9),
        Accelerator(name="NVIDIA-A100-SXM4-40GB", memory_bytes=40 * GIB, compute_capability=8.0),
        Accelerator(name="NVIDIA-A100-SXM4-80GB", memory_bytes=80 * GIB, compute_capability=8.0),
        Accelerator(name="NVIDIA-H100-80GB-HBM3", memory_bytes=80 * GIB, compute_capability=9.0),
        Accelerator(name="NVIDIA-H200", memory_bytes=140 * GIB, compute_capability=9.0),
        Accelerator(name="NVIDIA-B200", memory_bytes=180 * GIB, compute_capability=10.0),
    )
}
"""Memory as `nvidia-smi` reports it, rounded down to GiB (source: NVIDIA's data sheets). The `cpu` row is the share of
a machine that the embedded stack gives to one replica: a 24 GB machine carries two clusters beside Airflow."""
