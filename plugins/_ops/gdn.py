"""The gated delta rule (Gated DeltaNet) over chains and trees, and the causal convolution before it.

One value head keeps a matrix S `[dk, dv]` and reads a row as

    S <- exp(g) S;   S <- S + k (x) beta (v - k^T S);   o = q^T S

Shapes, for T rows: q, k `[T, nk, dk]`, l2-normalised, q scaled besides; v `[T, nv, dv]`; g (log of the decay, <= 0)
and beta `[T, nv]` float32; state `[nv, dk, dv]` float32. Value head h reads key head `h // (nv / nk)`. All sums are
float32.

Many rows at once: with c_i the sum of g along row i's path (its own included) and D_ij = exp(c_i - c_j), what row j
adds to the state is k_j (x) u_j, decayed by D_ij when its descendant i looks. So the u of all rows solve

    u_i + beta_i sum_{j above i} D_ij (k_i . k_j) u_j = beta_i (v_i - exp(c_i) k_i^T S0),

a unit triangular system where parents come before children, and no row's state is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from tandem.plugins._ops import tree as trees

L2_EPS = 1e-6


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """`x / sqrt(sum(x^2) + 1e-6)` over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule as it is written, row by row: out `[T, nv, dv]` float32 and the state after the last row."""
    q, k, v = _by_head(q, v.shape[1]), _by_head(k, v.shape[1]), _by_head(v, v.shape[1])
    out = torch.empty_like(v)
    for row in range(v.shape[1]):
        key = k[:, row, :, None]
        state = state * g[row].exp()[:, None, None]
        change = beta[row][:, None] * (v[:, row] - (key * state).sum(1))
        state = state + key * change[:, None, :]
        out[:, row] = (q[:, row, :, None] * state).sum(1)
    return out.transpose(0, 1), state


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule over a chain, `chunk` rows at a time: out `[T, nv, dv]` float32 and the state after the last row."""
    outs = []
    for start in range(0, len(v), chunk):
        part = slice(start, min(start + chunk, len(v)))
        size = part.stop - start
        out, u, decay = tree(q[part], k[part], v[part], g[part], beta[part], state, trees.chain(size, v.device))
        state = commit(state, k[part], u, decay, range(size))
        outs.append(out)
    return torch.cat(outs), state


def tree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    ancestors: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rule along every path of a tree; the state is left as it is.

    `ancestors` is `[T, T]` bool: row i descends from row j, parents before children. Returns out `[T, nv, dv]`, what
    each row adds to the state, u `[T, nv, dv]`, and the log of the decay from the committed state to each row,
    `[T, nv]`; all float32.
    """
    heads = v.shape[1]
    seen = ancestors | torch.eye(len(ancestors), dtype=torch.bool, device=ancestors.device)
    decay = seen.float() @ g.float()
    q, k, v = _by_head(q, heads), _by_head(k, heads), _by_head(v, heads)  # [nv, T, .]
    path, rate = decay.t(), beta.t()[:, :, None].float()
    between = (path[:, :, None] - path[:, None, :]).masked_fill(~seen, float("-inf")).exp()  # D, 0 off the paths
    system = (rate * (k @ k.transpose(1, 2)) * between).masked_fill(~ancestors, 0.0)
    since = path[:, :, None].exp()
    u = torch.linalg.solve_triangular(system, rate * (v - since * (k @ state)), upper=False, unitriangular=True)
    out = since * (q @ state) + ((q @ k.transpose(1, 2)) * between) @ u
    return out.transpose(0, 1), u.transpose(0, 1), decay


def commit(
    state: torch.Tensor, k: torch.Tensor, u: torch.Tensor, decay: torch.Tensor, path: Seq[int] | torch.Tensor
) -> torch.Tensor:
    """The state after the rows `path` of a tree, out of what `tree` returned; the state itself for an empty path."""
    if not len(path):
        return state
    rows = torch.as_tensor(path, device=u.device)
    passed = decay[rows]
    last = passed[-1]
    keys = _by_head(k[rows], u.shape[1])
    added = _by_head(u[rows] * (last - passed).exp()[:, :, None], u.shape[1])
    return last.exp()[:, None, None] * state + keys.transpose(1, 2) @ added


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """`[T, n, d]` -> `[heads, T, d]` float32; each of the n heads stands for `heads / n` in a row."""
    x = x.float().transpose(0, 1)
    return x if x.shape[0] == heads else x.repeat_interleave(heads // x.shape[0], dim=0)


# ------------------------------------------------------------------------------------------------------ convolution


def conv(
    x: torch.Tensor,
    tail: torch.Tensor,
    weight: torch.Tensor,
    lineage: torch.Tensor | None = None,
    dilation: int = 1,
) -> torch.Tensor:
    """Causal depthwise convolution of rows `[T, C]`, each along its own path; of the type of `x`, summed in float32.

    `weight` is `[C, K]`, its last column for the row itself. `tail` holds the last `(K - 1) * dilation` committed
    rows, zeros where there were none. `lineage` (see `_ops.tree`) says which rows lie before each; None = a chain.
    """
    rows = torch.cat([tail.to(x.dtype), x]).float()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for tap in range(weight.shape[1]):
        back = tap * dilation
        taken = rows[back : back + len(x)] if lineage is None else rows[lineage[:, back]]
        out += taken * weight[:, tap].float()
    return out.to(x.dtype)


def conv_tail(x: torch.Tensor, tail: torch.Tensor, path: Seq[int] | torch.Tensor) -> torch.Tensor:
    """The tail after the rows `path` of the block: as many last rows as `tail` has, a copy."""
    span = len(tail)
    taken = torch.as_tensor(path[max(0, len(path) - span) :], dtype=torch.int64, device=x.device)
    return torch.cat([tail[len(taken) :], x[taken].to(tail.dtype)])
