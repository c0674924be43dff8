"""Names for what the server sends: answers, and the calls in them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

NBYTES = 12
"""96 bits: nobody guesses one, and no two are ever equal."""
AT_ONCE = 256
"""Names for which the system is asked at once. A system call gives Python's lock away, and gets it back when the engine
lets go: that is too long a wait for every single name."""


class Ids:
    """Names that nobody can foresee. The id of a call is what a later request proves with that a turn is its own, so
    they come from the system's own source, and no part of that is used twice. Not thread-safe: lives on the event loop.
    """

    def __init__(self, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """`draw(n)` gives n random bytes."""
        self._draw = draw
        self._left = b""

    def new(self, prefix: str) -> str:
        """The prefix, and 24 hexadecimal digits."""
        if not self._left:
            self._left = self._draw(NBYTES * AT_ONCE)
        name, self._left = self._left[:NBYTES], self._left[NBYTES:]
        return f"{prefix}{name.hex()}"
