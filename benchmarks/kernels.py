"""The Triton kernels on this machine's GPU: right, and how near to what its memory allows.

    python benchmarks/kernels.py [--only attend ...] [--repeats 20] [--json FILE]
    python benchmarks/kernels.py --compile 90 121
    TRITON_INTERPRET=1 python benchmarks/kernels.py --small

With a CUDA device: every kernel runs on the shapes of a 27B hybrid model. Its results are compared with the torch
reference on the same device, rows alone with rows among others bit for bit, and its time with its floor: the bytes that
must move (each input read once, each output written once), over the bandwidth that a copy reaches in the same run. The
second-level cache is overwritten before every measurement. A table stands at the end; the exit status is 1 where a
result is wrong.

Without one, it says so and does what a CPU can: the same comparisons on small shapes in Triton's interpreter, and
Triton's compiler for the compute capabilities of `--compile`, with the registers, spilled bytes and shared memory that
each kernel takes there. Nothing is measured then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Outputs = tuple[torch.Tensor, ...]

FLUSH = 512 << 20
"""Bytes written before each measurement: more than any cache, and long enough to queue the launches behind it."""
SHARED_LIMIT = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""KiB of shared memory that a block may take, by compute capability times ten (CUDA programming guide)."""


# -------------------------------------------------------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Sizes:
    """What the cases are made of."""

    dtype: torch.dtype
    hidden: int
    matrices: tuple[tuple[int, int], ...]
    """Packed matrices, `[N, K]`."""
    q_heads: int
    kv_heads: int
    head_size: int
    rotary: int
    key_heads: int
    value_heads: int
    state_size: int
    prefixes: tuple[int, ...]
    rows: tuple[int, ...]
    prompt: int
    """Rows of a chunk of a prompt."""


BIG = Sizes(
    torch.bfloat16, 5120,
    ((17408, 5120), (5120, 17408), (12288, 5120), (10240, 5120), (5120, 6144), (1024, 5120)),
    24, 4, 256, 64, 16, 48, 128, (1024, 8192, 32768, 131072), (1, 8, 32), 1024,
)  # fmt: skip
SMALL = Sizes(torch.float32, 96, ((80, 96),), 6, 2, 16, 8, 1, 2, 16, (0, 40), (1, 7), 70)


@dataclass(frozen=True)
class Case:
    """One kernel on one shape. `first_rows(n)` is what the kernel gives for the first n rows alone, or None."""

    op: str
    shape: str
    kernel: Callable[[], Any]
    reference: Callable[[], Any]
    nbytes: int
    first_rows: Callable[[int], Any] | None = None


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """All cases, built one at a time: a big one's inputs are gone when the next is made."""
    for make in (norms, ropes, products, attentions, deltas):
        yield from make(sizes, device)


