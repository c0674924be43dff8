"""The output head: from the last rows to logits."""

from __future__ import annotations

import torch

from tandem.plugins.models._hybrid.weights import DenseLinear, Linear


class OutputHead:
    """Rows of the layers' number type to float32 logits.

    Logits near 20 lie 0.125 apart in bfloat16, which would make ties of tokens that are none, so they are not rounded
    to it on the way.
    """

    def __init__(self, matrix: Linear) -> None:
        self._matrix = matrix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[n, hidden]` to `[n, vocab]` float32, on the device of `x`."""
        if not isinstance(self._matrix, DenseLinear):
            return self._matrix(x.float())
        weight = self._matrix.weight
        if weight.dtype == torch.float32:
            return torch.nn.functional.linear(x.float(), weight)
        x = x.to(weight.dtype)
        if weight.is_cuda:
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        # The product is summed in float32 and rounded to bfloat16; one that starts from the negated first result
        # returns what the rounding took off.
        rounded = torch.mm(x, weight.t())
        rest = torch.addmm(rounded.neg(), x, weight.t())
        return rounded.float() + rest.float()
