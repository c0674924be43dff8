"""The round: draft, verify, walk, commit, for every running sequence in one joint pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence as Seq
from functools import partial
from typing import TypeVar

import torch

from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.placing import nodes_each
from tandem.core.plugin import Block, Model

log = logging.getLogger("tandem.engine")
T = TypeVar("T")


@torch.inference_mode()
def run_round(
    model: Model,
    generations: Seq[Generation],
    chunk: int | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> None:
    """One step for each generation, `chunk` tokens for one that reads its prompt (None = its own chunk).

    Afterwards each has new events, and some may be done. Those of a token without drafts are there before the pass that
    reads it, and `before_pass` may hand them out. Prefill chunks, plain steps and draft trees are all blocks of rows,
    so they share the pass that reads the weights. A model that can't join blocks is passed them one at a time. Those
    who write have an equal share of its rows (`nodes_each`), and a tree that is larger is cut to it.
    """
    work: list[tuple[Generation, Block]] = []
    rows = 0
    writing = sum(not generation.reading for generation in generations)
    nodes = nodes_each(writing)
    for generation in generations:
        block = _guarded(generation, partial(generation.next_block, rows, nodes, chunk))
        if block is not None:
            work.append((generation, block))
            rows += len(block.tokens)
    before_pass()
    passes = [work] if model.caps.joint and work else [[one] for one in work]
    for joined in passes:
        start = time.perf_counter()
        decoding = joined[0][0].phase is Phase.DECODE
        context = joined[0][0].sequence.length
        logits = model.forward([block for _, block in joined])
        for (generation, block), wanted in zip(joined, logits, strict=True):
            _guarded(generation, partial(generation.take, block, wanted))
        if decoding and len(joined) == 1:
            joined[0][0].observe(len(joined[0][1].tokens), context, time.perf_counter() - start)


def _guarded(generation: Generation, step: Callable[[], T]) -> T | None:
    """What goes wrong inside one generation (a format's parser, say) ends that one alone."""
    try:
        return step()
    except Exception as error:
        log.exception("a generation failed")
        generation.fail(f"the answer could not go on: {error}")
        return None
