"""Which images of a long conversation stay in its prompt."""

from __future__ import annotations


class Keeping:
    """Chooses the oldest images to leave out, so that the others fit under two caps: a count and a sum of prompt rows.

    Images go in whole steps of half the count cap, counted from the conversation's start. Between two steps a growing
    conversation changes nothing before its newest messages, so the caches find the prompt's head again. The newest
    message's images always stay; the caller has checked that they fit on their own.

    The rows of an image are known only after it was looked at, so the choice takes them one after another, newest
    first, and asks for no image that it can already do without. It depends on the conversation alone.
    """

    def __init__(self, total: int, newest: int, *, max_images: int, room: int) -> None:
        """`total` images, the last `newest` of them in the newest message; `room` rows are left for the earlier."""
        self._earlier = total - newest
        self._step = max(1, max_images // 2)
        self._room = room
        self.left_out = self._whole_steps(max(0, total - max_images))
        """How many images, counted from the start, are left out as far as is known."""
        self._next = self._earlier - 1

    def ask(self, rows_at_most: int) -> range:
        """The indices of the images to look at next, newest first; empty when the choice is made.

        As many as are sure to fit when each takes `rows_at_most`, and always one; so looking at them together looks
        at none that looking at them one by one would have spared.
        """
        count = max(1, self._room // rows_at_most)
        return range(self._next, max(self.left_out - 1, self._next - count), -1)

    def weigh(self, rows: int) -> None:
        """The next image takes so many rows. When they don't fit, it and everything older is left out."""
        if rows > self._room:
            self.left_out = max(self.left_out, self._whole_steps(self._next + 1))
        self._room -= rows
        self._next -= 1

    def _whole_steps(self, count: int) -> int:
        return min(-(-count // self._step) * self._step, self._earlier)
