"""Which implementation of an operation runs: by device, number type and shape, never by a model's name.

The table is data. The first row that fits decides; where none does, and always on a CPU, the torch reference runs.
`docs/kernels.md` prints it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

HALF = ("bfloat16", "float16")
FLOATS = ("bfloat16", "float16", "float32")
LEAST_CAPABILITY = 80
"""The compute capability, times ten, from which on the tensor cores know bfloat16 and TF32."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What one size of a call must be."""

    size: str
    least: int = 1
    most: int | None = None
    multiple: int = 1
    power_of_two: bool = False

    def holds(self, value: int) -> bool:
        return (
            value >= self.least
            and (self.most is None or value <= self.most)
            and value % self.multiple == 0
            and (not self.power_of_two or value & (value - 1) == 0)
        )

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.size} {self.least}"
        reach = f"from {self.least}" if self.most is None else f"{self.least} to {self.most}"
        if self.power_of_two:
            reach += ", a power of two"
        elif self.multiple > 1:
            reach += f", a multiple of {self.multiple}"
        return f"{self.size} {reach}"


@dataclass(frozen=True, slots=True)
class Row:
    """`implementation` (`module:function` in this package) computes `op` on CUDA devices for such numbers and sizes."""

    op: str
    dtypes: tuple[str, ...]
    bounds: tuple[Bound, ...]
    implementation: str

    def fits(self, op: str, dtype: str, sizes: Mapping[str, int]) -> bool:
        return op == self.op and dtype in self.dtypes and all(bound.holds(sizes[bound.size]) for bound in self.bounds)


REFERENCES: Mapping[str, str] = {
    "rms_norm": "norm:rms_norm",
    "add_rms_norm": "norm:add_rms_norm",
    "gated_rms_norm": "norm:gated_rms_norm",
    "rotate_and_write": "kv_write:rotate_and_write",
    "attend": "attention:attend",
    "matmul_nvfp4": "packed:matmul_nvfp4",
    "matmul_fp8": "packed:matmul_fp8",
    "matmul_int4": "int4:matmul",
    "gdn_chunked": "gdn:chunked",
    "gdn_tree": "gdn:tree",
    "gdn_commit": "gdn:commit",
}
"""The torch reference of each operation."""

_WIDTH = Bound("width", most=16384)
_GDN = (Bound("key size", 16, 128, power_of_two=True), Bound("value size", 16, 256, power_of_two=True))

TABLE: tuple[Row, ...] = (
    Row("rms_norm", FLOATS, (_WIDTH,), "kernels.norm:rms_norm"),
    Row("add_rms_norm", FLOATS, (_WIDTH,), "kernels.norm:add_rms_norm"),
    Row("gated_rms_norm", FLOATS, (_WIDTH,), "kernels.norm:gated_rms_norm"),
    Row("rotate_and_write", FLOATS, (Bound("head size", most=1024),), "kernels.rope:rotate_and_write"),
    Row(
        "attend", HALF, (Bound("head size", 16, 256, power_of_two=True), Bound("narrowed", 0, 0)),
        "kernels.attention:attend",
    ),
    Row("matmul_nvfp4", HALF, (Bound("rows", most=32), Bound("columns", 16, multiple=16)), "kernels.gemm:matmul_nvfp4"),
    Row("matmul_nvfp4", HALF, (Bound("rows", 33),), "packed:unpacked_matmul_nvfp4"),
    Row(
        "matmul_fp8", HALF, (Bound("rows", most=32), Bound("scale columns", 128, multiple=128)),
        "kernels.gemm:matmul_fp8",
    ),
    Row("matmul_fp8", HALF, (Bound("rows", 33),), "packed:unpacked_matmul_fp8"),
    Row("matmul_int4", HALF, (Bound("rows", most=32), Bound("columns", 32, multiple=32)), "kernels.gemm:matmul_int4"),
    Row("gdn_chunked", FLOATS, (Bound("chunk", 16, 64, power_of_two=True), *_GDN), "kernels.gdn:chunked"),
    Row("gdn_tree", FLOATS, (Bound("rows", most=32), *_GDN), "kernels.gdn:tree"),
    Row("gdn_commit", FLOATS, (Bound("rows", most=32), *_GDN), "kernels.gdn:commit"),
)  # fmt: skip


def choose(op: str, device: str, capability: int, triton: bool, dtype: str, sizes: Mapping[str, int]) -> str:
    """`module:function` of the implementation of `op`.

    `device` is a torch device type, `capability` ten times a CUDA device's compute capability (0 for others), `triton`
    whether Triton is installed, `dtype` the name of the type of the call's rows; `sizes` has all that the table's
    bounds ask of this operation.
    """
    if device == "cuda" and capability >= LEAST_CAPABILITY:
        for row in TABLE:
            if row.fits(op, dtype, sizes) and (triton or not row.implementation.startswith("kernels.")):
                return row.implementation
    return REFERENCES[op]


@cache
def load(implementation: str) -> Callable[..., Any]:
    """The function that a row names; its module is imported now and not before."""
    module, _, function = implementation.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"tandem.plugins._ops.{module}"), function)
    return found


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def markdown() -> str:
    """The table as `docs/kernels.md` prints it."""
    lines = ["| operation | rows of type | sizes | on CUDA | else |", "|---|---|---|---|---|"]
    for row in TABLE:
        sizes = "; ".join(str(bound) for bound in row.bounds)
        lines.append(
            f"| `{row.op}` | {', '.join(row.dtypes)} | {sizes} | `{row.implementation}` | `{REFERENCES[row.op]}` |"
        )
    return "\n".join(lines)
