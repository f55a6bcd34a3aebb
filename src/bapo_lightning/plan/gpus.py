"""Memory and speed of GPUs from their makers' data sheets (dense bfloat16, no sparsity)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A model of GPU."""

    name: str
    memory_bytes: float
    bytes_per_second: float  # memory bandwidth
    flops_per_second: float  # bfloat16 matrix products


GPUS = {
    name: Gpu(name, gigabytes * 1e9, terabytes * 1e12, teraflops * 1e12)
    for name, gigabytes, terabytes, teraflops in (
        ("a100_40gb", 40, 1.555, 312.0),
        ("a100_80gb", 80, 2.039, 312.0),  # SXM
        ("h20", 96, 4.0, 148.0),
        ("h100_80gb", 80, 3.35, 989.4),  # SXM
        ("h100_pcie", 80, 2.0, 756.0),
        ("h200", 141, 4.8, 989.4),
        ("b200", 180, 7.7, 2250.0),
        ("l40s", 48, 0.864, 362.0),
        ("l4", 24, 0.3, 121.0),
        ("rtx4090", 24, 1.008, 165.2),
    )
}
