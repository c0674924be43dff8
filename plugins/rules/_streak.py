"""The run of identical calls that a turn ends with, and of nearly identical ones."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tandem.core.plugin import PastCall

LONGEST = 4_000
"""Characters: where two texts differ in more than this, what lies between their differences counts as different."""


def run_length(calls: Seq[PastCall], wait_s: float) -> int:
    """How many calls at the end of `calls`, a turn's, are one and the same: tool, arguments, and result.

    A call whose result took `wait_s` seconds or longer was a wait, as for a job that is polled, and ends the run; so
    does one without a result. Time: the run's length.
    """
    if not calls:
        return 0
    last, count = calls[-1], 0
    for call in reversed(calls):
        if call.key != last.key or call.result != last.result or not _counts(call, wait_s):
            break
        count += 1
    return count


def near_run(calls: Seq[PastCall], wait_s: float, count: int, alike: float) -> bool:
    """Whether the last `count` calls are of one tool with one result, and the arguments of each of them are at least
    `alike` similar to the newest's."""
    last = calls[-count:]
    if len(last) < count or not all(_counts(call, wait_s) for call in last):
        return False
    newest = last[-1]
    return all(
        call.name == newest.name and call.result == newest.result and is_similar(call.written, newest.written, alike)
        for call in last[:-1]
    )


def _counts(call: PastCall, wait_s: float) -> bool:
    return call.result is not None and (call.seconds is None or call.seconds < wait_s)


def is_similar(a: str, b: str, alike: float) -> bool:
    """Whether `similarity(a, b)` is at least `alike`, without computing it where lengths already tell."""
    longest = max(len(a) + len(b), 1)
    if 2 * min(len(a), len(b)) / longest < alike and a != b:
        return False
    return similarity(a, b) >= alike


def similarity(a: str, b: str) -> float:
    """2 * LCS / (len(a) + len(b)), with LCS the length of the longest common subsequence: 1 for equal texts, 0 for two
    that share no character.

    A common beginning and end are always part of a longest common subsequence, so only what lies between is compared;
    where that is longer than `LONGEST` in both, it counts as different.
    """
    if a == b:
        return 1.0
    start = _common(a, b)
    a_rest, b_rest = a[start:], b[start:]
    end = _common(a_rest[::-1], b_rest[::-1])
    a_rest, b_rest = a_rest[: len(a_rest) - end], b_rest[: len(b_rest) - end]
    middle = 0 if min(len(a_rest), len(b_rest)) > LONGEST else lcs(a_rest, b_rest)
    return 2 * (start + end + middle) / (len(a) + len(b))


def _common(a: str, b: str) -> int:
    """The length of the common beginning, by bisection: each comparison is one of whole slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def lcs(a: str, b: str) -> int:
    """The length of the longest common subsequence, bit-parallel: one step per character of the longer text, on an
    integer with a bit per character of the shorter (Hyyro 2004, "Bit-parallel LCS-length computation revisited").

    `row` has a 0 at bit i where the dynamic programme's row grows between columns i and i + 1.
    """
    a, b = sorted((a, b), key=len)
    places: dict[str, int] = {}
    for i, char in enumerate(a):
        places[char] = places.get(char, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for char in b:
        matches = row & places.get(char, 0)
        row = (row + matches) | (row - matches)
        row &= everything
    return len(a) - row.bit_count()
