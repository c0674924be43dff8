"""What this machine's processor computes fast, as far as the choice of a number format depends on it."""

from __future__ import annotations

from functools import cache

import torch


@cache
def _features() -> dict[str, object]:
    return dict(torch.cpu.get_capabilities())


def multiplies_bfloat16() -> bool:
    """Native bfloat16 products. Without them bfloat16 matrices are slower than float32 ones."""
    return any(_features().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))


def multiplies_int8() -> bool:
    """Exact sums of 8-bit products (VNNI). Older x86 instructions saturate the sum of two products."""
    return bool(_features().get("avx512_vnni")) and hasattr(torch.ops.onednn, "qlinear_pointwise")


def unpacks_fast() -> bool:
    """torch's packed-weight kernels are written for wide vectors; elsewhere they fall back to plain loops."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
