"""The arm `repeat`: the newest tokens are one piece, written over and over, token for token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

STEP = 32
"""Tokens that are compared at a time: a loop is found at the first multiple of it."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The newest tokens are `copies` copies of a piece of `period` tokens."""

    period: int
    copies: int


class Repeats:
    """Finds the shortest piece, of at most `longest` tokens, that the newest tokens repeat.

    It counts as a loop when `copies` whole copies stand at the end, and at least `tokens` tokens of them. A text has
    the period p over its last r + p tokens when each of its last r tokens equals the one p before it. So one number for
    each p, how long that has held (`_run`), is all there is to remember; a step renews all of them in one pass of array
    arithmetic, in O(STEP * longest) whatever the text is.
    """

    def __init__(self, copies: int, tokens: int, longest: int) -> None:
        self._periods = np.arange(longest, 0, -1)
        self._wanted = np.maximum((copies - 1) * self._periods, tokens - self._periods)
        """By period: how many tokens must equal the one a period before."""
        self._run = np.zeros(longest, np.int64)
        self._before = np.full(longest, -1, np.int64)
        """The last `longest` tokens; -1 equals none."""
        self._waiting: list[int] = []

    def feed(self, tokens: Seq[int]) -> Repetition | None:
        """The loop that the text ends in at the last full step, once there is one."""
        self._waiting += tokens
        found = None
        while len(self._waiting) >= STEP:
            found = self._step(np.array(self._waiting[:STEP], np.int64))
            del self._waiting[:STEP]
        return found

    def _step(self, tokens: np.ndarray) -> Repetition | None:
        longest = len(self._periods)
        text = np.concatenate((self._before, tokens))
        # [longest, STEP]: row i is the text `longest - i` places before the new tokens
        same = sliding_window_view(text, STEP)[:longest] == tokens
        broken = same[:, ::-1].argmin(axis=1)  # how many of the newest are the same; 0 also when all are
        self._run = np.where(same.all(axis=1), self._run + STEP, broken)
        self._before = text[STEP:]
        looping = self._run >= self._wanted
        if not looping.any():
            return None
        place = int(np.flatnonzero(looping)[-1])
        period = int(self._periods[place])
        return Repetition(period, int(self._run[place]) // period + 1)
