"""What a pass costs on this machine, by context class and rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import exp, isfinite, log

CLASSES = (1024, 4096, 8192, 16384, 32768)
"""Context lengths (rows) up to which prices are kept apart; longer ones share the last class."""
MAX_ROWS = 32
"""Prices are learned up to this many rows; beyond them the last slope goes on."""


def context_class(context: int) -> int:
    """The class, by its upper end, that a context of so many rows belongs to."""
    return CLASSES[min(bisect_left(CLASSES, context), len(CLASSES) - 1)]


class Cell:
    """One price: seconds at unit speed, how many passes taught it, and the number of the last one."""

    __slots__ = ("last", "passes", "seconds")

    def __init__(self, seconds: float, passes: float = 0.0, last: int = 0) -> None:
        self.seconds = seconds
        self.passes = passes
        self.last = last


class Prices:
    """Seconds of a pass of `rows` rows: `speed * curve(class)[rows]`.

    A machine that becomes slower does so for every width, seen or not, so what a pass of a well-known width teaches
    goes mostly to the `speed` that all cells share. A width that few passes or no recent ones had is itself what is
    not known: there the error goes to the cell. Errors are taken as logarithms and bounded, so that a hiccup, however
    long it was, moves the speed by at most `COMMON * BOUND` (2.5 %), which no choice of a width depends on, and a
    well-known cell by `OWN * BOUND` (0.4 %) more.

    A curve is the cells of a class made monotone (a pass never gets cheaper with more rows; isotonic regression,
    weighted by passes) and interpolated. A class without cells of its own has those of the nearest one.
    """

    OWN, COMMON = 0.015, 0.1
    """The parts of an error that a well-known cell, and the speed, take."""
    AGED = 0.002
    """The part that a cell takes more for each pass since its own last one; at most one half in all."""
    BOUND, FIRST_BOUND = 0.25, 1.1
    """Bounds of an error (natural logarithm), and those for a cell with fewer than `FEW` passes."""
    FEW = 4
    TRUST = 50.0
    """Passes beyond which a cell weighs no more in the regression."""
    EVERY = 8
    """Passes after which a curve is drawn anew."""

    def __init__(self, first: Mapping[int, float], passes: float = 25.0) -> None:
        """`first`: rows -> seconds on a short context, each standing for so many passes."""
        if not first:
            raise ValueError("prices need at least one measured pass")
        self.speed = 1.0
        self.observed = 0
        """Passes learned from, in this process."""
        self._cells: dict[int, dict[int, Cell]] = {
            CLASSES[0]: {rows: Cell(seconds, passes) for rows, seconds in sorted(first.items())}
        }
        self._curves: dict[int, list[float]] = {}
        self._stale: dict[int, int] = {}

    # --------------------------------------------------------------------------------------------------- asking

    def price(self, rows: int, context: int) -> float:
        """Expected seconds of a pass of `rows` rows with `context` rows committed."""
        return self.speed * self.at(self.curve(context_class(context)), rows)

    def curve(self, kind: int) -> list[float]:
        """Prices at unit speed of 0 to `MAX_ROWS` rows in the context class `kind`; no rows cost nothing."""
        known = self._curves.get(kind)
        if known is None:
            known = self._curves[kind] = self._draw(self._cells_of(kind))
        return known

    @staticmethod
    def at(curve: list[float], rows: int) -> float:
        """The price of any number of rows: beyond the curve its last eight rows' slope goes on."""
        last = len(curve) - 1
        if rows <= last:
            return curve[rows]
        return curve[last] + (rows - last) * (curve[last] - curve[last - 8]) / 8

    def _cells_of(self, kind: int) -> dict[int, Cell]:
        if kind in self._cells:
            return self._cells[kind]
        return self._cells[min(self._cells, key=lambda known: (abs(CLASSES.index(known) - CLASSES.index(kind)), known))]

    def _draw(self, cells: dict[int, Cell]) -> list[float]:
        rows = sorted(cells)
        levels = isotonic([cells[r].seconds for r in rows], [min(cells[r].passes, self.TRUST) + 1.0 for r in rows])
        curve = [0.0] * (MAX_ROWS + 1)
        at = 0
        for r in range(1, MAX_ROWS + 1):
            while at < len(rows) - 1 and rows[at + 1] <= r:
                at += 1
            if r <= rows[0]:
                curve[r] = levels[0]
            elif at == len(rows) - 1:
                curve[r] = self._beyond(rows, levels, r)
            else:
                share = (r - rows[at]) / (rows[at + 1] - rows[at])
                curve[r] = levels[at] + share * (levels[at + 1] - levels[at])
        return curve

    @staticmethod
    def _beyond(rows: list[int], levels: list[float], r: int) -> float:
        """Past the widest cell: its last slope goes on; with one cell alone, as if each row cost the same."""
        if len(rows) == 1:
            return levels[0] * r / rows[0]
        return levels[-1] + (r - rows[-1]) * (levels[-1] - levels[-2]) / (rows[-1] - rows[-2])

    def since_plain(self, context: int) -> int:
        """Passes learned from since the last one of a single row in this context's class."""
        cell = self._cells_of(context_class(context)).get(1)
        return self.observed - cell.last if cell is not None else self.observed

    # -------------------------------------------------------------------------------------------------- learning

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn from a pass of exactly `rows` rows of one sequence."""
        if not 1 <= rows <= MAX_ROWS or not seconds > 0:
            return
        kind = context_class(context)
        cells = self._cells.get(kind)
        if cells is None:
            # What another class taught is a good guess and no more: a few passes may overrule it.
            cells = {
                r: Cell(cell.seconds, min(cell.passes, 8.0), self.observed) for r, cell in self._cells_of(kind).items()
            }
            self._cells[kind] = cells
        cell = cells.get(rows)
        if cell is None:
            cell = cells[rows] = Cell(self.curve(kind)[rows])
            self._stale[kind] = self.EVERY
        new = cell.passes < self.FEW
        bound = self.FIRST_BOUND if new else self.BOUND
        error = min(bound, max(-bound, log(seconds / (self.speed * cell.seconds))))
        own = max(self.OWN, 1.0 / (cell.passes + 2.0), min(0.5, self.AGED * (self.observed - cell.last)))
        cell.seconds *= exp(own * error)
        cell.passes += 1.0
        self.observed += 1
        cell.last = self.observed
        if not new:
            self.speed *= exp(self.COMMON * (1.0 - own) * error)
        stale = self._stale.get(kind, 0) + 1
        if stale >= self.EVERY or new:
            self._curves.pop(kind, None)
            stale = 0
        self._stale[kind] = stale

    # --------------------------------------------------------------------------------------------- to and from JSON

    def report(self) -> dict[str, dict[str, float]]:
        """Context class -> rows -> milliseconds, for people."""
        return {
            str(kind): {str(rows): round(cell.seconds * self.speed * 1e3, 3) for rows, cell in sorted(cells.items())}
            for kind, cells in self._copy()
        }

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        """Context class -> rows -> [seconds, passes]."""
        return {
            str(kind): {str(rows): [cell.seconds * self.speed, cell.passes] for rows, cell in sorted(cells.items())}
            for kind, cells in self._copy()
        }

    def _copy(self) -> list[tuple[int, dict[int, Cell]]]:
        # copied in one step each, because the engine's thread may add a cell meanwhile
        return [(kind, dict(cells)) for kind, cells in sorted(dict(self._cells).items())]

    @classmethod
    def from_json(cls, stored: object) -> Prices:
        """Raises ValueError for anything that `to_json` could not have written."""
        if not isinstance(stored, dict) or not stored:
            raise ValueError("holds no prices")
        tables: dict[int, dict[int, Cell]] = {}
        for kind, table in stored.items():
            if kind not in map(str, CLASSES) or not isinstance(table, dict) or not table:
                raise ValueError(f"has a context class {kind!r} that is none of {', '.join(map(str, CLASSES))}")
            tables[int(kind)] = {int(rows): _cell(rows, value) for rows, value in table.items()}
        prices = cls({1: 1.0})
        prices._cells = tables
        return prices


def _cell(rows: object, value: object) -> Cell:
    numbers = value if isinstance(value, list) else []
    right = (
        isinstance(rows, str)
        and rows.isdecimal()
        and 1 <= int(rows) <= MAX_ROWS
        and len(numbers) == 2
        and all(isinstance(number, int | float) and isfinite(number) for number in numbers)
        and numbers[0] > 0
        and numbers[1] >= 0
    )
    if not right:
        raise ValueError(f"has the price {value!r} for {rows!r} rows, where [seconds, passes] belongs")
    # the machine may be in another mood than when the file was written: old passes weigh little
    return Cell(float(numbers[0]), min(float(numbers[1]), 40.0))


def isotonic(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence (weighted least squares) that never falls, by pooling neighbours that do."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            mean, more, members = pools.pop()
            value = (value * weight + mean * more) / (weight + more)
            weight, count = weight + more, count + members
        pools.append((value, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]
