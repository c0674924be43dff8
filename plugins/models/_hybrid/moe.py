"""The sparse MLP: a router, the experts that it chooses for each row, and one expert that all rows share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import silu

from tandem.plugins.models._hybrid.weights import Experts

Linear = Callable[[torch.Tensor], torch.Tensor]


class SparseMoe:
    """`sum_e w_e expert_e(x) + sigmoid(shared_gate(x)) * shared(x)` over the `top_k` likeliest experts of each row.

    The weights w are the softmax over all experts, divided by the sum of the chosen ones where `normalise`.
    """

    def __init__(
        self,
        router: Linear,
        experts: Experts,
        shared: Linear,
        shared_gate: Linear,
        top_k: int,
        normalise: bool = True,
    ) -> None:
        """`router` gives a number for each expert, `shared_gate` one number; `shared` is a whole MLP."""
        self._router = router
        self._experts = experts
        self._shared = shared
        self._shared_gate = shared_gate
        self._top_k = top_k
        self._normalise = normalise

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[R, hidden]` to `[R, hidden]`."""
        weights, chosen = self.route(x)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        # The rows of one expert go through it together: sorted by expert, they are one run.
        sorted_experts, order = chosen.flatten().sort(stable=True)
        experts, counts = sorted_experts.unique_consecutive(return_counts=True)
        sizes = counts.tolist()
        runs = zip((order // self._top_k).split(sizes), weights.flatten()[order].split(sizes), strict=True)
        for expert, (rows, scales) in zip(experts.tolist(), runs, strict=True):
            gate, up = self._experts.read(expert, x[rows])
            out.index_add_(0, rows, self._experts.write(expert, silu(gate) * up).float() * scales[:, None])
        return (out + torch.sigmoid(self._shared_gate(x).float()) * self._shared(x).float()).to(x.dtype)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and numbers of each row's experts, `[R, top_k]` float32 and int64, the likeliest first."""
        odds = torch.softmax(self._router(x).float(), -1)
        weights, chosen = odds.topk(self._top_k, dim=-1)
        if self._normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
