"""Is the call that the model is writing in a loop?"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import OpenCall, text_of
from tandem.plugins.rules.argloop.repeats import Repeat, repeats_at_end

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OVERLAP = 128
"""A repeat reaches at least so many characters beyond its unit. Only texts whose last OVERLAP characters occur a second
time shortly before are looked at closely, which spares nearly every check the rest."""
FAR = 1 << 17
"""A loop is followed so many characters back; further copies are not counted."""
SAMPLE = 4096
"""So many characters of a long stretch are encoded to know its tokens; the rest is taken to be alike."""
SQUEEZED = 16_384
"""The size rule looks at so many bytes."""
PER_TOKEN = 3.5
"""Characters that a token of a message is taken to have."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What was found. `unit` and `copies` are 0 when the size rule found it."""

    tokens: int
    """Of the call so far."""
    unit: int = 0
    copies: int = 0


def periodic(call: OpenCall, params: Mapping[str, Any], tokens: Callable[[str], int]) -> Loop | None:
    """The end of the call is one piece again and again: `copies` times over `tokens` tokens, or, when it has
    `long_unit` characters or more, `long_copies` times over `long_tokens` tokens.

    `tokens` counts those of a text.
    """
    if not _seen_before(call.tail(params["longest_unit"] + OVERLAP)):
        return None
    text = call.tail(FAR)
    for repeat in repeats_at_end(text, _needed(params)):
        least = _least_tokens(repeat, params)
        stretch = text[-repeat.length :]
        # A token is a byte at least, so most stretches are too short without being encoded.
        if least <= min(call.tokens, len(stretch.encode(errors="surrogatepass"))) and _size(stretch, tokens) >= least:
            return Loop(call.tokens, repeat.unit, repeat.copies)
    return None


def oversized(call: OpenCall, params: Mapping[str, Any], longest: int) -> Loop | None:
    """The call is longer than anything that could have asked for it, and its end is nearly the same all along.

    For loops that count something up as they go, so that no two copies are equal. `longest` is the length of the
    request's longest message in characters.
    """
    if call.tokens <= max(params["size_tokens"], params["size_ratio"] * longest / PER_TOKEN):
        return None
    end = call.tail(SQUEEZED).encode(errors="surrogatepass")[-SQUEEZED:]
    alike = len(end) / len(zlib.compress(end, 1)) >= params["size_squeeze"]
    return Loop(call.tokens) if alike and len(end) == SQUEEZED else None


def _seen_before(tail: str) -> bool:
    back = tail[::-1]  # so that the search goes from the end and stops at the nearest place
    return len(back) > OVERLAP and back.find(back[:OVERLAP], 1) >= 0


def _needed(params: Mapping[str, Any]) -> NDArray[np.int64]:
    """For each unit, from 1 character on, the characters that have to repeat it."""
    import numpy as np

    units = np.arange(1, params["longest_unit"] + 1)
    long_copies = np.where(units >= params["long_unit"], params["long_copies"], params["copies"])
    needed: NDArray[np.int64] = np.maximum(np.minimum(long_copies, params["copies"]) * units, units + OVERLAP)
    return needed


def _least_tokens(repeat: Repeat, params: Mapping[str, Any]) -> float:
    """How many tokens make the repeat a loop."""
    short = params["tokens"] if repeat.copies >= params["copies"] else math.inf
    long = repeat.unit >= params["long_unit"] and repeat.copies >= params["long_copies"]
    return min(short, params["long_tokens"]) if long else short


def _size(stretch: str, tokens: Callable[[str], int]) -> float:
    """About how many tokens a stretch that repeats itself has."""
    sample = stretch[-SAMPLE:]
    return tokens(sample) * len(stretch) / len(sample)


def longest_message(messages: Seq[Mapping[str, Any]]) -> int:
    """Characters of the longest message, its calls included."""
    return max(map(_characters, messages), default=0)


def _characters(message: Mapping[str, Any]) -> int:
    calls = message.get("tool_calls") or ()
    return len(text_of(message)) + sum(len(str((call.get("function") or {}).get("arguments", ""))) for call in calls)
