"""The operations as layers call them: each takes what its reference takes, and runs what the table says.

Nothing of Triton is imported on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from functools import cache
from typing import Any

import torch

from tandem.plugins._ops import table


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centred: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """See `norm.rms_norm`."""
    result: torch.Tensor = _for("rms_norm", x, width=x.shape[-1])(x, weight, eps, zero_centred, dtype)
    return result


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    zero_centred: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `norm.add_rms_norm`."""
    run = _for("add_rms_norm", x, width=x.shape[-1])
    result: tuple[torch.Tensor, torch.Tensor] = run(x, residual, weight, eps, zero_centred, dtype)
    return result


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: str = "silu"
) -> torch.Tensor:
    """See `norm.gated_rms_norm`."""
    result: torch.Tensor = _for("gated_rms_norm", gate, width=x.shape[-1])(x, gate, weight, eps, activation)
    return result


def rotate_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
) -> torch.Tensor:
    """See `kv_write.rotate_and_write`."""
    run = _for("rotate_and_write", q, **{"head size": q.shape[-1]})
    result: torch.Tensor = run(q, k, v, cos, sin, keys, values, start)
    return result


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    prefix: int,
    ancestors: torch.Tensor | None,
    scale: float,
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `attention.attend`."""
    # A kernel multiplies queries with keys as they are, so it wants one type; the reference widens both.
    narrowed = int(allowed is not None or not q.dtype == keys.dtype == values.dtype)
    run = _for("attend", q, **{"head size": q.shape[-1], "narrowed": narrowed})
    more = () if allowed is None else (allowed,)
    result: torch.Tensor = run(q, keys, values, prefix, ancestors, scale, *more)
    return result


def matmul_nvfp4(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """See `packed.matmul_nvfp4`."""
    result: torch.Tensor = _for("matmul_nvfp4", x, rows=x.shape[0], columns=x.shape[1])(x, codes, scales, factor)
    return result


def matmul_fp8(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """See `packed.matmul_fp8`."""
    # One scale for whole rows suits any step through the columns.
    width = block[1] if block[1] < x.shape[1] else 128
    result: torch.Tensor = _for("matmul_fp8", x, rows=x.shape[0], **{"scale columns": width})(x, codes, scales, block)
    return result


def matmul_int4(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """See `int4.matmul`."""
    result: torch.Tensor = _for("matmul_int4", x, rows=x.shape[0], columns=x.shape[1])(x, codes, scale, zero)
    return result


def gdn_chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `gdn.chunked`."""
    run = _for("gdn_chunked", v, **_state(state), chunk=chunk)
    result: tuple[torch.Tensor, torch.Tensor] = run(q, k, v, g, beta, state, chunk)
    return result


def gdn_tree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    ancestors: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `gdn.tree`."""
    run = _for("gdn_tree", v, **_state(state), rows=len(v))
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = run(q, k, v, g, beta, state, ancestors)
    return result


def gdn_commit(
    state: torch.Tensor, k: torch.Tensor, u: torch.Tensor, decay: torch.Tensor, path: Seq[int]
) -> torch.Tensor:
    """See `gdn.commit`."""
    result: torch.Tensor = _for("gdn_commit", u, **_state(state), rows=len(path))(state, k, u, decay, path)
    return result


def _state(state: torch.Tensor) -> dict[str, int]:
    return {"key size": state.shape[1], "value size": state.shape[2]}


def _for(op: str, x: torch.Tensor, /, **sizes: int) -> Callable[..., Any]:
    """What computes `op` for rows like `x`."""
    return _chosen(op, x.device.type, x.device.index, x.dtype, tuple(sizes.items()))


@cache
def _chosen(
    op: str, device: str, index: int | None, dtype: torch.dtype, sizes: tuple[tuple[str, int], ...]
) -> Callable[..., Any]:
    name = str(dtype).removeprefix("torch.")
    return table.load(table.choose(op, device, _capability(device, index), table.has_triton(), name, dict(sizes)))


@cache
def _capability(device: str, index: int | None) -> int:
    """Ten times the compute capability of a CUDA device, else 0. ROCm's devices are called `cuda` too and are not."""
    if device != "cuda" or torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor
