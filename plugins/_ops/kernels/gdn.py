"""The gated delta rule: a tree of rows at once, its accepted path, and long chains chunk by chunk.

Formulas and shapes are those of `_ops.gdn`. Everything is float32. Programs share out the value heads and, within one,
columns of the state: no column of the state is ever mixed with another.

A tree's rows stand in a tile of 32, however many there are, so row i's result is the same bits whatever comes after it.

A chain has two passes. The first works on all chunks at once and makes what doesn't need the state: (I + A)^-1, with
A the part of the system below its diagonal, and the weights with which a row reads its chunk's u. The second goes
through the chunks in order with the state in registers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from tandem.plugins._ops.kernels.common import WIDE_PRECISION

ROWS = 32
"""Rows of a tree, or of a path, at the most."""
CHUNK = 64
COLUMNS = 32
"""Columns of a state that a program works on for a tree or a path."""
SCAN_COLUMNS = 16
"""Columns of a state that a program carries through a long chain: few, so that they stay in registers."""
SLICE = 32
"""Dimensions of keys and queries that are multiplied at a time: what is held of them must fit into registers."""


@triton.jit(do_not_specialize=["rows"])
def _tree(
    q: tensor, k: tensor, v: tensor, g: tensor, beta: tensor, state: tensor, ancestors: tensor, out: tensor, u: tensor,
    decay: tensor, rows: tensor, heads: tensor, shared: tensor, q_row: tensor, q_head: tensor, k_row: tensor,
    k_head: tensor, v_row: tensor, v_head: tensor,
    DK: constexpr, DV: constexpr, SLICE: constexpr, ROWS: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
) -> None:  # fmt: skip
    """Program (value head, columns of the state). `shared` value heads read one key head."""
    head = tl.program_id(0)
    source = head // shared
    i = tl.arange(0, ROWS)
    real = i < rows
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    held = (column < DV)[None, :]
    pair = real[:, None] & real[None, :]
    above = tl.load(ancestors + i[:, None] * rows + i[None, :], mask=pair, other=0) != 0
    seen = above | (i[:, None] == i[None, :])
    step = tl.load(g + i * heads + head, mask=real, other=0.0).to(tl.float32)
    rate = tl.load(beta + i * heads + head, mask=real, other=0.0).to(tl.float32)
    path = tl.sum(tl.where(seen, step[None, :], 0.0), axis=1)
    between = tl.exp(tl.where(seen, path[:, None] - path[None, :], float("-inf")))  # D, 0 off the paths
    since = tl.exp(path)
    keys_keys = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    queries_keys = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    keys_state = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    queries_state = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, DK, SLICE):
        dim = first + tl.arange(0, SLICE)
        key = tl.load(k + i[:, None] * k_row + source * k_head + dim[None, :], mask=real[:, None], other=0.0)
        query = tl.load(q + i[:, None] * q_row + source * q_head + dim[None, :], mask=real[:, None], other=0.0)
        key, query = key.to(tl.float32), query.to(tl.float32)
        s0 = tl.load(state + (head * DK + dim)[:, None] * DV + column[None, :], mask=held, other=0.0)
        keys_keys = tl.dot(key, tl.trans(key), keys_keys, input_precision=PRECISION)
        queries_keys = tl.dot(query, tl.trans(key), queries_keys, input_precision=PRECISION)
        keys_state = tl.dot(key, s0, keys_state, input_precision=PRECISION)
        queries_state = tl.dot(query, s0, queries_state, input_precision=PRECISION)
    value = tl.load(v + i[:, None] * v_row + head * v_head + column[None, :], mask=real[:, None] & held, other=0.0).to(
        tl.float32
    )
    system = tl.where(above, rate[:, None] * keys_keys * between, 0.0)
    change = rate[:, None] * (value - since[:, None] * keys_state)
    for row in range(rows):  # parents come before children: each row only needs those above it
        line = tl.sum(tl.where(i[:, None] == row, system, 0.0), axis=0)
        known = tl.sum(line[:, None] * change, axis=0)
        change = tl.where(i[:, None] == row, change - known[None, :], change)
    read = since[:, None] * queries_state + tl.dot(queries_keys * between, change, input_precision=PRECISION)
    to = (i[:, None] * heads + head) * DV + column[None, :]
    tl.store(out + to, read, mask=real[:, None] & held)
    tl.store(u + to, change, mask=real[:, None] & held)
    if tl.program_id(1) == 0:
        tl.store(decay + i * heads + head, path, mask=real)


@triton.jit(do_not_specialize=["count"])
def _commit(
    state: tensor, k: tensor, u: tensor, decay: tensor, path: tensor, out: tensor, count: tensor, heads: tensor,
    shared: tensor, k_row: tensor, k_head: tensor, u_row: tensor, u_head: tensor,
    DK: constexpr, DV: constexpr, ROWS: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
) -> None:  # fmt: skip
    """Program (value head, columns of the state)."""
    head = tl.program_id(0)
    i = tl.arange(0, ROWS)
    real = i < count
    dim = tl.arange(0, DK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(path + i, mask=real, other=0).to(tl.int32)
    passed = tl.load(decay + row * heads + head, mask=real, other=0.0)
    last = tl.load(decay + tl.load(path + count - 1).to(tl.int32) * heads + head)
    share = tl.where(real, tl.exp(last - passed), 0.0)
    key = tl.load(
        k + row[:, None] * k_row + (head // shared) * k_head + dim[None, :], mask=real[:, None], other=0.0
    ).to(tl.float32)
    added = tl.load(
        u + row[:, None] * u_row + head * u_head + column[None, :],
        mask=real[:, None] & (column < DV)[None, :], other=0.0,
    )  # fmt: skip
    spot = head * DK * DV + dim[:, None] * DV + column[None, :]
    old = tl.load(state + spot, mask=(column < DV)[None, :], other=0.0)
    new = tl.exp(last) * old + tl.dot(tl.trans(key), share[:, None] * added, input_precision=PRECISION)
    tl.store(out + spot, new, mask=(column < DV)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _prepare(
    q: tensor, k: tensor, g: tensor, beta: tensor, inverse: tensor, weights: tensor, decay: tensor, rows: tensor,
    heads: tensor, shared: tensor, q_row: tensor, q_head: tensor, k_row: tensor, k_head: tensor,
    DK: constexpr, SLICE: constexpr, CHUNK: constexpr, PRECISION: constexpr,
) -> None:  # fmt: skip
    """Program (chunk, value head): `inverse` and `weights` `[chunks, heads, CHUNK, CHUNK]`, `decay` `[rows, heads]`."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    source = head // shared
    i = tl.arange(0, CHUNK)
    row = chunk * CHUNK + i
    real = row < rows  # rows beyond the end have beta 0, g 0 and no key: they change nothing
    far = row.to(tl.int64)
    step = tl.load(g + far * heads + head, mask=real, other=0.0).to(tl.float32)
    rate = tl.load(beta + far * heads + head, mask=real, other=0.0).to(tl.float32)
    seen = i[:, None] >= i[None, :]
    path = tl.sum(tl.where(seen, step[None, :], 0.0), axis=1)
    keys_keys = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    queries_keys = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    for first in range(0, DK, SLICE):
        dim = first + tl.arange(0, SLICE)
        key = tl.load(k + far[:, None] * k_row + source * k_head + dim[None, :], mask=real[:, None], other=0.0)
        query = tl.load(q + far[:, None] * q_row + source * q_head + dim[None, :], mask=real[:, None], other=0.0)
        key, query = key.to(tl.float32), query.to(tl.float32)
        keys_keys = tl.dot(key, tl.trans(key), keys_keys, input_precision=PRECISION)
        queries_keys = tl.dot(query, tl.trans(key), queries_keys, input_precision=PRECISION)
    between = tl.exp(tl.where(seen, path[:, None] - path[None, :], float("-inf")))
    read = queries_keys * between
    system = tl.where(i[:, None] > i[None, :], rate[:, None] * keys_keys * between, 0.0)
    solved = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for line in range(1, CHUNK):
        above = tl.sum(tl.where(i[:, None] == line, system, 0.0), axis=0)
        known = tl.sum(above[:, None] * solved, axis=0)
        solved = tl.where(i[:, None] == line, solved - known[None, :], solved)
    to = (chunk.to(tl.int64) * heads + head) * CHUNK * CHUNK + i[:, None] * CHUNK + i[None, :]
    tl.store(inverse + to, solved)
    tl.store(weights + to, read)
    tl.store(decay + far * heads + head, path, mask=real)