def norms(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    from tandem.plugins._ops import norm as torch_norm
    from tandem.plugins._ops.kernels import norm

    width = sizes.state_size
    weight = _random((width,), sizes, device)
    for rows in sizes.rows:
        x = torch.randn(rows, sizes.value_heads, width, device=device)
        gate = _random((rows, sizes.value_heads, width), sizes, device)
        yield Case(
            "gated_rms_norm", f"{rows} x {sizes.value_heads} x {width}",
            lambda x=x, gate=gate, weight=weight: norm.gated_rms_norm(x, gate, weight, 1e-6),
            lambda x=x, gate=gate, weight=weight: torch_norm.gated_rms_norm(x, gate, weight, 1e-6),
            _size(x) + 2 * _size(gate) + _size(weight),
            lambda n, x=x, gate=gate, weight=weight: norm.gated_rms_norm(x[:n], gate[:n], weight, 1e-6),
        )  # fmt: skip
    width = sizes.hidden
    weight = _random((width,), sizes, device)
    for rows in sizes.rows:
        x, residual = _random((rows, width), sizes, device), _random((rows, width), sizes, device)
        yield Case(
            "add_rms_norm", f"{rows} x {width}",
            lambda x=x, residual=residual: norm.add_rms_norm(x, residual, weight, 1e-6, True),
            lambda x=x, residual=residual: torch_norm.add_rms_norm(x, residual, weight, 1e-6, True),
            4 * _size(x) + _size(weight),
            lambda n, x=x, residual=residual: norm.add_rms_norm(x[:n], residual[:n], weight, 1e-6, True),
        )  # fmt: skip


def ropes(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    from tandem.plugins._ops import kv_write
    from tandem.plugins._ops.kernels import rope

    for rows in sizes.rows:
        q, k, v = (
            _random((rows, heads, sizes.head_size), sizes, device)
            for heads in (sizes.q_heads, sizes.kv_heads, sizes.kv_heads)
        )
        angles = torch.rand(rows, sizes.rotary // 2, device=device)
        cos, sin = angles.cos(), angles.sin()
        shape = (2, sizes.kv_heads, rows + 2, sizes.head_size)
        caches = {who: torch.zeros(shape, dtype=q.dtype, device=device) for who in ("kernel", "reference", "alone")}

        def run(function: Any, n: int, cache: torch.Tensor, given: Any = (q, k, v, cos, sin)) -> Outputs:
            turned = function(*(part[:n] for part in given), cache[0], cache[1], 1)
            return turned, cache[0, :, 1 : n + 1].transpose(0, 1), cache[1, :, 1 : n + 1].transpose(0, 1)

        yield Case(
            "rotate_and_write", f"{rows} rows",
            lambda run=run, rows=rows, to=caches["kernel"]: run(rope.rotate_and_write, rows, to),
            lambda run=run, rows=rows, to=caches["reference"]: run(kv_write.rotate_and_write, rows, to),
            2 * (_size(q) + 2 * _size(k)) + 2 * _size(angles),
            lambda n, run=run, to=caches["alone"]: run(rope.rotate_and_write, n, to),
        )  # fmt: skip


def products(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    from tandem.plugins._ops import int4, packed
    from tandem.plugins._ops.kernels import gemm

    for n, k in sizes.matrices:
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
        scales = torch.randint(0x30, 0x40, (n, k // 16), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        factor = torch.full((), 0.02, device=device)
        steps, zeros = (torch.rand(n, k // 32, device=device).to(torch.bfloat16) * 0.02 for _ in "sz")
        bits = torch.randint(0, 0x7F, (n, k), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        blocks = torch.rand(-(-n // 128), -(-k // 128), device=device) * 1e-3
        layouts: tuple[tuple[str, Any, Any, tuple[Any, ...]], ...] = (
            ("matmul_nvfp4", gemm.matmul_nvfp4, packed.matmul_nvfp4, (codes, scales, factor)),
            ("matmul_fp8", gemm.matmul_fp8, packed.matmul_fp8, (bits, blocks, (128, 128))),
            ("matmul_int4", gemm.matmul_int4, int4.matmul, (codes, steps, zeros)),
        )
        for name, kernel, reference, matrix in layouts:
            held = sum(_size(part) for part in matrix if isinstance(part, torch.Tensor))
            for rows in sizes.rows:
                x = _random((rows, k), sizes, device)
                yield Case(
                    name, f"{rows} x {k} x {n}",
                    lambda kernel=kernel, x=x, matrix=matrix: kernel(x, *matrix),
                    lambda reference=reference, x=x, matrix=matrix: reference(x, *matrix),
                    held + _size(x) + rows * n * x.element_size(),
                    lambda m, kernel=kernel, x=x, matrix=matrix: kernel(x[:m], *matrix),
                )  # fmt: skip


def attentions(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    from tandem.plugins._ops import attention as torch_attention
    from tandem.plugins._ops.kernels import attention

    size, scale = sizes.head_size, sizes.head_size**-0.5
    shapes = [(prefix, rows, True) for prefix in sizes.prefixes for rows in sizes.rows]
    shapes.append((sizes.prefixes[min(1, len(sizes.prefixes) - 1)], sizes.prompt, False))
    for prefix, rows, tree in shapes:
        q = _random((rows, sizes.q_heads, size), sizes, device)
        keys, values = (_random((sizes.kv_heads, prefix + rows, size), sizes, device) for _ in "kv")
        mask = _binary_tree(rows).to(device) if tree else None

        def run(function: Any, n: int, q: Any = q, keys: Any = keys, values: Any = values, mask: Any = mask,
                prefix: int = prefix) -> torch.Tensor:  # fmt: skip
            end = prefix + n
            seen = None if mask is None else mask[:n, :n]
            result: torch.Tensor = function(q[:n], keys[:, :end], values[:, :end], prefix, seen, scale)
            return result

        yield Case(
            "attend", f"{'tree' if tree else 'chain'} of {rows} over {prefix}",
            lambda run=run, rows=rows: run(attention.attend, rows),
            lambda run=run, rows=rows: run(torch_attention.attend, rows),
            2 * _size(q) + 2 * _size(keys),
            (lambda n, run=run: run(attention.attend, n)) if tree else None,
        )  # fmt: skip


def deltas(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    from tandem.plugins._ops import gdn as torch_gdn
    from tandem.plugins._ops.kernels import gdn

    heads, size = sizes.value_heads, sizes.state_size
    state = torch.randn(heads, size, size, device=device) * 0.1
    for rows in (*sizes.rows, sizes.prompt):
        q, k = (torch_gdn.l2_norm(torch.randn(rows, sizes.key_heads, size, device=device)) for _ in "qk")
        v = torch.randn(rows, heads, size, device=device)
        g, beta = -torch.rand(rows, heads, device=device) * 0.1, torch.rand(rows, heads, device=device)
        given = (q * size**-0.5, k, v, g, beta)
        moved = sum(map(_size, given)) + _size(v)
        if rows == sizes.prompt:
            yield Case(
                "gdn_chunked", f"{rows} rows",
                lambda given=given: gdn.chunked(*given, state),
                lambda given=given: torch_gdn.chunked(*given, state),
                moved + 2 * _size(state),
            )  # fmt: skip
            continue
        mask = _binary_tree(rows).to(device)
        yield Case(
            "gdn_tree", f"tree of {rows}",
            lambda given=given, mask=mask: gdn.tree(*given, state, mask),
            lambda given=given, mask=mask: torch_gdn.tree(*given, state, mask),
            moved + _size(v) + _size(state),
            lambda n, given=given, mask=mask: gdn.tree(*(part[:n] for part in given), state, mask[:n, :n]),
        )  # fmt: skip
        path = torch.tensor([row for row in (0, 1, 3, 7, 15) if row < rows], dtype=torch.int32, device=device)
        decay = torch.cumsum(g, 0)
        yield Case(
            "gdn_commit", f"path of {len(path)}",
            lambda k=k, v=v, decay=decay, path=path: gdn.commit(state, k, v, decay, path),
            lambda k=k, v=v, decay=decay, path=path: torch_gdn.commit(state, k, v, decay, path),
            2 * _size(state) + len(path) * (k[0].nbytes + v[0].nbytes),
        )  # fmt: skip


def _random(shape: tuple[int, ...], sizes: Sizes, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).to(sizes.dtype)


def _binary_tree(rows: int) -> torch.Tensor:
    from tandem.plugins._ops import tree

    return tree.ancestors([-1, *((row - 1) // 2 for row in range(1, rows))])


def _size(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


# -------------------------------------------------------------------------------------------------------------- checks


def tuple_of(outputs: Any) -> Outputs:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def check(case: Case) -> tuple[float, str]:
    """The greatest difference from the reference relative to its greatest number, and what is wrong ("" = nothing)."""
    ours, theirs = tuple_of(case.kernel()), tuple_of(case.reference())
    error, coarse = 0.0, False
    for mine, other in zip(ours, theirs, strict=True):
        if not torch.isfinite(mine).all():
            return float("inf"), "not finite"
        greatest = other.float().abs().max().item() or 1.0
        error = max(error, (mine.float() - other.float()).abs().max().item() / greatest)
        coarse |= mine.dtype != torch.float32
    # Two roundings of bfloat16; for float32, sums of up to some thousand products.
    if error > (2.0**-7 if coarse else 2e-5):
        return error, "too far from the reference"
    if case.first_rows is not None:
        for mine, alone in zip(ours, tuple_of(case.first_rows(1)), strict=True):
            if not torch.equal(mine[:1], alone):
                return error, "row 0 differs when it is alone"
        for mine, again in zip(ours, tuple_of(case.kernel()), strict=True):
            if not torch.equal(mine, again):
                return error, "a second run differs"
    return error, ""


# ------------------------------------------------------------------------------------------------------------- measure


class Clock:
    """Times on one CUDA device, with nothing of use in its caches."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._repeats = repeats
        self._waste = torch.empty(FLUSH, dtype=torch.uint8, device=device)

    def seconds(self, run: Callable[[], Any], repeats: int | None = None) -> float:
        """The median of `repeats` runs after a warm-up."""
        run()
        times = []
        for _ in range(repeats or self._repeats):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._waste.zero_()
            before.record()
            run()
            after.record()
            after.synchronize()
            times.append(before.elapsed_time(after) / 1e3)
        return statistics.median(times)

    def bandwidth(self) -> float:
        """Bytes a second that a copy reads and writes."""
        half = FLUSH // 2
        target = torch.empty(half, dtype=torch.uint8, device=self._waste.device)
        return 2 * half / self.seconds(lambda: target.copy_(self._waste[:half]))


def measure(only: list[str], repeats: int) -> tuple[list[dict[str, Any]], str]:
    device = torch.device("cuda", torch.cuda.current_device())
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference is float32
    torch.manual_seed(0)
    clock = Clock(device, repeats)
    bandwidth = clock.bandwidth()
    found = []
    for case in cases(BIG, device):
        if only and case.op not in only:
            continue
        entry: dict[str, Any] = {"op": case.op, "shape": case.shape}
        try:
            entry["error"], entry["wrong"] = check(case)
            entry["us"] = 1e6 * clock.seconds(case.kernel)
            entry["reference_us"] = 1e6 * clock.seconds(case.reference, 3)
            entry["floor_us"] = 1e6 * case.nbytes / bandwidth
        except Exception as fault:  # what one kernel's compiler says must not hide the other kernels
            entry["wrong"] = f"{type(fault).__name__}: {str(fault).strip().splitlines()[-1][:120]}"
        found.append(entry)
        print(f"{case.op} {case.shape}: {entry.get('us', 0):.0f} us {entry['wrong']}", flush=True)
    name = torch.cuda.get_device_name(device)
    return found, f"{name}, {bandwidth / 1e9:.0f} GB/s in a copy, torch {torch.__version__}"


def report(found: list[dict[str, Any]], machine: str) -> None:
    print(f"\n{machine}\n\n| kernel | shape | us | floor us | of the floor | reference us | error |")
    print("|---|---|---|---|---|---|---|")
    for entry in found:
        if "us" not in entry:
            print(f"| {entry['op']} | {entry['shape']} | | | | | {entry['wrong']} |")
            continue
        share = entry["floor_us"] / entry["us"]
        error = f"{entry['error']:.1e}" + (f" WRONG: {entry['wrong']}" if entry["wrong"] else "")
        print(
            f"| {entry['op']} | {entry['shape']} | {entry['us']:.1f} | {entry['floor_us']:.1f} | {share:.0%} "
            f"| {entry['reference_us']:.0f} | {error} |"
        )


# --------------------------------------------------------------------------------------------------------- without GPU


def interpret(only: list[str]) -> int:
    """The checks on small shapes, in Triton's interpreter. Returns how many are wrong."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    wrong = 0
    for case in cases(SMALL, torch.device("cpu")):
        if only and case.op not in only:
            continue
        error, fault = check(case)
        wrong += bool(fault)
        print(f"{case.op:18s} {case.shape:22s} error {error:.1e} {fault or 'right'}", flush=True)
    return wrong


def compile_for(capability: int, only: list[str]) -> int:
    """Every kernel for one compute capability, on the big shapes and without memory for them (`meta` tensors).

    Returns how many can't run there. It stands in for the launch itself: what Triton would specialise on for such
    arguments is what gets compiled.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile, make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    compiled: set[str] = set()
    printed: set[str] = set()
    limit = SHARED_LIMIT.get(capability, 99) * 1024
    wrong = 0

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        nonlocal wrong
        options = {"debug": False, **options}
        bound, special, rest = create_function_from_signature(self.signature, self.params, backend)(*args, **options)
        parsed, signature, constants, attributes = self._pack_args(backend, options, bound, special, rest)
        key = str((self.__name__, signature, constants, attributes, parsed))
        if key in compiled:
            return
        compiled.add(key)
        kernel = compile(ASTSource(self, signature, constants, attributes), target=target, options=parsed.__dict__)
        shared, (registers, spilled) = kernel.metadata.shared, _resources(kernel.asm["cubin"])
        line = f"{self.__name__:18s} shared {shared:7d} B, registers {registers:3d}, stack {spilled:5d} B a thread"
        if shared > limit:
            line, wrong = f"{line}: more shared memory than the {limit} B there are", wrong + 1
        if line not in printed:  # the same at another alignment of its arguments
            printed.add(line)
            print(f"  {line}", flush=True)

    original, JITFunction.run = JITFunction.run, launch
    try:
        for case in cases(BIG, torch.device("meta")):
            if not only or case.op in only:
                case.kernel()
    finally:
        JITFunction.run = original
    return wrong


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack, that a thread takes; zeros where Triton comes without NVIDIA's tool to tell."""
    import triton.backends.nvidia as nvidia

    tool = Path(nvidia.__path__[0]) / "bin" / "cuobjdump"
    if not tool.exists():
        return 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="OP", help="names of operations")
    parser.add_argument("--repeats", type=int, default=20, help="measurements of each case (20)")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--compile", nargs="+", type=int, metavar="CAPABILITY", help="compile for these and stop")
    parser.add_argument("--small", action="store_true", help="the checks in Triton's interpreter, and stop")
    options = parser.parse_args()
    if options.small:
        if os.environ.get("TRITON_INTERPRET") != "1":
            parser.error("--small needs TRITON_INTERPRET=1 in the environment")
        return int(interpret(options.only) > 0)
    if options.compile:
        wrong = 0
        for capability in options.compile:
            print(f"compute capability {capability / 10}:")
            wrong += compile_for(capability, options.only)
        return int(wrong > 0)
    if not torch.cuda.is_available():
        print(
            "There is no CUDA device here: nothing is measured. In Triton's interpreter, on small shapes:", flush=True
        )
        again = [sys.executable, __file__, "--small", *(["--only", *options.only] if options.only else [])]
        return subprocess.run(again, env={**os.environ, "TRITON_INTERPRET": "1"}).returncode
    found, machine = measure(options.only, options.repeats)
    report(found, machine)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "cases": found}, indent=1))
    return int(any(entry["wrong"] for entry in found))


if __name__ == "__main__":
    sys.exit(main())
