"""The exactly repeating end of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BASE = 0x9E3779B97F4A7C15
"""The hash's multiplier; odd, so that no power of it vanishes modulo 2 ** 64."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The last `length` characters of a text, each equal to the one `unit` characters before it."""

    unit: int
    length: int

    @property
    def copies(self) -> int:
        """Whole copies."""
        return self.length // self.unit


def repeats_at_end(text: str, needed: NDArray[np.int64]) -> Iterator[Repeat]:
    """The ways in which the end of `text` repeats itself, the shortest unit first.

    A unit of u characters counts when at least `needed[u - 1]` (more than u) characters repeat it, and when it reaches
    further back than every shorter one: so a unit of several equal parts is never told beside the part itself.

    All units are tried at once, by the text's rolling hash (Karp and Rabin 1987) modulo 2 ** 64; what it finds is
    compared character by character. The cost depends on `needed`, not on how long the text is.
    """
    reach = 0
    for unit in _candidates(text[-int(needed.max()) :], needed):
        least = max(int(needed[unit - 1]), reach + 1)
        if least <= len(text) and repeated(text, unit, least):
            reach = _length(text, unit, least)
            yield Repeat(unit, reach)


def _candidates(text: str, needed: NDArray[np.int64]) -> list[int]:
    """Units of which the hash says that the end of `text` repeats them over the length that they need.

    With c the characters from the end on, B the base and P[i] = sum over j < i of c[j] * B ** j, the piece from i to k
    has the hash P[k] - P[i]; the last k - u characters are equal to those u before when
    P[k] - P[u] = B ** u * P[k - u].
    """
    import numpy as np

    units = np.arange(1, len(needed) + 1)[needed <= len(text)]
    spans = needed[units - 1]
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)[::-1].astype(np.uint64)
    powers = np.multiply.accumulate(np.concatenate(([np.uint64(1)], np.full(len(codes), BASE, np.uint64))))
    sums = np.concatenate(([np.uint64(0)], np.cumsum(codes * powers[:-1], dtype=np.uint64)))
    equal = sums[spans] - sums[units] == powers[units] * sums[spans - units]
    found: list[int] = units[equal].tolist()
    return found


def repeated(text: str, unit: int, length: int) -> bool:
    """Whether the last `length` characters of `text` repeat a unit of `unit` characters."""
    start = len(text) - length
    return text[start : len(text) - unit] == text[start + unit :]


def _length(text: str, unit: int, known: int) -> int:
    """How many characters at the end repeat the unit, when `known` are known to: first in doubling steps, then by
    halving the last of them."""
    beyond = min(2 * known, len(text))
    while known < beyond and repeated(text, unit, beyond):
        known, beyond = beyond, min(2 * beyond, len(text))
    while beyond - known > 1:
        middle = (known + beyond) // 2
        known, beyond = (middle, beyond) if repeated(text, unit, middle) else (known, middle)
    return known
