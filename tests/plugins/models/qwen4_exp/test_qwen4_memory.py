"""What the memory gate counts for a request against what torch's allocator records while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate
from tandem.core.engine.round import run_round
from tandem.core.engine.sizes import Sizes
from tandem.testing.measure import peak_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_request_takes_more_than_was_counted(
    load4: Callable[..., Any], tiny4_folder: tuple[Path, Any], dtype: str
) -> None:
    """Short, longer than the indexer's budget, and long."""
    model = load4(tiny4_folder[0], dtype=dtype)
    for rows, chunk in ((40, 512), (400, 64), (3000, 512)):
        tokens = torch.randint(3, 290, (rows,), generator=torch.Generator().manual_seed(1)).tolist()
        request = Generate(tokens, 8)
        counted = Sizes.of(model.facts, chunk, model.tokenizer.vocab_size).of_request(request).total

        def work() -> None:
            generation = Generation(request, model, prefill_chunk=chunk)  # noqa: B023
            while generation.phase is not Phase.DONE:
                run_round(model, [generation])

        taken = peak_bytes(work)
        assert taken <= counted
        assert rows < 400 or counted < 6 * taken, "a count that is far too high refuses what would fit"