@triton.jit(do_not_specialize=["rows"])
def _scan(
    q: tensor, k: tensor, v: tensor, beta: tensor, state: tensor, inverse: tensor, weights: tensor, decay: tensor,
    out: tensor, after: tensor, rows: tensor, heads: tensor, shared: tensor, q_row: tensor, q_head: tensor,
    k_row: tensor, k_head: tensor, v_row: tensor, v_head: tensor,
    DK: constexpr, DV: constexpr, CHUNK: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
) -> None:  # fmt: skip
    """Program (value head, columns of the state): the chunks in order."""
    head = tl.program_id(0)
    source = head // shared
    i = tl.arange(0, CHUNK)
    dim = tl.arange(0, DK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    held = (column < DV)[None, :]
    spot = head * DK * DV + dim[:, None] * DV + column[None, :]
    s = tl.load(state + spot, mask=held, other=0.0)
    for first in range(0, rows, CHUNK):
        row = first + i
        real = row < rows
        far = row.to(tl.int64)
        path = tl.load(decay + far * heads + head, mask=real, other=0.0)
        last = tl.load(decay + tl.minimum(first + CHUNK, rows).to(tl.int64) * heads - heads + head)
        rate = tl.load(beta + far * heads + head, mask=real, other=0.0).to(tl.float32)
        key = tl.load(k + far[:, None] * k_row + source * k_head + dim[None, :], mask=real[:, None], other=0.0).to(
            tl.float32
        )
        value = tl.load(
            v + far[:, None] * v_row + head * v_head + column[None, :], mask=real[:, None] & held, other=0.0
        ).to(tl.float32)
        since = tl.where(real, tl.exp(path), 0.0)
        change = rate[:, None] * (value - since[:, None] * tl.dot(key, s, input_precision=PRECISION))
        square = (first // CHUNK * heads + head).to(tl.int64) * CHUNK * CHUNK + i[:, None] * CHUNK + i[None, :]
        change = tl.dot(tl.load(inverse + square), change, input_precision=PRECISION)
        query = tl.load(q + far[:, None] * q_row + source * q_head + dim[None, :], mask=real[:, None], other=0.0).to(
            tl.float32
        )
        read = since[:, None] * tl.dot(query, s, input_precision=PRECISION)
        read += tl.dot(tl.load(weights + square), change, input_precision=PRECISION)
        tl.store(out + (far[:, None] * heads + head) * DV + column[None, :], read, mask=real[:, None] & held)
        share = tl.where(real, tl.exp(last - path), 0.0)
        s = tl.exp(last) * s + tl.dot(tl.trans(key), share[:, None] * change, input_precision=PRECISION)
    tl.store(after + spot, s, mask=held)


def tree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    ancestors: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `_ops.gdn.tree`; up to 32 rows."""
    rows, heads, dv = v.shape
    dk = k.shape[2]
    out, u = _empty(v, (rows, heads, dv)), _empty(v, (rows, heads, dv))
    decay = _empty(v, (rows, heads))
    if rows == 0:
        return out, u, decay
    columns = min(COLUMNS, dv)
    q, k, v = _rowwise(q), _rowwise(k), _rowwise(v)
    _tree[(heads, triton.cdiv(dv, columns))](
        q, k, v, g.contiguous(), beta.contiguous(), state.contiguous(), ancestors.contiguous().view(torch.uint8),
        out, u, decay, rows, heads, heads // k.shape[1],
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        DK=dk, DV=dv, SLICE=min(SLICE, dk), ROWS=ROWS, COLUMNS=columns, PRECISION=WIDE_PRECISION, num_warps=4,
    )  # fmt: skip
    return out, u, decay


def commit(state: torch.Tensor, k: torch.Tensor, u: torch.Tensor, decay: torch.Tensor, path: Seq[int]) -> torch.Tensor:
    """See `_ops.gdn.commit`; a path of up to 32 rows."""
    if not len(path):
        return state
    heads, dk, dv = state.shape
    columns = min(COLUMNS, dv)
    state, k, u = state.contiguous(), _rowwise(k), _rowwise(u)
    after = torch.empty_like(state)
    _commit[(heads, triton.cdiv(dv, columns))](
        state, k, u, decay.contiguous(), torch.as_tensor(path, dtype=torch.int32, device=state.device), after,
        len(path), heads, heads // k.shape[1], k.stride(0), k.stride(1), u.stride(0), u.stride(1),
        DK=dk, DV=dv, ROWS=ROWS, COLUMNS=columns, PRECISION=WIDE_PRECISION, num_warps=4,
    )  # fmt: skip
    return after


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `_ops.gdn.chunked`; `chunk` is a power of two from 16 to 64."""
    rows, heads, dv = v.shape
    dk = k.shape[2]
    out = _empty(v, (rows, heads, dv))
    if rows == 0:
        return out, state
    q, k, v, state = _rowwise(q), _rowwise(k), _rowwise(v), state.contiguous()
    g, beta = g.contiguous(), beta.contiguous()
    chunks, columns, shared = triton.cdiv(rows, chunk), min(SCAN_COLUMNS, dv), heads // k.shape[1]
    inverse, weights = _empty(v, (chunks, heads, chunk, chunk)), _empty(v, (chunks, heads, chunk, chunk))
    decay, after = _empty(v, (rows, heads)), torch.empty_like(state)
    _prepare[(chunks, heads)](
        q, k, g, beta, inverse, weights, decay, rows, heads, shared,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        DK=dk, SLICE=min(SLICE, dk), CHUNK=chunk, PRECISION=WIDE_PRECISION, num_warps=4, num_stages=1,
    )  # fmt: skip
    _scan[(heads, triton.cdiv(dv, columns))](
        q, k, v, beta, state, inverse, weights, decay, out, after, rows, heads, shared,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        DK=dk, DV=dv, CHUNK=chunk, COLUMNS=columns, PRECISION=WIDE_PRECISION, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, after


def _empty(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _rowwise(x: torch.Tensor) -> torch.Tensor:
    """With the last dimension contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
