"""What an answer cost: the `usage` and `timings` objects."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from tandem.core.engine.request import PlacedPicture, Stats


def usage(stats: Seq[Stats], prompts: int = 1, images: Seq[PlacedPicture] = ()) -> dict[str, Any]:
    """The counts of all choices. They stand prompt by prompt: `len(stats) / prompts` choices of each.

    A prompt counts once however many answers it has, and so do its cached tokens. `images` are those of the one prompt:
    each of their rows is a prompt token, and `image_tokens` says how many that are when there are any. What the client
    did not send is counted in `hidden_tokens` alone.
    """
    first = stats[:: len(stats) // prompts]
    hidden = sum(choice.hidden_prompt_tokens for choice in first)
    prompt = sum(choice.prompt_tokens for choice in first) - hidden
    completion = sum(choice.completion_tokens for choice in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(choice.cached_tokens - choice.hidden_cached_tokens for choice in first),
            **({"hidden_tokens": hidden} if hidden else {}),
            **({"image_tokens": sum(placed.picture.rows for placed in images)} if images else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in stats)},
    }


def timings(stats: Stats, total_ms: float) -> dict[str, Any]:
    """Where the time of one answer went, in milliseconds, under the names that local servers share.

    `prompt_n` are the prompt tokens that were read, `cache_n` those that were not because a cache held their state.
    `predicted_per_second` leaves the first token out: it comes with the prompt's last row, not with a step of its own.
    """
    forwarded = stats.prompt_tokens - stats.cached_tokens
    predicted = stats.completion_tokens
    numbers: dict[str, Any] = {
        "cache_n": stats.cached_tokens,
        "prompt_n": forwarded,
        "prompt_ms": stats.prefill_ms,
        "prompt_per_token_ms": _ratio(stats.prefill_ms, forwarded),
        "prompt_per_second": _ratio(forwarded * 1e3, stats.prefill_ms),
        "predicted_n": predicted,
        "predicted_ms": stats.decode_ms,
        "predicted_per_token_ms": _ratio(stats.decode_ms, predicted),
        "predicted_per_second": _ratio((predicted - 1) * 1e3, stats.decode_ms) if predicted else None,
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.draft_accepted,
        "ttft_ms": stats.queue_ms + stats.prefill_ms,
        "queue_ms": stats.queue_ms,
        "wait_own_ms": stats.wait_own_ms,
        "wait_mem_ms": stats.wait_mem_ms,
        "total_ms": total_ms,
        "blocks": stats.rounds,
        "tokens_per_block": _ratio(predicted, stats.rounds),
        "reasoning_n": stats.reasoning_tokens,
    }
    rounded = {name: round(value, 2) for name, value in numbers.items() if value is not None}
    return {**rounded, "cache_source": stats.cache_source}


def metrics(stats: Stats) -> dict[str, Any]:
    """The same answer's times under the names that other local servers use."""
    generated = stats.completion_tokens
    numbers: dict[str, Any] = {
        "time_to_first_token_ms": stats.queue_ms + stats.prefill_ms,
        "generation_time_ms": stats.decode_ms,
        "queue_time_ms": stats.queue_ms,
        "mean_itl_ms": _ratio(stats.decode_ms, generated - 1) if generated > 1 else None,
        "tokens_per_second": _ratio(generated * 1e3, stats.decode_ms),
    }
    rounded = {name: round(value, 2) for name, value in numbers.items() if value is not None}
    drafted = {
        "mean_acceptance_length": _ratio(generated, stats.rounds),
        "draft_acceptance_rate": _ratio(stats.draft_accepted, stats.draft_tokens),
    }
    shown = {name: round(value, 4) for name, value in drafted.items() if value is not None}
    return {**rounded, "speculative_decoding": shown}


def _ratio(over: float, under: float) -> float | None:
    """None where there is nothing to divide by: a number that does not exist is left out."""
    return over / under if under else None
