"""What a forward pass costs on this machine, by rows and context."""

from __future__ import annotations

import time

from tandem.core.plugin import Block, Model

CLASSES = (1024, 4096, 8192, 16384, 32768)
"""Context lengths (tokens) up to which prices are kept apart; longer ones share the last class."""


class Prices:
    """Seconds of a forward pass by rows and context class, measured on this machine and learned from every pass."""

    ROWS = (1, 2, 4, 8, 16, 32)
    WEIGHT = 0.1  # of a new observation
    OUTLIER = 3.0  # an observation counts as at most this many times the known price

    def __init__(self, first: dict[int, float]) -> None:
        self._tables: dict[int, dict[int, float]] = {CLASSES[0]: dict(first)}

    @classmethod
    def measured(cls, model: Model, repeats: int = 5) -> Prices:
        """Time passes of 1 to 32 rows on an empty sequence; the median of `repeats` each, after one to warm up."""
        sequence = model.new_sequence(min(model.caps.max_len, 64))
        table: dict[int, float] = {}
        try:
            for rows in cls.ROWS:
                if rows > model.caps.max_len:
                    break
                taken = []
                for _ in range(repeats + 1):
                    block = Block(sequence, [0] * rows, logits=range(rows))
                    start = time.perf_counter()
                    model.forward([block])
                    taken.append(time.perf_counter() - start)
                    sequence.commit([])
                table[rows] = sorted(taken[1:])[repeats // 2]
        finally:
            sequence.close()
        return cls(table)

    def price(self, rows: int, context: int) -> float:
        """Expected seconds of a pass of `rows` rows, linear between the measured counts."""
        table = self._table(context)
        known = sorted(table)
        low = max((r for r in known if r <= rows), default=known[0])
        high = min((r for r in known if r >= rows), default=known[-1])
        if low == high:
            return table[low] * max(1.0, rows / high)
        share = (rows - low) / (high - low)
        return table[low] + share * (table[high] - table[low])

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn from a real pass of exactly `rows` rows of one sequence."""
        table = self._table(context)
        known = table[rows] if rows in table else self.price(rows, context)
        taken = min(seconds, self.OUTLIER * known)
        if rows in table or rows <= 32:
            table[rows] = known + self.WEIGHT * (taken - known)

    def _table(self, context: int) -> dict[int, float]:
        upto = next((c for c in CLASSES if context <= c), CLASSES[-1])
        if upto not in self._tables:
            nearest = max(c for c in self._tables if c < upto) if any(c < upto for c in self._tables) else CLASSES[0]
            self._tables[upto] = dict(self._tables[nearest])
        return self._tables[upto]

    def report(self) -> dict[int, dict[int, float]]:
        """Context class -> rows -> milliseconds."""
        tables = list(self._tables.items())  # the engine's thread may add one meanwhile
        return {c: {r: round(s * 1e3, 3) for r, s in sorted(t.items())} for c, t in tables}
